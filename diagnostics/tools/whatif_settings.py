"""Which selection settings a run went by, step by step, and how other ones are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from echoscope.store.reader import RunReader
from echoscope.store.steer.settings import live_settings
from echoscope.text.did_you_mean import did_you_mean

from ..config import SelectionConfig

PREFIX = "selection."


class WhatIfError(ValueError):
    """The question cannot be asked of this run; one line with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Selection settings over a run: from each step on, in order; the first counts before it."""

    changes: tuple[tuple[int, SelectionConfig], ...]
    is_recorded: bool = True
    """Whether the run's configuration says anything about selection."""

    def at(self, step: int) -> SelectionConfig:
        found = self.changes[0][1]
        for first, config in self.changes:
            if first <= step:
                found = config
        return found

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """The same with `changes` on top at every step (see `apply_changes`)."""
        return Settings(
            changes=tuple((step, apply_changes(one, changes)) for step, one in self.changes),
            is_recorded=self.is_recorded,
        )


def own_settings(reader: RunReader) -> Settings:
    """What the run selected by: its configuration and every live change that was applied.

    Raises:
        WhatIfError: its configuration is not one that this version knows.
    """
    info = reader.info()
    raw = info.config.get("selection")
    present = _validated(raw if isinstance(raw, Mapping) else {})
    found = [(0, present)]
    for step, values in live_settings(reader).below(PREFIX):
        now = apply_changes(present, {PREFIX + name: value for name, value in values.items()})
        if now != found[-1][1]:
            found.append((step, now))
    return Settings(changes=tuple(found), is_recorded=isinstance(raw, Mapping))


def apply_changes(config: SelectionConfig, changes: Mapping[str, Any]) -> SelectionConfig:
    """`config` with dotted keys such as `selection.value` changed: all of them, or none.

    Raises:
        WhatIfError: an unknown key, or a value out of range.
    """
    known = [PREFIX + name for name in SelectionConfig.model_fields]
    for key in changes:
        if key not in known:
            raise WhatIfError(f"{key!r} is no setting of the selection{did_you_mean(key, known)}")
    named = {key.removeprefix(PREFIX): value for key, value in changes.items()}
    return _validated(config.model_dump() | named)


def _validated(values: Mapping[str, Any]) -> SelectionConfig:
    try:
        return SelectionConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise WhatIfError(str(first["ctx"]["error"])) from None
        name = PREFIX + ".".join(str(part) for part in first["loc"])
        rule = first["msg"][0].lower() + first["msg"][1:]
        raise WhatIfError(f"{name} is {first['input']!r}, but {rule}") from None
