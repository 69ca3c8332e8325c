"""The evaluation episodes that a run has stored, and what an evaluation says of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from echoscope.store.reader import RunReader
from echoscope.store.records import StopReason, parse_trajectory_id
from echoscope.store.status import EVALUATION, Origin, origin_of
from echoscope.text.strict_json import value_at

from ..measure.outcomes import CountedEpisode, task_name

_FAILURES = frozenset(reason.value for reason in StopReason if reason.is_failure)
_KEYS = ["step", "attempt", "id"]
_EPISODE = [
    *("tag", "env_id", "env_seed", "task_key", "is_success", "episode_return", "num_turns"),
    *("num_sampled_tokens", "stop_reason"),
]
_TURN = ["step", "attempt", "trajectory_id", "is_valid", "is_effective", "info"]


def stored_outcomes(
    reader: RunReader, first_step: int, last_step: int
) -> dict[int, CountedEpisode]:
    """Place among the episodes to outcome, of the evaluation episodes of these steps."""
    columns = [*_KEYS, *_EPISODE, "split"]
    episodes = reader.rows_of_steps("trajectories", first_step, last_step, columns)
    episodes = episodes.filter(pc.field("split") == "eval")
    turns = reader.rows_of_steps("turns", first_step, last_step, _TURN)
    rows = episodes.join(_summed(turns), keys=_KEYS).sort_by("id").to_pylist()
    return {parse_trajectory_id(row["id"])[2]: _outcome(row) for row in rows}


def _summed(turns: pa.Table) -> pa.Table:
    """What the turns of each episode come to; null where none of them says it."""
    flags = (turns.column(name).cast(pa.int8()) for name in ("is_valid", "is_effective"))
    numbers = (
        pc.map_lookup(turns.column("info"), pa.scalar(f"usage/{name}"), "first")
        for name in ("input_tokens", "output_tokens", "cost")
    )
    names = [*_KEYS, "valid", "effective", "input", "output", "cost"]
    keys = (turns.column(name) for name in ("step", "attempt", "trajectory_id"))
    by_episode = pa.table([*keys, *flags, *numbers], names).group_by(_KEYS)
    means, sums = ((n, "mean") for n in names[3:5]), ((n, "sum") for n in names[5:])
    return by_episode.aggregate([*means, *sums])


def _outcome(row: Mapping[str, Any]) -> CountedEpisode:
    return CountedEpisode(
        tag=row["tag"],
        env_id=row["env_id"],
        task=task_name(row["task_key"], row["env_seed"]),
        is_success=row["is_success"],
        episode_return=_number(row, "episode_return"),
        num_turns=row["num_turns"],
        valid_frac=_number(row, "valid_mean"),
        effective_frac=_number(row, "effective_mean"),
        num_tokens=row["num_sampled_tokens"] or int(row["output_sum"] or 0),
        num_input_tokens=int(row["input_sum"] or 0),
        cost=row["cost_sum"],
        is_failure=row["stop_reason"] in _FAILURES,
    )


def _number(row: Mapping[str, float | None], name: str) -> float:
    value = row[name]
    return math.nan if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is to be played, by whom. It is read from a file: the text may be hostile."""

    who: str
    temperature: float | None
    seed: int | None
    num_episodes: int
    """0 where that is not known."""

    @property
    def name(self) -> str:
        heat = self.temperature
        return self.who if heat is None else f"{self.who} at temperature {heat:g}"


def planned(config: Mapping[str, Any]) -> Planned | None:
    """What the configuration of a run says of its evaluation; None for any other run.

    >>> planned({"evaluation": {"name": "tiny", "tasks": 60, "siblings": 4}}).num_episodes
    240
    >>> planned({"steps": 60}) is None
    True
    """
    if origin_of(config) is not Origin.EVALUATED:
        return None
    entry, worlds = config[EVALUATION], value_at(config, list, "settings", "envs", "eval")
    num_worlds = 1 if worlds is None else len(worlds)
    tasks, siblings = (value_at(entry, int, name) or 0 for name in ("tasks", "siblings"))
    temperature = entry.get("temperature")
    return Planned(
        who=str(entry.get("name") or entry.get("who") or "nobody")[:_MAX_NAME],
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
        seed=value_at(config, int, "settings", "seed"),
        num_episodes=tasks * siblings * num_worlds,
    )


_MAX_NAME = 300


def evaluation_words(plan: Planned) -> str:
    """What an evaluation is, as the end of a sentence. Hostile."""
    return f"an evaluation of {plan.who}, not a training, so there is no verdict"


def evaluation_sentence(config: Mapping[str, Any], run: str) -> str:
    """What is said of an evaluation in place of a verdict; empty for any other run.

    Args:
        run: How a command names it.
    """
    plan = planned(config)
    if plan is None:
        return ""
    return (
        f"{run} is {evaluation_words(plan)}. Its success is on the page Evaluations of `echoscope "
        f"dashboard`. `echoscope eval WHO --against {run}` compares another model with it."
    )
