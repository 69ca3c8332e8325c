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

import math
import re
import secrets
from pathlib import Path
from typing import Any

import wandb

from echoscope.store.records import AlarmSeverity, AlarmState

from ..judge.record import Verdict
from .content import (
    PANELS,
    STATE_LEVELS,
    Opening,
    StepCopy,
    alarm_text,
    alarm_title,
    episode_rows,
    numbers,
)

MAX_ALARMS = 200
MAX_POINTS = 500
"""Of a line of `panels/*`; a longer one keeps every second point."""
_LEVELS = {
    AlarmSeverity.CRITICAL: wandb.AlertLevel.ERROR,
    AlarmSeverity.WARNING: wandb.AlertLevel.WARN,
    AlarmSeverity.INFO: wandb.AlertLevel.INFO,
}
_EPISODE = ("id", "split", "env", "group", "sibling", "return", "success", "stop", "turns")


class WandbWriter:
    """One run there. A run that goes on here goes on there, under the same id."""

    def __init__(self, opening: Opening) -> None:
        config, settings = opening.config, opening.config.wandb
        self._config = config
        is_online = settings.mode == "online"
        folder = Path(settings.folder or opening.folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = settings.name or opening.run
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "run"
        self.identity = opening.identity or f"{slug}-{secrets.token_hex(4)}"
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity or None,
            id=self.identity,
            name=name,
            group=settings.group or None,
            tags=settings.tags,
            config=dict(opening.run_config),
            mode=settings.mode,
            dir=str(folder),
            resume="allow" if is_online and opening.identity else None,
            reinit="create_new",  # a run of the trainer's own stays as it is
            save_code=False,
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=config.timeout_s,
                # An unfinished upload would hold up the end of the process for ever.
                finish_timeout=config.finish_s,
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.where = (self._run.url if is_online else str(Path(self._run.dir).parent)) or ""
        self._alarms: list[list[Any]] = []
        self._lines: dict[str, list[tuple[int, float]]] = {}
        self._step = 0

    def write(self, copy: StepCopy) -> None:
        self._step = copy.step
        values = numbers(copy, self._config)
        self._remember(copy.step, values)
        row: dict[str, Any] = {**values, "step": copy.step}
        if copy.alarms:
            row["echoscope/alarms"] = self._alarm_table(copy)
        if copy.verdict is not None:
            row["echoscope/level"] = STATE_LEVELS[copy.verdict.state.value]
            self._run.summary.update(_summary(copy.verdict))
        if episodes := episode_rows(copy, self._config):
            table = [
                [copy.step, *(episode[name] for name in _EPISODE), _transcript(episode)]
                for episode in episodes
            ]
            row["episodes"] = wandb.Table(columns=["step", *_EPISODE, "transcript"], data=table)
            row |= self._charts()
        # W&B's own step never goes back: where a run goes on from a checkpoint, only the column
        # `step` says which it is.
        self._run.log(row, step=copy.step if copy.step >= self._run.step else None, commit=True)

    def close(self, status: str) -> None:
        if charts := self._charts():
            self._run.log(charts | {"step": self._step})
        self._run.summary.update({"echoscope/status": status})
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)

    def _alarm_table(self, copy: StepCopy) -> wandb.Table:
        for alarm in copy.alarms:
            is_raised = alarm.state is AlarmState.RAISED
            event, text = "raised" if is_raised else "cleared", alarm_text(alarm)
            self._alarms.append([copy.step, alarm.rule, alarm.severity.value, event, text])
            if is_raised:
                level = _LEVELS[alarm.severity]
                self._run.alert(alarm_title(alarm), text, level=level, wait_duration=0)
        del self._alarms[:-MAX_ALARMS]
        columns = ["step", "rule", "severity", "event", "message"]
        return wandb.Table(columns=columns, data=list(self._alarms))

    def _remember(self, step: int, values: dict[str, float]) -> None:
        """Keep the points of the charts: W&B draws several lines from one table only."""
        for _, keys in PANELS.values():
            for key in keys:
                if math.isfinite(values.get(key, math.nan)):
                    line = self._lines.setdefault(key, [])
                    line.append((step, values[key]))
                    if len(line) > MAX_POINTS:
                        del line[:-1:2]

    def _charts(self) -> dict[str, Any]:
        charts = {}
        for name, (title, keys) in PANELS.items():
            lines = {key: self._lines[key] for key in keys if key in self._lines}
            if lines:
                charts[f"panels/{name}"] = wandb.plot.line_series(
                    xs=[[step for step, _ in line] for line in lines.values()],
                    ys=[[value for _, value in line] for line in lines.values()],
                    keys=list(lines),
                    title=title,
                    xname="step",
                )
        return charts


def _summary(verdict: Verdict) -> dict[str, Any]:
    return {
        "echoscope/state": verdict.state.value,
        "echoscope/verdict": verdict.text.partition("\n")[0],
        "echoscope/verdict_text": verdict.text,
        "echoscope/alarms_open": list(verdict.kinds),
        "echoscope/onset_step": verdict.onset_step,
        "echoscope/confidence": verdict.confidence,
        "echoscope/evidence": [e.words for e in verdict.evidence if e.words],
        "echoscope/advice": verdict.actions[0].text if verdict.actions else "",
    }


def _transcript(episode: dict[str, Any]) -> str:
    return "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in episode["messages"])
