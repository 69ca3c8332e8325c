"""Demonstrations for supervised training, as TRL's SFTTrainer takes them."""

from __future__ import annotations

from pathlib import Path

from ..dialogue import dialogue_of
from ..format import FAILED, NO_TURNS, Format, Options, Written
from ..source import RunSource
from .messages import line_of


def _write(source: RunSource, path: Path, options: Options) -> Written:
    written = Written()
    with path.open("xb") as file:
        for episode in source.episodes():
            if episode.is_failure or not episode.turns:
                source.leave_out(FAILED if episode.is_failure else NO_TURNS, episode.row)
                continue
            dialogue = dialogue_of(episode)
            # What comes after the last reply is no lesson.
            messages = dialogue.messages[: dialogue.last_reply + 1]
            if options.form == "messages":
                file.write(line_of({"messages": messages}))
            else:
                cut = dialogue.first_reply
                file.write(line_of({"prompt": messages[:cut], "completion": messages[cut:]}))
            written.num_rows += 1
    if options.where == "" and options.best is None:
        written.notes.append(
            "Every episode is in it, failed ones too; --where is_success or --best 1 keeps the "
            "good ones."
        )
    return written


SFT = Format(
    name="sft",
    noun="conversation",
    holds=frozenset(),
    loses=("everything except the messages",),
    is_lesson=True,
    write=_write,
    split="train",
)
