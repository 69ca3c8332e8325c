"""The episodes of one step: numbered, grouped, and what their step is like in numbers.

An import, a recorder and a watch fill it with drafts.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...query.metric_keys import (
    GROUP_STD,
    HOPELESS_FRAC,
    RETURN_MEAN,
    SOLVED_FRAC,
    SUCCESS_RATE,
    ZERO_STD,
)
from ...records import (
    MAX_INDEX,
    RolloutBatch,
    Split,
    Trajectory,
    TrajectoryOutcome,
    num_outcomes,
)
from ..draft import SUMMED_REWARDS, Draft, RowError, trajectory_of
from .metrics import IS_RECONSTRUCTED


@dataclass(slots=True)
class StepEpisodes:
    """The episodes of one step, what was refused, and what had to be guessed."""

    step: int
    trajectories: list[Trajectory] = field(default_factory=list)
    outcomes: list[TrajectoryOutcome] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Why episodes were not taken -> how many."""
    reconstructed: Counter[str] = field(default_factory=Counter)
    _groups: dict[Split, dict[bytes, list[int]]] = field(default_factory=dict)
    """Split -> hash of the name or the prompt -> places of the siblings in `trajectories`."""
    _num_episodes: Counter[Split] = field(default_factory=Counter)

    def add(self, draft: Draft, *, source: str, format_name: str) -> str:
        """Take an episode; why it cannot be taken, "" where it was.

        Args:
            source: where the episode stands, file and place.
            format_name: of the file.
        """
        try:
            self._add(draft, source, format_name)
        except RowError as error:
            self.refused[str(error)] += 1
            return str(error)
        self.reconstructed.update(draft.reconstructed)
        return ""

    def _add(self, draft: Draft, source: str, format_name: str) -> None:
        if len(self.trajectories) > MAX_INDEX:
            raise RowError(f"a step holds at most {MAX_INDEX + 1:,} episodes")
        if not draft.turns and not draft.is_whole:
            raise RowError("it has no reply of the policy")
        if draft.group is None:
            draft.reconstructed.add("groups")
        name = f"prompt {draft.prompt}" if draft.group is None else f"group {draft.group}"
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
        groups = self._groups.setdefault(draft.split, {})
        siblings = groups.get(digest, [])
        # Each split counts from 0, as in the runs that training writes.
        trajectory = trajectory_of(
            draft,
            format_name,
            step=self.step,
            index=self._num_episodes[draft.split],
            group_index=self.trajectories[siblings[0]].group_index if siblings else len(groups),
            sibling_index=len(siblings),
            source=source,
        )
        self._num_episodes[draft.split] += 1
        groups.setdefault(digest, siblings).append(len(self.trajectories))
        self.trajectories.append(trajectory)
        outcome = _outcome_of(draft, trajectory)
        if outcome is not None:
            self.outcomes.append(outcome)

    def batch(self) -> RolloutBatch:
        """Training episodes in groups of equal size: the commonest size of at least two.

        Smaller groups are left out and larger ones cut: what is measured of groups needs a
        rectangle.
        """
        groups = self._groups.get(Split.IMPORT, {}).values()
        sizes = Counter(len(rows) for rows in groups if len(rows) > 1)
        size = max(sizes, key=lambda n: (sizes[n] * n, n)) if sizes else 1
        return RolloutBatch(
            groups=tuple(
                tuple(self.trajectories[row] for row in rows[:size])
                for rows in groups
                if len(rows) >= size
            )
        )


def _outcome_of(draft: Draft, trajectory: Trajectory) -> TrajectoryOutcome | None:
    """What the file says of the update; None where it says nothing."""
    per_token = (draft.advantages, draft.trainer_logprobs, draft.reference_logprobs)
    advantage = draft.advantage
    if advantage is None and draft.advantages:
        advantage = float(np.concatenate(draft.advantages).mean())
    is_given = advantage is not None or draft.is_kept is not None
    if not is_given and all(values is None for values in per_token):
        return None
    return TrajectoryOutcome(
        trajectory_id=trajectory.id,
        advantage=advantage,
        kept=draft.is_kept is not False,
        drop_reason="the trainer masked it" if draft.is_kept is False else None,
        advantages=draft.advantages,
        trainer_logprobs=draft.trainer_logprobs,
        ref_logprobs=draft.reference_logprobs,
    )


def step_values(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The numbers of a step that rollouts alone give; none where the files do not say.

    Evaluations are no part of them: a step that holds nothing else has none.
    """
    training = [t for t in trajectories if t.split in (Split.IMPORT, Split.TRAIN)]
    returns = [value for t in training if not math.isnan(value := t.episode_return)]
    solved = [float(t.is_success) for t in training if t.is_success is not None]
    is_made_up = any(re.search(SUMMED_REWARDS, t.extra or "") for t in training)
    # What was added up without weights is shown, and says nothing of what groups can teach.
    groups = [] if is_made_up else list(_groups(training))
    stds = [std for std, _ in groups]
    solved_of = [(std == 0, rate) for std, rate in groups if rate is not None]
    values = {
        RETURN_MEAN: _mean(returns),
        IS_RECONSTRUCTED: 1.0 if is_made_up else math.nan,
        "reward/return_std": float(np.std(returns, ddof=1)) if len(returns) > 1 else math.nan,
        "reward/return_min": min(returns, default=math.nan),
        "reward/return_max": max(returns, default=math.nan),
        GROUP_STD: _mean(stds),
        ZERO_STD: _mean(std == 0 for std in stds),
        SOLVED_FRAC: _mean(is_equal and rate == 1 for is_equal, rate in solved_of),
        HOPELESS_FRAC: _mean(is_equal and rate == 0 for is_equal, rate in solved_of),
        SUCCESS_RATE: _mean(solved),
        "rollout/num_trajectories": float(len(training)) if training else math.nan,
        **num_outcomes(training),
        "rollout/num_turns_mean": _mean(t.num_turns for t in training),
    }
    return {key: value for key, value in values.items() if not math.isnan(value)}


def _groups(trajectories: Sequence[Trajectory]) -> Iterator[tuple[float, float | None]]:
    """Of each group of two and more siblings whose returns are known: the spread of the return, and
    the success rate; None where it is not known of all."""
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        if not math.isnan(trajectory.episode_return):
            groups.setdefault(trajectory.group_index, []).append(trajectory)
    for siblings in groups.values():
        if len(siblings) > 1:
            solved = [t.is_success for t in siblings if t.is_success is not None]
            rate = _mean(solved) if len(solved) == len(siblings) else None
            yield float(np.std([t.episode_return for t in siblings], ddof=1)), rate


def _mean(values: Iterable[float]) -> float:
    """NaN of none."""
    given = list(values)
    return float(np.mean(given)) if given else math.nan
