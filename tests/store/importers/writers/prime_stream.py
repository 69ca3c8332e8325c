"""Writes `fixtures/prime_stream`: a run of prime-rl, with the records of verifiers' own Episode.

Run: `python tests/store/importers/writers/prime_stream.py OUTPUT_FOLDER`, with the packages that
`verifiers_episodes.py` names, and pyzstd, which prime-rl packs its chunks with. prime-rl is no
package: folders, updates and indexes are what `monitors/file/monitor.py`, `traces/update.py`,
`traces/chunks.py` and `orchestrator/annotations.py` of it write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyzstd
from stand_ins import stand_in

stand_in("httpx", "anthropic", "connectrpc", "aiohttp", "prime_sandboxes", "prime_tunnel")
from verifiers.v1.configs.agent import WireAgentConfig  # noqa: E402
from verifiers.v1.episode import (  # noqa: E402
    EnvInfo,
    Episode,
    EvalWorkInfo,
    GroupInfo,
    PolicySpan,
    TrainRunInfo,
    TrainWorkInfo,
)
from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask  # noqa: E402
from verifiers_episodes import node  # noqa: E402

Row = dict[str, Any]


def trace(number: int, task: Any, score: float, kind: str, branched: bool) -> Trace:
    nodes = [
        node(None, "user", "2 + 3?", [1, 2], timestamp=1.0),
        node(0, "assistant", "I add.", [3, 4, 5], logprobs=[-0.5, -0.25], timestamp=2.0),
        node(1, "user", "Well?", [6], timestamp=3.0),
        node(2, "assistant", "5", [7, 8], logprobs=[-1.0], timestamp=4.0),
    ]
    if branched:
        sampling = {"logprobs": [-2.0, -3.0], "timestamp": 6.0}
        nodes.append(node(1, "user", "So?", [9], timestamp=5.0))
        nodes.append(node(4, "assistant", "five", [10, 11, 12], **sampling))
    return Trace(
        id=f"trace-{number}",
        task=task,
        agent=AgentInfo(config=WireAgentConfig()),
        nodes=nodes,
        rewards={"solved": Reward(score=score)},
        info={"kind": kind, "arrival": {"step": 7, "time": 1000.0 + number}},
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )


def episode(number: int, score: float, kind: str = "train", branched: bool = False) -> Row:
    task = TraceTask.model_validate(
        {"type": "addition", "data": {"idx": 0, "prompt": "2 + 3?"}, "key": "k", "hash": "h"}
    )
    policy = PolicySpan(start=6, end=7)
    work = (EvalWorkInfo if kind == "eval" else TrainWorkInfo)(step=7, policy=policy)
    written = Episode(
        id=f"episode-{number}",
        env=EnvInfo(id="addition", name="add"),
        task=task,
        group=GroupInfo(id=kind),
        run=TrainRunInfo(id="run", work=work),
        ok=True,
        traces=[trace(number, task, score, kind, branched)],
    )
    return written.to_record()


def update(number: int, info: Row | None = None, *branches: Row) -> Row:
    """As `make_update` makes it."""
    return {
        "version": 1,
        "trace_id": f"trace-{number}",
        "info": info or {},
        "branches": [{"index": index, **streams} for index, streams in enumerate(branches)],
    }


def shipped(number: int, step: int, advantage: float, *branches: list[float | None]) -> Row:
    """As `stamp_batch` makes it."""
    info = {"effective": True, "ship": {"step": step, "time": 2000.0}, "advantage": advantage}
    return update(number, info, *[{"advantages": values} for values in branches])


def write(folder: Path, *chunks: list[Row]) -> None:
    """A stream: all chunks but the last are sealed, in frames of their own; beside it the index."""
    folder.mkdir(parents=True)
    index = []
    for number, rows in enumerate(chunks):
        plain, offset = folder / f"{number:05d}.jsonl", 0
        lines = [json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows]
        for row, line in zip(rows, lines, strict=True):
            identity = "trace_id" if "trace_id" in row else "id"
            location = {"chunk": number, "offset": offset}
            index.append(
                {identity: row[identity], "line": len(index) + 1, "reward": 1.0, **location}
            )
            offset += len(line)
        if number == len(chunks) - 1:
            plain.write_bytes(b"".join(lines))
            continue
        sealed = plain.with_name(plain.name + ".zst")
        with pyzstd.SeekableZstdFile(sealed, "wb", max_frame_content_size=1024) as file:
            file.write(b"".join(lines))
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in index)
    folder.with_name(f"{folder.name}.index.jsonl").write_text(text)


if __name__ == "__main__":
    home = Path(sys.argv[1]) / "monitors" / "file"
    episodes = [
        episode(0, 1.0),
        episode(1, 0.0, branched=True),
        episode(2, 0.5),
        episode(3, 1.0, kind="eval"),
    ]
    write(home / "traces" / "stream", episodes[:2], episodes[2:])
    write(
        home / "traces" / "annotations" / "orchestrator",
        [
            update(0, {"gar": {"label": "A"}}),
            # The first try had another advantage: the newest counts.
            shipped(0, 8, 9.0, [0, 0, 0, 9.0, 9.0, 0, 0, 9.0]),
        ],
        [
            shipped(0, 8, 0.5, [0, 0, 0, 0.5, 0.5, 0, 0, 0.5]),
            # Of the second branch, the stream ends before its last message.
            shipped(1, 9, -0.5, [0, 0, 0, -0.5, -0.5, 0, 0, -0.5], [0, 0, 0, -0.5, -0.5, 0, 0]),
            update(3, {"effective": True, "ship": {"step": 7, "time": 2001.0}}),
        ],
    )
    streams = {
        "trainer_logprobs": [None, None, None, -0.625, -0.375, None, None, -1.25],
        "entropies": [None, None, None, 0.5, 0.25, None, None, 0.125],
        "mismatch_kl": [None, None, None, 0.1, 0.1, None, None, 0.1],
        "is_masked": [None, None, None, False, False, None, None, False],
    }
    write(home / "traces" / "annotations" / "trainer", [update(0, None, streams)])
    metrics = [{"step": step, "time": 1.0 * step, "reward/all/mean": 0.5} for step in range(9)]
    (home / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
