"""Every command and every Python block of README and docs works as it is written."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from click.testing import CliRunner
from typer.core import TyperGroup

import echoscope
from echoscope.cli import app
from echoscope.core.config.loading import load_config, override, parse_override
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents

ROOT = Path(echoscope.__file__).resolve().parent
PAGES = [
    ROOT / "examples" / "narrators" / "README.md",
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
]
OPTIONAL = re.compile(r"^\[(\w+)\]$")
"""`[ROOT]`"""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

RUNS_FOR_REAL = {
    *("diagnose", "query", "whatif", "report", "models list", "runs list", "import", "export"),
    *(
        "envs list",
        "envs show",
        "plugins list",
        "envs play",
        "config show",
        "config schema",
        "ctl status",
        "ctl alarms",
    ),
}
"""Commands of seconds. All others are parsed, and their settings are checked against the schema."""
ELSEWHERE = ("wandb:", "s3://", "reasoning_gym", "textarena")
"""Words of commands that need a server, or packages of an extra."""
ONLY_PARSED = {
    "demo": "trains for three minutes",
    "eval": "plays hundreds of episodes: tests/cli/test_evaluate_cli.py",
    "train": "trains for minutes",
    "dashboard": "serves until Ctrl-C",
    "watch": "follows files until Ctrl-C",
    "mirror": "needs the packages of the sinks: make test-sinks",
    "envs serve": "serves until Ctrl-C",
    "preflight": "plays a whole step",
    "bench collapse": "takes minutes",
    "bench cures": "reads no run: tests/cli/test_bench_cli.py",
    "cure": "trains branches: make test-cure, tests/cli/test_cure_cli.py",
    "envs check": "takes half a minute for all environments",
    "plugins check": "needs the page's own code: test_plugins_page.py",
    "models get": "downloads 93 MB",
    "runs copy": "needs a bucket: make test-s3",
    "runs catalog": "needs DuckLake: make test-s3",
    "notify test": "needs an address of the reader",
    "sft generate": "plays thousands of episodes",
    "sft train": "trains for minutes",
    "sft merge": "needs trained adapters",
    "ctl set": "needs a live trainer",
    "ctl pause": "needs a live trainer",
    "ctl resume": "needs a live trainer",
    "ctl stop": "needs a live trainer",
    "ctl branch": "trains",
}
ONLY_IMPORTED = {
    "recorder.md": "needs a training loop of the reader: tests/recorder runs its blocks in one",
    "sinks.md": "needs wandb: make test-sinks",
    "gradients.md": "needs a policy and the rollouts of a step in memory",
    "text.md": "the second block needs a model and a tokenizer in memory",
}
NEEDS_WEIGHTS = ("--checkpoint", "--model")
"""`diagnose` with these scores a run for half a minute."""
VERDICT_CODES = {"diagnose": {0, 3, 5}}
RENAMED = {
    "policy/entropy": "ent",
    "rollout/action_valid_frac": "bad",
    "info/first_turn/dependence": "mi_share",
    "info/first_turn/retrieval_accuracy@1": "retrieved",
}
"""Names of columns of `m.csv`, the file of a trainer with names of its own."""


@dataclass(frozen=True, kw_only=True)
class Line:
    page: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.arguments)}"


def _blocks(*languages: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language in languages:
                yield page.name, text


def _lines(program: str) -> list[Line]:
    lines = []
    for page, text in _blocks("", "bash"):
        for line in text.splitlines():
            arguments = (
                shlex.split(line.removeprefix("$ "), comments=True) if program in line else []
            )
            if arguments and arguments[0] == program:
                lines.append(
                    Line(
                        page=page,
                        arguments=tuple(OPTIONAL.sub(r"\1", word) for word in arguments[1:]),
                    )
                )
    return lines


COMMANDS = _lines("echoscope")
command_tree = cache(typer.main.get_command)


@dataclass(frozen=True, kw_only=True)
class Parsed:
    name: str
    params: dict[str, Any]


@cache
def recording_commands() -> tuple[Any, list[Parsed]]:
    """The commands, each of which only notes that it was called; and the notes."""
    calls: list[Parsed] = []

    def replace(command: Any, path: tuple[str, ...]) -> None:
        if isinstance(command, TyperGroup):
            for name, child in command.commands.items():
                replace(child, (*path, name))
        else:
            command.callback = lambda **params: calls.append(
                Parsed(name=" ".join(path), params=params)
            )

    top = typer.main.get_command(app)
    replace(top, ())
    return top, calls


@cache  # the names of tests need it, in every process that collects them
def parse(arguments: tuple[str, ...]) -> Parsed:
    """What the command line would call, without calling it."""
    top, calls = recording_commands()
    calls.clear()
    answer = CliRunner().invoke(top, list(arguments))
    assert answer.exit_code == 0, answer.output
    (call,) = calls
    return call


@pytest.fixture(scope="module")
def folder(make_config: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the names that the pages use exist: a run of three steps, and files."""
    folder = tmp_path_factory.mktemp("docs")
    run = folder / "runs" / "RUN"
    config = make_config(
        "steps=3",
        "envs.train.0.groups=4",
        "eval.before=false",
        "eval.every=0",
        "selection.strategy=top_p",
        "selection.value=0.9",
        "diagnostics.enabled=false",
    )
    start(config, run, SilentEvents())
    for name in ("demo", "sokoban-1", "my-run"):
        (folder / "runs" / name).symlink_to(run)
    (folder / "RUN").symlink_to(run)
    (folder / "diagnostics").symlink_to(ROOT / "diagnostics")
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "tests").symlink_to(ROOT / "tests")
    curve = (ROOT / "diagnostics/bench/runs/collapse-format/seed0.csv").read_text(encoding="utf-8")
    (folder / "metrics.csv").write_text(curve)
    renamed = curve
    for key, name in RENAMED.items():
        renamed = renamed.replace(key, name, 1)
    (folder / "m.csv").write_text(renamed)
    log = [f"step:{step} - reward:{0.01 * step:.2f} - entropy:0.5" for step in range(40)]
    (folder / "train.log").write_text("\n".join(log))
    return folder


