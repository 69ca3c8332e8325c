"""Samples of slime, as its trainer saves them."""

from __future__ import annotations

from pathlib import Path

import torch
from rollout_import import import_run

from echoscope.store.records import FinishReason, Split, StopReason

from ..conftest import Imported, slime_sample, texts


def test_samples_of_slime(tmp_path: Path) -> None:
    folder = tmp_path / "debug"
    folder.mkdir()
    other = slime_sample(index=10, reward={"acc": 1.0, "format": 0.5}, status="truncated")
    pack = {"rollout_id": 12, "samples": [slime_sample(), other]}
    torch.save(pack, folder / "12.pt")
    late = slime_sample(prompt="<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n")
    late |= {"remove_sample": True, "response": "only", "loss_mask": None, "response_length": 3}
    torch.save({"rollout_id": 13, "samples": [late]}, folder / "eval_13.pt")
    imported = Imported(import_run(folder, tmp_path / "run"))
    first, second, third = imported.trajectories
    assert (first.step, third.step) == (12, 13)
    assert texts(first.turns) == [("2 + 3?", "a1"), ("obs", "a2")]
    assert [turn.reward for turn in first.turns] == [0.0, 0.75]
    assert [turn.prompt_tokens.tolist() for turn in first.turns] == [[1, 2, 3], [*range(1, 7)]]
    assert [turn.response_tokens.tolist() for turn in first.turns] == [[4, 5], [7, 8]]
    assert [turn.logprobs.tolist() for turn in first.turns] == [[-0.5, -0.25], [-1.0, -2.0]]
    assert first.policy_version == 7
    assert first.stop_reason is StopReason.TERMINATED
    assert first.turns[-1].finish_reason is FinishReason.STOP
    assert (first.group_index, second.sibling_index) == (0, 1)
    assert second.episode_return == 1.0
    assert second.turns[-1].info == {"reward/acc": 1.0, "reward/format": 0.5}
    assert second.stop_reason is StopReason.MAX_TOKENS
    assert imported.extra(0)["fields"]["label"] == "5"
    assert imported.extra(0)["fields"]["metadata"] == {"k": 1}
    assert third.split is Split.EVAL
    assert texts(third.turns) == [("Q", "only")]
    assert third.turns[0].response_tokens.tolist() == [6, 7, 8]
