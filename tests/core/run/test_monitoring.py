"""The monitor in the training loop: it measures, judges and acts, and changes nothing else."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from listening import Listener
from recorded import assert_same_recording, metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run import control, monitoring
from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.learners.alone import Learner
from echoscope.diagnostics.config import GradientConfig
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.measure import costs
from echoscope.diagnostics.read.names import is_read
from echoscope.diagnostics.read.table import table_of_run
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics
from echoscope.store.steer.commands import new_command, post

MakeConfig = Callable[..., RunConfig]
OFTEN = (
    "diagnostics.text.every=1",
    "diagnostics.information.every=2",
    "diagnostics.gradient.every=3",
    "diagnostics.budget_frac=1",
)
"""Information at steps 1, 3, 5, ...; gradients at 3, 6, 9, ..."""
NO_EVALUATION = ("eval.every=0", "eval.before=false")


@pytest.fixture(scope="module")
def watched(
    make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Listener]:
    """Nine steps of an untrained policy, whose replies all end at the cap."""
    path, listener = tmp_path_factory.mktemp("runs") / "watched", Listener()
    config = make_config(*OFTEN, "steps=9", "checkpoint.every=4", "checkpoint.keep=9")
    assert start(config, path, listener) == "finished"
    return path, listener


@pytest.mark.long
def test_measurements_are_stored_at_their_steps(watched: tuple[Path, Listener]) -> None:
    path, _ = watched
    assert set(metric(path, "reward/solved_frac")) == set(range(1, 10))
    assert set(metric(path, "text/retrieval_accuracy")) == set(range(1, 10))
    assert set(metric(path, "info/first_turn/mutual_information")) == {1, 3, 5, 7, 9}
    assert set(metric(path, "gradient/policy/all/norm")) == {3, 6, 9}
    reader = open_run(path)
    assert [record.kind for record in reader.diagnostics(3)] == ["gradients", "information", "text"]
    assert [record.kind for record in reader.diagnostics(2)] == ["text"]
    (record,) = (row for row in reader.diagnostics(3) if row.kind == "information")
    assert len(record.arrays["first_turn_curve"]) == len(record.arrays["first_turn_curve_k"]) > 0
    assert verify(path).problems == ()


def test_the_policy_that_sampled_is_the_one_that_is_measured(
    watched: tuple[Path, Listener],
) -> None:
    """Scores equal the log-probs recorded at sampling."""
    for gap in metric(watched[0], "info/first_turn/sampling_gap").values():
        assert gap < 1e-4


def test_scored_reasonings_carry_their_information(watched: tuple[Path, Listener]) -> None:
    path, _ = watched
    reader = open_run(path)
    outcomes = [reader.outcome(t.id) for t in reader.trajectories_of_step(3)]
    measured = [
        outcome.information for outcome in outcomes if outcome is not None and outcome.information
    ]
    assert measured
    assert all(np.isfinite(turns[0]).all() or np.isnan(turns[0]).all() for turns in measured)
    assert any(np.isfinite(array).any() for turns in measured for array in turns)
    unmeasured = [reader.outcome(t.id) for t in reader.trajectories_of_step(2)]
    assert all(outcome is None or outcome.information is None for outcome in unmeasured)


def test_alarms_are_stored_and_said(watched: tuple[Path, Listener]) -> None:
    path, listener = watched
    rows = open_run(path).sql("SELECT step, severity, message FROM alarms").to_pylist()
    assert any(row["message"].startswith("Length saturation (after step") for row in rows)
    assert {f"{row['severity']}: {row['message']}" for row in rows} <= set(listener.messages)
    (blind,) = (text for text in listener.messages if text.startswith("alarms that this run"))
    assert "KL_DRIFT needs policy/ref_kl" in blind


def test_judging_the_stored_metrics_again_says_the_same(watched: tuple[Path, Listener]) -> None:
    """`echoscope diagnose` says of a finished run what its monitor said while it ran."""
    reader, diagnosis = open_run(watched[0]), Diagnosis()
    again = [
        (alarm.step, alarm.rule, str(alarm.severity), str(alarm.state), alarm.message)
        for step, values in table_of_run(reader).rows()
        for alarm in diagnosis.observe(step, values)
    ]
    query = "SELECT step, rule, severity, state, message FROM alarms"
    assert sorted(again) == sorted(tuple(row.values()) for row in reader.sql(query).to_pylist())


def test_rules_read_nothing_later_that_the_monitor_did_not_see(
    watched: tuple[Path, Listener],
) -> None:
    """A metric of RAGEN in the store was read as one of ours, which only a later reader knew."""
    reader = open_run(watched[0])
    stored = {row["key"] for row in reader.sql("SELECT DISTINCT key FROM metrics").to_pylist()}
    judged = {key for key in table_of_run(reader).columns if is_read(key)}
    assert "rollout/reasoning_closed_frac" in judged
    assert judged <= stored


def test_what_it_costs_is_among_the_durations(watched: tuple[Path, Listener]) -> None:
    last = watched[1].seen[-2]
    assert (last.step, last.phase) == (9, "train")
    assert 0 < last.durations_s["time/diagnostics_frac"] < 1
    assert {"time/diagnostics_s", "time/diagnostics_text_s"} <= last.durations_s.keys()
    assert not any(key.startswith("time/") for key in last.values)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [(), ("model.lora={rank: 4, alpha: 8}", "critic.kind=head", "advantage.kind=gae")],
    ids=["plain", "lora_critic"],
)
def test_training_is_the_same_with_and_without_it(
    make_config: MakeConfig, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    for name, overrides in (("with", OFTEN), ("without", ("diagnostics.enabled=false",))):
        start(make_config(*settings, *overrides), tmp_path / name, SilentEvents())
    plain, watched = open_run(tmp_path / "without"), open_run(tmp_path / "with")
    query = (
        "SELECT phase, key, step, value FROM metrics WHERE key NOT SIMILAR TO '(time|system)/.*' "
        "ORDER BY ALL"
    )
    rows = {repr(row) for row in watched.sql(query).to_pylist()}
    assert {repr(row) for row in plain.sql(query).to_pylist()} <= rows
    assert not plain.sql("SELECT * FROM diagnostics").num_rows
    assert not any(key.startswith(("text/", "info/")) for key in plain.metric_keys())
    (last,) = list_checkpoints(tmp_path / "without")[-1:]
    for file in last.rglob("*.safetensors"):
        other = tmp_path / "with" / file.relative_to(tmp_path / "without")
        assert other.read_bytes() == file.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("step", [0, 4, 8])
def test_a_resumed_run_measures_and_judges_the_same(
    watched: tuple[Path, Listener], tmp_path: Path, step: int
) -> None:
    """With default cadences, a budget, and alarms that were open at the checkpoint."""
    whole, again = watched[0], tmp_path / "again"
    shutil.copytree(whole, again)
    for checkpoint in list_checkpoints(again):
        if read_state(checkpoint).step > step:
            shutil.rmtree(checkpoint)
    assert resume(again, SilentEvents()) == "finished"
    assert_same_recording(whole, again)
    for table in ("alarms", "diagnostics"):
        rows = [
            repr(open_run(path).sql(f"SELECT * EXCLUDE (run_id, attempt) FROM {table}").to_pylist())
            for path in (whole, again)
        ]
        assert rows[0].replace("'watched'", "'again'") == rows[1].replace("'watched'", "'again'")
    states = [read_state(list_checkpoints(path)[-1]).observers for path in (whole, again)]
    assert all(state["monitor"].pop("purse") for state in states)  # seconds, which nobody repeats
    assert repr(states[0]) == repr(states[1])


@pytest.mark.long
def test_a_measurement_that_fails_is_nan_said_once_and_the_run_goes_on(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 20 GiB")

    monkeypatch.setattr(Learner, "gradients", out_of_memory)
    listener = Listener()
    config = make_config(*OFTEN, *NO_EVALUATION, "steps=7")
    assert start(config, tmp_path / "run", listener) == "finished"
    values = metric(tmp_path / "run", "gradient/policy/all/norm")
    assert set(values) == {3, 6}
    assert all(math.isnan(value) for value in values.values())
    assert [text for text in listener.messages if "no gradients" in text] == [
        "step 3: no gradients, RuntimeError: CUDA out of memory. Tried to allocate 20 GiB"
    ]
    assert not math.isnan(metric(tmp_path / "run", "info/first_turn/dependence")[7])


class Stopping(Listener):
    """Stops a run that measures itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def phase(self, step: int, name: str) -> None:
        super().phase(step, name)
        if (step, name) == (3, "diagnostics"):
            post(self.path, new_command(self.path.name, "stop"))


