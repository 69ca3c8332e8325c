"""`echoscope.Run`: what it answers, in which form, and how it is shown."""

from __future__ import annotations

import doctest
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from made_run import add_steps, make_run, open_writer, step_metrics
from trajectories import make_trajectory

import echoscope
from echoscope import Run
from echoscope.diagnostics.judge.claims import Lost
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.notebook import run, tables
from echoscope.store.errors import QueryError
from echoscope.store.importers.importing import ImportingError
from echoscope.store.reader import open_run
from echoscope.store.records import Turn
from echoscope.store.writer import RunWriter

from .conftest import FIXTURES, append_messages, write_run


@pytest.mark.long
@pytest.mark.parametrize("module", [run, tables])
def test_the_examples_of_the_docstrings_hold(
    module: ModuleType, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo.parents[1])
    results = doctest.testmod(module, extraglobs={"Run": Run})
    assert results.attempted > 0
    assert results.failed == 0


def test_the_package_offers_it_without_importing_it() -> None:
    assert {"Run", "open_run"} <= set(dir(echoscope))
    code = "import sys, echoscope; dir(echoscope); print('echoscope.notebook' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.long
def test_a_card_and_a_figure_need_neither_torch_nor_streamlit(demo: Path) -> None:
    code = (
        "import sys, echoscope\n"
        "run = echoscope.Run(sys.argv[1])\n"
        "run._repr_html_(), repr(run), run.plot(), run.episode('t00000001-00000')._repr_html_()\n"
        "print(sorted({'torch', 'transformers', 'streamlit'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(demo)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# --- numbers


def test_metrics_are_a_row_a_step_and_a_column_a_metric(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", 3, values=lambda s: {"b": s, "policy/entropy": 1.0 - s})
    frame = Run(path).metrics()
    assert frame.index.tolist() == [0, 1, 2]
    assert frame.index.name == "step"
    assert frame.to_dict("list") == {"b": [0.0, 1.0, 2.0], "policy/entropy": [1.0, 0.0, -1.0]}
    assert frame.attrs["units"]["policy/entropy"] == "nats per token"
    assert frame.attrs["names"]["policy/entropy"] == "Policy entropy"


def test_a_step_without_a_metric_has_nan_and_nan_stays_nan(tmp_path: Path) -> None:
    values = {0: {"a": 1.0}, 1: {"a": float("nan"), "b": 2.0}}
    frame = Run(make_run(tmp_path / "a", 2, values=lambda step: values[step])).metrics()
    np.testing.assert_array_equal(frame["a"], [1.0, np.nan])
    np.testing.assert_array_equal(frame["b"], [np.nan, 2.0])


def test_a_metric_of_both_phases_is_that_of_training(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "a", run_id="a", config={}, is_packing=False)
    both = [step_metrics("a", 0, {"x": 1.0}, "train"), step_metrics("a", 0, {"x": 2.0}, "eval")]
    writer.commit_step(metrics=both, trajectories=[], outcomes=[])
    writer.close(status="finished")
    opened = Run(tmp_path / "a")
    assert opened.metrics()["x"].tolist() == [1.0]


def test_an_unknown_metric_is_named_with_the_one_that_was_meant(demo: Path) -> None:
    with pytest.raises(QueryError, match=r"'policy/entropi'; did you mean 'policy/entropy'\?"):
        Run(demo).metrics("policy/entropi")
    with pytest.raises(QueryError, match=r"no metric of the run matches 'eval/\*'"):
        Run(demo).metrics(["policy/entropy", "eval/*"])


def test_trajectories_are_those_that_the_reader_has(demo: Path) -> None:
    good = Run(demo).trajectories("success and step > 10", columns=["id", "episode_return"])
    rows = open_run(demo).sql(
        "SELECT id, episode_return FROM trajectories WHERE is_success AND step > 10 ORDER BY id"
    )
    assert good.to_dict("records") == rows.to_pylist()
    assert len(good) == 38


def test_turns_have_their_episode_and_their_parts_as_python_cuts_them(one_episode) -> None:
    reply = "I see \U0001f469‍\U0001f52c é, so up.</think><answer>up</answer>!"
    start = reply.index("<answer>")
    turn = Turn(
        index=0,
        observation="o",
        response=reply,
        reasoning_chars=(0, reply.index("</think>")),
        answer_chars=(start + 8, start + 10),
        reward=1.0,
        is_valid=None,
    )
    path = one_episode(turn, tag="lake", is_success=True)
    row = Run(path).turns("success", columns="all").to_dict("records")[0]
    assert (row["reasoning"], row["answer"]) == (turn.reasoning, turn.answer)
    assert (row["tag"], row["episode_return"]) == ("lake", 1.0)
    assert Run(path).turns()["is_valid"].isna().all()


def test_what_is_unknown_stays_unknown_and_a_long_seed_exact(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "a", run_id="a", config={}, is_packing=False)
    seeds = (2**62 + 1, None)
    writer.commit_step(
        metrics=[step_metrics("a", 1, {})],
        trajectories=[
            make_trajectory(Turn(index=0, observation="", response=""), index=k, env_seed=seed)
            for k, seed in enumerate(seeds)
        ],
        outcomes=[],
    )
    writer.close(status="finished")
    frame = Run(tmp_path / "a").trajectories()
    assert frame["env_seed"].tolist() == [2**62 + 1, pd.NA]
    assert frame["is_success"].tolist() == [pd.NA, pd.NA]
    assert frame["is_success"].dtype == "boolean"
    assert frame[frame["is_success"].fillna(False)].empty


def test_settings_hold_at_a_step(demo: Path) -> None:
    settings = Run(demo).settings()
    assert settings["envs.train.0.env"] == "frozen_lake"
    assert settings["steps"] == 100


# --- verdict


def test_the_verdict_is_that_of_the_command(collapsed: Path) -> None:
    judged, expected = Run(collapsed).diagnose(), diagnose(collapsed)
    assert (
        judged.verdict.to_json() == expected.to_json()
    )  # numbers that nobody knows are no numbers
    assert judged.state == "collapsed"
    assert judged.sentence.startswith("Format collapse, starting")
    rows = judged.evidence.set_index("metric")
    lost = next(claim for claim in expected.claims if isinstance(claim, Lost)).change
    now = rows.loc[lost.metric, ["before", "after", "low", "high"]].tolist()
    assert now == [lost.before.value, lost.after.value, lost.after.low, lost.after.high]
    assert set(rows.index) >= {row.metric for row in expected.evidence}
    assert judged.advice["text"][0] == expected.actions[0].text


def test_a_card_says_status_verdict_figures_and_how_to_go_on(collapsed: Path) -> None:
    opened = Run(collapsed)
    text, html = repr(opened), opened._repr_html_()
    for phrase in ("collapsed: finished, step 79", "Format collapse, starting", ".diagnose()"):
        assert phrase in text
    for phrase in ("Training success", "10 %", "Format collapse", "<polyline", "Policy"):
        assert phrase in html


def test_a_verdict_is_kept_until_there_is_a_new_step(tmp_path: Path, monkeypatch) -> None:
    times = []
    monkeypatch.setattr(run, "judge", lambda opened: times.append(1) or diagnose(opened))
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(2))
    judged_run = Run(tmp_path / "a")
    repr(judged_run), judged_run.diagnose(), judged_run.plots()
    assert len(times) == 1
    add_steps(writer, "a", range(2, 3))
    judged_run.diagnose()
    assert len(times) == 2
    writer.close(status="finished")


# --- figures


def test_plots_lists_what_has_data_and_each_is_drawn(collapsed: Path) -> None:
    opened = Run(collapsed)
    names = opened.plots()
    assert names[:2] == ["evidence", "success"]
    assert "information" not in names
    for name in names:
        assert len(opened.plot(name).data) > 0
    assert opened.plot() == opened.plot("evidence")


def test_a_figure_is_the_one_of_the_dashboard(collapsed: Path) -> None:
    figure = Run(collapsed).plot("success")
    assert figure.layout.annotations[0].text.startswith("<b>Success</b>")
    line = next(trace for trace in figure.data if trace.name == "training")
    np.testing.assert_array_equal(line.y, [0.6] * 50 + [0.1] * 30)
    assert figure.layout.shapes[0].label.text == "began"


def test_any_metric_can_be_drawn_and_a_mistyped_one_is_named(collapsed: Path) -> None:
    opened = Run(collapsed)
    assert opened.plot("text/loop_frac").data[0].y.tolist() == [0.0] * 80
    with pytest.raises(QueryError, match=r"'sucess'; did you mean 'success'\?"):
        opened.plot("sucess")
    with pytest.raises(QueryError, match="no data for the figure 'regimes'"):
        opened.plot("regimes")
    with pytest.raises(ValueError, match="axis is 'hours', but must be"):
        opened.plot("success", axis="hours")


# --- other runs


# --- files of other trainers


@pytest.mark.parametrize("name", ["ragen", "verl", "trl", "verifiers", "messages"])
def test_rollouts_of_other_trainers_open_like_runs(name: str) -> None:
    opened = Run(FIXTURES / name)
    assert len(opened.trajectories()) > 0
    assert opened.name == name
    assert "trainer " in repr(opened)
    assert opened.diagnose().verdict.notes[0].startswith("judged from")
    first = opened.trajectories(limit=1)["id"][0]
    assert first in opened.episode(first)._repr_html_()


def test_an_import_that_is_not_kept_goes_with_its_object(messages: Path) -> None:
    opened = Run(messages)
    folder = opened.path
    assert folder.is_dir()
    assert str(folder) not in repr(opened) + opened._repr_html_() + repr(opened.diagnose())
    del opened
    assert not folder.exists()


def test_what_an_import_skipped_and_guessed_is_said(messages: Path) -> None:
    with messages.open("a", encoding="utf-8") as file:
        file.write('{"step": 0, "messages": [{"role": "user", "content": "q"}]}\n')
    assert "skipped 1 row: it has no reply of the policy (1)" in Run(messages).warnings
    notes = Run(FIXTURES / "verl").warnings
    assert (
        "reconstructed: only the reward of the episode is known; it stands at the last turn"
        in notes
    )


def test_a_card_shows_a_mean_reward_where_no_success_is_known(tmp_path: Path) -> None:
    write_run(tmp_path / "by-reward", range(3), lambda step: {"reward/return_mean": step / 4})
    assert "Mean reward  " in repr(Run(tmp_path / "by-reward")).replace("     ", " ")
    assert "100 %" in repr(Run(FIXTURES / "messages"))


def test_refresh_imports_what_another_trainer_added(messages: Path) -> None:
    opened = Run(messages)
    assert len(opened.trajectories()) == 4
    append_messages(messages, range(2, 3))
    assert len(opened.refresh().trajectories()) == 6


RECORDED = Path(echoscope.__file__).resolve().parent / "diagnostics" / "bench" / "runs"


def test_a_metrics_file_opens_without_episodes() -> None:
    opened = Run(RECORDED / "collapse-template" / "seed0.csv")
    assert opened.diagnose().state == "collapsing"
    assert opened.trajectories().empty
    assert ".trajectories" not in opened._repr_html_()
    assert {"evidence", "success", "regimes"} <= set(opened.plots())


def test_one_of_several_runs_is_named(tmp_path: Path) -> None:
    for name in ("seed0.csv", "seed1.csv"):
        shutil.copy(RECORDED / "healthy-bandit" / name, tmp_path)
    with pytest.raises(ImportingError, match=r"2 runs\. Choose one with run=NAME"):
        Run(tmp_path)
    assert Run(tmp_path, run="seed1.csv").last_step > 20
