"""Writes `fixtures/verifiers_written` with the records of verifiers' own Episode.

Run: `python tests/store/importers/writers/verifiers_episodes.py OUTPUT_FOLDER`, with
`pip install --no-deps verifiers prime-pydantic-config renderers prime-runs prime-sandboxes
prime-tunnel tomli-w tenacity loguru`. Harnesses and HTTP clients are not needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stand_ins import stand_in

stand_in("httpx", "anthropic", "connectrpc", "aiohttp", "prime_sandboxes", "prime_tunnel")
from verifiers.v1.configs.agent import WireAgentConfig  # noqa: E402
from verifiers.v1.episode import (  # noqa: E402
    EnvInfo,
    Episode,
    GroupInfo,
    PolicySpan,
    TrainRunInfo,
    TrainWorkInfo,
)
from verifiers.v1.graph import MessageNode  # noqa: E402
from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask  # noqa: E402


def node(parent: int | None, role: str, content: str, tokens: list[int], **more: Any) -> Any:
    sampled = more.pop("sampled", role == "assistant")
    mask = [sampled and position > 0 for position in range(len(tokens))]
    return MessageNode.model_validate(
        {
            "parent": parent,
            "message": {"role": role, "content": content, **more.pop("message", {})},
            "sampled": sampled,
            "token_ids": tokens,
            "mask": mask,
            **more,
        }
    )


CALL = {"id": "c1", "name": "add", "arguments": '{"a": 2}'}


def trace(task: Any, score: float) -> Trace:
    return Trace(
        task=task,
        agent=AgentInfo(config=WireAgentConfig()),
        nodes=[
            node(None, "system", "Add.", [1, 2]),
            node(0, "user", "1 + 1?", [3]),
            node(1, "assistant", "2", [4, 5], sampled=False),
            node(2, "user", "2 + 3?", [6]),
            node(
                3,
                "assistant",
                "",
                [7, 8, 9],
                message={"tool_calls": [CALL], "reasoning_content": "call it"},
                logprobs=[-0.5, -0.25],
                advantages=[0.75, 0.75],
                reference_logprobs=[-1.0, -1.5],
                entropies=[0.125, 0.25],
            ),
            node(4, "tool", "5", [10], message={"tool_call_id": "c1"}),
            node(
                5,
                "assistant",
                "It is 5.",
                [11, 12],
                logprobs=[-2.0],
                advantages=[0.75],
                reference_logprobs=[-2.5],
                entropies=[0.5],
            ),
        ],
        rewards={
            "solved": Reward(score=score, weight=2.0),
            "style": Reward(score=0.5),
            "none": None,
        },
        metrics={"calls": 1.0},
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )


def episode(number: int, score: float) -> Episode:
    task = TraceTask.model_validate(
        {
            "type": "addition",
            "data": {"idx": number // 2, "prompt": "2 + 3?"},
            "key": "k",
            "hash": "h",
        }
    )
    work = TrainWorkInfo(step=6, policy=PolicySpan(start=5, end=6))
    return Episode(
        id=f"episode-{number}",
        env=EnvInfo(id="addition", name="add"),
        task=task,
        group=GroupInfo(id=f"g{number // 2}"),
        run=TrainRunInfo(id="run", work=work),
        ok=True,
        traces=[trace(task, score)],
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "rollouts" / "step_6" / "train" / "all"
    folder.mkdir(parents=True, exist_ok=True)
    records = [episode(number, score).to_record() for number, score in enumerate((1.0, 0.0, 1.0))]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "traces.jsonl").write_text(lines)
