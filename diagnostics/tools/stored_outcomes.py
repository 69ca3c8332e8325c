"""The evaluation episodes that a run has stored, and what an evaluation says of itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echoscope.store.reader import RunReader, RunsReader
from echoscope.store.records import StopReason, parse_trajectory_id
from echoscope.store.status import EVALUATION, Origin, origin_of
from echoscope.text.strict_json import value_at

from ..measure.outcomes import Outcome, task_name

_FAILURES = frozenset(reason.value for reason in StopReason if reason.is_failure)
_QUERY = """
SELECT t.run_id, t.id, t.tag, t.env_id, t.env_seed, t.task_key, t.is_success, t.episode_return,
       t.num_turns, t.num_sampled_tokens, t.stop_reason, u.valid_frac, u.effective_frac,
       u.num_input, u.num_output, u.cost
FROM trajectories t LEFT JOIN (
    SELECT run_id, step, attempt, trajectory_id, avg(is_valid::INT) valid_frac,
           avg(is_effective::INT) effective_frac,
           sum(info['usage/input_tokens']) num_input, sum(info['usage/output_tokens']) num_output,
           sum(info['usage/cost']) AS cost
    FROM turns GROUP BY ALL
) u ON u.run_id = t.run_id AND u.trajectory_id = t.id AND u.step = t.step AND u.attempt = t.attempt
WHERE t.split = 'eval' AND t.step BETWEEN $1 AND $2
ORDER BY t.run_id, t.id
"""
_NO_STEP = 2**31 - 1


def stored_outcomes(reader: RunReader, first_step: int, last_step: int) -> dict[int, Outcome]:
    """Place among the episodes to outcome, of the evaluation episodes of these steps."""
    rows = reader.sql(_QUERY, [first_step, last_step]).to_pylist()
    return {parse_trajectory_id(row["id"])[2]: _outcome(row) for row in rows}


def outcomes_of_runs(reader: RunsReader) -> dict[str, list[Outcome]]:
    """Run id to the outcomes of all its evaluation episodes, of many runs with one query."""
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for row in reader.sql(_QUERY, [0, _NO_STEP]).to_pylist():
        outcomes[row["run_id"]].append(_outcome(row))
    return outcomes


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(
        tag=row["tag"],
        env_id=row["env_id"],
        task=task_name(row["task_key"], row["env_seed"]),
        is_success=row["is_success"],
        episode_return=_number(row, "episode_return"),
        num_turns=row["num_turns"],
        valid_frac=_number(row, "valid_frac"),
        effective_frac=_number(row, "effective_frac"),
        num_tokens=row["num_sampled_tokens"] or int(row["num_output"] or 0),
        num_input_tokens=int(row["num_input"] or 0),
        cost=row["cost"],
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
