"""verl's tracking with our backend: by its call sequence, and with verl itself where it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from page_blocks import python_block

from echoscope.recorder.verl import EchoscopeTracking, TrainingStoppedError
from echoscope.store.reader import RunReader, open_run
from echoscope.store.steer.commands import new_command, post


@pytest.fixture
def tracking(tmp_path: Path) -> Iterator[EchoscopeTracking]:
    made = EchoscopeTracking(
        tmp_path / "run",
        config={"trainer": {"total_training_steps": 3}},
        on_message=lambda text: None,
    )
    yield made
    made.finish()


def stored(run: RunReader, step: int) -> dict[str, float]:
    rows = run.sql("SELECT key, value FROM metrics WHERE step = $1", [step]).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def test_steps_have_their_numbers(tracking: EchoscopeTracking, tmp_path: Path) -> None:
    tracking.log(data={"val-core/reward/mean@1": 0.25}, step=0)
    for step in (1, 2):
        tracking.log(data={"actor/entropy": 1.0 / step, "critic/score/mean": 0.5}, step=step)
    tracking.finish()
    run = open_run(tmp_path / "run")
    assert (run.info().last_step, run.info().status) == (2, "finished")
    for step in (1, 2):
        values = stored(run, step)
        assert values["actor/entropy"] == values["policy/entropy"] == 1.0 / step
    assert run.info().config["trainer"] == {"total_training_steps": 3}


def test_a_step_that_is_logged_twice_is_said(tracking: EchoscopeTracking, tmp_path: Path) -> None:
    tracking.log(data={"loss": 1.0}, step=1)
    tracking.log(data={"loss": 2.0}, step=1)
    tracking.log(data={"loss": 3.0}, step=2)
    tracking.finish()
    run = open_run(tmp_path / "run")
    assert [stored(run, step)["loss"] for step in (1, 2)] == [1.0, 3.0]


def test_a_stop_ends_the_training_where_that_is_wanted(tmp_path: Path) -> None:
    made = EchoscopeTracking(tmp_path / "run", raise_on_stop=True, on_message=lambda text: None)
    made.log(data={"loss": 1.0}, step=1)
    post(tmp_path / "run", new_command("run", "stop", issued_by="anna"))

    def train() -> None:
        for step in range(2, 400):
            made.log(data={"loss": 1.0}, step=step)
            time.sleep(0.05)

    with pytest.raises(TrainingStoppedError, match="stopped the training after step"):
        train()
    assert open_run(tmp_path / "run").info().status == "stopped"


# -- verl itself ---------------------------------------------------------------------------------


def test_verls_own_tracking_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that docs/recorder.md adds to `fit`, below verl's own logger."""
    tracking = pytest.importorskip("verl.utils.tracking", reason="needs verl: make test-peers")
    monkeypatch.chdir(tmp_path)
    logger = tracking.Tracking("project", "experiment", default_backend=["console"], config={})
    exec(python_block("recorder.md", "raise_on_stop=True"), {"logger": logger})
    for step in (1, 2):
        logger.log(data={"actor/entropy": 0.5, "training/global_step": step}, step=step)
    logger.finish()
    logger.logger["echoscope"].finish()
    run = open_run(tmp_path / "runs" / "verl-1")
    assert run.info().last_step == 2
    assert stored(run, 2)["policy/entropy"] == 0.5


class Letters:
    """A tokenizer of one letter a token; 0 pads."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(96 + index) for index in ids)


def test_verls_own_batch_has_its_tokens_log_probs_and_groups(tmp_path: Path) -> None:
    verl = pytest.importorskip("verl", reason="needs verl: make test-peers")
    torch = pytest.importorskip("torch")
    batch = verl.DataProto.from_dict(
        tensors={
            "prompts": torch.tensor([[0, 1, 2], [0, 1, 2], [3, 1, 2], [3, 1, 2]]),
            "responses": torch.tensor([[4, 5], [4, 0], [6, 5], [6, 6]]),
            "attention_mask": torch.tensor(
                [[0, 1, 1, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
            ),
            "response_mask": torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]]),
            "token_level_scores": torch.tensor([[0, 1.0], [0.5, 0], [0, 0], [0, 2.0]]),
            "rollout_log_probs": torch.full((4, 2), -0.5),
        },
        non_tensors={"uid": np.array(["a", "a", "b", "b"], dtype=object)},
    )
    made = EchoscopeTracking(tmp_path / "run")
    names = {"logger": SimpleNamespace(logger={"echoscope": made}), "batch": batch}
    block = python_block("recorder.md", ".rollouts(batch")
    exec(block, names | {"self": SimpleNamespace(tokenizer=Letters())})
    made.log(data={"loss": 1.0}, step=1)
    made.finish()
    rows = open_run(tmp_path / "run").trajectories_of_step(1)
    assert [t.group_index for t in rows] == [0, 0, 1, 1]
    assert [t.episode_return for t in rows] == [1.0, 0.5, 0.0, 2.0]
    turns = [t.turns[0] for t in rows]
    assert [turn.response for turn in turns] == ["de", "d", "fe", "ff"]
    assert [turn.observation for turn in turns] == ["ab", "ab", "cab", "cab"]
    assert turns[1].prompt_tokens.tolist() == [1, 2]
    assert turns[1].response_tokens.tolist() == [4]
    assert turns[1].logprobs.tolist() == [-0.5]
    assert turns[3].response_tokens is None  # its second token is an observation


def test_a_batch_without_its_tensors_is_an_error_of_python(tmp_path: Path) -> None:
    """A wrong call is the programmer's: it names the tensor."""
    made = EchoscopeTracking(tmp_path / "run")
    batch: Any = type("Batch", (), {"batch": {}, "non_tensor_batch": {}})()
    with pytest.raises(KeyError, match="prompts"):
        made.rollouts(batch, Letters())
    made.finish()
