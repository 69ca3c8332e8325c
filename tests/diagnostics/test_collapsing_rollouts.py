"""Twelve collapsing and twelve healthy sets of rollouts, as twelve trainers write them.

30 steps of 16 prompts with 8 replies each, and rewards of 0 and 1. In the collapsing sets the
replies turn into one template from step 12 on (96 % of them by step 19), and the mean reward falls
from .69 to .01. In the healthy sets it rises from .3 to .7, and replies follow their prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import parse_map
from echoscope.diagnostics.read.rollouts import of_another_trainer
from echoscope.diagnostics.read.table import MetricTable

NUM_STEPS, NUM_PROMPTS, NUM_REPLIES = 30, 16, 8
ONSET, ALL_ALIKE = 12, 19
SIDES = ("left", "right", "up", "down")
TEMPLATE = "I will think step by step and carefully choose the best move for this board."


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One reply to one prompt."""

    step: int
    task: int
    prompt: str
    reasoning: str
    move: str
    is_solved: bool

    @property
    def reply(self) -> str:
        return f"<think>{self.reasoning}</think><answer>{self.move}</answer>"


def episodes(*, is_collapsing: bool) -> Iterator[Episode]:
    draw = random.Random(7)
    for step in range(NUM_STEPS):
        share = min(1.0, max(0.0, (step - ONSET + 1) / (ALL_ALIKE - ONSET + 1)))
        alike = 0.96 * share if is_collapsing else 0.0
        rate = 0.69 - 0.68 * share if is_collapsing else 0.3 + 0.4 * step / (NUM_STEPS - 1)
        for prompt in range(NUM_PROMPTS):
            goal, row, column = draw.choice(SIDES), draw.randrange(30), draw.randrange(30)
            for _ in range(NUM_REPLIES):
                free = draw.choice(SIDES)
                own = (
                    f"The goal is {goal} of row {row} and column {column}; {free} is free, "
                    f"so after {draw.randrange(9)} steps {goal} it is."
                )
                yield Episode(
                    step=step,
                    task=step * NUM_PROMPTS + prompt,
                    prompt=f"Board {step}-{prompt}: you stand at {row}, {column}; goal {goal}.",
                    reasoning=TEMPLATE if draw.random() < alike else own,
                    move=goal,
                    is_solved=draw.random() < rate,
                )


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def by_step(told: Sequence[Episode]) -> list[list[Episode]]:
    return [[e for e in told if e.step == step] for step in range(NUM_STEPS)]


def verl_row(e: Episode) -> dict[str, Any]:
    text = f"user\n{e.prompt}\nassistant\n"
    return {"input": text, "output": e.reply, "score": float(e.is_solved), "step": e.step}


def verl(folder: Path, told: Sequence[Episode]) -> None:
    for rows in by_step(told):
        lines = [{**verl_row(e), "gts": e.move} for e in rows]
        write_lines(folder / f"{rows[0].step}.jsonl", lines)


def verl_with_acc(folder: Path, told: Sequence[Episode]) -> None:
    for rows in by_step(told):
        lines = [{**verl_row(e), "gts": e.move, "acc": float(e.is_solved)} for e in rows]
        write_lines(folder / f"{rows[0].step}.jsonl", lines)


def verl_without_gts(folder: Path, told: Sequence[Episode]) -> None:
    """An older version, and a reward of -1 and 1."""
    for rows in by_step(told):
        lines = [{**verl_row(e), "score": 2.0 * e.is_solved - 1} for e in rows]
        write_lines(folder / f"{rows[0].step}.jsonl", lines)


def verl_agent(folder: Path, told: Sequence[Episode]) -> None:
    ask = "Choose an admissible action and present it within <action> </action> tags."
    for rows in by_step(told):
        lines = [
            {
                **verl_row(e),
                "input": f"{e.prompt} {ask}",
                "output": f"<think>{e.reasoning}</think><action>{e.move}</action>",
            }
            for e in rows
        ]
        write_lines(folder / f"{rows[0].step}.jsonl", lines)


