"""A run at a W&B server, asked again and again.

Its public API tells all rows of a run. So each time all of them are asked for, and the longer that
takes, the longer is the rest after it.
"""

from __future__ import annotations

import time
from typing import Any

from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.wandb_address import read_address

from .folder import Changes, Folder, Numbers
from .keeping import WatchError
from .window import Row, Window

ASK_S = 30.0
"""Between two questions at least ..."""
SHARE = 10.0
"""... and so many times what the answer took."""


class Address(Folder):
    """The rows of metrics of `wandb:ENTITY/PROJECT/RUN`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._ask_at = 0.0
        self._was_answered = False

    @property
    def is_there(self) -> bool:
        return True

    def look(self, *, is_end: bool = False) -> Changes:
        """Ask where it is time to.

        Raises:
            WatchError: the first question was refused; later ones are said, and asked again.
        """
        changes, asked_at = Changes(), time.monotonic()
        if asked_at < self._ask_at and not is_end:
            return changes
        address = str(self.path)
        try:
            table = read_address(address, self._mapping).table
        except MetricsFileError as error:
            if not self._was_answered:
                raise WatchError(str(error)) from None
            self._say_once(f"{error}; it is asked again")
        else:
            self._was_answered = True
            numbers = self.numbers.get(address)
            if numbers is None:
                numbers = self.numbers[address] = Numbers(window=Window(mapping=self._mapping))
                if self.stored:
                    numbers.window.know(self.stored)
            rows: list[Row] = [(step, values, 1.0) for step, values in table.rows()]
            before = numbers.window.newest
            self._take(address, numbers, rows, True, changes)
            if numbers.window.newest > before:
                numbers.changed_at = asked_at
        now = time.monotonic()
        self._ask_at = now + max(ASK_S, SHARE * (now - asked_at))
        return changes

    def settled(self, last: int) -> None:
        for numbers in self.numbers.values():
            numbers.window.trim(last)

    def state(self) -> dict[str, Any]:
        return {}
