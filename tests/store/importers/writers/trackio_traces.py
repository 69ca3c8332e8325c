"""Writes `fixtures/trackio` with trackio's own `Trace`: two steps of a run.

Run: `python tests/store/importers/writers/trackio_traces.py OUTPUT_FOLDER`, with
`pip install trackio==0.43.0`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

folder = tempfile.mkdtemp()
os.environ |= {"TRACKIO_DIR": folder, "HF_HUB_OFFLINE": "1"}
import trackio  # noqa: E402 - it reads the environment when it is imported

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def trace(*replies: dict[str, object], **metadata: object) -> trackio.Trace:
    return trackio.Trace(messages=[*ASKED, *replies], metadata=metadata)


if __name__ == "__main__":
    run = trackio.init(project="lake", name="lake-1", auto_log_gpu=False, auto_log_cpu=False)
    for step in (1, 2):
        with_tool = trace(
            {"role": "assistant", "content": "<think>add</think>", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "5"},
            {"role": "assistant", "content": "5"},
            reward=0.5 * step,
            success=True,
            group_id="add",
            note="kept",
        )
        plain = trace(
            {"role": "assistant", "content": "6"},
            **{"return": -1.0, "success": False, "group_id": "add", "stop_reason": "max_turns"},
            split="eval" if step == 2 else "train",
            duration_ms=250.0,
        )
        run.log({"critic/score/mean": 0.25 * step}, step=step)
        run.log({"episode": [with_tool, plain]}, step=step)
    trackio.finish()
    target = Path(sys.argv[1]) / "trackio"
    target.mkdir(parents=True, exist_ok=True)
    (file,) = Path(folder).rglob("lake.db")
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA page_size = 512")
        database.execute("VACUUM")
    shutil.copy(file, target / "lake.db")
