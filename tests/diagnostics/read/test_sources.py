"""Stored runs as a source: their metrics, or the text of a stated sample."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.measure.text.sample import measure_sample
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.sources import open_source
from echoscope.store.reader import open_run
from echoscope.store.records import Split, StepMetrics, Trajectory, Turn
from echoscope.store.writer import RunWriter

WORDS = ("up", "down", "left", "right", "north", "south", "east", "west", "ice", "hole", "goal")


def reply(step: int, p: int, g: int, template_from: int) -> str:
    """Reasoning about the group's own square, until everyone says the same."""
    if step >= template_from:
        thought = "I should move toward the goal, so I will go on as I always do."
    else:
        thought = f"Square {WORDS[p]} is next to {WORDS[-p - 1]}; option {g} leads {WORDS[p + 1]}."
    return f"<think>{thought}</think><answer>up</answer>"


def trajectory(step: int, p: int, g: int, template_from: int, split: Split) -> Trajectory:
    text = reply(step, p, g, template_from)
    end = text.index("</think>")
    turn = Turn(
        index=0,
        observation=f"You stand at {WORDS[p]}.",
        response=text,
        reasoning_chars=(7, end),
        answer_chars=(end + 16, end + 18),
        actions=("up",),
        reward=float(g % 2),
    )
    return make_trajectory(
        turn,
        step=step,
        split=split,
        index=p * 4 + g,
        group_index=p,
        sibling_index=g,
        tag="lake",
        env_seed=p,
        noise_seed=g,
        prompt_key=str(p),
        is_success=g % 2 == 0,
    )


def write_run(
    path: Path,
    num_steps: int,
    values: Callable[[int], dict[str, float]],
    *,
    is_measured: bool = False,
) -> Path:
    writer = RunWriter.create(path, run_id=path.name, config={}, is_packing=False)
    for step in range(num_steps):
        rows = [trajectory(step, p, g, 12, Split.TRAIN) for p in range(4) for g in range(4)]
        report = measure_sample(rows) if is_measured else None
        metrics = StepMetrics(
            run_id=path.name,
            step=step,
            phase="train",
            policy_version=step,
            wall_time=float(step),
            values=values(step) | (report.metrics() if report else {}),
        )
        records = [report.record(step)] if report else []
        writer.commit_step(metrics=[metrics], trajectories=rows, outcomes=[], diagnostics=records)
    writer.close(status="finished")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "r1"
    return write_run(folder, 24, lambda s: {"rollout/success_rate": 0.5}, is_measured=True)


def test_template_collapse_from_text_alone(run: Path) -> None:
    verdict = diagnose(run)
    assert "TEMPLATE_COLLAPSE" in verdict.kinds
    assert verdict.onset_step is not None
    assert 10 <= verdict.onset_step <= 16
    assert verdict.exemplars
    assert verdict.exemplars[0].trajectory_id.startswith("t00000023")
    prompts = {t.id: t.prompt_key for t in open_run(run).trajectories_of_step(23)}
    prompt_keys = [prompts[exemplar.trajectory_id] for exemplar in verdict.exemplars]
    assert len(set(prompt_keys)) == len(prompt_keys) == 3  # different prompts, not siblings of one
    assert "toward the goal" in verdict.text
    assert verdict.actions[0].command == ""  # another trainer's run: `ctl` cannot steer it


@pytest.mark.long
def test_an_open_run_is_a_source_too(run: Path) -> None:
    assert diagnose(open_run(run)).kinds == diagnose(run).kinds


def test_a_run_has_the_measures_that_were_stored_with_it(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r2", 10, lambda s: {"text/dependence": 0.5, "loss/total": np.nan})
    opened = open_source(path)
    assert "text/template_frac" not in opened.table.columns
    assert opened.table.columns["text/dependence"].tolist() == [0.5] * 10
    assert opened.exemplars(["CONVERGED"]).places == ()


def test_a_folder_that_is_no_run_names_only_what_exists(tmp_path: Path) -> None:
    """No command that is not there: this run once named `import` before there was one."""
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    with pytest.raises(
        MetricsFileError, match="holds neither rollouts nor metrics of a known form, and no run"
    ) as caught:
        open_source(tmp_path)
    message = str(caught.value).replace(str(tmp_path), "")
    assert set(re.findall(r"echoscope \w+", message)) <= {"echoscope import"}


FULL_VERL = (
    *("actor/entropy", "actor/pg_loss", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"),
    *("actor/ppo_kl", "actor/kl_loss", "actor/kl_coef", "actor/grad_norm", "actor/lr"),
    *(
        f"critic/{name}/{of}"
        for name in ("score", "rewards", "advantages", "returns")
        for of in ("mean", "max", "min")
    ),
    *(
        f"{name}/{of}"
        for name in ("response_length", "response_length_non_aborted", "prompt_length")
        for of in ("mean", "max", "min", "clip_ratio")
    ),
    *("response/aborted_ratio", "num_turns/mean", "num_turns/max", "num_turns/min"),
    *(f"timing_s/{name}" for name in ("generate_sequences", "reshard", "gen", "reward")),
    *(f"timing_s/{name}" for name in ("old_log_prob", "ref", "adv", "update_actor", "step")),
    *(f"timing_per_token_ms/{name}" for name in ("gen", "ref", "adv", "update_actor")),
    *(f"perf/{name}" for name in ("mfu/actor", "max_memory_allocated_gb", "cpu_memory_used_gb")),
    *(f"perf/{name}" for name in ("total_num_tokens", "time_per_step", "throughput")),
    *(f"global_seqlen/{name}" for name in ("min", "max", "minmax_diff", "balanced_min", "mean")),
)
"""What verl logs a step beside its number and epoch; an evaluation has further columns."""


def verl_log(num_steps: int) -> str:
    """A console log as a Ray worker of verl prints it, with an evaluation every tenth step."""
    lines = []
    for step in range(1, num_steps + 1):
        fields = [f"{name}:{0.5 + 0.01 * (step % 3)}" for name in FULL_VERL]
        fields += [f"training/global_step:{step}", "training/epoch:0"]
        if step % 10 == 0:
            fields += ["val-core/openai/gsm8k/acc/mean@1:0.55", "val-aux/num_turns/mean:2.0"]
        lines.append(f"\x1b[36m(TaskRunner pid=4242)\x1b[0m step:{step} - {' - '.join(fields)}\n")
    return "".join(lines)


def test_a_log_with_all_columns_of_verl_keeps_the_help_for_verl(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(verl_log(30), encoding="utf-8")
    situation = open_source(path).situation
    assert (situation.trainer, situation.has_own_keys) == ("verl", False)
    text = diagnose(path).text
    assert "format collapse (needs the share of valid actions)" in text
    assert "give `--map NAME=rollout/action_valid_frac`" in text
    assert "is not logged" not in text


def test_a_log_of_our_own_keys_is_our_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,policy/entropy,rollout/success_rate,reward\n1,1.5,0.5,0.5\n")
    assert open_source(path).situation.has_own_keys
