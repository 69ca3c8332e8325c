"""Observers of the user's own: a class that sees each step and adds metrics of its own.

A class has `observe(seen: StepObservation) -> Mapping[str, float]`. What it returns is stored under
`custom/NAME`, so it can take the place of no metric of the house. With `state()` and `restore()` it
remembers something in checkpoints: both or none, as JSON values.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

from echoscope.text.user_code import UserCodeError, call, loaded, require_params

from ..config.beside_training import ObserverEntry
from ..config.settings import RunConfig
from ..run.observers import Observed, StepObservation, StepObserver

PREFIX = "custom/"
MOST_METRICS = 100
"""Of one observer and step: each is a curve that somebody has to look through."""
_KEY = re.compile(r"[a-z][a-z0-9_@]*(/[a-z0-9_@]+)*")


class UserObserver(StepObserver):
    """Around an instance of the user's class.

    Args:
        place: its place among the configuration's observers, which tells two of a class apart.

    Raises:
        UserCodeError: the class is not loaded, cannot be built, or lacks `observe`.
    """

    def __init__(self, entry: ObserverEntry, index: int) -> None:
        self.entry = entry
        self.name = f"{index}.{entry.function}"
        require_params("observer", entry.function, entry.params, num_inputs=0)
        kind = loaded("observer", entry.function)
        self._own: Any = self._call(kind, **entry.params)
        if not callable(getattr(self._own, "observe", None)):
            raise self._wrong("has no method observe(seen)")
        self._has_state = self._remembers()

    def observe(self, seen: StepObservation) -> Observed:
        """The user's metrics of a step, under `custom/`.

        Raises:
            UserCodeError: it failed, or returned something else than names and numbers.
        """
        values = self._call(self._own.observe, seen)
        if not isinstance(values, Mapping):
            raise self._wrong(
                f"returned a {type(values).__name__} from observe, but must return a mapping of "
                "names to numbers"
            )
        if len(values) > MOST_METRICS:
            raise self._wrong(f"returned {len(values)} metrics, more than {MOST_METRICS}")
        out = {}
        for key, value in values.items():
            if not isinstance(key, str) or len(key) > 80 or not _KEY.fullmatch(key):
                raise self._wrong(
                    f"returned the name {str(key)[:80]!r}, but names are lower-case letters, "
                    "digits and _, with / between parts"
                )
            if not isinstance(value, Real) or math.isinf(value):
                raise self._wrong(
                    f"returned {value!r} as {key}, but must return a number (NaN where unknown)"
                )
            out[f"{PREFIX}{key}"] = float(value)
        return Observed(values=out)

    def state(self) -> Any:
        """What the user's object remembers, as JSON values; None if it remembers nothing.

        Raises:
            UserCodeError: it failed, or it is not JSON.
        """
        if not self._has_state:
            return None
        value = self._call(self._own.state)
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise self._wrong(f"returned a state that is not JSON: {error}") from None

    def restore(self, state: Any) -> None:
        """Give back what `state` returned."""
        if self._has_state and state is not None:
            self._call(self._own.restore, copy.deepcopy(state))

    def _remembers(self) -> bool:
        both = [callable(getattr(self._own, name, None)) for name in ("state", "restore")]
        if any(both) and not all(both):
            raise self._wrong("must have both state() and restore(state), or neither")
        return all(both)

    def _call(self, function: Any, *args: Any, **params: Any) -> Any:
        return call("observer", self.entry.function, function, *args, **params)

    def _wrong(self, rule: str) -> UserCodeError:
        return UserCodeError(f"observer plug-in {self.entry.function!r} {rule}")


def user_observers(config: RunConfig) -> list[UserObserver]:
    """The observers that a configuration names, each with its own memory."""
    return [UserObserver(entry, index) for index, entry in enumerate(config.observers)]
