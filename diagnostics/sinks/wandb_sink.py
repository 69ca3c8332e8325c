"""A run at Weights & Biases, by its own package: online, or a folder that `wandb sync` uploads.

| of the run | at W&B |
| --- | --- |
| metrics | history, under the same keys and a column `step`, the x axis of every chart |
| verdict | summary `echoscope/*`, and `echoscope/level` over the steps (0 well, 3 collapsed) |
| alarms | `run.alert`, and `echoscope/alarms` as a table |
| episodes | table `episodes` |
| entropy, mutual information, gradients | custom charts `panels/*` |
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

import wandb

from .panels import PANELS, PanelHistory
from .room import require_room

MAX_ALARMS = 200
_LEVELS = {
    "critical": wandb.AlertLevel.ERROR,
    "warning": wandb.AlertLevel.WARN,
    "information": wandb.AlertLevel.INFO,
}
_EPISODE = ("step", "id", "split", "env", "group", "sibling", "return", "success", "stop", "turns")


class WandbWriter:
    """One run there. A run that goes on here goes on there, under the same id."""

    def __init__(self) -> None:
        self._run: Any = None
        self._folder = Path()
        self._history = PanelHistory()
        self._alarms: list[list[Any]] = []
        self._said: dict[str, Any] = {}
        self._step = 0

    def open(self, record: dict[str, Any]) -> dict[str, str]:
        settings = record["settings"]
        is_online = settings["mode"] == "online"
        self._folder = Path(settings["folder"] or record["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        name = settings["name"] or record["run"]
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "run"
        identity = record["identity"] or f"{slug}-{secrets.token_hex(4)}"
        self._run = wandb.init(
            project=settings["project"],
            entity=settings["entity"] or None,
            id=identity,
            name=name,
            group=settings["group"] or None,
            tags=settings["tags"],
            config=record["config"],
            mode=settings["mode"],
            dir=str(self._folder),
            resume="allow" if is_online and record["identity"] else None,
            save_code=False,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        where = self._run.url if is_online else str(Path(self._run.dir).parent)
        return {"where": where or "", "identity": identity}

    def step(self, record: dict[str, Any]) -> None:
        self._step = record["step"]
        self._history.add(self._step, record["values"])
        self._log(record["values"], is_last=True)
        require_room(self._folder)

    def alarm(self, record: dict[str, Any]) -> None:
        self._step = record["step"]
        what = "raised" if record["is_raised"] else "cleared"
        self._alarms.append(
            [self._step, record["rule"], record["severity"], what, record["message"]]
        )
        del self._alarms[:-MAX_ALARMS]
        columns = ["step", "rule", "severity", "event", "message"]
        self._log({"echoscope/alarms": wandb.Table(columns=columns, data=list(self._alarms))})
        if record["is_raised"]:
            advice = f"\n\n{record['advice']}" if record["advice"] else ""
            self._run.alert(
                title=f"{record['severity']}: {record['rule']} at step {self._step}",
                text=record["message"] + advice,
                level=_LEVELS.get(record["severity"], wandb.AlertLevel.INFO),
                wait_duration=0,
            )

    def verdict(self, record: dict[str, Any]) -> None:
        self._step = record["step"]
        self._log({"echoscope/level": record["level"]})
        said = {
            "echoscope/state": record["state"],
            "echoscope/verdict": record["sentence"],
            "echoscope/verdict_text": record["text"],
            "echoscope/alarms_open": record["alarms"],
            "echoscope/onset_step": record["onset_step"],
            "echoscope/confidence": record["confidence"],
            "echoscope/evidence": record["evidence"],
            "echoscope/advice": record["advice"],
        }
        if said != self._said:
            self._said = said
            self._run.summary.update(said)

    def episodes(self, record: dict[str, Any]) -> None:
        self._step = record["step"]
        rows = [
            [*(({"step": self._step} | row)[name] for name in _EPISODE), _transcript(row)]
            for row in record["rows"]
        ]
        self._log({"episodes": wandb.Table(columns=[*_EPISODE, "transcript"], data=rows)})
        self._draw()

    def close(self, status: str) -> None:
        if self._history.lines:
            self._draw()
        if self._run is not None:
            self._run.summary.update({"echoscope/status": status})
            self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)

    def _draw(self) -> None:
        charts = {}
        for panel in PANELS:
            lines = self._history.of(panel)
            if lines:
                charts[f"panels/{panel.name}"] = wandb.plot.line_series(
                    xs=[[step for step, _ in points] for points in lines.values()],
                    ys=[[value for _, value in points] for points in lines.values()],
                    keys=list(lines),
                    title=panel.title,
                    xname="step",
                )
        if charts:
            self._log(charts)

    def _log(self, values: dict[str, Any], *, is_last: bool = False) -> None:
        """Add to the row of a step; the last of them ends the row.

        W&B's own step never goes back: where a run goes on from a checkpoint, only the column
        `step` says which it is.
        """
        row = {**values, "step": self._step}
        if self._step >= self._run.step:
            self._run.log(row, step=self._step, commit=is_last)
        else:
            self._run.log(row, commit=is_last)


def _transcript(row: dict[str, Any]) -> str:
    return "\n\n".join(f"[{one['role']}]\n{one['content']}" for one in row["messages"])
