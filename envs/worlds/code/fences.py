"""The program in a reply: in a fenced block of any usual spelling, or all of the reply."""

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple

_OPENING = re.compile(r"(?<![`~])(`{3,}|~{3,})[ \t]*([^\n`]{0,100})\n")
_ONE_LINE = re.compile(r"\s*(`+)(?:(?:python|py)[0-9]*[ \t]+)?([^\n`]+)\1\s*", re.IGNORECASE)
_PYTHON = re.compile(r"\W*(?:python|py)[0-9.]*(?![a-z])", re.IGNORECASE)
_SPEAKS = r"\b(?:print|write|writelines)\b"
"""What a program that answers by printing has and its example output has not."""


class _Block(NamedTuple):
    """Blocks are compared by what speaks for them, first things first."""

    label: int
    """2: it says that it is Python; 1: it says nothing; 0: it says that it is something else."""
    does_it: bool
    position: int
    text: str


def program_of(reply: str, function: str = "") -> str:
    """The program in a reply, for a problem that wants a function or, where "", printing.

    Of several fenced blocks it is one that says that it is Python, rather than one that says
    nothing; then one that defines the function or prints; then the last. A fence that is not
    closed ends with the reply. A reply without fences is the program.
    """
    reply = reply.replace("\r\n", "\n").replace("\r", "\n")
    name = re.escape(function)
    needed = re.compile(
        rf"\bdef\s+{name}\b|^{name}\s*=|\bclass\s+Solution\b" if function else _SPEAKS, re.MULTILINE
    )
    blocks = _blocks(reply, needed)
    if blocks:
        return max(blocks).text
    one_line = _ONE_LINE.fullmatch(reply)
    return textwrap.dedent(one_line[2] if one_line else reply)


def _blocks(reply: str, needed: re.Pattern[str]) -> list[_Block]:
    blocks: list[_Block] = []
    start = 0
    while opening := _OPENING.search(reply, start):
        fence, label = opening[1], opening[2].strip()
        closing = re.compile(rf"^[ \t]*{fence}|{fence}[ \t]*$", re.MULTILINE)
        end = closing.search(reply, opening.end())
        text = textwrap.dedent(reply[opening.end() : end.start() if end else len(reply)])
        kind = 2 if _PYTHON.match(label) else int(not label)
        blocks.append(_Block(kind, needed.search(text) is not None, len(blocks), text))
        if end is None:
            break
        start = end.end()
    return blocks
