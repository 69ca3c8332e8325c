"""Recipes that collapse, their healthy twins, and the curves recorded of them.

The rules behind the labels are those of `benchmarks/labelling.py`; made curves below show
each of them at work, and every recorded label must follow from its CSV.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from listening import Listener

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from labelling import outcome_of

from echoscope.core.config.loading import load_config, recipe_names
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.diagnostics.bench.harness import load_curves
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import MetricTable
from echoscope.envs.settings import EnvGroup
from echoscope.store.reader import open_run
from echoscope.store.steer.commands import new_command, post

ROOT = Path(__file__).parents[3]
RUNS = ROOT / "diagnostics" / "bench" / "runs"
TWINS = {
    "collapse-template": "healthy-frozen-lake",
    "collapse-format": "healthy-frozen-lake",
    "collapse-entropy": "healthy-frozen-lake",
    "collapse-echo-trap": "healthy-bandit",
}
RECORDED = sorted(str(path.relative_to(RUNS).with_suffix("")) for path in RUNS.glob("*/seed*.csv"))


# --- the recipes


@pytest.mark.parametrize("name", [*TWINS, *dict.fromkeys(TWINS.values())])
def test_recipes_load_and_measure_often(name: str) -> None:
    config = load_config(name)
    assert config.name == name
    assert config.diagnostics.information.every <= 5
    assert config.eval.every <= 5
    assert config.steps <= 80


def _knobs(config: RunConfig) -> dict[str, object]:
    """Settings that training depends on, flat."""
    flat: dict[str, object] = {}

    def walk(value: object, path: str) -> None:
        if isinstance(value, Mapping):
            for key, below in value.items():
                walk(below, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list):
            for index, below in enumerate(value):
                walk(below, f"{path}.{index}")
        else:
            flat[path] = value

    walk(config.model_dump(mode="json", exclude={"name", "steps", "eval", "diagnostics"}), "")
    return flat


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("collapse-template", {"envs.train.0.params.slip"}),
        ("collapse-entropy", {"loss.entropy_coef"}),
        (
            "collapse-format",
            {"optim.lr", "optim.warmup_steps", "envs.train.0.format_penalty"},
        ),
        ("collapse-echo-trap", {"advantage.kind", "advantage.eps"}),
    ],
)
def test_a_collapse_differs_from_its_twin_in_the_knob_that_does_it(
    name: str, changed: set[str]
) -> None:
    mine, twin = _knobs(load_config(name)), _knobs(load_config(TWINS[name]))
    different = {key for key in mine.keys() | twin.keys() if mine.get(key) != twin.get(key)}
    # What it differs in from the recipe that it extends is said there again.
    different = {key for key in different if not key.startswith("recipe.")}
    assert different
    assert different <= changed


def test_only_template_collapse_pauses_its_run() -> None:
    actions = {
        name: dict(load_config(name).diagnostics.alarms.actions)
        for name in recipe_names()
        if name.startswith(("collapse-", "healthy-"))
    }
    assert actions.pop("collapse-template") == {"TEMPLATE_COLLAPSE": "pause"}
    assert not any(actions.values())


def test_evaluation_lakes_do_not_slip() -> None:
    """What the slippery lake unlearns shows where luck has no say."""
    config = load_config("collapse-template")
    (train,), (evaluated,) = config.envs.train, config.envs.eval
    assert isinstance(train, EnvGroup)
    assert isinstance(evaluated, EnvGroup)
    assert (train.params["slip"], evaluated.params["slip"]) == (0.9, 0.0)


# --- the rules behind the labels

STEPS = 30
"""Evaluation at 0, 5, ..., 30; information at every third step."""


def _table(**changed: np.ndarray) -> MetricTable:
    """A healthy run, with some of its curves changed from the middle on."""
    steps = np.arange(STEPS + 1)
    columns = {
        "policy/entropy": np.full(STEPS + 1, 0.2),
        "rollout/format_valid_frac": np.full(STEPS + 1, 0.99),
        "reward/group_std_mean": np.full(STEPS + 1, 0.3),
        "text/near_duplicate_frac": np.full(STEPS + 1, 0.1),
        "info/first_turn/mutual_information": np.full(STEPS + 1, 1.5),
        "info/first_turn/retrieval_accuracy@1": np.full(STEPS + 1, 0.8),
        "info/first_turn/retrieval_chance@1": np.full(STEPS + 1, 0.125),
        "info/first_turn/conditional_entropy_per_token": np.full(STEPS + 1, 0.25),
        "eval/lake/success_rate": np.where(steps % 5 == 0, 0.6, np.nan),
    }
    names = {key.rsplit("/", 1)[1].split("@")[0]: key for key in columns}
    for name, values in changed.items():
        columns[names[name]] = values
    for key in columns:
        if key.startswith("info/"):
            columns[key] = np.where(steps % 3 == 0, columns[key], np.nan)
    return MetricTable(steps=steps, columns=columns, sources={})


def _then(before: float, after: float, step: int = 12) -> np.ndarray:
    return np.where(np.arange(STEPS + 1) < step, before, after)


LOST = np.where(np.arange(STEPS + 1) % 5 == 0, _then(0.6, 0.1, 18), np.nan)
"""0.6 at step 15, 0.1 from step 20 on."""


def test_a_run_that_keeps_its_success_is_healthy() -> None:
    outcome = outcome_of(_table())
    assert (outcome.label, outcome.collapsed, outcome.regime) == ("healthy", False, "diverse")
    assert outcome.interval is None


@pytest.mark.parametrize(
    ("label", "changed", "onset", "regime"),
    [
        ("entropy_explosion", {"entropy": _then(0.2, 3.0)}, 12, "diverse"),
        ("format_collapse", {"format_valid_frac": _then(0.99, 0.4, 16)}, 16, "diverse"),
        (
            "echo_trap",
            {"group_std_mean": _then(0.3, 0.02), "near_duplicate_frac": _then(0.1, 0.8)},
            12,
            "diverse",
        ),
        (
            "template_collapse",
            {"mutual_information": _then(1.5, 0.1), "retrieval_accuracy": _then(0.8, 0.15)},
            12,
            "template_collapse",
        ),
        ("other_collapse", {}, 20, "diverse"),  # of nothing else: success itself
    ],
)
def test_what_is_true_after_success_was_lost_names_the_collapse(
    label: str, changed: dict[str, np.ndarray], onset: int | None, regime: str
) -> None:
    outcome = outcome_of(_table(success_rate=LOST, **changed))
    assert (outcome.label, outcome.collapsed, outcome.interval) == (label, True, (15, 20))
    assert (None if outcome.onset is None else outcome.onset[0]) == onset
    assert outcome.regime == regime


def test_success_on_its_way_down_is_a_first_sign_too() -> None:
    """0.6, from step 10 on 0.4, below three quarters; reward spread is gone only from step 16."""
    steps = np.arange(STEPS + 1)
    success = np.where(steps < 10, 0.6, np.where(steps < 18, 0.4, 0.1))
    changed = {"group_std_mean": _then(0.3, 0.02, 16), "near_duplicate_frac": _then(0.1, 0.8)}
    outcome = outcome_of(_table(success_rate=np.where(steps % 5 == 0, success, np.nan), **changed))
    assert outcome.label == "echo_trap"
    assert outcome.interval == (15, 20)
    assert outcome.onset is not None
    assert outcome.onset[0] == 10
    assert "step 16: reward std stays below" in outcome.onset[1]


def test_success_that_comes_back_was_not_lost() -> None:
    dip = np.where(np.arange(STEPS + 1) % 5 == 0, 0.6, np.nan)
    dip[15] = 0.1
    assert outcome_of(_table(success_rate=dip)).label == "healthy"


def test_one_low_evaluation_at_the_end_is_no_collapse() -> None:
    late = np.where(np.arange(STEPS + 1) % 5 == 0, _then(0.6, 0.1, 30), np.nan)
    assert not outcome_of(_table(success_rate=late)).collapsed


def test_a_template_that_leaves_success_alone_is_a_plateau() -> None:
    table = _table(mutual_information=_then(1.5, 0.1), retrieval_accuracy=_then(0.8, 0.15))
    outcome = outcome_of(table)
    assert (outcome.label, outcome.collapsed) == ("template_plateau", False)


# --- the recorded runs


def test_every_label_has_its_curve_and_every_curve_its_label() -> None:
    labels = json.loads((RUNS / "labels.json").read_text(encoding="utf-8"))["runs"]
    assert sorted(labels) == RECORDED
    assert len(load_curves(RUNS)) == len(RECORDED)
    for name, entry in labels.items():
        assert name == f"{entry['recipe']}/seed{entry['seed']}"
        assert entry["recipe"] in recipe_names()


@pytest.mark.parametrize("name", RECORDED)
def test_labels_follow_from_the_curves(name: str) -> None:
    entry = json.loads((RUNS / "labels.json").read_text(encoding="utf-8"))["runs"][name]
    outcome = outcome_of(read_metrics(RUNS / f"{name}.csv")).to_json()
    assert {key: entry[key] for key in outcome} == outcome


def test_each_kind_was_recorded_as_what_it_is() -> None:
    labels = json.loads((RUNS / "labels.json").read_text(encoding="utf-8"))["runs"]
    kinds = {(entry["recipe"], entry["label"]) for entry in labels.values()}
    assert {
        ("collapse-template", "template_collapse"),
        ("collapse-format", "format_collapse"),
        ("collapse-entropy", "entropy_explosion"),
        ("collapse-echo-trap", "echo_trap"),
        ("healthy-frozen-lake", "healthy"),
        ("healthy-bandit", "healthy"),
    } <= kinds


def test_the_recorded_runs_are_small() -> None:
    assert sum(path.stat().st_size for path in RUNS.rglob("*")) < 3_000_000


# --- a run that stops itself in time


class _Patient(Listener):
    """Stops a run that pauses, as a person does who has seen enough."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def phase(self, step: int, name: str) -> None:
        super().phase(step, name)
        if name == "paused":
            post(self.path, new_command(self.path.name, "stop"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_template_collapse_pauses_its_run_and_the_verdict_shows_the_template(
    tmp_path: Path,
) -> None:
    path = tmp_path / "collapse"
    assert start(load_config("collapse-template", overrides=["seed=0"]), path, _Patient(path)) == (
        "stopped"
    )
    reader = open_run(path)
    command = reader.commands()[0].command
    assert (command.action, command.issued_by) == ("pause", "alarm TEMPLATE_COLLAPSE")
    steps, information = reader.metrics("info/first_turn/mutual_information")
    best = float(information.max())
    fallen = [int(s) for s, v in zip(steps, information, strict=True) if v < best / 4]
    paused = reader.info().last_step
    assert paused < 45
    assert len([step for step in fallen if step < paused]) <= 2
    verdict = diagnose(path)
    assert "TEMPLATE_COLLAPSE" in verdict.kinds
    assert "reasonings of the first turns share one template" in verdict.text
    assert "___" in verdict.text
    assert verdict.exemplars
    ids = {trajectory.id for trajectory in reader.trajectories_of_step(paused)}
    assert {exemplar.trajectory_id for exemplar in verdict.exemplars} <= ids
