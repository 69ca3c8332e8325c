"""All episodes of a pool begun at once, and the processes that worlds live in."""

from __future__ import annotations

from echoscope.envs.pool import EnvPool, Slot
from echoscope.envs.workers.processes import WorkerProcesses


def worker_pids(processes: WorkerProcesses) -> list[int]:
    """Of the worker processes that are there."""
    workers = [*processes._workers, *processes._retired]
    return [w._process.pid for w in workers if w is not None and not w.is_dead]


def begin(pool: EnvPool, step: int, draw_round: int = 0) -> list[Slot]:
    """P * G episodes of a training step, in slot order."""
    first_group = pool.check_step(step, draw_round)
    groups: list[list[Slot]] = []
    for p in range(pool.num_groups):
        leader = pool.lead(step, p, first_group)
        groups.append([pool.start(index, leader) for index in pool.slots_of(p)])
    slots = [slot for group in groups for slot in group]
    pool.check_started(slots)
    for group in groups:
        pool.check_group(group)
    return slots
