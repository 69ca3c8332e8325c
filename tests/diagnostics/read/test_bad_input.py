"""Input that supports no verdict: said so, or one line, and never a confident sentence or a crash.

Each case goes all the way: as a stored run through `diagnose`, through the monitor of a training
run, and where it has tokens through scoring under a model at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from letter_tokens import TableScorer, batch, decode

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.regimes import Regime
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.measure.text.sample import measure_sample
from echoscope.diagnostics.monitor import Instruments, Monitor
from echoscope.diagnostics.read.foreign_names import OUTCOMES
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import table_of_run
from echoscope.diagnostics.tools.rescoring import Weights, with_information
from echoscope.store.importers.steps.episodes import step_values
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import RolloutBatch, StepMetrics, Trajectory, Turn
from echoscope.store.writer import RunWriter

Change = Callable[[Trajectory], Trajectory]
NUM_STEPS = 24
SIBLINGS = 4
REASONING_RULES = {
    "TEMPLATE_COLLAPSE",
    "LOW_ENTROPY_COLLAPSE",
    "ECHO_TRAP",
    "REWARD_WITHOUT_REASONING",
}


def each_turn(change: Callable[[Turn], Turn]) -> Change:
    return lambda t: replace(t, turns=tuple(change(turn) for turn in t.turns))


def without_spans(turn: Turn) -> Turn:
    return replace(turn, reasoning_chars=None, reasoning_span=None)


def emptied(turn: Turn) -> Turn:
    none = np.zeros(0, dtype=np.int32)
    return replace(
        turn, response="", reasoning_chars=(0, 0), reasoning_span=(0, 0), response_tokens=none
    )


def with_nan_logprobs(turn: Turn) -> Turn:
    assert turn.response_tokens is not None
    return replace(turn, logprobs=np.full(len(turn.response_tokens), np.nan))


def one_prompt(trajectory: Trajectory) -> Trajectory:
    first = np.array([ord("p")], dtype=np.int32)
    turns = tuple(replace(turn, prompt_tokens=first) for turn in trajectory.turns)
    return replace(trajectory, prompt_key="the only one", turns=turns)


def no_turns(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, turns=())


CASES: dict[str, tuple[Change, int, int]] = {
    "no reasoning spans": (each_turn(without_spans), 4, SIBLINGS),
    "one group": (lambda t: t, 1, SIBLINGS),
    "all prompts identical": (one_prompt, 4, SIBLINGS),
    "one sibling": (lambda t: t, 4, 1),
    "one trajectory": (lambda t: t, 1, 1),
    "empty reasonings": (each_turn(emptied), 4, SIBLINGS),
    "NaN log-probs": (each_turn(with_nan_logprobs), 4, SIBLINGS),  # the text is fine
    "no turns": (no_turns, 4, SIBLINGS),
}


def rollouts(name: str, step: int) -> RolloutBatch:
    change, num_groups, size = CASES[name]
    made = [replace(change(t), step=step) for t in batch(num_groups, size, (2,))]
    rows = [tuple(made[k : k + size]) for k in range(0, len(made), size)]
    return RolloutBatch(
        groups=tuple(
            tuple(
                replace(t, group_index=p, sibling_index=g, index=p * size + g)
                for g, t in enumerate(row)
            )
            for p, row in enumerate(rows)
        )
    )


def write(path: Path, name: str) -> RunReader:
    writer = RunWriter.create(path, run_id=path.name, config={}, is_packing=False)
    for step in range(1, NUM_STEPS + 1):
        rows = rollouts(name, step).trajectories
        counted = step_values(rows)
        metrics = StepMetrics(
            run_id=path.name,
            step=step,
            phase="train",
            policy_version=step,
            wall_time=0.0,
            values={key: counted[key] for key in OUTCOMES if key in counted}
            | measure_sample(rows).metrics(),
        )
        writer.commit_step(metrics=[metrics], trajectories=rows, outcomes=[])
    writer.close(status="finished")
    return open_run(path)


def assert_not_confident(verdict: Verdict, *, sees_reasoning: bool = False) -> None:
    """Nothing is said of reasoning that could not be seen, and nothing collapses."""
    assert not verdict.state.is_collapse
    assert not REASONING_RULES & set(verdict.kinds)
    if verdict.state is RunState.INSUFFICIENT:
        assert verdict.text.startswith(("Too little to judge", "Too early to tell"))
        assert verdict.confidence == "none"
    elif not sees_reasoning:
        # Rewards that are right show surely that nothing is learned; they show nothing more.
        is_of_rewards = verdict.kinds == ("NOT_LEARNING",)
        assert verdict.confidence in ("low", "medium", *(["high"] if is_of_rewards else []))
        assert verdict.regime is Regime.UNDETERMINED
        assert any(sentence.startswith("TEMPLATE_COLLAPSE") for sentence in verdict.could_not_see)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_stored_run(tmp_path: Path, name: str) -> None:
    verdict = diagnose(write(tmp_path / "run", name))
    assert_not_confident(verdict, sees_reasoning=name == "NaN log-probs")


@pytest.mark.parametrize("name", CASES)
def test_a_training_run_goes_on(name: str) -> None:
    messages: list[str] = []
    config = DiagnosticsConfig(budget_frac=1)
    monitor = Monitor(config, run_id="run", on_message=messages.append)
    tools = Instruments(scorer=TableScorer, decode=decode)
    measured = monitor.measure(1, rollouts(name, 1), config, tools)
    assert "text/retrieval_accuracy" in measured.values
    assert "info/first_turn/mutual_information" in measured.values
    assert not [text for text in messages if "Error" in text]  # not available, but nothing broke
    assert monitor.judge(1, measured.values) == []


@pytest.mark.parametrize("name", ["one group", "all prompts identical", "empty reasonings"])
def test_what_cannot_be_measured_is_not_a_number(name: str) -> None:
    config = DiagnosticsConfig(budget_frac=1)
    messages: list[str] = []
    monitor = Monitor(config, run_id="run", on_message=messages.append)
    tools = Instruments(scorer=TableScorer, decode=decode)
    measured = monitor.measure(1, rollouts(name, 1), config, tools)
    assert math.isnan(measured.values["text/retrieval_accuracy"])
    assert math.isnan(measured.values["info/first_turn/mutual_information"])
    assert any("not available" in text for text in messages)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name != "no turns"])
def test_scoring_under_a_model_at_hand(tmp_path: Path, name: str) -> None:
    """The table scorer's probabilities are not those recorded: bounds, and said so."""
    reader = write(tmp_path / "run", name)
    weights = Weights(scorer=TableScorer, decode=decode, name="a table", vocabulary=256)
    if name == "empty reasonings":  # nothing was sampled
        with pytest.raises(ValueError, match="no trajectories with recorded tokens"):
            with_information(table_of_run(reader), reader, weights, every=6)
        return
    verdict = diagnose(reader, rescore=lambda t, r: with_information(t, r, weights, every=6))
    # Later prompts of one task differ, by their history: they can be compared.
    sees = name in ("NaN log-probs", "one sibling", "one group")
    assert_not_confident(verdict, sees_reasoning=sees)
    assert any("was scored under a table" in note for note in verdict.notes)


