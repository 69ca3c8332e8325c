"""The loop on a real run: it learns, repeats itself bit for bit, and fails in one line."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from echoscope.core import train as train_module
from echoscope.core.checkpoint import checkpoint_path, list_checkpoints
from echoscope.core.config import RunConfig
from echoscope.core.config_loading import ConfigError
from echoscope.core.events import SilentEvents
from echoscope.core.observers import StepObservation
from echoscope.core.runs import new_run_path, resume, start
from echoscope.envs.base import EnvError
from echoscope.store.errors import NotARunError, RunBusyError, RunExistsError
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics
from echoscope.store.verify import verify
from echoscope.store.writer import RunWriter
from recorded import assert_same_recording, metric, recorded

MakeConfig = Callable[..., RunConfig]


class Listener(SilentEvents):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.phases: list[tuple[int, str]] = []
        self.seen: list[StepMetrics] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def phase(self, step: int, name: str) -> None:
        self.phases.append((step, name))

    def metrics(self, metrics: StepMetrics) -> None:
        self.seen.append(metrics)


# -- what a run does -----------------------------------------------------------------------------


def test_it_learns(make_config: MakeConfig, tmp_path: Path) -> None:
    """The reward is the share of lower-case letters, about 0.5 per episode at first, 2 at most."""
    config = make_config("steps=16", "optim.lr=1e-2", "eval.every=0", "checkpoint.every=0")
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    returns = metric(tmp_path / "run", "reward/return_mean")
    assert np.mean([returns[step] for step in (13, 14, 15, 16)]) > 0.5 + np.mean(
        [returns[step] for step in (1, 2, 3, 4)]
    )


@pytest.fixture(scope="module")
def finished(
    make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Listener]:
    path, listener = tmp_path_factory.mktemp("runs") / "finished", Listener()
    assert start(make_config(), path, listener) == "finished"
    return path, listener


def test_every_step_evaluation_and_trajectory_is_stored(finished: tuple[Path, Listener]) -> None:
    path, _ = finished
    reader = open_run(path)
    assert (reader.info().status, reader.info().last_step) == ("finished", 4)
    counts = reader.sql(
        "SELECT split, step, count(*) AS n FROM trajectories GROUP BY ALL ORDER BY ALL"
    ).to_pylist()
    assert [(row["split"], row["step"], row["n"]) for row in counts] == [
        *[("eval", step, 3) for step in (0, 2, 4)],
        *[("train", step, 8) for step in (1, 2, 3, 4)],
    ]
    assert verify(path).problems == ()
    assert [record.step for record in reader.checkpoints()] == [2, 4]


def test_kept_trajectories_carry_what_the_update_learned(finished: tuple[Path, Listener]) -> None:
    reader = open_run(finished[0])
    for trajectory in reader.trajectories_of_step(3):
        outcome = reader.outcome(trajectory.id)
        assert outcome is not None
        assert outcome.kept
        assert outcome.advantages is not None
        assert outcome.trainer_logprobs is not None
        for turn, advantages, logprobs in zip(
            trajectory.turns, outcome.advantages, outcome.trainer_logprobs, strict=True
        ):
            assert turn.response_tokens is not None
            assert turn.logprobs is not None
            assert len(advantages) == len(turn.response_tokens)
            np.testing.assert_allclose(logprobs, turn.logprobs, atol=1e-5)
            assert turn.policy_version == 2  # two optimizer steps came before step 3
        # GRPO without a critic: one advantage for the whole trajectory.
        joined = np.concatenate(outcome.advantages)
        assert np.ptp(joined) == 0
        assert outcome.advantage == pytest.approx(float(joined[0]))


def test_metrics_of_each_step(finished: tuple[Path, Listener]) -> None:
    path, listener = finished
    reader = open_run(path)
    assert set(reader.metric_keys()) >= {
        "reward/return_mean",
        "reward/group_std_mean",
        "reward/term/letters",
        "rollout/num_turns_mean",
        "rollout/success_rate",
        "selection/kept_frac",
        "policy/entropy",
        "policy/mismatch_kl",
        "policy/ratio_mean",
        "loss/policy",
        "optim/grad_norm",
        "optim/lr",
        "optim/num_skipped",
        "time/rollout_s",
        "time/update_s",
        "time/step_s",
        "time/tokens_per_s",
        "eval/frozen_lake/success_rate",
        "time/evaluate_s",
    }
    assert metric(path, "eval/frozen_lake/num_tasks", phase="eval") == {0: 3.0, 2: 3.0, 4: 3.0}
    assert all(abs(value) < 1e-10 for value in metric(path, "policy/mismatch_kl").values())
    assert [(m.step, m.phase) for m in listener.seen] == [
        (0, "eval"),
        (1, "train"),
        (2, "train"),
        (2, "eval"),
        (3, "train"),
        (4, "train"),
        (4, "eval"),
    ]


def test_whoever_watches_is_told_the_phases(finished: tuple[Path, Listener]) -> None:
    names = [(step, name) for step, name in finished[1].phases if step in (0, 2)]
    assert names == [
        (0, "evaluate"),
        (2, "rollout"),
        (2, "update"),
        (2, "evaluate"),
        (2, "checkpoint"),
    ]


def test_the_shaping_term_is_stored_apart(finished: tuple[Path, Listener]) -> None:
    for trajectory in open_run(finished[0]).trajectories_of_step(1):
        for turn in trajectory.turns:
            share = sum("a" <= c <= "z" for c in turn.response) / max(1, len(turn.response))
            assert turn.shaping["letters"] == pytest.approx(share)


# -- determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.lora={rank: 4, alpha: 8}", "critic.kind=head", "advantage.kind=bi_level_gae"),
        ("optim.minibatches=2", "optim.epochs=2", "loss.kl_coef=0.01", "loss.entropy_coef=0.01"),
        ("context.history_turns=1", "selection.strategy=top_p", "selection.value=0.5"),
    ],
    ids=["plain", "lora_critic", "minibatches_kl", "windows_selection"],
)
def test_the_same_seed_gives_the_same_run(
    make_config: MakeConfig, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    config = make_config("checkpoint.every=0", *settings)
    for name in ("one", "two"):
        np.random.seed(None)  # noqa: NPY002 - nobody may depend on the global generators
        torch.seed()
        start(config, tmp_path / name, SilentEvents())
    assert_same_recording(tmp_path / "one", tmp_path / "two")


def test_another_seed_gives_another_run(make_config: MakeConfig, tmp_path: Path) -> None:
    for seed in (0, 1):
        config = make_config(f"seed={seed}", "steps=1", "checkpoint.every=0")
        start(config, tmp_path / str(seed), SilentEvents())
    one, other = recorded(tmp_path / "0"), recorded(tmp_path / "1")
    assert one["tokens"] != other["tokens"]


def test_evaluating_does_not_touch_training(make_config: MakeConfig, tmp_path: Path) -> None:
    start(make_config("eval.every=1"), tmp_path / "often", SilentEvents())
    start(make_config("envs.eval=[]"), tmp_path / "never", SilentEvents())
    often, never = (
        open_run(tmp_path / name).sql(
            "SELECT key, step, value FROM metrics WHERE phase = 'train' AND key NOT LIKE 'time/%' "
            "ORDER BY ALL"
        )
        for name in ("often", "never")
    )
    assert repr(often.to_pylist()) == repr(never.to_pylist())


def test_evaluation_tasks_are_the_same_each_time_and_never_train(
    finished: tuple[Path, Listener],
) -> None:
    rows = (
        open_run(finished[0])
        .sql("SELECT split, step, env_seed FROM trajectories ORDER BY id")
        .to_pylist()
    )
    seeds = {
        (split, step): {r["env_seed"] for r in rows if (r["split"], r["step"]) == (split, step)}
        for split, step in {(r["split"], r["step"]) for r in rows}
    }
    assert seeds["eval", 0] == seeds["eval", 2] == seeds["eval", 4]
    trained = [found for (split, _), found in seeds.items() if split == "train"]
    assert len(set.union(*trained)) == sum(len(found) for found in trained)
    assert not seeds["eval", 0] & set.union(*trained)


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
    original, count = train_module.with_advantages, 0

    def poisoned(batch: Any, config: Any, left_out: Any) -> Any:
        nonlocal count
        count += 1
        made = original(batch, config, left_out)
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
    assert start(make_config("optim.max_nonfinite_steps=2"), tmp_path / "run", listener) == (
        "finished"
    )
    assert metric(tmp_path / "run", "optim/num_skipped") == {1: 0, 2: 1, 3: 0, 4: 0}
    assert math.isnan(metric(tmp_path / "run", "optim/grad_norm")[2])
    assert listener.messages[1:] == [
        "step 2: 1 of 1 updates skipped, the gradient was NaN or infinite (1 such steps in a row)"
    ]
    turns = open_run(tmp_path / "run").trajectory("t00000004-00000").turns
    assert turns[0].policy_version == 2  # of three earlier steps, two moved the weights


def test_too_many_nan_gradients_in_a_row_end_the_run(
    make_config: MakeConfig, tmp_path: Path, poison: set[int]
) -> None:
    poison |= {2, 3, 4, 5}
    listener = Listener()
    config = make_config("steps=9", "optim.max_nonfinite_steps=3", "checkpoint.every=1")
    assert start(config, tmp_path / "run", listener) == "failed"
    info = open_run(tmp_path / "run").info()
    assert (info.status, info.last_step) == ("failed", 4)
    assert listener.messages[-1] == (
        "stopped: 3 steps in a row had a NaN or infinite gradient; lower optim.lr and resume from "
        "the last checkpoint"
    )
    # One more such step after resuming is still too many: the count is part of the state.
    poison |= {6}
    assert resume(tmp_path / "run", SilentEvents()) == "failed"


# -- who watches ---------------------------------------------------------------------------------


class Watcher:
    """An observer that counts, and remembers what it was shown."""

    name = "watcher"

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[StepObservation] = []

    def observe(self, seen: StepObservation) -> dict[str, float]:
        self.count += 1
        self.seen.append(seen)
        return {"watcher/count": float(self.count)}

    def state(self) -> Any:
        return {"count": self.count}

    def restore(self, state: Any) -> None:
        self.count = state["count"]


def test_an_observer_sees_all_groups_and_keeps_its_state(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    watcher = Watcher()
    config = make_config("selection.strategy=top_k_abs", "selection.value=1", "steps=2")
    start(config, tmp_path / "run", SilentEvents(), observers=[watcher])
    assert [seen.step for seen in watcher.seen] == [1, 2]
    assert watcher.seen[0].rollouts.num_groups == 2
    assert watcher.seen[0].selection.keep_P.sum() == 1
    batch = watcher.seen[0].batch
    assert batch is not None
    assert batch.advantages is not None
    again = Watcher()
    resume(tmp_path / "run", SilentEvents(), settings={"steps": 4}, observers=[again])
    assert metric(tmp_path / "run", "watcher/count") == {1: 1, 2: 2, 3: 3, 4: 4}


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


def test_an_error_in_the_middle_leaves_a_failed_run_that_can_go_on(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("checkpoint.every=1")
    start(config, tmp_path / "whole", SilentEvents())

    def explode(*args: object, **kwargs: object) -> None:
        raise OSError("the machine is on fire")

    with monkeypatch.context() as patched:
        calls = 0
        original = train_module.update

        def third_time(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return explode() if calls == 3 else original(*args)

        patched.setattr(train_module, "update", third_time)
        with pytest.raises(OSError, match="on fire"):
            start(config, tmp_path / "run", SilentEvents())
    info = open_run(tmp_path / "run").info()
    assert (info.status, info.last_step) == ("failed", 2)
    assert resume(tmp_path / "run", SilentEvents()) == "finished"
    assert_same_recording(tmp_path / "whole", tmp_path / "run")


# -- a full disk ---------------------------------------------------------------------------------


def _train_with_small_files(config: RunConfig, path: Path, limit: int, said: Any) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        start(config, path, SilentEvents())
    except OSError as error:
        said.put(str(error))
    else:
        said.put("finished")


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (200_000, "cannot write the checkpoint of step 2"),  # weights are larger than a step
        (9_000, "writing failed"),
    ],
)
def test_a_full_disk_is_one_line_and_loses_nothing_acknowledged(
    make_config: MakeConfig, tmp_path: Path, limit: int, message: str
) -> None:
    config = make_config("steps=6")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["echoscope.core.runs"])
    said = context.Queue()
    process = context.Process(
        target=_train_with_small_files, args=(config, tmp_path / "run", limit, said)
    )
    process.start()
    text = said.get(timeout=120)
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


def test_new_runs_get_names_of_their_own(tmp_path: Path) -> None:
    names = {new_run_path(tmp_path, "lake").name for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("lake-") for name in names)


def test_the_last_checkpoint_is_always_there(make_config: MakeConfig, tmp_path: Path) -> None:
    start(make_config("checkpoint.every=0", "steps=3"), tmp_path / "run", SilentEvents())
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["step_000003"]
