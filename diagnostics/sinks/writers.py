"""A run in each tool, by the tool's own package, which is imported when a run is opened.

| of the run | W&B | TensorBoard | trackio |
| --- | --- | --- | --- |
| numbers | history, with a column `step`, the x axis of every chart | scalars | metrics |
| verdict | summary `echoscope/*` | text | Markdown |
| alarms | `run.alert`, and the table `echoscope/alarms` | text | alerts |
| episodes | table `episodes` | text | traces |
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from echoscope.store.records import AlarmState

from ..judge.record import Verdict
from .content import SinkOpening, StepCopy, alarm_text, alarm_title
from .settings import SinkName

MAX_ALARMS = 200
_EPISODE = ("id", "split", "env", "group", "sibling", "return", "success", "stop", "turns")
_UPLOADS = ("SPACE_ID", "SERVER_URL", "DATASET_ID", "BUCKET_ID", "WEBHOOK_URL")
"""Variables that make trackio send what it logs to somebody: `TRACKIO_...`."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>&~])")


class WandbWriter:
    """Online, or a folder that `wandb sync` uploads. A run that goes on goes on there."""

    def __init__(self, opening: SinkOpening) -> None:
        import wandb

        self._wandb, config = wandb, opening.config
        is_online = config.wandb == "online"
        opening.folder.mkdir(parents=True, exist_ok=True)
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", opening.run).strip("-")[:40] or "run"
        self.identity = opening.identity or f"{slug}-{secrets.token_hex(4)}"
        self._run = wandb.init(
            project=config.project,
            entity=config.entity or None,
            id=self.identity,
            name=opening.run,
            group=config.group or None,
            tags=config.tags,
            config=dict(opening.run_config),
            mode=config.wandb,
            dir=str(opening.folder),
            resume="allow" if is_online and opening.identity else None,
            reinit="create_new",  # a run of the trainer's own stays as it is
            save_code=False,
            # An unfinished upload would hold up the end of the process for ever.
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=60.0, finish_timeout=60.0
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.where = (self._run.url if is_online else os.path.dirname(self._run.dir)) or ""
        self._alarms: list[list[Any]] = []

    def write(self, copy: StepCopy) -> None:
        table = self._wandb.Table
        row: dict[str, Any] = {**copy.numbers, "step": copy.step}
        if copy.alarms:
            self._take_alarms(copy)
            columns = ["step", "rule", "severity", "event", "message"]
            row["echoscope/alarms"] = table(columns=columns, data=list(self._alarms))
        if copy.verdict is not None:
            self._run.summary.update(_summary(copy.verdict))
        if copy.episodes:
            data = [
                [copy.step, *(episode[name] for name in _EPISODE), _transcript(episode)]
                for episode in copy.episodes
            ]
            row["episodes"] = table(columns=["step", *_EPISODE, "transcript"], data=data)
        # W&B's own step never goes back: where a run goes on from a checkpoint, only the column
        # `step` says which it is.
        self._run.log(row, step=copy.step if copy.step >= self._run.step else None, commit=True)

    def close(self, status: str) -> None:
        self._run.summary.update({"echoscope/status": status})
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)

    def _take_alarms(self, copy: StepCopy) -> None:
        for alarm in copy.alarms:
            row = [copy.step, alarm.rule, alarm.severity.value, alarm.state.value]
            self._alarms.append([*row, alarm_text(alarm)])
        for title, text, level in _alerts(copy, self._wandb.AlertLevel):
            self._run.alert(title, text, level=level, wait_duration=0)
        del self._alarms[:-MAX_ALARMS]


def _alerts(copy: StepCopy, levels: Any) -> Iterator[tuple[str, str, Any]]:
    """Title, text and level of each alarm that was raised; W&B and trackio name levels alike."""
    by_severity = {"critical": levels.ERROR, "warning": levels.WARN}
    for alarm in copy.alarms:
        if alarm.state is AlarmState.RAISED:
            level = by_severity.get(alarm.severity.value, levels.INFO)
            yield alarm_title(alarm), alarm_text(alarm), level


def _summary(verdict: Verdict) -> dict[str, Any]:
    return {
        "echoscope/state": verdict.state.value,
        "echoscope/verdict": verdict.text.partition("\n")[0],
        "echoscope/verdict_text": verdict.text,
        "echoscope/alarms_open": list(verdict.kinds),
        "echoscope/onset_step": verdict.onset_step,
        "echoscope/confidence": verdict.confidence,
        "echoscope/advice": verdict.actions[0].text if verdict.actions else "",
    }


