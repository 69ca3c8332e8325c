"""A run as TensorBoard's event files, by tensorboardX.

Its names may hold letters, digits, `-`, `.`, `_` and `/` only: other characters, such as the `@` of
`retrieval_accuracy@1`, become `_`. `tensorboard` itself is not needed to write.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from echoscope.store.records import AlarmState

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

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>&~])")


class TensorboardWriter:
    """One log folder. Steps that a run repeats replace those that it wrote before."""

    def __init__(self, opening: Opening) -> None:
        self._config = opening.config
        folder = opening.config.tensorboard.folder
        self._folder = (
            Path(folder).resolve() / opening.run if folder else opening.folder / "tensorboard"
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._is_new = not any(self._folder.glob("events.out.tfevents.*"))
        self._writer: Any = None
        self.where, self.identity = str(self._folder), ""

    def _writer_from(self, step: int) -> Any:
        """tensorboardX's writer; it hides what an earlier one wrote of this step and later ones."""
        if self._writer is None:
            from tensorboardX import SummaryWriter

            purge = None if self._is_new else step
            self._writer = SummaryWriter(logdir=str(self._folder), purge_step=purge)
            layout = {
                name: ["Multiline", [_tag(key) for key in keys]]
                for name, (_, keys) in PANELS.items()
            }
            self._writer.add_custom_scalars({"Echoscope": layout})
        return self._writer

    def write(self, copy: StepCopy) -> None:
        writer, step = self._writer_from(copy.step), copy.step
        for alarm in copy.alarms:
            event = "raised" if alarm.state is AlarmState.RAISED else "cleared"
            text = f"**{_plain(alarm_title(alarm))} ({event})**\n\n{_plain(alarm_text(alarm))}"
            writer.add_text("echoscope/alarms", text, step)
        if copy.verdict is not None:
            writer.add_scalar("echoscope/level", STATE_LEVELS[copy.verdict.state.value], step)
            if copy.is_news:
                lines = filter(None, copy.verdict.text.splitlines())
                writer.add_text("echoscope/verdict", "\n\n".join(map(_plain, lines)), step)
        for row in episode_rows(copy, self._config):
            head = f"{row['id']}: {row['env']}, return {row['return']}, success {row['success']}"
            parts = [f"**{m['role']}**\n\n{_block(m['content'])}" for m in row["messages"]]
            text = "\n\n".join([_plain(head), *parts])
            writer.add_text(f"episodes/group_{row['group']}", text, step)
        for key, value in numbers(copy, self._config).items():
            writer.add_scalar(_tag(key), value, step)
        writer.flush()

    def close(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()


def _tag(key: str) -> str:
    """A key as TensorBoard takes it.

    >>> _tag("info/first_turn/retrieval_accuracy@1")
    'info/first_turn/retrieval_accuracy_1'
    """
    return re.sub(r"[^-/\w.]", "_", key).lstrip("/")


def _plain(text: str) -> str:
    """Text that Markdown shows as it is.

    >>> _plain("a_b <i>")
    'a\\\\_b \\\\<i\\\\>'
    """
    return _MARKDOWN.sub(r"\\\1", text)


def _block(text: str) -> str:
    """Text of an episode as an indented block, which Markdown does not read."""
    return "\n".join(f"    {line}" for line in text.splitlines())
