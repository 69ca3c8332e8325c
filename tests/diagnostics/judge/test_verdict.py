"""The verdict: state, words, what was had and what could not be seen."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.record import Shown
from echoscope.diagnostics.judge.verdict import Diagnosis, Judgement, diagnose
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.sources import Opened, open_source, template_words
from echoscope.diagnostics.read.table import MetricTable

REQUIRED = {
    "state", "kinds", "regime", "onset_step", "first_watch_step", "first_critical_step",
    "confidence", "had", "evidence", "actions", "text",
}  # fmt: skip


def table(**columns: np.ndarray) -> MetricTable:
    named = {key.replace("__", "/"): np.asarray(v, dtype=float) for key, v in columns.items()}
    size = len(next(iter(named.values())))
    return MetricTable(steps=np.arange(size), columns=named, sources={})


def test_a_collapse_in_words_and_json() -> None:
    made = make("format_collapse", 1)
    verdict = diagnose(made.table)
    found = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert found.keys() >= REQUIRED
    assert found["state"] == "collapsed"
    assert found["kinds"][0] == "FORMAT_COLLAPSE"
    assert found["confidence"] == "high"
    assert abs(found["onset_step"] - made.onset_step) <= 10
    assert found["onset_interval"][0] <= found["onset_step"] <= found["onset_interval"][1]
    assert found["first_watch_step"] <= found["first_critical_step"] <= made.halved_step
    assert found["text"].startswith("Format collapse, starting ")
    assert found["actions"][0]["command"] == ""  # a metrics file: no command of ours fits
    trial = "As a trial only, go back to a checkpoint from before step"
    assert trial in found["actions"][0]["text"]
    assert found["actions"][0]["is_trial"]
    assert "Likely cause: not known." in found["text"]
    first = found["evidence"][0]
    assert first.keys() == {
        *("metric", "before", "after", "interval", "steps", "averaged", "words"),
    }
    assert first["before"] > first["after"]


def test_entropy_alone_would_not_show_a_template() -> None:
    verdict = diagnose(make("template_collapse", 2).table)
    assert verdict.kinds[0] == "TEMPLATE_COLLAPSE"
    assert verdict.regime.value == "template_collapse"
    assert "entropy" not in verdict.text.split("\nLikely")[0].lower()


def test_a_solved_task_is_called_solved() -> None:
    verdict = diagnose(make("solved", 0).table)
    assert verdict.state is RunState.CONVERGED
    assert "Evidence: evaluation success: 20 % (15 to 25 %, steps 0 to 10) -> " in verdict.text
    assert verdict.first_critical_step is None


def test_three_columns_say_what_they_cannot_see() -> None:
    rng = np.random.default_rng(0)
    noise = 1 + 0.05 * rng.standard_normal((3, 80))
    std = np.where(np.arange(80) < 50, 0.4, 0.02)
    verdict = diagnose(
        table(
            reward__group_std_mean=std * noise[0],
            policy__entropy=0.8 * noise[1],
            optim__grad_norm=noise[2],
        )
    )
    assert verdict.state is RunState.WATCH
    assert verdict.kinds == ("ECHO_TRAP",)
    assert verdict.confidence == "low"
    assert "a solved task looks the same" in verdict.text
    assert "Not checked: format collapse" in verdict.text
    assert any(line.startswith("FORMAT_COLLAPSE: needs") for line in verdict.could_not_see)
    assert verdict.had == ("reward", "entropy", "gradients")


@pytest.mark.parametrize(
    "source",
    [
        table(optim__lr=np.full(50, 1e-6)),
        table(policy__entropy=np.full(3, 0.5)),
        table(policy__entropy=np.full(50, np.nan)),
        MetricTable(steps=np.arange(0), columns={}, sources={}),
    ],
)
def test_too_little_is_insufficient_evidence(source: MetricTable) -> None:
    verdict = diagnose(source)
    assert verdict.state is RunState.INSUFFICIENT
    assert verdict.confidence == "none"
    assert verdict.text.startswith(("Too early to tell", "Too little is logged: 50 steps hold no"))


@pytest.mark.parametrize(("num_rows", "words"), [(1, "1 step"), (3, "3 steps")])
def test_the_head_of_a_short_run_counts_its_steps(num_rows: int, words: str) -> None:
    assert diagnose(table(policy__entropy=np.full(num_rows, 0.5))).rests_on == words


def test_nothing_alarming() -> None:
    verdict = diagnose(make("healthy", 0).table)
    assert verdict.state is RunState.HEALTHY
    assert verdict.confidence == "medium"  # 7 of 9 kinds of signals
    assert verdict.text.startswith(
        "Healthy. Evaluation success rose from 7 % (4 to 11 %, step 0) to 65 % (59 to 70 %, steps "
        "50 to 150, 11 evaluations of the same 256 tasks). No problem found"
    )


def test_a_step_on_which_nothing_happens_leaves_the_words_as_they_are() -> None:
    """A page that shows them need not be drawn again."""
    live = Diagnosis()
    texts = []
    for step, values in list(make("healthy", 0).table.rows())[:60]:
        live.observe(step, values)
        texts.append(live.verdict().text)
    assert len(set(texts[-10:])) == 1


def test_step_by_step_and_all_at_once_agree() -> None:
    made = make("entropy_explosion", 4).table
    whole = diagnose(made)
    rows = list(made.rows())
    live = Diagnosis()
    for step, values in rows[:70]:
        live.observe(step, values)
    for step, values in rows[70:]:
        live.observe(step, values)
    assert live.verdict() == whole


def first_rows(whole: MetricTable, count: int) -> Opened:
    columns = {key: values[:count] for key, values in whole.columns.items()}
    return open_source(replace(whole, steps=whole.steps[:count], columns=columns))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("format_collapse", marks=pytest.mark.long),
        "echo_trap",
        pytest.param("solved", marks=pytest.mark.long),
    ],
)
def test_a_source_that_grows_is_judged_as_if_it_were_read_anew(kind: str) -> None:
    """Whatever was asked before, and in whichever process."""
    whole = make(kind, 4).table
    judgement = Judgement()
    for count in (1, 30, 31, 75, 90, whole.num_rows):
        opened = first_rows(whole, count)
        assert judgement.verdict(opened) == diagnose(opened), count
        judgement = pickle.loads(pickle.dumps(judgement))


def test_a_row_is_taken_in_once_unless_it_changes() -> None:
    whole = make("format_collapse", 4).table
    judgement = Judgement()
    judgement.verdict(first_rows(whole, 60))
    assert judgement.num_new(first_rows(whole, 75)) == 15
    for key in ("rollout/success_rate", "a column that came later"):
        changed = first_rows(whole, 75)
        values = changed.table.columns.get(key, np.full(75, np.nan)).copy()
        values[10] = 0.01
        changed = replace(
            changed, table=replace(changed.table, columns={**changed.table.columns, key: values})
        )
        assert judgement.num_new(changed) == 75
    assert judgement.verdict(changed) == diagnose(changed)


def test_a_shorter_run_gives_the_same_first_steps() -> None:
    """Causal: what a monitor would have said first does not depend on what came later."""
    made = make("format_collapse", 5).table
    whole = diagnose(made)
    assert whole.first_critical_step is not None
    cut = whole.first_critical_step + 1
    part = MetricTable(
        steps=made.steps[:cut],
        columns={key: values[:cut] for key, values in made.columns.items()},
        sources={},
    )
    found = diagnose(part)
    assert found.first_watch_step == whole.first_watch_step
    assert found.first_critical_step == whole.first_critical_step
    assert found.state is RunState.COLLAPSING or found.state is RunState.COLLAPSED


def test_stop_flags_of_the_source_are_no_input() -> None:
    made = make("format_collapse", 6).table
    flags = {**made.columns, "early_stopped/reward_variance_collapse": np.ones(made.num_rows)}
    flagged = MetricTable(steps=made.steps, columns=flags, sources={})
    assert diagnose(flagged) == diagnose(made)


def test_exemplars_and_template_are_told() -> None:
    diagnosis = Diagnosis()
    for step, values in make("template_collapse", 7).table.rows():
        diagnosis.observe(step, values)
    shown = Shown(trajectory_id="t00000120-00037", turn=0, spans=((3, 9),), note="template")
    verdict = diagnosis.verdict(exemplars=[shown], template=template_words("I will go ___", 0.9))
    assert verdict.to_json()["exemplars"][0]["spans"] == [[3, 9]]
    assert '"I will go ___"' in verdict.text


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("step,success_rate\n" + "".join(f"{s},0.5\n" for s in range(30)))
    assert diagnose(file).state is RunState.HEALTHY
    assert diagnose(tmp_path).state is RunState.HEALTHY, "a folder that holds metrics"
    (tmp_path / "none").mkdir()
    with pytest.raises(MetricsFileError, match="none: is empty"):
        diagnose(tmp_path / "none")
    with pytest.raises(OSError, match="No such file"):
        diagnose(tmp_path / "none.csv")
