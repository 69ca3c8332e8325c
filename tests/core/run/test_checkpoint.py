"""Checkpoints: whole or absent, bit for bit, and readable by others."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import Bench, make_bench
from made_run import add_steps, open_writer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from whole_files import flip_a_bit

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run import checkpoint as checkpoint_module
from echoscope.core.run.checkpoint import (
    CheckpointError,
    TrainState,
    begin_checkpoint,
    list_checkpoints,
    load_weights,
    read_state,
    remove_checkpoints,
)
from echoscope.core.run.keeping import Checkpoints
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.learners import alone as alone_module
from echoscope.core.update.update import update
from echoscope.store.checkpoints import (
    checkpoint_damage,
    checkpoint_path,
    checkpoint_step,
    write_checkpoint_manifest,
)
from echoscope.store.models import shipped_folder
from echoscope.store.reader import open_run
from echoscope.store.records import REQUESTED, CheckpointRecord
from echoscope.store.writer import RunWriter

MakeConfig = Callable[..., RunConfig]
VARIANTS = {
    "full": (),
    "lora": ("model.lora={rank: 4, alpha: 8}",),
    "head": ("critic.kind=head", "advantage.kind=gae"),
    "own_model": ("critic.kind=model", "advantage.kind=gae"),
    "bfloat16": ("model.dtype=bfloat16",),
    "bfloat16_lora_head": (
        "model.dtype=bfloat16",
        "model.lora={rank: 4, alpha: 8}",
        "critic.kind=head",
        "advantage.kind=gae",
    ),
}


def save(bench: Bench, path: Path, step: int = 1, reason: str = "test") -> CheckpointRecord:
    state = TrainState(step=step, policy_version=bench.policy.version, config=bench.config)
    return begin_checkpoint(path, state, bench.learner, bench.chat.tokenizer, reason=reason)()


@pytest.fixture(scope="module")
def bench(make_config: MakeConfig) -> Bench:
    return make_bench(make_config())


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_and_optimizer_come_back_bit_for_bit(
    make_config: MakeConfig, tmp_path: Path, variant: str
) -> None:
    config = make_config("optim.lr=1e-2", *VARIANTS[variant])
    first, two = make_bench(config), make_bench(config)
    batches = [first.batch(step) for step in (1, 2, 3)]
    for step in (1, 2):
        update(first.policy, first.optimizer, batches[step - 1], config, step)
    save(first, tmp_path, step=2)
    load_weights(checkpoint_path(tmp_path, 2), two.learner)
    assert two.policy.version == first.policy.version == 2
    for bench in (first, two):
        update(bench.policy, bench.optimizer, batches[2], config, 3)
    expected, loaded = first.weights(), two.weights()
    assert expected.keys() == loaded.keys()
    for name, weight in expected.items():
        assert torch.equal(loaded[name], weight), name
    states = first.optimizer.state_tensors(), two.optimizer.state_tensors()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[1][name], tensor) for name, tensor in states[0].items())


def test_the_state_comes_back(bench: Bench, tmp_path: Path) -> None:
    state = TrainState(
        step=12,
        policy_version=34,
        config=bench.config.model_copy(update={"steps": 99}),
        num_nonfinite=2,
        observers={"monitor": {"mean": [1.5, None]}},
    )
    begin_checkpoint(tmp_path, state, bench.learner, bench.chat.tokenizer, reason="x")()
    assert read_state(checkpoint_path(tmp_path, 12)) == state


def test_the_record_says_what_was_written(bench: Bench, tmp_path: Path) -> None:
    record = save(bench, tmp_path, step=7, reason="schedule")
    folder = tmp_path / record.path
    assert folder == checkpoint_path(tmp_path, 7)
    assert record.num_bytes == sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert (record.step, record.reason, record.is_deleted) == (7, "schedule", False)


def test_a_removed_checkpoint_is_on_record(bench: Bench, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(bench, tmp_path, step=step)
    records = remove_checkpoints(tmp_path, {1, 7})
    assert [(r.step, r.is_deleted, r.path) for r in records] == [
        (1, True, "checkpoints/step_000001")
    ]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_000002", "step_000003"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_000002",
        "step_000003",
    ]


def test_what_a_crash_left_is_no_checkpoint_and_is_cleared(bench: Bench, tmp_path: Path) -> None:
    save(bench, tmp_path, step=1)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step_000001", folder / ".step_000002.partial")
    shutil.copytree(folder / "step_000001", folder / ".step_000009.partial")
    shutil.copytree(folder / "step_000001", folder / "step_000000")
    # Deleting renames first, so a crash leaves no such folder: it is somebody's, and stays.
    (folder / "step_000000" / "state.json").unlink()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_000001"]
    save(bench, tmp_path, step=2)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("step_000000", "step_000001", "step_000002"),
    ]


def test_saving_again_replaces(bench: Bench, tmp_path: Path) -> None:
    save(bench, tmp_path, step=1)
    stray = checkpoint_path(tmp_path, 1) / "stray"
    stray.write_text("x", encoding="utf-8")
    save(bench, tmp_path, step=1)
    assert not stray.exists()
    assert len(list_checkpoints(tmp_path)) == 1


def test_anyone_can_load_the_model_folder(bench: Bench, tmp_path: Path) -> None:
    save(bench, tmp_path)
    folder = checkpoint_path(tmp_path, 1) / "model"
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = dict(bench.policy.model.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in loaded.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "<think>up</think> and down"
    assert tokenizer(text)["input_ids"] == bench.chat.tokenizer(text)["input_ids"]


def test_adapters_are_saved_alone(make_config: MakeConfig, tmp_path: Path) -> None:
    save(make_bench(make_config(*VARIANTS["lora"])), tmp_path)
    folder = checkpoint_path(tmp_path, 1) / "model"
    assert (folder / "adapter_model.safetensors").is_file()
    assert not list(folder.glob("model*.safetensors"))


def test_adapters_of_another_base_are_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    """A base of the same shape with other weights: nothing but its digest tells."""
    base = Path(shutil.copytree(shipped_folder("tiny"), tmp_path / "base"))
    config = make_config(f"model.path={base}", *VARIANTS["lora"])
    save(make_bench(config), tmp_path)
    weights = load_file(base / "model.safetensors")
    save_file({name: 2 * w for name, w in weights.items()}, base / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    other = make_bench(config)
    with pytest.raises(ConfigError, match="trained on other weights than") as caught:
        load_weights(checkpoint_path(tmp_path, 1), other.learner)
    assert "\n" not in str(caught.value)


def test_no_pickle_anywhere(make_config: MakeConfig, tmp_path: Path) -> None:
    save(make_bench(make_config(*VARIANTS["own_model"])), tmp_path)
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".jinja", ".md"}


# -- a disk that refuses --------------------------------------------------------------------------


def refuse(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device"),
        OSError(28, "No space left on device"),
        Exception("No space left on device"),  # what the tokenizers library raises
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_older_ones(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    save(bench, tmp_path, step=1)
    if type(error) is Exception:
        monkeypatch.setattr(bench.chat.tokenizer, "save_pretrained", refuse(error))
    else:
        monkeypatch.setattr(alone_module, "save_file", refuse(error))
    with pytest.raises(CheckpointError) as caught:
        save(bench, tmp_path, step=2)
    assert "cannot write the checkpoint of step 2 (" in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000001"]


# -- what reaches the disk beside the next steps ---------------------------------------------------


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    writer = open_writer(tmp_path / "run")
    add_steps(writer, "run", range(1, 3))
    yield writer
    writer.close(status="finished")


def begun(bench: Bench, writer: RunWriter, step: int) -> Checkpoints:
    """A checkpoint whose files are written."""
    checkpoints = Checkpoints(writer, pytest.fail)
    state = TrainState(step=step, policy_version=step, config=bench.config)
    checkpoints.save(state, bench.learner, bench.chat.tokenizer, reason="schedule")
    return checkpoints


def recorded(run_path: Path) -> list[int]:
    return [record.step for record in open_run(run_path).checkpoints()]


def test_a_slow_disk_delays_no_step_and_nobody_sees_a_checkpoint_before_it_is_whole(
    bench: Bench, writer: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, is_written = tmp_path / "run", threading.Event()
    plain = checkpoint_module.write_checkpoint_manifest

    def slow(folder: Path, **values: Any) -> None:
        assert is_written.wait(60)
        plain(folder, **values)

    monkeypatch.setattr(checkpoint_module, "write_checkpoint_manifest", slow)
    checkpoints = begun(bench, writer, step=1)
    checkpoints.settle()  # as each step does: it does not wait
    assert (checkpoints.saved_step, list_checkpoints(run), recorded(run)) == (1, [], [])
    is_written.set()
    checkpoints.settle(waits=True)
    assert ([*map(checkpoint_step, list_checkpoints(run))], recorded(run)) == ([1], [1])
    assert not checkpoint_damage(checkpoint_path(run, 1))


def test_the_next_checkpoint_waits_for_the_one_before(
    bench: Bench, writer: RunWriter, tmp_path: Path
) -> None:
    checkpoints = begun(bench, writer, step=1)
    state = TrainState(step=2, policy_version=2, config=bench.config)
    checkpoints.save(state, bench.learner, bench.chat.tokenizer, reason="schedule")
    assert recorded(tmp_path / "run") == [1]
    checkpoints.keep_for_good(2)
    records = open_run(tmp_path / "run").checkpoints()
    assert [(record.step, record.reason) for record in records][-1] == (2, REQUESTED)


def test_a_disk_that_is_full_when_nobody_waits_ends_the_run_at_the_next_step(
    bench: Bench, writer: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = refuse(OSError(28, "No space left on device"))
    monkeypatch.setattr(checkpoint_module, "write_checkpoint_manifest", full)
    checkpoints = begun(bench, writer, step=2)
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 2 .*No space"):
        checkpoints.settle(waits=True)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert recorded(tmp_path / "run") == []


# -- damage --------------------------------------------------------------------------------------


def test_a_folder_that_is_no_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a checkpoint: it has no readable state\.json"):
        read_state(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[]", "{}", '{"format_version": 1}', "null"])
def test_a_damaged_state_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_state(tmp_path)


def test_a_newer_format_is_refused(bench: Bench, tmp_path: Path) -> None:
    save(bench, tmp_path)
    path = checkpoint_path(tmp_path, 1) / "state.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"format_version": 4}), encoding="utf-8")
    (path.parent / "MANIFEST.json").unlink()
    write_checkpoint_manifest(path.parent, step=1, run_id=None)
    with pytest.raises(ConfigError, match="format 4, but this Echoscope reads format 3"):
        read_state(path.parent)


@pytest.mark.parametrize(
    "name", ["optimizer.safetensors", "critic.safetensors", "model/model.safetensors"]
)
@pytest.mark.parametrize("damage", ["cut", "missing", "another"])
def test_a_damaged_file_is_one_line(
    make_config: MakeConfig, tmp_path: Path, name: str, damage: str
) -> None:
    bench = make_bench(make_config(*VARIANTS["head"]))
    update(bench.policy, bench.optimizer, bench.batch(), bench.config, 1)
    save(bench, tmp_path)
    path = checkpoint_path(tmp_path, 1) / name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "missing":
        path.unlink()
    else:
        names = ["critic.safetensors", "optimizer.safetensors"]
        shutil.copy(path.parents[name.count("/")] / names[name == names[0]], path)
    with pytest.raises(ConfigError) as caught:
        load_weights(checkpoint_path(tmp_path, 1), bench.learner)
    assert "step_000001" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "model/model.safetensors",
        "model/config.json",
        "model/tokenizer.json",
        "optimizer.safetensors",
        "critic.safetensors",
        "state.json",
        "MANIFEST.json",
    ],
)
@pytest.mark.parametrize("damage", ["bit", "missing"])
def test_a_changed_bit_or_a_missing_file_is_refused_and_names_the_next_older_checkpoint(
    make_config: MakeConfig, tmp_path: Path, name: str, damage: str
) -> None:
    bench = make_bench(make_config(*VARIANTS["head"]))
    update(bench.policy, bench.optimizer, bench.batch(), bench.config, 1)
    save(bench, tmp_path, step=1)
    save(bench, tmp_path, step=2)
    path = checkpoint_path(tmp_path, 2) / name
    if damage == "bit":
        flip_a_bit(path)
    else:
        path.unlink()
    before = {key: value.clone() for key, value in bench.weights().items()}
    with pytest.raises(ConfigError) as caught:
        load_weights(path.parents[name.count("/")], bench.learner)
    assert all(torch.equal(before[key], value) for key, value in bench.weights().items())
    if (name, damage) != ("state.json", "missing"):  # that folder is no checkpoint at all
        assert f"{name} " in str(caught.value)
    assert f"echoscope train --resume {tmp_path} --checkpoint 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_next_older_checkpoint_is_one_that_is_whole(bench: Bench, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(bench, tmp_path, step=step)
    for step in (2, 3):
        flip_a_bit(checkpoint_path(tmp_path, step) / "model/model.safetensors")
    with pytest.raises(ConfigError, match="--checkpoint 1`"):
        load_weights(checkpoint_path(tmp_path, 3), bench.learner)
    flip_a_bit(checkpoint_path(tmp_path, 1) / "optimizer.safetensors")
    with pytest.raises(ConfigError, match="no older checkpoint to go back to"):
        load_weights(checkpoint_path(tmp_path, 3), bench.learner)


def test_the_manifest_is_written_before_the_checkpoint_has_its_name(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    rename = Path.rename

    def watch(self: Path, target: Path) -> Path:
        seen.append((self / "MANIFEST.json").is_file())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watch)
    save(bench, tmp_path)
    assert seen == [True]
    assert checkpoint_damage(checkpoint_path(tmp_path, 1)) == ""


def test_a_file_put_into_the_model_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    """The libraries below would load adapters or code that somebody put there."""
    save(bench, tmp_path)
    (checkpoint_path(tmp_path, 1) / "notes.txt").write_text("mine", encoding="utf-8")
    assert checkpoint_damage(checkpoint_path(tmp_path, 1)) == ""
    (checkpoint_path(tmp_path, 1) / "model/adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model/adapter_config\.json was not there"):
        load_weights(checkpoint_path(tmp_path, 1), bench.learner)


def test_another_steps_checkpoint_under_this_name_is_refused(bench: Bench, tmp_path: Path) -> None:
    save(bench, tmp_path, step=1)
    checkpoint_path(tmp_path, 1).rename(checkpoint_path(tmp_path, 4))
    with pytest.raises(ConfigError, match="it is the checkpoint of step 1"):
        read_state(checkpoint_path(tmp_path, 4))


def test_folders_of_people_among_the_checkpoints_are_left_alone(tmp_path: Path) -> None:
    from echoscope.core.run import checkpoint

    folder = tmp_path / "checkpoints"
    for name in ("step_000012", "step_000012.bak", "step_mine", ".step_000013.partial"):
        (folder / name).mkdir(parents=True)
    for name in ("step_000012", "step_000012.bak"):
        (folder / name / "state.json").write_text("{}")
    assert checkpoint.list_checkpoints(tmp_path) == [folder / "step_000012"]
    checkpoint._clear_remains(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("step_000012", "step_000012.bak", "step_mine"),
    ]


def test_a_run_with_slow_steps_writes_checkpoints_by_time(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Every step takes longer than a millionth of a minute."""
    config = make_config(
        *("steps=2", "checkpoint.every=0", "checkpoint.minutes=0.000001"),
        *("checkpoint.keep=9", "checkpoint.best=false"),
    )
    start(config, tmp_path / "run", SilentEvents())
    records = [(each.step, each.reason) for each in open_run(tmp_path / "run").checkpoints()]
    assert records == [(1, "time"), (2, "time")]
