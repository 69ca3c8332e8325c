"""What is known of one metric: its key, its unit, its name, one sentence, and which way is good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from echoscope.text.sentences import in_sentence

SHARE = "share"
"""Unit of what lies between 0 and 1; shown as a percentage."""
POINTS = "points"
"""Unit of a difference of two shares; shown in percentage points."""
NATS = "nats"

Good = Literal["up", "down", "steady", ""]
"""Which way is good. `steady`: both ways are bad. Empty: no way is good by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one metric is."""

    key: str
    """`*` stands for one part of a key: a tag or a term."""
    name: str = ""
    """A noun of one to three words: a label of a chart or a column."""
    unit: str = ""
    help: str = ""
    """One or two sentences: what the number is, and when to worry."""
    good: Good = ""
    phrase: str = ""
    """The name in the middle of an alarm's sentence; made from `name` where it is the same."""

    @property
    def in_sentence(self) -> str:
        """As an alarm calls it."""
        return self.phrase or in_sentence(self.name)
