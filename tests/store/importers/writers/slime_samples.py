"""Writes `fixtures/slime` with `torch.save`, from the keys of slime's `Sample.to_dict`
(slime/utils/types.py, commit 624b824): slime itself needs GPUs.

Run: `python tests/store/importers/writers/slime_samples.py OUTPUT_FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


def sample(**more: Any) -> dict[str, Any]:
    return {
        "group_index": 4,
        "index": 9,
        "rollout_id": 12,
        "prompt": [{"role": "user", "content": "2 + 3?"}],
        "tokens": [1, 2, 3, 4, 5, 6, 7, 8],
        "response": "a1<|im_end|>\n<|im_start|>user\nobs<|im_end|>\n<|im_start|>assistant\na2",
        "response_length": 5,
        "label": "5",
        "reward": 0.75,
        "loss_mask": [1, 1, 0, 1, 1],
        "weight_versions": ["7"],
        "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0, -2.0],
        "status": "completed",
        "metadata": {"k": 1},
        "train_metadata": {"loss": "grpo"},
        "session_id": "s1",
        "non_generation_time": 0.5,
        "trace": None,
        "remove_sample": False,
        **more,
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "slime"
    folder.mkdir(parents=True, exist_ok=True)
    cut = sample(index=10, reward={"acc": 1.0, "format": 0.5}, status="truncated")
    torch.save({"rollout_id": 12, "samples": [sample(), cut]}, folder / "12.pt")
    late = sample(
        prompt="<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
        rollout_id=13,
        response="only",
        response_length=3,
        loss_mask=None,
        remove_sample=True,
    )
    torch.save({"rollout_id": 13, "samples": [late]}, folder / "eval_13.pt")
