"""Small evaluations written straight into a store, without a player."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from made_run import step_metrics
from trajectories import make_trajectory

from echoscope.store.records import Split, Trajectory, Turn
from echoscope.store.writer import RunWriter

Tasks = Sequence[str]
"""A text for each task with a sign for each attempt: `1` solved, `0` failed, `?` not judged."""


def evaluation_config(
    worlds: Sequence[str], *, tasks: int, siblings: int, who: str, temperature: float, seed: int
) -> dict[str, Any]:
    """As `echoscope eval` writes it, as far as readers look."""
    entry = {"who": who, "name": who, "tasks": tasks, "siblings": siblings}
    return {
        "evaluation": entry | {"temperature": temperature},
        "settings": {"seed": seed, "envs": {"eval": [{"env": world} for world in worlds]}},
    }


def episodes(
    worlds: Mapping[str, Tasks], *, seed: int = 0, cost: float | None = None
) -> list[Trajectory]:
    """One turn each. The seed decides the names of the tasks."""
    out: list[Trajectory] = []
    group = 0
    for world, tasks in worlds.items():
        for number, attempts in enumerate(tasks):
            for sibling, sign in enumerate(attempts):
                turn = Turn(
                    index=0,
                    observation=f"{world} {number}",
                    response="I go up.</think><answer>up</answer>",
                    actions=("up",),
                    reward=float(sign == "1"),
                    info={} if cost is None else {"usage/cost": cost},
                )
                out.append(
                    make_trajectory(
                        turn,
                        step=0,
                        index=len(out),
                        group_index=group,
                        sibling_index=sibling,
                        split=Split.EVAL,
                        tag=world,
                        env_seed=seed,
                        task_key=f"task {number}",
                        is_success=None if sign == "?" else sign == "1",
                    )
                )
            group += 1
    return out


def open_evaluation(
    path: Path,
    worlds: Mapping[str, Tasks],
    *,
    who: str = "tiny",
    temperature: float = 1.0,
    seed: int = 0,
    planned: int | None = None,
    cost: float | None = None,
) -> RunWriter:
    """An evaluation whose episodes are on the disk and in no step yet, as its player leaves it.

    Args:
        planned: tasks of each world; those of `worlds` if None.
    """
    most = max((len(tasks) for tasks in worlds.values()), default=0)
    siblings = max((len(a) for tasks in worlds.values() for a in tasks), default=1)
    config = evaluation_config(
        [*worlds],
        tasks=most if planned is None else planned,
        siblings=siblings,
        who=who,
        temperature=temperature,
        seed=seed,
    )
    writer = RunWriter.create(
        path,
        run_id=path.name,
        config=config,
        name=f"evaluation of {who}",
        tags=("evaluation",),
        is_packing=False,
    )
    played = episodes(worlds, seed=seed, cost=cost)
    if played:
        writer.add_trajectories(played)
        writer.flush()
    return writer


def make_evaluation(
    path: Path, worlds: Mapping[str, Tasks], *, status: str = "finished", **options: Any
) -> Path:
    """An evaluation that has ended. See `open_evaluation`."""
    writer = open_evaluation(path, worlds, **options)
    if any(worlds.values()):
        values = {f"eval/{world}/success_rate": 0.5 for world in worlds}
        writer.commit_step(metrics=[step_metrics(path.name, 0, values, "eval")])
    writer.close(status=status)
    return path
