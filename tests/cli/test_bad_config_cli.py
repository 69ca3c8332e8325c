"""Wrong configurations: each is refused in one line before anything is written, and none hangs."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from echoscope.core.config.loading import (
    ConfigError,
    live_fields,
    load_config,
    override,
    parse_override,
)
from echoscope.core.config.settings import RunConfig
from echoscope.store.models import shipped_folder

Type = Callable[..., Any]
NESTED = "[" * 5_000 + "]" * 5_000

WRONG_WORDS = [
    "steps=1:30",
    "steps=yes",
    "steps=true",
    "steps='30'",
    "steps=0x",
    "steps=1_000",
    "steps=" + "9" * 401,
    "steps=" + "9" * 5_000,
    "steps=-" + "9" * 400,
    "steps=1e400",
    "steps=.nan",
    "steps=[3]",
    "steps={a: 1}",
    "steps=null",
    "steps=",
    "eval.before=yes",
    "eval.before=1",
    "context.reasoning=on",
    "optim.lr=1e39",
    "optim.lr=.inf",
    "optim.betas=[2,2]",
    "optim.betas=[yes, no]",
    "optim.betas=[0.9]",
    "loss.clip_low=1e308",
    "loss.clip_high=1e39",
    "sampling.temperature=1e-40",
    "eval.temperature=1e-40",
    "threads=100000",
    "envs.train.0.groups=1000000000",
    "envs.group_size=1000000000",
    "envs.train.0.groups=90000",
    "diagnostics.information.prompts=1000000000",
    "diagnostics.text.max_chars=1e9",
    "model.lora={rank: 1000000}",
    "model.lora={target_modules: [nosuch]}",
    "model.lora={target_modules: []}",
    "model.path=/nowhere",
    "model.path=\x01",
    'reward.shaping=[{name: x, function: "os:system"}]',
    'reward.shaping=[{name: x, function: "os:nosuch"}]',
    'reward.shaping=[{name: x, function: ".:x"}]',
    'reward.shaping=[{name: x, function: "math:hypot"}]',
    f"envs.train={NESTED}",
    f"{'a.' * 200}b=1",
    "envs.train=[&a [*a]]",
    "optim.lr=*missing",
    "optim.lr=!!python/object/apply:os.system [true]",
    "optim={lr: 1, lr: 2}",
    "context.system=\udcff",
    "name=\udcff",
    "name=../up",
    "seed=-1",
    "seed=1e30",
    "from_run=/nowhere",
    "branched_from={run_id: x, step: 1}",
    "critic=1",
    "loss={}x",
    "=3",
    "steps",
]

WRONG_FILES = {
    "bomb": "a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "own anchor": "envs: &a {train: *a}",
    "nested": "envs: " + NESTED,
    "nested blocks": "".join(f"{' ' * depth}a:\n" for depth in range(500)),
    "large": "# " + "x" * 300_000,
    "many": "envs: [" + "1," * 30_000 + "]",
    "keys": "extends: demo\n1: 2",
    "twice": "extends: demo\nsteps: 3\nsteps: 4",
    "tag": "steps: !!python/name:os.system",
    "null": "steps: \x00",
    "digits": "extends: demo\nsteps: " + "1" * 4_400,
    "date": "extends: demo\nsteps: 2001-01-01",
    "set": "extends: demo\nsteps: !!set {1}",
    "binary": "extends: demo\nsteps: !!binary x",
}


def check_refusal(answer: Any, path: Path) -> None:
    """One line, exit code 1, nothing on the disk. A traceback would not have come this far."""
    assert answer.code == 1, answer
    assert answer.err.startswith("error: "), answer.err
    assert answer.err.count("\n") == 1
    assert len(answer.err) < 1_500
    assert not path.exists()


@pytest.mark.parametrize("word", WRONG_WORDS, ids=lambda word: ascii(word)[:40])
def test_a_wrong_word_is_refused_in_one_line(word: str, tmp_path: Path, type_command: Type) -> None:
    path = tmp_path / "run"
    arguments = ["demo", "eval.before=false", word] if word != "steps" else ["demo", word]
    check_refusal(type_command("train", *arguments, "--headless", "-o", path), path)


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_refused_in_one_line(name: str, tmp_path: Path, type_command: Type) -> None:
    file, path = tmp_path / "wrong.yaml", tmp_path / "run"
    file.write_text(WRONG_FILES[name], encoding="utf-8")
    answer = type_command("train", "--config", file, "--headless", "-o", path)
    check_refusal(answer, path)


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "missing", "link loop", "not UTF-8"])
def test_what_is_no_file_is_refused_and_never_waited_for(
    kind: str, tmp_path: Path, type_command: Type
) -> None:
    file = tmp_path / "wrong.yaml"
    if kind == "device":
        file = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link loop":
        file.symlink_to(file)
    elif kind == "not UTF-8":
        file.write_bytes(b"steps: \xff")
    path = tmp_path / "run"
    answer = type_command("train", "--config", file, "--headless", "-o", path)
    check_refusal(answer, path)


@pytest.mark.parametrize("kind", ["link loop", "not UTF-8"])
def test_a_run_folder_that_cannot_be_one_is_refused(
    kind: str, tmp_path: Path, type_command: Type
) -> None:
    path = tmp_path / "run"
    if kind == "link loop":
        path.symlink_to(path)
    else:
        path = tmp_path / os.fsdecode(b"run\xff")
    for command in (("train", "demo", "--headless", "-o"), ("runs", "show"), ("ctl",)):
        rest = ("status",) if command == ("ctl",) else ()
        answer = type_command(*command, path, *rest)
        assert answer.code == 1, answer
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1
    assert kind == "link loop" or not path.exists()


def test_a_model_folder_with_code_is_refused_without_a_question(
    tmp_path: Path, type_command: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shipped_folder("tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("a question"))
    path = tmp_path / "run"
    answer = type_command("train", "demo", f"model.path={folder}", "--headless", "-o", path)
    check_refusal(answer, path)
    assert not (tmp_path / "ran").exists()


# -- made at random ------------------------------------------------------------------------------


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key to value of every setting."""
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        fields = (leaves(getattr(value, name), f"{prefix}{name}.") for name in names)
        return {key: leaf for below in fields for key, leaf in below.items()}
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return leaves(value[0], f"{prefix}0.")
    return {prefix[:-1]: value}


