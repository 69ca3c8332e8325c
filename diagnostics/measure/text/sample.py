"""Which texts are read: the same number of reasonings under each of several distinct prompts.

Legend: **N** prompts, **M** reasonings of each, **n** = N * M reasonings in all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import Split, Trajectory, Turn

from ..draws import generator

if TYPE_CHECKING:
    from .report import TextReport

Item = TypeVar("Item")

MAX_PROMPTS = 8
MAX_SIBLINGS = 8
MAX_EPISODES = 32
"""Episodes that are read turn by turn, for loops, echo and actions."""
MAX_CHARS = 2000
"""Characters of one reasoning, response or observation that count."""

_SYLLABLES = "\\u3040-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff"
"""Kana and Chinese characters: written without blanks, each counts as a word."""
WORD_PATTERN = rf"[{_SYLLABLES}]|[^\W{_SYLLABLES}]+|[^\w\s]"
"""A run of letters, digits and underscores, or one other sign. Linear on any text."""
_WORD = re.compile(WORD_PATTERN)


@lru_cache(maxsize=512)
def words(text: str) -> tuple[str, ...]:
    """Lower-case words and single signs, in order.

    Remembered for a while: several measures read the same reasonings, and siblings repeat them.
    """
    return tuple(map(str.lower, _WORD.findall(text)))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Half-open character spans of `words(text)`."""
    return [match.span() for match in _WORD.finditer(text)]


def ngrams(tokens: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """All runs of `size` tokens, in order; a shorter text is one gram, an empty one has none."""
    if len(tokens) <= size:
        return [tuple(tokens)] if tokens else []
    return list(zip(*(tokens[k:] for k in range(size)), strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """One reasoning that was drawn, cut to `MAX_CHARS`."""

    trajectory_id: str
    prompt: int
    turn: int
    start: int
    text: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSample:
    """M reasonings of each of N prompts, prompt by prompt, and episodes to read turn by turn."""

    reasonings: tuple[Reasoning, ...]
    num_prompts: int
    num_siblings: int
    episodes: tuple[Trajectory, ...]
    num_seen: int

    @property
    def prompt_n(self) -> NDArray[np.int64]:
        """(n,) prompt of each reasoning."""
        return np.array([reasoning.prompt for reasoning in self.reasonings], dtype=np.int64)

    @property
    def too_few_prompts(self) -> str:
        """Why prompts cannot be compared, in words; empty if they can."""
        if not self.num_seen:
            return "there are no trajectories"
        if not self.reasonings:
            return "no trajectory has a reasoning that is not empty"
        if self.num_prompts < 2:
            return "all reasonings answer the same prompt; at least two prompts are needed"
        return ""

    @property
    def too_few_siblings(self) -> str:
        """Why the reasonings of a prompt cannot be compared with each other."""
        if not self.reasonings:
            return self.too_few_prompts
        if self.num_siblings < 2:
            return "every prompt has one reasoning only; at least two are needed"
        return ""

    @property
    def too_small(self) -> str:
        """Why dependence on the prompt cannot be judged."""
        return self.too_few_prompts or self.too_few_siblings


def draw(trajectories: Sequence[Trajectory], rng: np.random.Generator) -> TextSample:
    """A stratified sample of first turns. Equal prompts (`prompt_key`) are one, in any group.

    M is the largest number up to `MAX_SIBLINGS` that gives the most reasonings in all (M of each
    of at most `MAX_PROMPTS` prompts); with two prompts of two or more it is at least 2.
    Where no imported reply marks its reasoning, whole replies stand in for reasonings.
    """
    candidates: dict[str, list[Trajectory]] = {}
    is_whole = is_without_reasoning(trajectories)
    for trajectory in trajectories:
        if trajectory.turns and _reasoning_of(trajectory.turns[0], is_whole).strip():
            candidates.setdefault(trajectory.prompt_key, []).append(trajectory)
    keys = list(candidates)
    num_siblings = _siblings([len(candidates[key]) for key in keys])
    eligible = [key for key in keys if len(candidates[key]) >= max(num_siblings, 1)]
    chosen = _some(eligible, MAX_PROMPTS, rng)
    reasonings = tuple(
        _reasoning(trajectory, prompt, is_whole)
        for prompt, key in enumerate(chosen)
        for trajectory in _some(candidates[key], num_siblings, rng)
    )
    return TextSample(
        reasonings=reasonings,
        num_prompts=len(chosen),
        num_siblings=num_siblings,
        episodes=tuple(_some(list(trajectories), MAX_EPISODES, rng)),
        num_seen=len(trajectories),
    )


def is_without_reasoning(trajectories: Sequence[Trajectory]) -> bool:
    """Whether the trajectories were imported and none of their replies marks a reasoning."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    is_imported = all(trajectory.source is not None for trajectory in trajectories)
    return bool(turns) and is_imported and all(turn.reasoning_chars is None for turn in turns)


def _reasoning_of(turn: Turn, is_whole: bool) -> str:
    return turn.response if is_whole else turn.reasoning


def _siblings(counts: Sequence[int]) -> int:
    """M for prompts with so many reasonings each."""

    def worth(m: int) -> tuple[bool, int, int]:
        n = min(MAX_PROMPTS, sum(count >= m for count in counts))
        return n >= 2 and m >= 2, n * m, m

    return max(range(1, min(MAX_SIBLINGS, max(counts, default=0)) + 1), key=worth, default=0)


def _some(items: Sequence[Item], size: int, rng: np.random.Generator) -> list[Item]:
    """`size` of the items in their order, all of them if there are no more."""
    if len(items) <= size:
        return list(items)
    return [items[k] for k in sorted(rng.choice(len(items), size, replace=False).tolist())]


def _reasoning(trajectory: Trajectory, prompt: int, is_whole: bool) -> Reasoning:
    turn = trajectory.turns[0]
    text = _reasoning_of(turn, is_whole)[:MAX_CHARS]
    return Reasoning(
        trajectory_id=trajectory.id,
        prompt=prompt,
        turn=turn.index,
        start=0 if turn.reasoning_chars is None else turn.reasoning_chars[0],
        text=text,
        words=words(text),
    )


MAX_STEPS = 60
"""Steps whose text is measured of an import, which stores what was measured."""
MAX_TRAJECTORIES = 64
"""... and trajectories of each, whole groups first."""
IN_ORDER = 8 * MAX_TRAJECTORIES
"""Of a step of at most so many trajectories, the sample stands in the order of their ids; of a
larger one, group by group."""


def evenly(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of these steps, the first and the last among them.

    >>> evenly([3, 5], 60), len(evenly(range(1000), 60))
    ([3, 5], 60)
    """
    indices = np.linspace(0, len(steps) - 1, most if len(steps) else 0)
    return [steps[index] for index in np.unique(indices.astype(int))]


def to_measure(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """What is measured of a step's trajectories: of training (or imported), and not too many."""
    own = [t for t in trajectories if t.split in (Split.TRAIN, Split.IMPORT)]
    own.sort(key=lambda t: (t.group_index, t.sibling_index, t.id))
    chosen = own[:MAX_TRAJECTORIES]
    return sorted(chosen, key=lambda t: t.id) if len(own) <= IN_ORDER else chosen


def measure_sample(trajectories: Sequence[Trajectory]) -> TextReport:
    """What the text of such a sample says; equal samples, equal reports."""
    from .measures import text_metrics

    return text_metrics(trajectories, generator())
