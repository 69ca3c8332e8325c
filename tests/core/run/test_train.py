"""The loop on a real run: it learns, repeats itself bit for bit, and obeys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from listening import Listener
from recorded import assert_same_recording, metric, recorded

from echoscope.core.config.settings import RunConfig
from echoscope.core.run import build
from echoscope.core.run import train as train_module
from echoscope.core.run.checkpoint import list_checkpoints
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import (
    Judged,
    Observed,
    SilentEvents,
    StepObservation,
    StepObserver,
)
from echoscope.store.checkpoints import checkpoint_step
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import RolloutBatch, Split, StepMetrics
from echoscope.store.steer.commands import new_command, post

MakeConfig = Callable[..., RunConfig]


# -- what a run does -----------------------------------------------------------------------------


@pytest.mark.long
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
    assert [(record.step, record.reason) for record in reader.checkpoints()] == [
        (0, "start"),
        (2, "schedule"),
        (4, "schedule"),
    ]


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
        "system/cpu_frac",
        "system/trainer_memory_gb",
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
        (0, "checkpoint"),
        (2, "rollout"),
        (2, "annotate"),
        (2, "diagnostics"),
        (2, "update"),
        (2, "evaluate"),
        (2, "checkpoint"),
    ]


def test_the_shaping_term_is_stored_apart(finished: tuple[Path, Listener]) -> None:
    for trajectory in open_run(finished[0]).trajectories_of_step(1):
        for turn in trajectory.turns:
            share = sum("a" <= c <= "z" for c in turn.response) / max(1, len(turn.response))
            assert turn.shaping["letters"] == pytest.approx(share)


def test_the_best_evaluation_leaves_a_checkpoint(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of the schedule a run may learn and collapse: this one is there to go back to."""
    rates = iter([0.2, 0.5, 0.52, 0.9, 0.1])  # of the start and of four steps

    def measured(batch: RolloutBatch, split: Split, **_: Any) -> dict[str, float]:
        return {f"{split}/bandit/success_rate": next(rates)} if split is Split.EVAL else {}

    monkeypatch.setattr(train_module, "evaluation_metrics", measured)
    settings = ("steps=4", "eval.every=1", "eval.before=true", "checkpoint.every=0")
    start(make_config(*settings), tmp_path / "run", SilentEvents())
    reasons = {r.step: r.reason for r in open_run(tmp_path / "run").checkpoints()}
    # 0.52 is too little above 0.5
    assert reasons == {1: "best", 3: "best", 4: "final"}


def test_the_last_checkpoint_is_always_there(make_config: MakeConfig, tmp_path: Path) -> None:
    start(make_config("checkpoint.every=0", "steps=3"), tmp_path / "run", SilentEvents())
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["step_000003"]


# -- determinism ---------------------------------------------------------------------------------


@pytest.mark.long
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
    first, other = recorded(tmp_path / "0"), recorded(tmp_path / "1")
    assert first["tokens"] != other["tokens"]


