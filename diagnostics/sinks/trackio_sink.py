"""A run in trackio's local database, by its own package. Nothing leaves the machine.

Metrics, alarms as trackio's alerts, the verdict as Markdown, episodes as traces.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Any

from echoscope.store.records import AlarmState

from .content import (
    STATE_LEVELS,
    Opening,
    StepCopy,
    alarm_text,
    alarm_title,
    episode_rows,
    numbers,
)
from .settings import SinkError

_UPLOADS = ("SPACE_ID", "SERVER_URL", "DATASET_ID", "BUCKET_ID", "WEBHOOK_URL")
"""Variables that make trackio send what it logs to somebody: `TRACKIO_...`."""


class TrackioWriter:
    """One run there. trackio names runs and may have several of one name, so ours has a suffix.

    trackio keeps the present run in a context variable, so a run of the trainer's own in another
    thread is another one.
    """

    def __init__(self, opening: Opening) -> None:
        self._config, settings = opening.config, opening.config.trackio
        for name in _UPLOADS:
            os.environ.pop(f"TRACKIO_{name}", None)
        self._trackio = _import(settings.folder)
        self.identity = opening.identity or (
            f"{settings.name or opening.run}-{secrets.token_hex(2)}"
        )
        self._trackio.init(
            project=settings.project,
            name=self.identity,
            config=dict(opening.run_config),
            resume="allow" if opening.identity else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.where = f"project {settings.project}, run {self.identity}"

    def write(self, copy: StepCopy) -> None:
        levels = self._trackio.AlertLevel
        for alarm in copy.alarms:
            if alarm.state is AlarmState.RAISED:
                level = {"critical": levels.ERROR, "warning": levels.WARN}.get(
                    alarm.severity.value, levels.INFO
                )
                self._trackio.alert(title=alarm_title(alarm), text=alarm_text(alarm), level=level)
        values: dict[str, Any] = {}
        if copy.verdict is not None:
            values["echoscope/level"] = STATE_LEVELS[copy.verdict.state.value]
            if copy.is_news:
                # A fence longer than any in the text: words of the policy are shown as they are.
                text = copy.verdict.text.replace("``````", "")
                values["echoscope/verdict"] = self._trackio.Markdown(f"``````\n{text}\n``````")
        if rows := episode_rows(copy, self._config):
            values["episodes"] = [
                self._trackio.Trace(
                    messages=row["messages"],
                    metadata={key: value for key, value in row.items() if key != "messages"},
                )
                for row in rows
            ]
        self._trackio.log(values | numbers(copy, self._config), step=copy.step)

    def close(self, status: str) -> None:
        self._trackio.finish()


def _import(folder: str) -> Any:
    """The package, which reads its folder from the environment when it is first imported.

    Raises:
        SinkError: it was imported with another folder.
    """
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(Path(folder).resolve())
    import trackio
    import trackio.utils

    for name in ("trackio", "trackio.run", "trackio.utils"):
        # Its greetings and alerts would stand between the lines of our progress.
        vars(sys.modules[name])["print"] = lambda *_, **__: None
    used = Path(trackio.utils.TRACKIO_DIR)
    if folder and used.resolve() != Path(folder).resolve():
        raise SinkError(
            f"this process writes trackio's databases to {used} already: leave "
            f"sinks.trackio.folder out, or start the run in a process of its own"
        )
    return trackio
