"""Environments in processes of their own."""

from __future__ import annotations

import pytest
from pools import worker_pids

from echoscope.envs.settings import EnvGroup
from echoscope.envs.workers.processes import ProcessTurns, WorkerProcesses


def test_a_world_that_raises_keyboard_interrupt_in_its_process_ends_its_episode_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    processes = WorkerProcesses(1)
    try:
        group = EnvGroup(env="waiting_worlds:InterruptingLake")
        turns = ProcessTurns(group, limit_s=60.0, processes=processes)
        begun_in = []
        for seed in range(2):
            turns.reset(seed, seed)
            begun_in.append(worker_pids(processes))
            result = turns.step_turn(["up"], is_well_formed=True)
            assert result.stop_reason == "env_error"
            assert result.error == "waiting_worlds:InterruptingLake: raised KeyboardInterrupt"
        assert begun_in[0] == begun_in[1]
    finally:
        processes.close()
    assert "Traceback" not in capfd.readouterr().err
