"""What a rank beside rank 0 runs: it joins in every call until the run ends."""

from __future__ import annotations

import contextlib
import signal
import sys

import torch

from echoscope.diagnostics.measure.gradients import GradientMemoryError
from echoscope.text.user_code import UserCodeError

from .processes import Ranks, end_with_parent, is_of_another_rank, join
from .ranked import ShardedLearner, begun


def follow() -> int:
    """Join the ranks that the environment names and do what rank 0 says; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; rank 0 decides
    end_with_parent()
    ranks = join()
    try:
        _until_closed(ranks)
    except Exception as error:
        if is_of_another_rank(error):
            return 1  # rank 0 finds out which
        ranks.report(error)
        if isinstance(error, (OSError, torch.OutOfMemoryError, UserCodeError)):
            return 1  # what a user can put right; rank 0 says it
        raise
    ranks.leave()
    return 0


def _until_closed(ranks: Ranks) -> None:
    learner: ShardedLearner | None = None
    while True:
        name, arguments = ranks.receive()
        if name == "close":
            return
        if name == "begin":
            learner = begun(ranks, **arguments)
        else:
            with contextlib.suppress(GradientMemoryError):  # every rank finds it; rank 0 tells
                getattr(learner, name)(*arguments)


if __name__ == "__main__":
    sys.exit(follow())
