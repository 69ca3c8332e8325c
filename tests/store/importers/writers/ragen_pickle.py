"""Writes `fixtures/ragen_pickle`: RAGEN's batch, pickled by verl's own DataProto.

Needs torch, tensordict and verl: `pip install --no-deps verl tensordict pyvers`.
Run: `python tests/store/importers/writers/ragen_pickle.py OUTPUT_FOLDER`. The columns are those
that RAGEN's `ctx_manager.py` fills; RAGEN itself is no package.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stand_ins import stand_in

stand_in("ray", "codetiming", "omegaconf", "hydra")
from verl.protocol import DataProto  # noqa: E402

REWARDS = ([-0.1, 10.9], [-0.1, -0.2], [1.5])
GROUPS = [0, 0, 1]


def history(row: int) -> list[dict[str, Any]]:
    """What the environment manager keeps: the last entry is the final state."""
    entries: list[dict[str, Any]] = [
        {
            "state": f"S{row}{turn}",
            "actions_left": 5 - turn,
            "actions": [4, 1] if turn else [2],
            "reward": reward,
            "info": {"action_is_valid": True, "action_is_effective": turn == 0, "success": False},
            "llm_response": f"<think>t{turn}</think><answer>a</answer>",
            "llm_raw_response": f"<think>t{turn}</think> <answer>a{turn}</answer>",
        }
        for turn, reward in enumerate(REWARDS[row])
    ]
    return [*entries, {"state": f"end{row}", "actions_left": 0, "metrics": {"success": [0.0]}}]


def messages(row: int) -> list[dict[str, str]]:
    out = [{"role": "system", "content": "You're a helpful assistant. "}]
    for turn, reward in enumerate(REWARDS[row]):
        before = f"Reward:\n{REWARDS[row][turn - 1]}\n" if turn else "Push all boxes. "
        out += [
            {"role": "user", "content": f"{before}\nTurn {turn + 1}:\nState:\nS{row}{turn}"},
            {"role": "assistant", "content": f"<think>t{turn}</think><answer>a</answer>"},
        ]
        del reward
    return [*out, {"role": "user", "content": f"Reward:\n{REWARDS[row][-1]}\n"}]


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def batch(*, is_evaluation: bool) -> DataProto:
    scores = torch.zeros(3, 5)
    scores[:, -1] = torch.tensor([sum(rewards) - 0.5 for rewards in REWARDS])
    tensors = {
        "input_ids": torch.arange(18).reshape(3, 6),
        "attention_mask": torch.ones(3, 6, dtype=torch.int64),
        "responses": torch.arange(18).reshape(3, 6)[:, 1:],
        "loss_mask": torch.ones(3, 5),
        "rm_scores": scores,
        "original_rm_scores": scores + torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5]),
    }
    columns: dict[str, Any] = {
        "env_ids": np.array([0, 1, 2], dtype=object),
        "group_ids": np.array(GROUPS, dtype=object),
        "messages_list": objects([messages(row) for row in range(3)]),
    }
    if is_evaluation:
        columns["history"] = objects([history(row) for row in range(3)])
        success = [1.0, 0.0, 1.0]
        columns["metrics"] = objects(
            [{"CoordSokoban/success": s, "CoordSokoban/num_actions": 3} for s in success]
        )
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info={"metrics": {}})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "val_step_3.pkl").open("wb") as file:
        pickle.dump(batch(is_evaluation=True), file)
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = "numpy"
    with (folder / "train_step_4.pkl").open("wb") as file:
        pickle.dump(batch(is_evaluation=False), file)