def lines(rows: Sequence[str]) -> str:
    return "\n".join(["step,reward_std,entropy,comment", *rows]) + "\n"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("gaps", [f"{s},{'' if s % 3 else 0.4},{'' if s % 2 else 1.5}," for s in range(60)]),
        ("missing steps", [f"{s},0.4,1.5," for s in range(0, 600, 17)]),
        ("duplicated steps", [f"{s // 3},0.4,1.5," for s in range(180)]),
        ("steps in any order", [f"{(s * 37) % 60},0.4,1.5," for s in range(60)]),
        ("text columns", [f"{s},0.4,1.5,so it goes" for s in range(60)]),
        ("a number here and there", [f"{s},{'0.4' if s == 7 else 'n/a'},1.5," for s in range(60)]),
    ],
)
def test_metrics_files(tmp_path: Path, name: str, rows: list[str]) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(lines(rows), encoding="utf-8")
    assert_not_confident(diagnose(path))


@pytest.mark.parametrize("num_rows", [1, 7])
def test_a_handful_of_rows_is_insufficient(tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(lines([f"{s},0.4,{99.0**s}," for s in range(num_rows)]), encoding="utf-8")
    assert diagnose(path).state is RunState.INSUFFICIENT


def test_text_and_nothing_else_is_insufficient(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,comment,lr\n" + "".join(f"{s},fine,1e-6\n" for s in range(60)))
    verdict = diagnose(path)
    assert verdict.state is RunState.INSUFFICIENT
    assert "no metric that an alarm reads" in verdict.text


@pytest.mark.long
@pytest.mark.no_cover  # measuring it takes three times as long as the test
def test_more_rows_than_are_kept_say_so(tmp_path: Path) -> None:
    """Ten million rows take this same path in bounded memory: blocks are averaged as they come."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,entropy\n" + "".join(f"{s},1.5\n" for s in range(100_000)))
    table = read_metrics(path)
    assert table.num_rows <= 40_000
    assert any("averaged in blocks" in note for note in table.notes)
