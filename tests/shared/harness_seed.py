"""The seed of what tests draw at random: new each time, and told, so that it can be had again."""

from __future__ import annotations

import os
import secrets

VARIABLE = "ECHOSCOPE_SEED"


def draw() -> int:
    """The seed that the environment gives, or a new one, which is put there for child processes."""
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(1_000_000))))


def told() -> str:
    return f"drawn with {VARIABLE}={draw()}: set it to repeat"