POISON = [
    "yes",
    "1:30",
    "'1'",
    "[[[]]]",
    "{a: {b: 1}}",
    "1e308",
    "-1e308",
    "9" * 300,
    "-" + "9" * 300,
    ".inf",
    ".nan",
    "2001-01-01",
    "0b11",
    "!!set {a}",
    '"\\uD800"',
]
NUMBERS = (bool, int, float)


def made_wrong() -> list[str]:
    rng = random.Random(9)
    settings = leaves(load_config("demo"))
    keys = [key for key, value in settings.items() if isinstance(value, NUMBERS)]
    return [f"{rng.choice(keys)}={rng.choice(POISON)}" for _ in range(140)]


def test_generated_wrong_settings_are_refused_without_a_traceback() -> None:
    config, refused = load_config("demo"), 0
    for word in dict.fromkeys(made_wrong()):
        with pytest.raises(ConfigError) as caught:
            override(config, [word])
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1_000
        refused += 1
    assert refused >= 100


def test_words_are_read_as_yaml_1_2() -> None:
    read = {
        "1e-4": 1e-4,
        "1E3": 1000.0,
        ".5": 0.5,
        "0x1f": 31,
        "0o17": 15,
        "017": 17,
        "true": True,
        "no": "no",
        "1:30": "1:30",
        "~": None,
        "": None,
        "[1, 2.5, on]": [1, 2.5, "on"],
    }
    assert {text: parse_override(f"k={text}")[1] for text in read} == read


# -- bounds of what may change live --------------------------------------------------------------


def test_every_live_number_has_a_lower_and_an_upper_bound() -> None:
    for kind in ("clip", "gspo", "cispo"):
        schema = json.loads(json.dumps(live_schema_of(kind)))
        for key, rules in schema.items():
            if rules.get("type") in ("integer", "number"):
                assert {"minimum", "exclusiveMinimum"} & rules.keys(), key
                assert {"maximum", "exclusiveMaximum"} & rules.keys(), key


def live_schema_of(kind: str) -> dict[str, Any]:
    from echoscope.core.config.loading import live_schema

    return live_schema(load_config("bandit", overrides=[f"loss.kind={kind}"]))


@pytest.mark.parametrize(
    "word", ["loss.clip_high=1e39", "optim.lr=1e39", "sampling.temperature=1e-40", "steps=1e30"]
)
def test_a_live_setting_out_of_range_is_rejected(word: str) -> None:
    from echoscope.core.config.loading import apply_settings

    key, value = parse_override(word)
    assert key in live_fields()
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        apply_settings(load_config("bandit"), {key: value})


def test_the_schema_bounds_every_number_of_a_run() -> None:
    """A number without an upper bound is how a run of a billion groups begins."""
    open_ended = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            is_number = node.get("type") in ("integer", "number")
            if is_number and not {"maximum", "exclusiveMaximum"} & node.keys():
                open_ended.append(path)
            for key, below in node.items():
                walk(below, f"{path}.{key}")
        elif isinstance(node, list):
            for below in node:
                walk(below, path)

    walk(RunConfig.model_json_schema(), "")
    assert open_ended == []
