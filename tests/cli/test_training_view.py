"""The terminal view: lines, the live panel, and what is said at the end."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from echoscope.cli.training_view import TerminalEvents, spark_line, watch
from echoscope.core.config.beside_training import GivenTreatment
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.store.records import StepMetrics


@pytest.fixture
def config() -> RunConfig:
    return load_config(overrides=["envs.train=[{env: bandit, groups: 8}]", "steps=10", "name=lake"])


def view(config: RunConfig, *, is_live: bool) -> tuple[TerminalEvents, io.StringIO]:
    out = io.StringIO()
    return TerminalEvents(config, Console(file=out, width=120), is_live=is_live), out


def step(number: int, success: float = 0.5) -> StepMetrics:
    return StepMetrics(
        run_id="run",
        step=number,
        phase="train",
        policy_version=0,
        wall_time=0.0,
        values={
            "rollout/success_rate": success,
            "reward/return_mean": 0.25,
            "reward/group_std_mean": math.nan,
            "policy/entropy": 1.2345,
            "selection/num_groups_kept": 6.0,
        },
        durations_s={"time/step_s": 2.0, "time/tokens_per_s": 1234.0},
    )


def evaluation(number: int, rate: float) -> StepMetrics:
    values = {
        "eval/lake/success_rate": rate,
        "eval/lake/success_rate_low": rate - 0.1,
        "eval/lake/success_rate_high": rate + 0.1,
        "eval/lake/num_tasks": 40.0,
    }
    return StepMetrics(
        run_id="run",
        step=number,
        phase="eval",
        policy_version=0,
        wall_time=0.0,
        values=values,
        durations_s={},
    )


def test_spark_line() -> None:
    assert spark_line([0.0, 0.5, 1.0]) == "▁▅█"  # 0.5 * 7 rounds to the even 4
    assert spark_line([math.nan, -1.0, 2.0]) == " ▁█"
    assert spark_line([0.0, 1.0, 1.0], width=2) == "██"
    assert spark_line([]) == ""


def test_headless_is_a_line_a_step(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    events.metrics(step(4))
    assert out.getvalue() == (
        "step    4/10  success 0.50  return 0.250  reward std -  entropy 1.234  kept 6/8  "
        "1234 tok/s  left 0:12\n"
    )


def test_evaluations_and_messages_are_lines_in_both_views(config: RunConfig) -> None:
    for is_live in (False, True):
        events, out = view(config, is_live=is_live)
        events.metrics(evaluation(5, 0.5))
        events.message("step 3: [bold]no update[/]")  # text from outside is no markup
        assert out.getvalue() == (
            "step    5  evaluation  lake 50.0 % [40.0, 60.0]\nstep 3: [bold]no update[/]\n"
        )


def test_a_probe_is_a_line_of_its_own_and_no_evaluation(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    seen = evaluation(5, 0.5)
    values = {key.replace("eval/", "probe/"): value for key, value in seen.values.items()}
    events.metrics(replace(seen, values=values))
    events.summary(Path("runs/lake"), "finished")
    first, second, *_ = out.getvalue().splitlines()
    assert (first, second) == (
        "step    5  probe  lake 50.0 % [40.0, 60.0]",
        "run finished: runs/lake",
    )


def test_a_pause_is_said_where_nothing_shows_it(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    events.phase(3, "rollout")
    events.phase(3, "paused by alarm LOW_SUCCESS")
    events.phase(3, "checkpoint")
    events.phase(3, "paused by alarm LOW_SUCCESS")
    assert out.getvalue() == "paused after step 3 by alarm LOW_SUCCESS\n"
    events.phase(3, "rollout")
    events.phase(3, "paused by ann")
    assert out.getvalue().endswith("\npaused after step 3 by ann\n")


def test_a_line_at_least_every_ten_seconds_says_what_goes_on(config: RunConfig) -> None:
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, width=120)
    events = TerminalEvents(config, console, is_live=False, now=lambda: now[0])

    def line_at(seconds: float) -> str:
        now[0] = seconds
        before = len(out.getvalue())
        events.say_alive()
        return out.getvalue()[before:]

    assert line_at(9) == ""
    assert line_at(10) == "starting (10 s so far)\n"
    events.phase(1, "rollout")
    events.progress(3, 16, "episodes")
    events.progress(7, 40, "tokens of the replies under way")
    assert line_at(19) == ""
    assert line_at(20) == (
        "step    1  sampling, 3 of 16 episodes, 7 of 40 tokens of the replies under way "
        "(10 s so far)\n"
    )
    events.phase(1, "diagnostics")
    assert line_at(100) == "step    1  diagnostics (1 min 20 s so far)\n"
    events.phase(1, "paused by ann")
    assert line_at(1000) == ""


def test_where_there_is_a_live_view_it_alone_shows_what_goes_on(config: RunConfig) -> None:
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, width=120)
    events = TerminalEvents(config, console, is_live=True, now=lambda: now[0])
    now[0] = 100.0
    events.say_alive()
    assert out.getvalue() == ""
    events.phase(1, "rollout")
    events.progress(3, 16, "episodes")
    console.print(events)
    assert "sampling, 3 of 16 episodes - Ctrl-C stops after this step" in out.getvalue()


def test_the_live_panel_shows_what_matters(config: RunConfig) -> None:
    events, out = view(config, is_live=True)
    console = Console(file=out, width=120)
    console.print(events)
    assert "starting" in out.getvalue()  # nothing to show yet, and no crash
    out.seek(0)
    events.metrics(step(1, 0.0))
    events.metrics(evaluation(1, 0.4))
    events.metrics(step(2, 1.0))
    events.phase(3, "update")
    console.print(events)
    printed = out.getvalue()
    for text in (
        "echoscope lake",
        "2/10",
        "1.00  ▁█",
        "6 of 8",
        "1.234",
        "1234",
        "lake 40.0 %",
        "Policy entropy",
    ):
        assert text in printed, text
    assert "update - Ctrl-C stops after this step" in printed


def test_the_summary_compares_before_and_after(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    events.metrics(evaluation(0, 0.4))
    events.metrics(evaluation(10, 0.8))
    out.truncate(0)
    out.seek(0)
    events.summary(Path("runs/lake"), "finished")
    lines = out.getvalue().splitlines()
    assert lines[:4] == [
        "lake: success 40.0 % [30.0, 50.0] before, 80.0 % [70.0, 90.0] after 10 steps, on 40 "
        "evaluation tasks",
        "run finished: runs/lake",
        "next:",
        "  echoscope diagnose runs/lake    # is it healthy, and what to do",
    ]


def test_the_summary_of_a_treated_run_tells_each_treatment(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    first = GivenTreatment(checkpoint=20, settings={"optim.lr": 1e-4}, before={"optim.lr": 1e-3})
    gone = {"reward.shaping.0.weight": None, "reward.shaping": []}
    second = GivenTreatment(checkpoint=10, settings=gone, before={})
    events.summary(Path("runs/lake-3"), "finished", [first, second])
    assert out.getvalue().splitlines()[:3] == [
        "treatment 1: from checkpoint 20 with optim.lr=0.0001",
        "treatment 2: from checkpoint 10 with reward.shaping=[]",
        "run finished: runs/lake-3",
    ]


def test_one_evaluation_is_no_comparison(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    events.metrics(evaluation(0, 0.4))
    events.summary(Path("runs/lake"), "stopped")
    assert "before" not in out.getvalue()
    events, out = view(config, is_live=False)
    events.summary(Path("runs/lake"), "failed")
    assert out.getvalue().startswith("run failed: runs/lake\nnext:\n")


@pytest.mark.parametrize("is_live", [False, True])
def test_watching(config: RunConfig, capsys: pytest.CaptureFixture[str], is_live: bool) -> None:
    with watch(config, is_live=is_live) as events:
        events.metrics(step(1))
        events.message("hello")
    assert "hello" in capsys.readouterr().out


def test_a_run_that_lost_its_success_says_so_and_points_to_diagnose(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    for number_, rate in ((0, 0.2), (4, 0.8), (10, 0.0)):
        events.metrics(evaluation(number_, rate))
    events.summary(Path("runs/a"), "finished")
    text = out.getvalue()
    assert "lake: the run ended at 0 % success, best 80 % (step 4)" in text
    assert "echoscope diagnose runs/a" in text
    assert "--resume" not in text


def test_a_healthy_run_opens_with_its_success(config: RunConfig) -> None:
    events, out = view(config, is_live=False)
    for number_, rate in ((0, 0.35), (10, 0.82)):
        events.metrics(evaluation(number_, rate))
    out.truncate(0)
    out.seek(0)
    events.summary(Path("runs/a"), "finished")
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("lake: success 35.0 %")
    assert "why" not in out.getvalue()
    assert any("--resume runs/a steps=20" in line for line in lines)
