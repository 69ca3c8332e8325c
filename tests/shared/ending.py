"""A reward that ends the process of its trainer, as the kernel does where memory runs out."""

from __future__ import annotations

import os
import signal

from echoscope.store.records import Turn

ENDS = "ECHOSCOPE_TEST_ENDS"
"""Environment variable: set while processes shall end."""


def where_asked(turn: Turn) -> float:
    if ENDS in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0
