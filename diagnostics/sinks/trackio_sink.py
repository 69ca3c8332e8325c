"""A run in trackio's local database, by its own package. Nothing leaves the machine.

Metrics, alarms as trackio's alerts, the verdict as Markdown, episodes as traces.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from .room import require_room

_UPLOADS = ("SPACE_ID", "SERVER_URL", "DATASET_ID", "BUCKET_ID", "WEBHOOK_URL")
"""Variables that make trackio send what it logs to somebody: `TRACKIO_...`."""


class TrackioWriter:
    """One run there. trackio names runs and may have several of one name, so ours has a suffix."""

    def __init__(self) -> None:
        self._trackio: Any = None
        self._folder: Path | None = None
        self._said: tuple[str, ...] = ()

    def open(self, record: dict[str, Any]) -> dict[str, str]:
        settings = record["settings"]
        for name in _UPLOADS:
            os.environ.pop(f"TRACKIO_{name}", None)
        if settings["folder"]:
            self._folder = Path(settings["folder"]).resolve()
            self._folder.mkdir(parents=True, exist_ok=True)
            os.environ["TRACKIO_DIR"] = str(self._folder)
        import trackio  # reads its folder from the environment when it is imported

        self._trackio = trackio
        name = settings["name"] or record["run"]
        identity = record["identity"] or f"{name}-{secrets.token_hex(2)}"
        trackio.init(
            project=settings["project"],
            name=identity,
            config=record["config"],
            resume="allow" if record["identity"] else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return {"where": f"project {settings['project']}, run {identity}", "identity": identity}

    def step(self, record: dict[str, Any]) -> None:
        self._trackio.log(record["values"], step=record["step"])
        if self._folder is not None:
            require_room(self._folder)

    def alarm(self, record: dict[str, Any]) -> None:
        if not record["is_raised"]:
            return
        levels = self._trackio.AlertLevel
        level = {"critical": levels.ERROR, "warning": levels.WARN}.get(
            record["severity"], levels.INFO
        )
        advice = f"\n\n{record['advice']}" if record["advice"] else ""
        title = f"{record['severity']}: {record['rule']} at step {record['step']}"
        self._trackio.alert(title=title, text=record["message"] + advice, level=level)

    def verdict(self, record: dict[str, Any]) -> None:
        values: dict[str, Any] = {"echoscope/level": record["level"]}
        said = (record["state"], *record["alarms"])
        if said != self._said:
            self._said = said
            # A fence longer than any in the text: words of the policy are shown as they are.
            values["echoscope/verdict"] = self._trackio.Markdown(
                f"``````\n{record['text'].replace('``````', '')}\n``````"
            )
        self._trackio.log(values, step=record["step"])

    def episodes(self, record: dict[str, Any]) -> None:
        traces = [
            self._trackio.Trace(
                messages=row["messages"],
                metadata={key: value for key, value in row.items() if key != "messages"},
            )
            for row in record["rows"]
        ]
        self._trackio.log({"episodes": traces}, step=record["step"])

    def close(self, status: str) -> None:
        self._trackio.finish()