def test_a_stop_cuts_off_a_measurement_that_is_expensive(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here all are: the resumed run makes the one of step 3 at step 4."""
    monkeypatch.setattr(costs, "CHEAP_S", -1.0)
    monkeypatch.setattr(control, "_LOOK_S", 0.0)  # this one takes less than the time between looks
    monkeypatch.setattr(costs.Purse, "allowed_s", lambda *_, **__: math.inf)
    monkeypatch.setattr(costs.Purse, "expected_s", lambda *_: 1e6)
    path = tmp_path / "run"
    listener = Stopping(path)
    config = make_config(*OFTEN, *NO_EVALUATION, "steps=5", "diagnostics.gradient.every=1")
    assert start(config, path, listener) == "stopped"
    for name in ("information", "gradients"):
        line = f"step 3: {name} was not measured: it was cut off, because the run is to stop"
        assert line in listener.messages
    assert resume(path, SilentEvents()) == "finished"
    points = metric(path, "info/first_turn/mutual_information")
    assert [step for step, value in points.items() if not math.isnan(value)] == [1, 4]
    points = metric(path, "gradient/policy/all/norm")
    assert [step for step, value in points.items() if not math.isnan(value)] == [1, 2, 4, 5]


class Patient(Listener):
    """Stops a run that pauses."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def phase(self, step: int, name: str) -> None:
        super().phase(step, name)
        if name.startswith("paused"):
            post(self.path, new_command(self.path.name, "stop"))


@pytest.mark.long
def test_an_alarm_that_acts_pauses_the_run_as_a_person_would(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    listener = Patient(path)
    config = make_config("steps=30", "diagnostics.alarms.actions={LENGTH_SATURATION: pause}")
    assert start(config, path, listener) == "stopped"
    reader = open_run(path)
    (raised,) = reader.sql("SELECT step FROM alarms").column("step").to_pylist()
    assert reader.info().last_step == raised
    assert (raised, "paused by alarm LENGTH_SATURATION") in listener.phases
    first = reader.commands()[0]
    assert (first.command.action, first.command.issued_by) == ("pause", "alarm LENGTH_SATURATION")
    assert first.command.reason.startswith(f"Length saturation (after step {raised}")
    assert first.ack is not None
    assert (first.ack.step, first.ack.outcome) == (raised + 1, "applied")
    # Whoever resumes it has seen the alarm: it does not pause again for the same one.
    assert resume(path, SilentEvents(), settings={"steps": raised + 2}) == "finished"


def test_stored_rollouts_are_not_scored_by_weights_that_did_not_sample_them(
    watched: tuple[Path, Listener], make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(*OFTEN, *NO_EVALUATION, "steps=3", f"from_run={watched[0]}")
    start(config, tmp_path / "run", SilentEvents())
    keys = open_run(tmp_path / "run").metric_keys()
    assert "text/retrieval_accuracy" in keys
    assert "gradient/policy/all/norm" in keys
    assert not any(key.startswith("info/") for key in keys)


def test_settings_are_strict_and_some_are_live(make_config: MakeConfig) -> None:
    assert make_config().diagnostics.gradient == GradientConfig()
    with pytest.raises(ConfigError, match=r"'diagnostics.txt'; did you mean 'text'"):
        make_config("diagnostics.txt=1")
    with pytest.raises(ConfigError, match=r"diagnostics\.budget_frac is 2, but"):
        make_config("diagnostics.budget_frac=2")


def test_truth_5_the_live_monitor_remembers_what_was_changed_and_when(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run"

    class SetsAfterStep1(SilentEvents):
        def metrics(self, metrics: StepMetrics) -> None:
            if metrics.phase == "train" and metrics.step == 1:
                settings = {"optim.lr": 0.004}
                post(path, new_command("run", "set", settings=settings))

    config = make_config("steps=3", "optim.lr=0.25", "checkpoint.every=1", "checkpoint.keep=9")
    start(config, path, SetsAfterStep1())
    state = read_state(list_checkpoints(path)[-1]).observers["monitor"]
    assert state["settings"]["changes"] == [[2, {"optim.lr": [0.25, 0.004]}, False]]
    observer = monitoring.MonitorObserver(
        config,
        None,
        None,
        run_id="run",
        run_path=path,
        events=SilentEvents(),  # type: ignore[arg-type]
    )
    observer.restore(state)
    assert observer.state()["settings"]["changes"] == [[2, {"optim.lr": (0.25, 0.004)}, False]]
