"""Which GPUs the replicas of a machine get, beside its ranks."""

from __future__ import annotations

import pytest

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.config.loading import ConfigError
from echoscope.core.engines.vllm import server as vllm_server
from echoscope.core.engines.vllm.server import devices_of


@pytest.mark.parametrize(
    ("num_gpus", "num_ranks", "replicas", "size", "devices"),
    [
        (1, 1, 1, 1, [[]]),  # all that there is, shared
        (2, 1, 1, 1, [["1"]]),
        (8, 4, 4, 1, [["4"], ["5"], ["6"], ["7"]]),
        (8, 4, 2, 2, [["4", "5"], ["6", "7"]]),
        (8, 8, 8, 1, [[str(n)] for n in range(8)]),  # each shared with a rank
        (8, 4, 5, 1, [["0"], ["1"], ["2"], ["3"], ["4"]]),  # not enough beside the ranks
        (2, 2, 4, 1, [["0"], ["1"], ["0"], ["1"]]),
    ],
)
def test_replicas_take_the_gpus_after_the_ranks_where_there_are_enough(
    num_gpus: int,
    num_ranks: int,
    replicas: int,
    size: int,
    devices: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_server, "has_gpu", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus))))
    config = VllmEngineConfig(replicas=replicas, options={"tensor-parallel-size": size})
    assert [devices_of(config, index, num_ranks) for index in range(replicas)] == devices


def test_a_replica_that_needs_more_gpus_than_there_are_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_server, "has_gpu", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    config = VllmEngineConfig(options={"tensor-parallel-size": 4})
    with pytest.raises(ConfigError, match=r"tensor-parallel-size .* is 4, but torch sees 2 GPUs"):
        devices_of(config, 0, 1)
