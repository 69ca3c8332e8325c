"""Standard input: what a trainer prints, read while it prints it.

A thread reads, so that the trainer never waits for what is judged here. Nothing of the text is
kept.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from typing import Any

from echoscope.store.importers.lines import MAX_LINE_BYTES

from .folder import LOOK_BYTES, Folder
from .growing_text import GrowingText
from .ledger import Look
from .tail import lines_in

NAME = "standard input"
_BLOCK = 1 << 16
_MAX_BLOCKS = 4096
"""Blocks that wait; the trainer waits where there are more (256 MB)."""


class Pipe(Folder):
    """Lines of standard input as a file that only grows and ends with the trainer."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.is_there = True
        self._text = GrowingText(NAME, self._mapping)
        self.ledger.told[NAME] = self._text.told
        self._blocks: queue.Queue[bytes] = queue.Queue(_MAX_BLOCKS)
        self._torn = b""
        self._written_at = time.monotonic()
        self._descriptor = sys.stdin.fileno()
        threading.Thread(target=self._read_blocks, name=NAME, daemon=True).start()

    def look(self) -> Look:
        look, data = Look(), self._torn
        while len(data) < LOOK_BYTES and not self._blocks.empty():
            block = self._blocks.get()
            data += block
            self.is_ended |= not block
        look.is_behind = len(data) >= LOOK_BYTES
        end = len(data) if self.is_ended else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._torn = data[end:]
        if len(self._torn) > MAX_LINE_BYTES:
            self._say_once(f"{NAME}: a line of more than 16 MB was passed over")
            self._torn = b""
        if end:
            self._written_at = look.at
            self._text.feed(lines_in(data[:end]))
        is_quiet = self.is_ended or look.at - self._written_at >= self._line_quiet_s
        self._text.take(look, self._written_at, is_quiet=is_quiet)
        return look

    def _read_blocks(self) -> None:
        block = b"more"
        while block:
            try:
                block = os.read(self._descriptor, _BLOCK)
            except OSError:
                block = b""
            self._blocks.put(block)
