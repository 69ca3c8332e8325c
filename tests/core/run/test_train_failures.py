"""What a run does when something is wrong: one clear line, and nothing acknowledged lost."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from listening import Listener
from recorded import assert_same_recording, metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run import build as build_module
from echoscope.core.run import train as train_module
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.assemble import with_advantages
from echoscope.core.update.learners.alone import Learner
from echoscope.envs.base import EnvError
from echoscope.store.checkpoints import checkpoint_path
from echoscope.store.errors import NotARunError, RunBusyError, RunExistsError
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

MakeConfig = Callable[..., RunConfig]


# -- starts that cannot work ---------------------------------------------------------------------


def test_a_run_that_cannot_fit_the_memory_is_refused_before_anything_is_written(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "free_bytes", lambda device: 1_000_000)
    with pytest.raises(ConfigError, match=r"needs at least \d+ MiB of memory.*model\.path"):
        start(make_config(), tmp_path / "run", SilentEvents())
    assert not (tmp_path / "run").exists()


# -- steps that cannot train ---------------------------------------------------------------------


def test_an_empty_selection_skips_the_update_and_says_so(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Without shaping every reply is invalid, so all returns are equal and no group has signal."""
    listener = Listener()
    config = make_config(
        "reward.shaping=[]", "selection.strategy=top_p", "steps=2", "checkpoint.every=1"
    )
    assert start(config, tmp_path / "run", listener) == "finished"
    assert metric(tmp_path / "run", "selection/is_empty") == {1: 1.0, 2: 1.0}
    assert metric(tmp_path / "run", "optim/num_updates") == {1: 0.0, 2: 0.0}
    assert math.isnan(metric(tmp_path / "run", "loss/policy")[1])
    assert any(text.startswith("step 1: no update, empty: ") for text in listener.messages)
    weights = [
        (checkpoint_path(tmp_path / "run", step) / "model" / "model.safetensors").read_bytes()
        for step in (1, 2)
    ]
    assert weights[0] == weights[1]
    outcome = open_run(tmp_path / "run").outcome("t00000001-00000")
    assert outcome is not None
    assert not outcome.kept
    assert outcome.drop_reason == "reward_std of the group is zero"
    assert all(
        t.policy_version == 0
        for t in open_run(tmp_path / "run").trajectory("t00000002-00000").turns
    )


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Steps whose advantages are NaN."""
    steps: set[int] = set()
    original, count = with_advantages, 0

    def poisoned(batch: Any, config: Any, unpacked: Any) -> Any:
        nonlocal count
        count += 1
        made = original(batch, config, unpacked)
        if count in steps:
            made.advantages.fill_(math.nan)
        return made

    monkeypatch.setattr(train_module, "with_advantages", poisoned)
    return steps


def test_a_nan_gradient_is_skipped_counted_and_said(
    make_config: MakeConfig, tmp_path: Path, poison: set[int]
) -> None:
    poison |= {2}
    listener = Listener()
    assert start(make_config(), tmp_path / "run", listener) == "finished"
    assert metric(tmp_path / "run", "optim/num_skipped") == {1: 0, 2: 1, 3: 0, 4: 0}
    assert math.isnan(metric(tmp_path / "run", "optim/grad_norm")[2])
    assert [text for text in listener.messages if "updates skipped" in text] == [
        "step 2: 1 of 1 updates skipped, the gradient was NaN or infinite (1 such steps in a row)"
    ]
    turns = open_run(tmp_path / "run").trajectory("t00000004-00000").turns
    assert turns[0].policy_version == 2  # of three earlier steps, two moved the weights


@pytest.mark.long
def test_too_many_nan_gradients_in_a_row_end_the_run(
    make_config: MakeConfig, tmp_path: Path, poison: set[int]
) -> None:
    poison |= {2, 3, 4, 5, 6}
    listener = Listener()
    config = make_config("steps=9", "checkpoint.every=1")
    assert start(config, tmp_path / "run", listener) == "failed"
    info = open_run(tmp_path / "run").info()
    assert (info.status, info.last_step) == ("failed", 6)
    assert listener.messages[-1] == (
        "stopped: 5 steps in a row had a NaN or infinite gradient; lower optim.lr and resume from "
        "the last checkpoint"
    )
    # One more such step after resuming is still too many: the count is part of the state.
    poison |= {7}
    assert resume(tmp_path / "run", SilentEvents()) == "failed"


# -- what cannot start ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("model.path=./nowhere", ConfigError, r"no model folder '\./nowhere'"),
        ("model.path=tinyy", ConfigError, "no model folder 'tinyy'; did you mean 'tiny'"),
        ("envs.train.0.env=frozenlake", EnvError, "no environment 'frozenlake'.*frozen_lake"),
        ("envs.eval.0.env=nowhere:World", EnvError, "cannot import 'nowhere'"),
        ("envs.train.0.params.sise=3", EnvError, "sise"),
        ("envs.train.0.params.size=-3", EnvError, "size"),
        ("reward.shaping.0.function=letters:nothing", ConfigError, "has no function 'nothing'"),
        ("from_run=./nowhere", NotARunError, "nowhere"),
        ("context.max_prompt_tokens=4000", ConfigError, "but the model has 2048 positions"),
    ],
)
def test_what_cannot_start_leaves_nothing_behind(
    make_config: MakeConfig, tmp_path: Path, override: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        start(make_config(override), tmp_path / "run", SilentEvents())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_in_use_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunExistsError, match="is not an empty folder"):
        start(make_config(), tmp_path, SilentEvents())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_resuming_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotARunError):
        resume(tmp_path, SilentEvents())
    with pytest.raises(NotARunError):
        resume(tmp_path / "nowhere", SilentEvents())


def test_a_second_trainer_is_refused_in_one_line(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("steps=1")
    start(config, tmp_path / "run", SilentEvents())
    with RunWriter.resume(tmp_path / "run", from_step=1):
        before = (tmp_path / "run" / "journal.ndjson").read_bytes()
        with pytest.raises(RunBusyError, match="another process is writing this run") as caught:
            resume(tmp_path / "run", SilentEvents(), settings={"steps": 2})
        assert "\n" not in str(caught.value)
        assert (tmp_path / "run" / "journal.ndjson").read_bytes() == before


@pytest.mark.long
def test_an_error_in_the_middle_leaves_a_failed_run_that_can_go_on(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("checkpoint.every=1")
    start(config, tmp_path / "whole", SilentEvents())

    def explode(*args: object, **kwargs: object) -> None:
        raise OSError("the machine is on fire")

    with monkeypatch.context() as patched:
        calls = 0
        original = Learner.update

        def third_time(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return explode() if calls == 3 else original(*args)

        patched.setattr(Learner, "update", third_time)
        with pytest.raises(OSError, match="on fire"):
            start(config, tmp_path / "run", SilentEvents())
    info = open_run(tmp_path / "run").info()
    assert (info.status, info.last_step) == ("failed", 2)
    assert resume(tmp_path / "run", SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", tmp_path / "run")


# -- a full disk ---------------------------------------------------------------------------------


def _train_with_small_files(config: RunConfig, path: Path, limit: int, errors: Any) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        start(config, path, SilentEvents())
    except OSError as error:
        errors.put(str(error))
    else:
        errors.put("finished")


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "every", "message"),
    [
        (200_000, 2, "cannot write the checkpoint of step 0"),  # weights are larger than a step
        (24_000, 0, "writing failed"),
    ],
)
def test_a_full_disk_is_one_line_and_loses_nothing_acknowledged(
    make_config: MakeConfig, tmp_path: Path, limit: int, every: int, message: str
) -> None:
    config = make_config("steps=6", f"checkpoint.every={every}")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["echoscope.core.run.launch"])
    errors = context.Queue()
    process = context.Process(
        target=_train_with_small_files, args=(config, tmp_path / "run", limit, errors)
    )
    process.start()
    text = errors.get(timeout=120)
    process.join()
    assert message in text
    assert "\n" not in text
    assert verify(tmp_path / "run").problems == ()
    assert not list(tmp_path.rglob("*.partial"))
    assert open_run(tmp_path / "run").info().status in ("failed", "crashed")
    # With room again the run goes on, and ends as if nothing had happened.
    assert resume(tmp_path / "run", SilentEvents()) == "finished"
    start(config, tmp_path / "whole", SilentEvents())
    assert_same_recording(tmp_path / "whole", tmp_path / "run")
