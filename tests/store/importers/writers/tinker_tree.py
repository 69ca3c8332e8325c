"""Writes `fixtures/tinker_written` with tinker-cookbook's own writers of summaries and trees.

Run: `python tests/store/importers/writers/tinker_tree.py OUTPUT_FOLDER`, with tinker-cookbook
(`pip install --no-deps tinker-cookbook`). The tree is what `ProblemEnv.step` logs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stand_ins import stand_in

stand_in("tinker", "chz")
from tinker_cookbook.rl import rollout_logging  # noqa: E402
from tinker_cookbook.utils import logtree  # noqa: E402
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter  # noqa: E402


@dataclass
class Observation:
    length: int


@dataclass
class Action:
    tokens: list[int]


@dataclass
class Transition:
    ob: Observation
    ac: Action
    reward: float
    episode_done: bool
    metrics: dict[str, Any]
    logs: dict[str, Any]


@dataclass
class Trajectory:
    transitions: list[Transition]
    final_ob: Observation


@dataclass
class Group:
    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]
    metrics_G: list[dict[str, Any]]

    def get_total_rewards(self) -> list[float]:
        pairs = zip(self.trajectories_G, self.final_rewards_G, strict=True)
        return [sum(t.reward for t in one.transitions) + final for one, final in pairs]


REWARDS = ([1.0, -0.1], [0.0, 1.0], [0.5, 0.5])
"""Of two attempts at three tasks; the tree has the first two tasks."""


def group(task: int) -> Group:
    trajectories = [
        Trajectory(
            [Transition(Observation(10 + task), Action([1, 2, 3]), r, True, {"correct": r}, {})],
            Observation(0),
        )
        for r in REWARDS[task]
    ]
    return Group(trajectories, [0.0, 0.0], [{"m": 1.0}, {}])


def attempt(task: int, sibling: int) -> None:
    reward = REWARDS[task][sibling]
    question = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": f"{task} + 1?"},
    ]
    with logtree.scope_header("Prompt"):
        logtree.log_formatter(ConversationFormatter(messages=question))
    reply = {"role": "assistant", "content": f"task {task} sibling {sibling} <b>"}
    with logtree.scope_header("Policy Response"):
        logtree.log_formatter(ConversationFormatter(messages=[reply]))
    with logtree.scope_header("Reward"):
        logtree.table_from_dict(
            {"reference_answer": task + 1, "correct": reward == 1.0, "reward": f"{reward:.3f}"},
            caption="Reward components",
        )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "iteration_000004"
    folder.mkdir(parents=True, exist_ok=True)
    records = rollout_logging.serialize_rollout_summaries(
        split="train",
        iteration=4,
        trajectory_groups_P=[group(task) for task in range(3)],  # type: ignore[misc]
        taglist_P=[["arithmetic"]] * 3,
        sampling_client_steps_P=[3, 3, 4],
    )
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "train_rollout_summaries.jsonl").write_text(lines)
    with logtree.init_trace("Iteration 4", path=None) as trace:
        for task in (0, 1):
            with logtree.scope_header("Group Rollout"):
                for sibling in (1, 0):  # the second was ready first
                    attempt(task, sibling)
    (folder / "train_logtree.json").write_text(json.dumps(trace.to_dict()))
