"""docs/recorder.md, run as printed: each block stands in a loop that has the names it uses.

The blocks of TRL, verl and verifiers run with those packages: `test_trl.py` and its neighbours.
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from page_blocks import python_block
from transformers import AutoModelForCausalLM, AutoTokenizer

import echoscope
from echoscope.recorder.recorder import Recorder
from echoscope.store.reader import open_run
from echoscope.store.records import CommandOutcome
from echoscope.store.steer.commands import new_command, post

PAGE = "recorder.md"
RUN = Path("runs/mine")


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def episode(task: int, sibling: int) -> tuple[list[dict[str, str]], float, bool, int]:
    """Messages, reward, success and task."""
    reply = f"<think>to {task} {'and ' * sibling}</think><answer>up</answer>"
    messages = [
        {"role": "user", "content": f"task {task}"},
        {"role": "assistant", "content": reply},
    ]
    return messages, float(sibling), sibling == 1, task


EPISODES = [episode(task, sibling) for task in range(3) for sibling in range(2)]


def test_any_loop() -> None:
    names: dict[str, Any] = {"args": Namespace(lr=1e-3), "steps": 3, "episodes": EPISODES}
    exec(python_block(PAGE, "config=vars(args)"), {**names, "loss": 0.5, "entropy": 1.25})
    run = open_run(RUN)
    info = run.info()
    assert (info.status, info.last_step) == ("finished", 3)
    rows = run.trajectories_of_step(3)
    assert [t.group_index for t in rows] == [0, 0, 1, 1, 2, 2]
    assert [t.episode_return for t in rows] == [0.0, 1.0] * 3
    assert [t.is_success for t in rows] == [False, True] * 3
    assert run.metrics("loss")[1].tolist() == [0.5] * 3
    assert run.metrics("policy/entropy")[1].tolist() == [1.25] * 3


def test_the_policy_is_measured(tiny_model: Path) -> None:
    """One measurement: the next is due `information.every` steps later."""
    block = python_block(PAGE, "recorder.measure(step)").replace("...  #", "sample(recorder)  #")
    model = AutoModelForCausalLM.from_pretrained(tiny_model)

    def sample(recorder: Recorder) -> None:
        for messages, reward, _, task in EPISODES:
            recorder.episode(messages, reward=reward, group=task)

    names: dict[str, Any] = {
        "echoscope": echoscope,
        "model": model,
        "tokenizer": AutoTokenizer.from_pretrained(tiny_model),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.0),
        "sample": sample,
        "steps": 2,
        "loss": 0.5,
    }
    exec(block, names)
    names["recorder"].close()
    run = open_run(RUN)
    for key in ("mutual_information", "conditional_entropy"):
        steps, values = run.metrics(f"info/first_turn/{key}")
        assert steps.tolist() == [1], key
        assert values[0] == values[0], key


def test_a_setting_is_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_HOOK", "https://hooks.slack.com/services/T/B/x")
    rates: list[float] = []
    names: dict[str, Any] = {"echoscope": echoscope, "set_lr": rates.append, "save": lambda: None}
    exec(python_block(PAGE, "on_set="), names)
    with names["recorder"] as recorder:
        recorder.step(1, {"loss": 0.5})
        recorder.flush()
        post(RUN, new_command("mine", "set", settings={"lr": 1e-4}, issued_by="anna"))
        deadline = time.monotonic() + 60
        for step in range(2, 10_000):
            if rates:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
            recorder.step(step, {"loss": 0.5})
    assert rates == [1e-4]
    (state,) = open_run(RUN).commands()
    assert state.ack is not None
    assert state.ack.outcome is CommandOutcome.APPLIED
