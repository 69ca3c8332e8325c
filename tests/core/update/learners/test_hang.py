"""A rank that hangs; apart from others, because a process can be rank 0 of one group only."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from echoscope.core.update.learners.processes import STALLED, RankError, start_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]


@pytest.mark.parametrize("num_bytes", [1, 64 << 20])
def test_a_rank_that_hangs_is_given_up(num_bytes: int) -> None:
    """Whether rank 0 waits for it in the sum, or cannot even tell it what to do."""
    ranks = start_ranks(2, "cpu")
    for group in (dist.group.WORLD, ranks.calls):
        backend = group._get_backend(torch.device("cpu"))
        assert backend.options._timeout == STALLED
        backend._set_default_timeout(timedelta(seconds=3))
    (other,) = ranks.processes
    other.send_signal(signal.SIGSTOP)

    def train() -> None:
        ranks.send("update", b"x" * num_bytes)
        with ranks.failing():
            dist.all_reduce(torch.zeros(1))

    try:
        with pytest.raises(RankError, match="a rank does not answer: resume the run from its last"):
            train()
    finally:
        ranks.close()
    assert other.poll() is not None