@pytest.mark.long
def test_every_command_is_run_or_has_a_reason() -> None:
    named = {parse(line.arguments).name for line in COMMANDS}
    assert named <= RUNS_FOR_REAL | ONLY_PARSED.keys()


@pytest.mark.parametrize("line", COMMANDS, ids=str)
def test_every_option_and_setting_of_a_command_exists(line: Line) -> None:
    call = parse(line.arguments)
    overrides = [*(call.params.get("overrides") or ()), *(call.params.get("settings") or ())]
    if call.name in ("train", "preflight", "demo", "config show"):
        recipe = call.params.get("recipe") or "demo"
        if "=" in recipe:  # `train --resume RUN KEY=VALUE`
            recipe, overrides = "demo", [recipe, *overrides]
        load_config(recipe, overrides=overrides)
    elif call.name.startswith("ctl"):
        override(load_config("frozen_lake"), overrides)
    for word in call.params.get("set_") or ():
        assert parse_override(word)[0].startswith("selection.")


@pytest.mark.docs
@pytest.mark.parametrize(
    "line",
    [
        line
        for line in COMMANDS
        if parse(line.arguments).name in RUNS_FOR_REAL
        and not set(line.arguments) & {*NEEDS_WEIGHTS}
        and not any(word.startswith(ELSEWHERE) for word in line.arguments)
        and "repl=build/lean" not in line.arguments  # needs what `make test-lean` unpacks
    ],
    ids=str,
)
def test_a_command_runs(line: Line, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = ["runs/RUN" if word == "runs/..." else word for word in line.arguments]
    if "--steps" in arguments:
        arguments[arguments.index("--steps") + 1] = "1:3"
    if arguments[0] == "report":
        arguments.append("--overwrite")
    answer = CliRunner().invoke(command_tree(app), arguments)
    codes = VERDICT_CODES.get(arguments[0], {0})
    assert answer.exit_code in codes, f"{answer.output}\n{answer.exception!r}"


@pytest.mark.parametrize("line", _lines("make"), ids=str)
def test_a_make_target_exists(line: Line) -> None:
    """They train, measure or test for minutes: make only says what it would do."""
    done = subprocess.run(
        ["make", "-n", *line.arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "source"), [*_blocks("python")], ids=lambda value: value.splitlines()[0][:40]
)
def test_a_python_block_runs(
    page: str, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    tree = ast.parse(source)
    if page in ONLY_IMPORTED:
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    module = types.ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(tree, page, "exec"), vars(module))
    imported = [
        a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names
    ]
    assert set(imported) <= vars(module).keys()


VERDICT = re.compile(r"<!-- verdict: (\S+) -->\n```text\n(.*?)```", re.DOTALL)
VERDICTS = {page.name: VERDICT.findall(page.read_text(encoding="utf-8")) for page in PAGES}


@pytest.mark.docs
@pytest.mark.parametrize(
    ("source", "text"),
    [verdict for verdicts in VERDICTS.values() for verdict in verdicts],
    ids=lambda value: value[:40],
)
def test_a_verdict_on_a_page_is_what_diagnose_prints(
    source: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    answer = CliRunner().invoke(typer.main.get_command(app), ["diagnose", source])
    assert " ".join(text.split()) in " ".join(answer.output.split())


def test_the_readme_shows_a_healthy_verdict_and_a_collapse() -> None:
    assert [text.split()[0] for _, text in VERDICTS["README.md"]] == ["healthy", "collapsing"]


def test_the_quickstart_shows_the_verdict_of_a_log_of_another_trainer() -> None:
    assert [text.split()[0] for _, text in VERDICTS["quickstart.md"]] == ["collapsed"]
