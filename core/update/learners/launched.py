"""What torchrun and its like say of this process, in environment variables.

A file of its own: the command line asks before torch, which may take minutes to load, is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...config.loading import ConfigError, parse_override

SETTING = "trainer.ranks"
PARENT = "ECHOSCOPE_RANK_PARENT"
"""Variable of a rank that this package has started: the process that must outlive it."""


def launched_rank() -> int:
    """This process among those that were started together; 0 where there are no others."""
    return int(os.environ.get("RANK", "0")) if launched_size() else 0


def launched_size() -> int:
    """How many processes were started together; 0 where nothing has started several."""
    return int(os.environ.get("WORLD_SIZE", "0")) if "RANK" in os.environ else 0


def ranks_here(num_ranks: int) -> int:
    """How many of a run's ranks are on this machine: all, unless torchrun says otherwise."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))


def launched_words(words: Sequence[str]) -> list[str]:
    """The setting that the launcher's number of processes stands for.

    Raises:
        ConfigError: the words name another number.
    """
    size = launched_size()
    named = dict(map(parse_override, words)).get(SETTING, size)
    if size and named != size:
        raise ConfigError(
            f"{SETTING} is {named}, but {size} processes were started: leave the setting out, or "
            f"start {named}"
        )
    return [f"{SETTING}={size}"] if size > 1 else []
