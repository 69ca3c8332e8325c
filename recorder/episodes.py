"""What another trainer hands over, as stored trajectories of one step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echoscope.diagnostics.tools.setting_errors import shown
from echoscope.store.importers.dialogue import read_messages
from echoscope.store.importers.draft import Draft, DraftTurn, Place, RowError, trajectory_of
from echoscope.store.importers.importing import outcome_of
from echoscope.store.records import (
    RolloutBatch,
    Split,
    StopReason,
    Trajectory,
    TrajectoryOutcome,
)
from echoscope.text.sentences import in_one_line

FORMAT = "recorder"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """What the policy was given and sampled at one turn, as token ids."""

    prompt: Sequence[int]
    """(Lp,) Everything before the first sampled token."""
    reply: Sequence[int]
    """(Lr,) Its stop token included, where one was sampled."""
    logprobs: Sequence[float] | None = None
    """(Lr,) At the sampling temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode as the caller gave it. Nothing is copied or checked yet: that takes time."""

    messages: Sequence[Mapping[str, Any]]
    reward: float
    turn_rewards: Sequence[float] | None
    group: str | None
    success: bool | None
    env: str
    is_eval: bool
    fields: Mapping[str, Any]
    tokens: Sequence[TurnTokens] | None = None


def draft_of(episode: Episode) -> Draft:
    """The episode's turns with their rewards.

    Raises:
        RowError: it has no reply of the policy, another number of rewards than turns, or something
            that is not what the argument takes.
    """
    messages = episode.messages
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        kind = type(messages).__name__
        raise RowError(f"messages is a {kind}, but must be a list of messages")
    dialogue = read_messages(messages)
    turns: Sequence[DraftTurn] = dialogue.turns
    if not turns:
        raise RowError("it has no message of the assistant")
    reward, rewards = _number("reward", episode.reward), _rewards(episode, len(turns))
    if episode.success not in (None, True, False):
        raise RowError(f"success is {shown(episode.success)}, but must be True, False or None")
    if episode.tokens is not None:
        _set_tokens(turns, episode.tokens)
    draft = Draft(
        turns=turns,
        prompt=dialogue.prompt,
        group=episode.group,
        split=Split.EVAL if episode.is_eval else Split.IMPORT,
        env="" if episode.env is None else str(episode.env),
        final_observation=dialogue.final_observation,
        stop_reason=StopReason.UNKNOWN,
        is_success=None if episode.success is None else bool(episode.success),
        fields=dict(episode.fields),
    )
    if rewards is None:
        draft.set_episode_reward(reward)
        return draft
    total = sum(rewards)
    if abs(reward - total) > 1e-6 * max(1.0, abs(total)):  # an unknown reward is not different
        raise RowError(f"its reward is {reward:g}, but its turn_rewards add up to {total:g}")
    for turn, earned in zip(turns, rewards, strict=True):
        turn.reward = earned
    return draft


def _number(name: str, value: Any) -> float:
    """A number of Python, NumPy or torch; NaN for None.

    Raises:
        RowError: it is none.
    """
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise RowError(f"{name} is {shown(value)}, but must be one number") from None


def _rewards(episode: Episode, num_turns: int) -> list[float] | None:
    """The rewards of the turns; None where only that of the episode is known."""
    given = episode.turn_rewards
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise RowError(f"turn_rewards is {shown(given)}, but must be a list of numbers")
    rewards = [_number(f"turn_rewards[{turn}]", value) for turn, value in enumerate(given)]
    if len(rewards) != num_turns:
        raise RowError(f"it has {num_turns} replies, but {len(rewards)} turn_rewards")
    return rewards


def _set_tokens(turns: Sequence[DraftTurn], tokens: Sequence[TurnTokens]) -> None:
    if not isinstance(tokens, Sequence) or any(not isinstance(t, TurnTokens) for t in tokens):
        raise RowError("tokens must be a list of TurnTokens, one entry a turn")
    if len(tokens) != len(turns):
        raise RowError(f"it has {len(turns)} replies, but {len(tokens)} tokens")
    for turn, given in zip(turns, tokens, strict=True):
        try:
            turn.prompt_tokens = np.asarray(given.prompt, dtype=np.int32)
            turn.response_tokens = np.asarray(given.reply, dtype=np.int32)
            if given.logprobs is not None:
                turn.logprobs = np.asarray(given.logprobs, dtype=np.float32)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise RowError(f"its tokens cannot be read: {error}") from error


@dataclass(slots=True)
class StepEpisodes:
    """The episodes of one step: numbered, grouped, and what was refused."""

    step: int
    trajectories: list[Trajectory] = field(default_factory=list)
    outcomes: list[TrajectoryOutcome] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    _groups: dict[tuple[Split, str], list[int]] = field(default_factory=dict)

    def add(
        self, episode: Episode | Draft, *, source: str = FORMAT, format_name: str = FORMAT
    ) -> None:
        """Take an episode, or count why it cannot be taken.

        Args:
            source: where the episode stands, file and place.
            format_name: of the file.
        """
        index = len(self.trajectories)
        try:
            draft = episode if isinstance(episode, Draft) else draft_of(episode)
            key = (draft.split, draft.prompt if draft.group is None else f"\0{draft.group}")
            if draft.group is None:
                draft.reconstructed.add("groups")
            siblings = self._groups.get(key, [])
            place = Place(
                step=self.step,
                index=index,
                group_index=list(self._groups).index(key) if siblings else len(self._groups),
                sibling_index=len(siblings),
                source=source,
            )
            trajectory = trajectory_of(draft, place, format_name)
        except RowError as error:
            self.refused[str(error)] += 1
            return
        except Exception as error:  # noqa: BLE001 - one odd episode must not cost its step
            self.refused[in_one_line(error)] += 1
            return
        self.trajectories.append(trajectory)
        outcome = outcome_of(draft, trajectory)
        if outcome is not None:
            self.outcomes.append(outcome)
        self._groups.setdefault(key, []).append(index)

    def batch(self) -> RolloutBatch:
        """Training episodes in groups of equal size: the commonest size of at least two.

        Smaller groups are left out and larger ones cut: what is measured of groups needs a
        rectangle.
        """
        groups = [rows for (split, _), rows in self._groups.items() if split is Split.IMPORT]
        sizes = Counter(len(rows) for rows in groups if len(rows) > 1)
        size = max(sizes, key=lambda n: (sizes[n] * n, n)) if sizes else 1
        return RolloutBatch(
            groups=tuple(
                tuple(self.trajectories[row] for row in rows[:size])
                for rows in groups
                if len(rows) >= size
            )
        )