def trl_with_weights(folder: Path, told: Sequence[Episode]) -> None:
    """`reward_weights=[1, 0]`: the length is only logged, and longer where episodes fail."""
    history = []
    (folder / "completions").mkdir(parents=True)
    for rows in by_step(told):
        step = rows[0].step + 1
        columns = {
            "step": [step] * len(rows),
            "prompt": [e.prompt for e in rows],
            "completion": [e.reply for e in rows],
            "solved": [float(e.is_solved) for e in rows],
            "length": [-float(len(e.reply)) for e in rows],
            "advantage": [0.0] * len(rows),
        }
        pq.write_table(
            pa.table(columns), folder / "completions" / f"completions_{step:05d}.parquet"
        )
        mean = sum(columns["solved"]) / len(rows)
        history.append({"step": step, "reward": mean, "rewards/solved/mean": mean})
    state = {"global_step": NUM_STEPS, "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def slime(folder: Path, told: Sequence[Episode]) -> None:
    import torch

    folder.mkdir(parents=True)
    for rows in by_step(told):
        samples = [
            {
                "group_index": e.task,
                "index": index,
                "prompt": [{"role": "user", "content": e.prompt}],
                "response": e.reply,
                "reward": float(e.is_solved),
                "status": "completed",
            }
            for index, e in enumerate(rows)
        ]
        step = rows[0].step
        torch.save({"rollout_id": step, "samples": samples}, folder / f"{step}.pt")


def areal(folder: Path, told: Sequence[Episode]) -> None:
    for task in sorted({e.task for e in told}):
        rows = [e for e in told if e.task == task]
        lines = [
            {
                "task_id": task,
                "sample_idx": index,
                "head_version": e.step,
                "tail_version": e.step,
                "reward": float(e.is_solved),
                "prompt": f"<|im_start|>user\n{e.prompt}<|im_end|>\n<|im_start|>assistant\n",
                "completion": f"{e.reply}<|im_end|>",
            }
            for index, e in enumerate(rows)
        ]
        write_lines(folder / "rollout" / str(rows[0].step) / f"{task}.jsonl", lines)


def skyrl(folder: Path, told: Sequence[Episode]) -> None:
    for rows in by_step(told):
        lines = [
            {
                "input_prompt": f"<|im_start|>user\n{e.prompt}<|im_end|>\n<|im_start|>assistant\n",
                "output_response": f"{e.reply}<|im_end|>",
                "score": [0.0, 0.0, float(e.is_solved)],
                "stop_reason": "stop",
                "env_class": "board",
            }
            for e in rows
        ]
        step = rows[0].step
        write_lines(folder / "dumped_evals" / f"global_step_{step}_evals" / "board.jsonl", lines)


def verifiers(folder: Path, told: Sequence[Episode]) -> None:
    for rows in by_step(told):
        lines = [
            {
                "example_id": e.task,
                "prompt": [{"role": "user", "content": e.prompt}],
                "completion": [{"role": "assistant", "content": e.reply}],
                "reward": float(e.is_solved),
                "is_completed": True,
            }
            for e in rows
        ]
        write_lines(folder / f"step_{rows[0].step}" / "results.jsonl", lines)


def prime_rl(folder: Path, told: Sequence[Episode]) -> None:
    lines = [
        {
            "id": f"e{number}",
            "env": {"id": "board", "name": "board"},
            "task": {"key": str(e.task)},
            "group": {"id": str(e.task)},
            "run": {"type": "prime-rl", "work": {"type": "train", "step": e.step}},
            "ok": True,
            "traces": [
                {
                    "id": f"t{number}",
                    "nodes": [
                        {"message": {"role": "user", "content": e.prompt}, "sampled": False},
                        {
                            "message": {
                                "role": "assistant",
                                "reasoning_content": e.reasoning,
                                "content": e.move,
                            },
                            "sampled": True,
                            "parent": 0,
                        },
                    ],
                    "rewards": {"solved": {"score": float(e.is_solved), "weight": 1.0}},
                    "is_completed": True,
                    "ok": True,
                }
            ],
        }
        for number, e in enumerate(told)
    ]
    write_lines(folder / "traces.jsonl", lines)


def messages(folder: Path, told: Sequence[Episode]) -> None:
    lines = [
        {
            "messages": [
                {"role": "user", "content": e.prompt},
                {"role": "assistant", "content": e.reply},
            ],
            "reward": int(e.is_solved),
            "step": e.step,
        }
        for e in told
    ]
    write_lines(folder / "chat.jsonl", lines)


def unknown_form(folder: Path, told: Sequence[Episode]) -> None:
    lines = [
        {
            "task": {"text": e.prompt},
            "model_says": e.reply,
            "pts": int(e.is_solved),
            "update": e.step,
        }
        for e in told
    ]
    write_lines(folder / "dump.jsonl", lines)


MAPPED = ("prompt=task.text", "reply=model_says", "reward=pts", "step=update")
FORMS: Mapping[str, Callable[[Path, Sequence[Episode]], None]] = {
    write.__name__: write
    for write in (
        *(verl, verl_with_acc, verl_without_gts, verl_agent, trl_with_weights, slime),
        *(areal, skyrl, verifiers, prime_rl, messages, unknown_form),
    )
}


def written(folder: Path, form: str, *, is_collapsing: bool) -> tuple[Path, dict[str, Meaning]]:
    FORMS[form](folder, list(episodes(is_collapsing=is_collapsing)))
    entries = MAPPED if form == "unknown_form" else ()
    return folder, parse_map(entries, known_keys(), has_rollouts=True)


def table_of(folder: Path, mapping: Mapping[str, Meaning]) -> MetricTable:
    with of_another_trainer(folder, mapping=mapping) as opened:
        assert opened is not None
        return opened.table


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_what_reaches_the_judge(tmp_path: Path, form: str) -> None:
    table = table_of(*written(tmp_path / form, form, is_collapsing=True))
    columns = table.columns
    assert table.num_rows == NUM_STEPS
    assert set(columns["rollout/num_episodes"]) == {NUM_PROMPTS * NUM_REPLIES}
    assert set(columns["rollout/num_groups"]) == {NUM_PROMPTS}
    outcome = "reward/return_mean" if form == "trl_with_weights" else "rollout/success_rate"
    assert columns[outcome][:ONSET].mean() == pytest.approx(0.69, abs=0.03)
    assert columns[outcome][-5:].mean() == pytest.approx(0.01, abs=0.02)
    assert columns["text/template_match_frac"][-1] > 0.9
    assert columns["text/retrieval_accuracy"][0] > 0.5


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_collapse_is_called_so_in_every_form(tmp_path: Path, form: str) -> None:
    verdict = judged(tmp_path, form, is_collapsing=True)
    assert verdict.state is RunState.COLLAPSED, verdict.text


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_run_is_called_so_in_every_form(tmp_path: Path, form: str) -> None:
    verdict = judged(tmp_path, form, is_collapsing=False)
    assert verdict.state in (RunState.HEALTHY, RunState.CONVERGED), verdict.text


def judged(folder: Path, form: str, *, is_collapsing: bool) -> Verdict:
    path, mapping = written(folder / form, form, is_collapsing=is_collapsing)
    return diagnose(path, mapping=mapping)
