"""A trackio folder: one project, a trace for each episode and the metrics of each step.

trackio writes it itself, in a process of its own: it takes its folder from the environment when it
is imported, and starts threads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from ..dialogue import dialogue_of
from ..format import ExportError, Format, Options, Written, all_but
from ..source import Episode, RunSource
from .messages import line_of

_WRITER = Path(__file__).with_name("trackio_writer.py")


def _trace(episode: Episode) -> dict[str, Any]:
    row = episode.row
    messages = [{**m, "content": _plain(m["content"])} for m in dialogue_of(episode).messages]
    return {
        "step": episode.step,
        "messages": messages,
        "metadata": {
            "id": episode.id,
            "split": row["split"],
            "env": _plain(row["env_id"]),
            "group_id": episode.group_id,
            "return": episode.episode_return,
            "success": row["is_success"],
            "stop_reason": row["stop_reason"],
            **({"status": "error"} if episode.is_failure else {}),
            **({} if row["duration_s"] is None else {"duration_ms": 1000 * row["duration_s"]}),
        },
    }


def _plain(text: str) -> str:
    """trackio searches its traces with functions of SQLite that end a text at a NUL."""
    return text.replace("\x00", "\ufffd")


def _metrics(source: RunSource, step: int) -> dict[str, float]:
    rows = source.reader.sql(
        "SELECT key, value FROM metrics WHERE step = $1 AND isfinite(value) ORDER BY key", [step]
    )
    pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
    return dict(pairs)


def _send(source: RunSource, pipe: IO[bytes], written: Written) -> None:
    info = source.info
    pipe.write(line_of({"project": _project(info.project or info.run_id), "name": info.run_id}))
    step = -1
    for episode in source.episodes():
        if episode.step != step:
            step = episode.step
            pipe.write(line_of({"step": step, "metrics": _metrics(source, step)}))
        pipe.write(line_of(_trace(episode)))
        written.num_rows += 1


def _project(name: str) -> str:
    """The name of a project is that of a file."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    return kept.strip("-")[:64] or "echoscope"


def _write(source: RunSource, path: Path, options: Options) -> Written:
    if importlib.util.find_spec("trackio") is None:
        raise ExportError("--to trackio needs the package trackio: pip install -e '.[trackio]'")
    path.mkdir()
    written = Written()
    # Its other settings could send the episodes to a server.
    own = {key: value for key, value in os.environ.items() if not key.startswith("TRACKIO_")}
    environment = own | {"TRACKIO_DIR": str(path.absolute()), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        # -P: modules of this folder have the names of other packages.
        [sys.executable, "-P", str(_WRITER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its last words say why
            _send(source, process.stdin, written)
        _, errors = process.communicate()
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise ExportError(f"trackio did not write the project: {last[0][:300]}")
    project = _project(source.info.project or source.info.run_id)
    written.notes.append(f"Open the folder: TRACKIO_DIR=FOLDER trackio show --project {project}")
    return written


TRACKIO = Format(
    name="trackio",
    noun="trace",
    holds=all_but(
        *("terms", "turn_rewards", "actions", "seeds", "advantages", "infos", "frames"),
        *("pictures", "tokens", "diagnostics", "events"),
    ),
    write=_write,
    is_folder=True,
)