@pytest.mark.long
def test_evaluating_does_not_touch_training(make_config: MakeConfig, tmp_path: Path) -> None:
    start(make_config("eval.every=1"), tmp_path / "often", SilentEvents())
    start(make_config("envs.eval=[]"), tmp_path / "never", SilentEvents())
    often, never = (
        open_run(tmp_path / name).sql(
            "SELECT key, step, value FROM metrics WHERE phase = 'train' "
            "AND key NOT SIMILAR TO '(time|system)/.*' ORDER BY ALL"
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
    trained = [pairs for (split, _), pairs in seeds.items() if split == "train"]
    assert len(set.union(*trained)) == sum(len(pairs) for pairs in trained)
    assert not seeds["eval", 0] & set.union(*trained)


# -- commands in the middle of things ------------------------------------------------------------


class Poster(Listener):
    """Posts a command as soon as a phase of a step begins."""

    def __init__(self, path: Path, step: int, name: str, action: str, **settings: Any) -> None:
        super().__init__()
        self.path, self.at, self.action, self.settings = path, (step, name), action, settings

    def phase(self, step: int, name: str) -> None:
        super().phase(step, name)
        if (step, name) == self.at:
            self.at = (-1, "")
            post(self.path, new_command(self.path.name, self.action, settings=self.settings))


def answers(path: Path) -> list[tuple[int, str, str]]:
    acks = [state.ack for state in open_run(path).commands()]
    return [(ack.step, ack.outcome.value, ack.detail) for ack in acks if ack is not None]


@pytest.mark.long
def test_stop_now_drops_the_rollouts_in_progress(make_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = make_config("checkpoint.every=0")
    assert start(config, path, Poster(path, 3, "rollout", "stop_now")) == "stopped"
    reader = open_run(path)
    assert (reader.info().status, reader.info().last_step) == ("stopped", 2)
    assert [checkpoint_step(saved) for saved in list_checkpoints(path)] == [2]  # the newest weights
    assert answers(path) == [(3, "applied", "stopping at once")]
    assert 3 not in metric(path, "loss/policy")
    assert resume(path, SilentEvents()) == "finished"
    start(config, tmp_path / "whole", SilentEvents())
    assert_same_recording(tmp_path / "whole", path)


@pytest.mark.long
def test_stop_now_drops_the_evaluation_and_keeps_the_step(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path, config = tmp_path / "run", make_config("eval.every=3")
    listener = Poster(path, 3, "evaluate", "stop_now")
    assert start(config, path, listener) == "stopped"
    assert listener.messages[-1] == "the evaluation of step 3 was dropped"
    assert open_run(path).info().last_step == 3
    assert set(metric(path, "eval/frozen_lake/success_rate", phase="eval")) == {0}
    assert checkpoint_step(list_checkpoints(path)[-1]) == 3
    assert resume(path, SilentEvents()) == "finished"
    start(config, tmp_path / "whole", SilentEvents())
    assert metric(tmp_path / "whole", "loss/policy") == metric(path, "loss/policy")
    # What was dropped is made up for with the next step.
    assert set(metric(path, "eval/frozen_lake/success_rate", phase="eval")) == {0, 4}


def test_stop_now_before_the_first_step(make_config: MakeConfig, tmp_path: Path) -> None:
    path, config = tmp_path / "run", make_config("steps=1")
    listener = Poster(path, 0, "evaluate", "stop_now")
    assert start(config, path, listener) == "stopped"
    assert listener.messages[-1] == "the evaluation before the first step was dropped"
    assert open_run(path).info().last_step == -1
    assert resume(path, SilentEvents()) == "finished"
    start(config, tmp_path / "whole", SilentEvents())
    assert_same_recording(tmp_path / "whole", path)


@pytest.mark.long
def test_the_last_step_can_be_moved_in_both_directions(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    longer, shorter = tmp_path / "longer", tmp_path / "shorter"
    start(make_config(), longer, Poster(longer, 4, "update", "set", steps=6))
    assert open_run(longer).info().last_step == 6
    start(make_config(), shorter, Poster(shorter, 3, "update", "set", steps=2))
    assert open_run(shorter).info().last_step == 3
    assert open_run(shorter).info().status == "finished"


def test_a_stop_after_the_last_step_does_not_make_it_unfinished(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    assert start(make_config(), path, Poster(path, 4, "update", "stop")) == "finished"
    assert answers(path) == [(5, "applied", "stopping with a checkpoint")]


def test_who_comes_too_late_is_told_so(make_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = make_config("checkpoint.every=0")
    assert start(config, path, Poster(path, 4, "checkpoint", "pause")) == "finished"
    assert answers(path) == [(5, "rejected", "the run is finished")]


# -- who watches ---------------------------------------------------------------------------------


class Watcher(StepObserver):
    """An observer that counts, and remembers what it was shown."""

    name = "watcher"

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[StepObservation] = []

    def observe(self, seen: StepObservation) -> Observed:
        self.count += 1
        self.seen.append(seen)
        return Observed(values={"watcher/count": float(self.count)})

    def judge(self, metrics: Sequence[StepMetrics], config: RunConfig) -> Judged:
        return Judged()

    def state(self) -> Any:
        return {"count": self.count}

    def restore(self, state: Any) -> None:
        self.count = state["count"]


def test_an_observer_sees_all_groups_and_keeps_its_state(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher()
    monkeypatch.setattr(build, "user_observers", lambda config: [watcher])
    config = make_config("selection.strategy=top_k_abs", "selection.value=1", "steps=2")
    start(config, tmp_path / "run", SilentEvents())
    assert [seen.step for seen in watcher.seen] == [1, 2]
    assert watcher.seen[0].rollouts.num_groups == 2
    assert watcher.seen[0].selection.keep_P.sum() == 1
    batch = watcher.seen[0].batch
    assert batch is not None
    assert batch.advantages is not None
    again = Watcher()
    monkeypatch.setattr(build, "user_observers", lambda config: [again])
    resume(tmp_path / "run", SilentEvents(), settings={"steps": 4})
    assert metric(tmp_path / "run", "watcher/count") == {1: 1, 2: 2, 3: 3, 4: 4}


def test_without_evaluations_there_is_none_at_the_end_either(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    listener = Listener()
    config = make_config("steps=2", "eval.every=0", "eval.before=false", "probe.every=0")
    start(config, tmp_path / "run", listener)
    assert [seen.phase for seen in listener.seen] == ["train", "train"]


class Counting(Listener):
    """Also keeps how far each phase has come."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int, str]] = []

    def progress(self, done: int, of: int, what: str) -> None:
        self.told.append((done, of, what))


def test_whoever_watches_is_told_how_far_a_phase_has_come(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    listener = Counting()
    start(make_config("steps=1", "eval.before=false", "envs.eval=[]"), tmp_path / "run", listener)
    episodes = [done for done, of, what in listener.told if what == "episodes"]
    assert episodes[0] == 0
    assert episodes == sorted(episodes)
    assert {of for _, of, what in listener.told if what == "episodes"} == {episodes[-1]}
    tokens = [done for done, _, what in listener.told if what == "tokens of the replies under way"]
    assert tokens[0] == 1
    scored = [done for done, of, what in listener.told if what.endswith("information diagnostics")]
    assert scored[-1] > 0


def test_the_copy_of_a_run_that_has_ended_holds_its_last_steps_as_packs(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """A catalogue of the copies reads packs only."""
    root = tmp_path / "root"
    root.mkdir()
    config = make_config("steps=2", "eval.every=0", f"trainer.copy_to=file://{root}")
    start(config, tmp_path / "run", SilentEvents())
    packed = root / "run" / "pack" / "000001"
    assert any(path.name.startswith("trajectories") for path in packed.iterdir())
    assert open_run(tmp_path / "run").info().status == "finished"