def _transcript(episode: Mapping[str, Any]) -> str:
    return "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in episode["messages"])


class TensorboardWriter:
    """One log folder, by tensorboardX; `tensorboard` itself is not needed to write.

    Steps that a run repeats replace those that it wrote before.
    """

    def __init__(self, opening: SinkOpening) -> None:
        self._folder = opening.folder / "tensorboard"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None
        self.where, self.identity = str(self._folder), ""

    def write(self, copy: StepCopy) -> None:
        if self._writer is None:
            from tensorboardX import SummaryWriter

            # What an earlier writer wrote of this step and later ones is hidden.
            is_new = not any(self._folder.glob("events.out.tfevents.*"))
            purge = None if is_new else copy.step
            self._writer = SummaryWriter(logdir=str(self._folder), purge_step=purge)
        for alarm in copy.alarms:
            title = f"**{_plain(alarm_title(alarm))} ({alarm.state.value})**"
            self._text("alarms", f"{title}\n\n{_plain(alarm_text(alarm))}", copy.step)
        if copy.verdict is not None and copy.is_news:
            paragraphs = filter(None, copy.verdict.text.splitlines())
            self._text("verdict", "\n\n".join(map(_plain, paragraphs)), copy.step)
        for row in copy.episodes:
            head = f"{row['id']}: {row['env']}, return {row['return']}, success {row['success']}"
            # As an indented block, which Markdown does not read.
            lines = ["    " + line for line in _transcript(row).splitlines()]
            self._text(f"episodes/{row['group']}", "\n".join([_plain(head), "", *lines]), copy.step)
        for key, value in copy.numbers.items():
            self._writer.add_scalar(tensorboard_tag(key), value, copy.step)
        self._writer.flush()

    def close(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()

    def _text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(f"echoscope/{name}", text, step)


def tensorboard_tag(key: str) -> str:
    """A key as TensorBoard takes it: other signs become `_`.

    >>> tensorboard_tag("info/first_turn/retrieval_accuracy@1")
    'info/first_turn/retrieval_accuracy_1'
    """
    return re.sub(r"[^-/\w.]", "_", key).lstrip("/")


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _MARKDOWN.sub(r"\\\1", text)


class TrackioWriter:
    """One run in trackio's local database. Nothing leaves the machine.

    trackio names runs and may have several of one name, so ours has a suffix. It keeps the present
    run in a context variable, so a run of the trainer's own in another thread is another one.
    """

    def __init__(self, opening: SinkOpening) -> None:
        for name in _UPLOADS:
            os.environ.pop(f"TRACKIO_{name}", None)
        import trackio

        for module in ("trackio", "trackio.run", "trackio.utils"):
            # Its greetings and alerts would stand between the lines of our progress.
            vars(sys.modules[module])["print"] = lambda *_, **__: None
        self._trackio, project = trackio, opening.config.project
        self.identity = opening.identity or f"{opening.run}-{secrets.token_hex(2)}"
        trackio.init(
            project=project,
            name=self.identity,
            config=dict(opening.run_config),
            resume="allow" if opening.identity else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.where = f"project {project}, run {self.identity}"

    def write(self, copy: StepCopy) -> None:
        for title, text, level in _alerts(copy, self._trackio.AlertLevel):
            self._trackio.alert(title=title, text=text, level=level)
        values: dict[str, Any] = dict(copy.numbers)
        if copy.verdict is not None and copy.is_news:
            # A fence longer than any in the text: words of the policy are shown as they are.
            text = copy.verdict.text.replace("``````", "")
            values["echoscope/verdict"] = self._trackio.Markdown(f"``````\n{text}\n``````")
        if copy.episodes:
            values["episodes"] = [
                self._trackio.Trace(
                    messages=row["messages"], metadata={name: row[name] for name in _EPISODE}
                )
                for row in copy.episodes
            ]
        self._trackio.log(values, step=copy.step)

    def close(self, status: str) -> None:
        self._trackio.finish()


Writer = WandbWriter | TensorboardWriter | TrackioWriter
"""A run in one tool: `where` it is, and its `identity` there. All calls may raise."""


def open_writer(sink: SinkName, opening: SinkOpening) -> Writer:
    kinds: Mapping[SinkName, type[Writer]] = {
        "wandb": WandbWriter,
        "tensorboard": TensorboardWriter,
        "trackio": TrackioWriter,
    }
    return kinds[sink](opening)
