"""What an evaluation found: success, pass@k and pass^k with intervals, and two models compared.

The task is the unit. Siblings share their task, so they are no independent trials: every interval
is over tasks, and a task counts by what its siblings say together. A task counts only where some
sibling was played to an outcome: an episode that the world ended, or nobody can judge, is no trial.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import Split, Trajectory
from echoscope.text.amounts import percent, percent_ends, points, signed

from .rates import wilson_interval

INPUT_TOKENS, OUTPUT_TOKENS, COST = "usage/input_tokens", "usage/output_tokens", "usage/cost"
"""In `Turn.info`: what a provider billed for a reply."""
OWN_TASKS = " / in"
"""How the tag of a player's own tasks ends in a suite."""
_NORMAL = NormalDist().inv_cdf(0.975)
RESAMPLES = 2000
"""Of the paired bootstrap."""
MAX_TAGS = 100
"""With more sets of tasks, only the metrics over all of them are made."""
ALL = "all"
"""The name of all tasks together, and of tasks that the files give no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks with its 95 % interval; NaN where there is no task."""

    value: float
    low: float
    high: float

    def as_rate(self) -> str:
        """In words, as a share.

        >>> Estimate(value=0.815, low=0.75, high=0.866).as_rate()
        '81.5 % (75.0 to 86.6)'
        """
        if math.isnan(self.value):
            return "unknown"
        return f"{percent(self.value, 1)} ({percent_ends(self.low, self.high, 1)})"

    def as_points(self) -> str:
        """In words, as a difference of shares.

        >>> Estimate(value=-0.1, low=-0.3, high=0.105).as_points()
        '-10.0 points (-30.0 to +10.5)'
        """
        if math.isnan(self.value):
            return "unknown"
        return (
            f"{points(self.value, 1)} ({signed(100 * self.low, 1)} to {signed(100 * self.high, 1)})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEpisode:
    """What is counted of one episode."""

    tag: str
    env_id: str
    task: str
    """Equal exactly where two episodes of a world begin with the same task."""
    is_success: bool | None
    episode_return: float
    num_turns: int
    valid_frac: float
    """Turns whose actions the world took, of all turns; NaN without a turn."""
    is_failure: bool
    """The world, not the player, ended it."""
    effective_frac: float
    """Turns that changed the world's state, of all turns; NaN without a turn."""
    num_tokens: int
    """Sampled, or billed by a provider as output; 0 where nobody counted."""
    num_input_tokens: int = 0
    """Billed by a provider as input."""
    cost: float | None = None
    """In US dollars, where a price is known."""

    @property
    def world(self) -> tuple[str, str]:
        return self.tag, self.env_id


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTable:
    """What was found in one world, or over all of them."""

    tag: str
    env_id: str
    num_tasks: int
    """With at least one known outcome."""
    num_episodes: int
    num_unknown: int
    """Episodes that count for nothing: the world failed, or cannot tell success."""
    success: Estimate
    pass_at: Mapping[int, Estimate]
    """k to the chance that at least one of k attempts at a task succeeds."""
    pass_all: Mapping[int, Estimate]
    """k to the chance that all of k attempts at a task succeed (pass^k)."""
    episode_return: Estimate
    num_turns: Estimate
    valid_frac: Estimate
    effective_frac: Estimate
    num_tokens: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessDifference:
    """Success of one evaluation minus that of another, on the tasks that both played."""

    tag: str
    env_id: str
    num_tasks: int
    """Shared, with a known outcome in both."""
    first: float
    second: float
    difference: Estimate
    """First minus second."""


def outcome_of(trajectory: Trajectory) -> CountedEpisode:
    """What counts of a trajectory."""
    turns = trajectory.turns
    num_turns = len(turns) or math.nan
    has_cost = any(COST in turn.info for turn in turns)
    return CountedEpisode(
        tag=trajectory.tag,
        env_id=trajectory.env_id,
        task=task_name(trajectory.task_key, trajectory.env_seed),
        is_success=trajectory.is_success,
        episode_return=trajectory.episode_return,
        num_turns=len(turns),
        valid_frac=sum(bool(turn.is_valid) for turn in turns) / num_turns,
        effective_frac=sum(bool(turn.is_effective) for turn in turns) / num_turns,
        num_tokens=trajectory.num_sampled_tokens or int(_billed(trajectory, OUTPUT_TOKENS)),
        num_input_tokens=int(_billed(trajectory, INPUT_TOKENS)),
        cost=_billed(trajectory, COST) if has_cost else None,
        is_failure=trajectory.stop_reason.is_failure,
    )


def _billed(trajectory: Trajectory, name: str) -> float:
    return sum(turn.info.get(name, 0.0) for turn in trajectory.turns)


def task_name(task_key: str | None, env_seed: int | None) -> str:
    """The name of a task: its seed and its first state, which two settings of a world differ in."""
    return f"{env_seed}/{task_key}"


def tables_of(outcomes: Sequence[CountedEpisode]) -> list[WorldTable]:
    """A table for each world, and last one over all where there are several."""
    by_world: dict[tuple[str, str], list[CountedEpisode]] = defaultdict(list)
    for outcome in outcomes:
        by_world[outcome.world].append(outcome)
    tables = [_table(tag, env_id, of) for (tag, env_id), of in by_world.items()]
    if len(tables) > 1:
        tables.append(_table(ALL, "", outcomes))
    return tables


def shown_ks(most: int) -> list[int]:
    """The k of pass@k that a table shows of those up to `most`: powers of two, and the most.

    >>> shown_ks(1), shown_ks(6), shown_ks(8)
    ([], [2, 4, 6], [2, 4, 8])
    """
    return [k for k in (2, 4, 8, 16, 32) if k < most] + ([most] if most > 1 else [])


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that one of k samples of a task is correct: 1 - C(n - c, k) / C(n, k).

    An unbiased estimate from n >= k samples of which c were correct (Chen et al. 2021, equation 1).

    >>> round(pass_at_k(4, 1, 2), 3), pass_at_k(4, 0, 2), pass_at_k(4, 3, 2)
    (0.5, 0.0, 1.0)
    """
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_all_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that all of k samples of a task are correct: C(c, k) / C(n, k).

    An unbiased estimate from n >= k samples of which c were correct (Yao et al. 2024, pass^k).

    >>> round(pass_all_k(4, 3, 2), 3), pass_all_k(4, 1, 2), pass_all_k(4, 4, 2)
    (0.5, 0.0, 1.0)
    """
    return math.comb(num_correct, k) / math.comb(num_samples, k)


def rate_estimate(rates: Sequence[float], num_trials: int) -> Estimate:
    """Mean of the tasks' rates, each in [0, 1], with Wilson's interval for clustered trials.

    The trials of a task go together, so they count for fewer: for as many independent ones as would
    have the variance that is seen between tasks, at least one a task and at most all of them
    (Kish's design effect, estimated).

    Args:
        rates: of each task, (T,).
        num_trials: siblings of all tasks together.

    >>> rate_estimate([1.0, 0.0, 1.0, 1.0], 4).value
    0.75
    """
    num_tasks = len(rates)
    if not num_tasks:
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    values = np.asarray(rates, np.float64)
    mean = float(np.clip(values.mean(), 0, 1))
    between = float(values.var(ddof=1)) / num_tasks if num_tasks > 1 else 0.0
    if between > 0:
        effective = mean * (1 - mean) / between
    else:  # equal tasks: at 0 or 1 nothing is known of how they differ
        effective = float(num_trials if 0 < mean < 1 else num_tasks)
    effective = min(max(effective, num_tasks), max(num_trials, num_tasks))
    z = _student(num_tasks) if num_tasks > 1 else 1.96
    low, high = wilson_interval(mean, effective, z=min(z, 12.7))
    return Estimate(value=mean, low=float(low), high=float(high))


@functools.cache
def _student(num_values: int) -> float:
    """How many standard errors the 95 % interval of a mean of so many values reaches."""
    from scipy.special import stdtrit  # takes a while: not for whoever only asks what a run is

    return float(stdtrit(num_values - 1, 0.975))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Mean of the tasks' values with Student's interval; NaN values are left out."""
    numbers = np.asarray(_without_nan(values), np.float64)
    if len(numbers) < 2:
        return Estimate(value=_mean(values), low=math.nan, high=math.nan)
    mean = float(numbers.mean())
    half = _student(len(numbers)) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def paired_estimate(differences_T: Sequence[float], *, seed: int = 0) -> Estimate:
    """Mean of the tasks' differences with the interval of a bootstrap over tasks.

    The tails are widened by the factor of Student's t for so few tasks, since a bootstrap of a mean
    is as narrow as the normal distribution says.

    Args:
        differences_T: first minus second of each task that both played, (T,).
    """
    if sum(differences_T) < 0:  # the other way round the interval is the same, mirrored
        turned = paired_estimate([-difference for difference in differences_T], seed=seed)
        return Estimate(value=-turned.value, low=-turned.high, high=-turned.low)
    values = np.asarray(differences_T, np.float64)
    if len(values) < 2:
        return Estimate(value=_mean(differences_T), low=math.nan, high=math.nan)
    mean = float(values.mean())
    means = _resampled_means(values, seed)
    low, high = np.quantile(means, (0.025, 0.975))
    num = len(values)
    wider = _student(num) / _NORMAL * math.sqrt(num / (num - 1))
    return Estimate(
        value=mean,
        low=max(-1.0, mean - (mean - float(low)) * wider),
        high=min(1.0, mean + (float(high) - mean) * wider),
    )


def unpaired_estimate(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two rates over tasks of their own, first minus second.

    The interval joins those of the two rates (Newcombe 1998, method 10).
    """
    difference = first.value - second.value
    return Estimate(
        value=difference,
        low=difference - math.hypot(first.value - first.low, second.high - second.value),
        high=difference + math.hypot(first.high - first.value, second.value - second.low),
    )


def differences(
    first: Sequence[CountedEpisode], second: Sequence[CountedEpisode]
) -> list[SuccessDifference]:
    """Two evaluations on the tasks that both played, world by world; last over all."""
    return differences_of_rates(task_rates(_own(first)), task_rates(_own(second)))


def _own(outcomes: Iterable[CountedEpisode]) -> list[CountedEpisode]:
    """A player's own tasks have the same name in a suite and outside of one."""
    return [replace(outcome, tag=outcome.tag.removesuffix(OWN_TASKS)) for outcome in outcomes]


TaskKey = tuple[tuple[str, str], str]
"""A world (tag and environment), and the name of a task in it."""


def differences_of_rates(
    first: Mapping[TaskKey, float], second: Mapping[TaskKey, float]
) -> list[SuccessDifference]:
    """As `differences`, of the success rates of tasks."""
    shared = [key for key in first if key in second]
    out = [
        _difference(world, [k for k in shared if k[0] == world], first, second)
        for world in dict.fromkeys(key[0] for key in shared)
    ]
    if len(out) > 1:
        out.append(_difference((ALL, ""), shared, first, second))
    return out


def _difference(
    world: tuple[str, str],
    keys: Sequence[TaskKey],
    first: Mapping[TaskKey, float],
    second: Mapping[TaskKey, float],
) -> SuccessDifference:
    return SuccessDifference(
        tag=world[0],
        env_id=world[1],
        num_tasks=len(keys),
        first=_mean([first[key] for key in keys]),
        second=_mean([second[key] for key in keys]),
        difference=paired_estimate([first[key] - second[key] for key in keys]),
    )


def task_rates(outcomes: Iterable[CountedEpisode]) -> dict[TaskKey, float]:
    """The mean success of each task's siblings, where one was played to a known outcome."""
    return {
        key: _mean([float(bool(outcome.is_success)) for outcome in of])
        for key, of in _by_task(outcomes).items()
    }


def _by_task(outcomes: Iterable[CountedEpisode]) -> dict[TaskKey, list[CountedEpisode]]:
    """The episodes of each task whose success is known."""
    out: dict[TaskKey, list[CountedEpisode]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.is_success is not None and not outcome.is_failure:
            out[outcome.world, outcome.task].append(outcome)
    return dict(out)


def _table(tag: str, env_id: str, outcomes: Sequence[CountedEpisode]) -> WorldTable:
    tasks = list(_by_task(outcomes).values())
    counts = [(len(of), sum(bool(outcome.is_success) for outcome in of)) for of in tasks]
    num_known = sum(n for n, _ in counts)
    most = max((n for n, _ in counts), default=0)

    def rates(of_task: Callable[[int, int, int], float], k: int) -> Estimate:
        enough = [(n, c) for n, c in counts if n >= k]
        return rate_estimate([of_task(n, c, k) for n, c in enough], sum(n for n, _ in enough))

    tasks_played = [outcome for outcome in outcomes if not outcome.is_failure]
    place_of: dict[TaskKey, int] = {}
    places = [
        place_of.setdefault((outcome.world, outcome.task), len(place_of))
        for outcome in tasks_played
    ]

    def over_tasks(value: Callable[[CountedEpisode], float]) -> Estimate:
        values = np.array([value(outcome) for outcome in tasks_played], np.float64)
        is_number = ~np.isnan(values)
        where = np.asarray(places, np.intp)[is_number]
        sums = np.bincount(where, values[is_number], len(place_of))
        counts = np.bincount(where, minlength=len(place_of))
        return mean_estimate((sums[counts > 0] / counts[counts > 0]).tolist())

    return WorldTable(
        tag=tag,
        env_id=env_id,
        num_tasks=len(tasks),
        num_episodes=len(outcomes),
        num_unknown=len(outcomes) - num_known,
        success=rates(pass_at_k, 1),
        pass_at={k: rates(pass_at_k, k) for k in range(1, most + 1)},
        pass_all={k: rates(pass_all_k, k) for k in range(1, most + 1)},
        episode_return=over_tasks(lambda outcome: outcome.episode_return),
        num_turns=over_tasks(lambda outcome: float(outcome.num_turns)),
        valid_frac=over_tasks(lambda outcome: outcome.valid_frac),
        effective_frac=over_tasks(lambda outcome: outcome.effective_frac),
        num_tokens=over_tasks(lambda outcome: float(outcome.num_tokens)),
    )


def evaluation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success with its 95 % interval, and return, for each set of tasks and over all of them.

    `eval/<tag>/success_rate` is the mean over tasks of the mean success of a task's attempts, and
    `return_mean` the mean over episodes: as runs of Echoscope count them. Tasks whose success is
    not known do not count, nor do returns that are not known; without any, the key is absent.

    Args:
        trajectories: Of one step; those of other splits are passed over.
    """
    by_tag: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.split is Split.EVAL:
            by_tag.setdefault(trajectory.tag.strip() or ALL, []).append(trajectory)
    sets = dict(sorted(by_tag.items())) if len(by_tag) <= MAX_TAGS else {}
    if len(by_tag) > 1:
        sets.pop(ALL, None)  # a set of tasks that is itself named "all" gives way to all sets
        sets[ALL] = [episode for episodes in by_tag.values() for episode in episodes]
    out: dict[str, float] = {}
    for tag, episodes in sets.items():
        out |= _metrics_of(tag, episodes)
    return out


def _metrics_of(tag: str, episodes: Sequence[Trajectory]) -> dict[str, float]:
    tasks: dict[int, list[bool]] = {}
    for episode in episodes:
        if episode.is_success is not None:
            tasks.setdefault(episode.group_index, []).append(episode.is_success)
    returns = [e.episode_return for e in episodes if not math.isnan(e.episode_return)]
    out = {f"eval/{tag}/return_mean": float(np.mean(returns))} if returns else {}
    if tasks:
        rate = float(np.mean([np.mean(attempts) for attempts in tasks.values()]))
        low, high = wilson_interval(rate, len(tasks))
        out |= {
            f"eval/{tag}/success_rate": rate,
            f"eval/{tag}/success_rate_low": float(low),
            f"eval/{tag}/success_rate_high": float(high),
            f"eval/{tag}/num_tasks": float(len(tasks)),
        }
    return out


def _resampled_means(values_T: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Means of `RESAMPLES` draws of T tasks with replacement; the same ones for equal values."""
    random = np.random.default_rng(seed)
    levels, counts = np.unique(values_T, return_counts=True)
    # Equal tasks are alike: how often each level is drawn is multinomial.
    drawn = random.multinomial(len(values_T), counts / len(values_T), size=RESAMPLES)
    return np.asarray(drawn @ levels / len(values_T))


def _mean(values: Sequence[float]) -> float:
    numbers = _without_nan(values)
    return float(sum(numbers) / len(numbers)) if numbers else math.nan


def _without_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]
