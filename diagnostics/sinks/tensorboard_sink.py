"""A run as TensorBoard's event files, by tensorboardX.

Its names may hold letters, digits, `-`, `.`, `_` and `/` only: other characters, such as the `@` of
`retrieval_accuracy@1`, become `_`. `tensorboard` itself is not needed to write.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .panels import PANELS
from .room import require_room

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>&~])")


class TensorboardWriter:
    """One log folder. Steps that a run repeats replace those that it wrote before."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._folder = Path()
        self._is_new = True
        self._said: tuple[str, ...] = ()

    def open(self, record: dict[str, Any]) -> dict[str, str]:
        folder = record["settings"]["folder"]
        self._folder = (
            Path(folder).resolve() / record["run"]
            if folder
            else Path(record["folder"]) / "tensorboard"
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._is_new = not any(self._folder.glob("events.out.tfevents.*"))
        return {"where": str(self._folder)}

    def _at(self, step: int) -> Any:
        """The writer, which begins with the first step that it is told of."""
        if self._writer is None:
            from tensorboardX import SummaryWriter

            purge = None if self._is_new else step
            self._writer = SummaryWriter(logdir=str(self._folder), purge_step=purge)
            layout = {
                panel.name: ["Multiline", [_tag(key) for key in panel.keys]] for panel in PANELS
            }
            self._writer.add_custom_scalars({"Echoscope": layout})
        return self._writer

    def step(self, record: dict[str, Any]) -> None:
        writer = self._at(record["step"])
        for key, value in record["values"].items():
            writer.add_scalar(_tag(key), value, record["step"])
        writer.flush()
        require_room(self._folder)

    def alarm(self, record: dict[str, Any]) -> None:
        what = "raised" if record["is_raised"] else "cleared"
        text = f"**{record['severity']} {_plain(record['rule'])} {what}**"
        text += f"\n\n{_plain(record['message'])}"
        self._at(record["step"]).add_text("echoscope/alarms", text, record["step"])

    def verdict(self, record: dict[str, Any]) -> None:
        writer = self._at(record["step"])
        writer.add_scalar("echoscope/level", record["level"], record["step"])
        said = (record["state"], *record["alarms"])
        if said != self._said:
            self._said = said
            text = "\n\n".join(_plain(line) for line in record["text"].splitlines() if line)
            writer.add_text("echoscope/verdict", text, record["step"])

    def episodes(self, record: dict[str, Any]) -> None:
        writer = self._at(record["step"])
        for row in record["rows"]:
            head = f"{row['id']}: {row['env']}, return {row['return']}, success {row['success']}"
            parts = [f"**{one['role']}**\n\n{_block(one['content'])}" for one in row["messages"]]
            text = "\n\n".join([_plain(head), *parts])
            writer.add_text(f"episodes/group_{row['group']}", text, record["step"])

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
