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

from .files.tail import lines_in
from .folder import LOOK_BYTES, Changes, Folder, Numbers
from .numbers import TextNumbers
from .window import Window

NAME = "standard input"
MAX_LINE_BYTES = 16 << 20
_BLOCK = 1 << 16
_MAX_BLOCKS = 4096
"""Blocks that wait; the trainer waits where there are more (256 MB)."""


class Pipe(Folder):
    """Lines of standard input as a file that only grows and ends with the trainer."""

    def __init__(self, *args: Any, descriptor: int | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._blocks: queue.Queue[bytes] = queue.Queue(_MAX_BLOCKS)
        self._torn = b""
        self._at = time.monotonic()
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._thread = threading.Thread(target=self._read, name="standard input", daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        return True

    def look(self, *, is_end: bool = False) -> Changes:
        changes, blocks, size = Changes(), [self._torn], 0
        while size < LOOK_BYTES:
            try:
                block = self._blocks.get_nowait()
            except queue.Empty:
                break
            if not block:
                self.is_ended = True
                break
            blocks.append(block)
            size += len(block)
        data = b"".join(blocks)
        changes.is_behind = size >= LOOK_BYTES
        end = len(data) if self.is_ended else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._torn = data[end:]
        if len(self._torn) > MAX_LINE_BYTES:
            self._say_once(f"{NAME}: a line of more than 16 MB was passed over")
            self._torn = b""
        numbers = self.numbers.get(NAME)
        if numbers is None:
            numbers = Numbers(window=Window(namer=self.namer))
            numbers.text = TextNumbers(NAME, self._mapping)
            self.numbers[NAME] = numbers
        if end:
            assert numbers.text is not None
            self._at = changes.at
            numbers.text.feed(lines_in(data[:end], "utf-8"))
            numbers.is_open = True
        is_quiet = self.is_ended or changes.at - self._at >= self._line_quiet_s
        if end or (numbers.is_open and is_quiet):
            self._rows(NAME, numbers, changes, self._at, is_quiet=is_quiet)
        return changes

    def settled(self, last: int) -> None:
        for numbers in self.numbers.values():
            numbers.window.trim(last)

    def state(self) -> dict[str, Any]:
        return {}

    def _read(self) -> None:
        while True:
            try:
                block = os.read(self._descriptor, _BLOCK)
            except OSError:
                block = b""
            self._blocks.put(block)
            if not block:
                return
