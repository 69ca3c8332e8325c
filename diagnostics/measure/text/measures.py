"""Tier 1: what text alone can tell about a policy's reasoning. No model is needed.

`text_metrics` draws a stated sample, measures, and says in words what it could not measure. The
larger measures have a file each: `similarity.py` (does the reasoning depend on the prompt? do
siblings differ?) and `templates.py`. Measured here: form (tags, lengths, truncation), and turns
(loops, echo, does the action follow?).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np

from echoscope.store.records import FinishReason, FloatArray64, RolloutBatch, Trajectory, Turn
from echoscope.text.amounts import percent

from ...judge.record import Shown
from .report import MAX_EXEMPLARS, TextReport
from .sample import (
    MAX_CHARS,
    Reasoning,
    TextSample,
    draw,
    is_without_reasoning,
    ngrams,
    word_spans,
    words,
)
from .similarity import (
    dependence,
    most_alike,
    ngram_entropy,
    retrieve,
    similarity,
)
from .templates import CommonGrams, find_template

GRAM = 4
"""Words in the n-grams whose repetition counts."""
CHAR_RUN, WORD_RUN = 16, 8
"""A run of one sign or one word this long is a loop."""
_LOOP_SHARE, _LOOP_WORDS = 0.5, 24
_CHAR_RUN = re.compile(r"(.)\1+", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Repetition inside one response."""

    repeated_ngram_frac: float
    """1 - different / all n-grams of four words; 0 for a text of fewer."""
    longest_word_run: int
    char_run: tuple[int, int]
    num_words: int

    @property
    def longest_char_run(self) -> int:
        return self.char_run[1] - self.char_run[0]

    @property
    def is_loop(self) -> bool:
        """One sign or word over and over, or most n-grams of a long response said before."""
        return (
            self.longest_char_run >= CHAR_RUN
            or self.longest_word_run >= WORD_RUN
            or (self.repeated_ngram_frac >= _LOOP_SHARE and self.num_words >= _LOOP_WORDS)
        )


@lru_cache(maxsize=512)
def loops(text: str) -> Loops:
    """Repetition inside a text, in time linear in its length. Siblings say the same: remembered."""
    tokens = words(text)
    grams = ngrams(tokens, GRAM)
    # Blanks and line breaks draw boards and indent code: a run of them is no loop.
    runs = [run.span() for run in _CHAR_RUN.finditer(text) if not run[1].isspace()]
    return Loops(
        repeated_ngram_frac=1 - len(set(grams)) / len(grams) if grams else 0.0,
        longest_word_run=max((sum(1 for _ in run) for _, run in groupby(tokens)), default=0),
        char_run=max(runs, key=lambda span: span[1] - span[0], default=(0, min(len(text), 1))),
        num_words=len(tokens),
    )


def echo_share(now: str, before: str) -> float | None:
    """Share of a reasoning's n-grams of four words that stood in the one before.

    A shorter reasoning is one gram, met if its words stand in the other in one run. None if
    either has no words.
    """
    tokens, earlier = words(now), words(before)
    if not tokens or not earlier:
        return None
    size = min(len(tokens), GRAM)
    before_grams = set(ngrams(earlier, size))
    grams = ngrams(tokens, size)
    return sum(gram in before_grams for gram in grams) / len(grams)


MAX_MOVES, MAX_MOVE_WORDS, MAX_MOVE_CHARS = 64, 3, 60
"""Beyond them actions are free text (a search, a program), not names of moves."""


def named_moves(episodes: Sequence[Trajectory]) -> set[tuple[str, ...]]:
    """The words of every action executed; empty if actions are free text."""
    names = {action for episode in episodes for turn in episode.turns for action in turn.actions}
    if any(len(name) > MAX_MOVE_CHARS for name in names):
        return set()
    moves = {words(name) for name in names} - {()}
    is_free = len(moves) > MAX_MOVES or any(len(move) > MAX_MOVE_WORDS for move in moves)
    return set() if is_free else moves


def last_named(reasoning: str, moves: Collection[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The move whose name ends last in a reasoning (the longer of two); None if it names none."""
    tokens = words(reasoning)
    for end in range(len(tokens), 0, -1):
        for size in range(min(MAX_MOVE_WORDS, end), 0, -1):
            if tokens[end - size : end] in moves:
                return tokens[end - size : end]
    return None


def agreements(
    episodes: Sequence[Trajectory], moves: Collection[tuple[str, ...]]
) -> Iterator[tuple[Trajectory, Turn, bool]]:
    """Turns whose reasoning names a move, and whether the last one named is the last executed.

    Only the end of a long reasoning is read.
    """
    for episode in episodes:
        for turn in episode.turns:
            named = last_named(turn.reasoning[-MAX_CHARS:], moves) if turn.actions else None
            if named is not None:
                yield episode, turn, named == words(turn.actions[-1])


PERMUTATIONS = 200
TEMPLATE_WORDS = 5
NEAR_DUPLICATE = 0.9
"""TF-IDF similarity from which two reasonings of one task are near duplicates."""


def text_metrics(
    trajectories: RolloutBatch | Sequence[Trajectory], rng: np.random.Generator
) -> TextReport:
    """Measure the text of some trajectories, one step's as a rule.

    Never raises on any text, and never gives a number for what the sample cannot support: that is
    NaN with a reason. `rng` draws the sample and the label shuffles; equal states, equal reports.
    """
    if isinstance(trajectories, RolloutBatch):
        trajectories = trajectories.trajectories
    sample = draw(trajectories, rng)
    report = TextReport()
    report.values["num_prompts"] = float(sample.num_prompts)
    similarity_nn = similarity([reasoning.text for reasoning in sample.reasonings])
    _measure_dependence(report, sample, similarity_nn, rng)
    _measure_template(report, sample, similarity_nn)
    _measure_siblings(report, sample, similarity_nn)
    _measure_loops(report, sample)
    _measure_echo(report, sample)
    _measure_agreement(report, sample)
    _measure_form(report, trajectories)
    return report


def _measure_dependence(
    report: TextReport, sample: TextSample, similarity_nn: FloatArray64, rng: np.random.Generator
) -> None:
    keys = ("retrieval_accuracy", "retrieval_chance", "retrieval_p_value")
    if sample.too_small:
        report.missing((*keys, "dependence"), sample.too_small)
        return
    report.values |= retrieve(similarity_nn, sample.prompt_n, rng, permutations=PERMUTATIONS)
    if sample.num_siblings < 3:
        why = "a classifier needs three reasonings of each prompt; there are two"
        report.missing(("dependence",), why)
    else:
        report.values["dependence"] = dependence(similarity_nn, sample.prompt_n)


def _measure_template(report: TextReport, sample: TextSample, similarity_nn: FloatArray64) -> None:
    if sample.too_few_prompts:
        report.missing(("template_frac", "template_match_frac"), sample.too_few_prompts)
        return
    grams = CommonGrams(sample.reasonings, TEMPLATE_WORDS)
    shares = [grams.share(reasoning) for reasoning in sample.reasonings]
    with_words = [share for share in shares if not math.isnan(share)]
    report.mean("template_frac", with_words, "no reasoning has a word")
    report.template = find_template(sample.reasonings, similarity_nn)
    # No common word is a finding, not a gap: nothing is fixed.
    match_frac = report.template.match_frac if report.template else 0.0
    report.values["template_match_frac"] = match_frac
    sharing = np.flatnonzero(np.nan_to_num(shares) > 0)
    among = similarity_nn[np.ix_(sharing, sharing)]
    alike = sharing[most_alike(among, sample.prompt_n[sharing], MAX_EXEMPLARS)].tolist()
    # What is marked is what the examples share: whoever compares them finds it in each.
    common = CommonGrams([sample.reasonings[k] for k in alike], TEMPLATE_WORDS)
    report.show(
        "template",
        (
            _in_reasoning(
                sample.reasonings[k],
                _covered(sample.reasonings[k], common),
                f"{percent(shares[k])} of its phrases also occur under most other prompts",
            )
            for k in alike
        ),
    )


def _covered(reasoning: Reasoning, grams: CommonGrams) -> list[tuple[int, int]]:
    """Character spans of a reasoning that its common n-grams cover, merged."""
    spans = word_spans(reasoning.text)
    out: list[tuple[int, int]] = []
    for first, is_common in enumerate(grams.flags(reasoning)):
        if is_common:
            start, end = spans[first][0], spans[min(first + grams.size, len(spans)) - 1][1]
            if out and start <= out[-1][1]:
                out[-1] = (out[-1][0], end)
            else:
                out.append((start, end))
    return out


def _measure_siblings(report: TextReport, sample: TextSample, similarity_nn: FloatArray64) -> None:
    if sample.too_few_siblings:
        keys = ("sibling_distance", "near_duplicate_frac", "conditional_entropy")
        report.missing(keys, sample.too_few_siblings)
        return
    texts = [reasoning.text for reasoning in sample.reasonings]
    rows, columns = np.nonzero(np.triu(sample.prompt_n[:, None] == sample.prompt_n, k=1))
    alike = similarity_nn[rows, columns]
    is_equal = np.array([texts[i] == texts[j] for i, j in zip(rows, columns, strict=True)])
    entropies = [
        ngram_entropy([reasoning.words for reasoning in siblings])
        for _, siblings in groupby(sample.reasonings, key=attrgetter("prompt"))
    ]
    report.values |= {
        "sibling_distance": max(0.0, float(1.0 - alike.mean())),
        "near_duplicate_frac": float(((alike >= NEAR_DUPLICATE) | is_equal).mean()),
        "conditional_entropy": float(np.mean(entropies)),
    }
    report.show(
        "duplicates",
        (
            _in_reasoning(
                sample.reasonings[rows[k]],
                [(0, len(texts[rows[k]]))],
                f"similarity {alike[k]:.2f} with {sample.reasonings[columns[k]].trajectory_id}",
            )
            for k in np.argsort(-alike, kind="stable").tolist()
            if alike[k] >= NEAR_DUPLICATE
        ),
    )


def _measure_loops(report: TextReport, sample: TextSample) -> None:
    responses = []
    for episode in sample.episodes:
        for turn in episode.turns:
            offset = max(0, len(turn.response) - MAX_CHARS)  # loops stand at the end
            responses.append((episode, turn, offset, loops(turn.response[offset:])))
    report.mean("loop_frac", [counts.is_loop for *_, counts in responses], "there are no turns")
    looping = [item for item in responses if item[3].is_loop]
    looping.sort(key=lambda item: -item[3].repeated_ngram_frac)
    report.show(
        "loop",
        (
            _in_turn(
                episode,
                turn,
                (offset + counts.char_run[0], offset + counts.char_run[1]),
                f"{percent(counts.repeated_ngram_frac)} of its 4-grams repeat; longest run of one "
                f"sign {counts.longest_char_run}, of one word {counts.longest_word_run}",
            )
            for episode, turn, offset, counts in looping
        ),
    )


def _measure_echo(report: TextReport, sample: TextSample) -> None:
    cut = slice(MAX_CHARS)
    pairs = [
        (echo_share(now.reasoning[cut], before.reasoning[cut]), episode, now)
        for episode in sample.episodes
        for before, now in pairwise(episode.turns)
    ]
    echoes = [(share, episode, now) for share, episode, now in pairs if share is not None]
    why = "no episode has two turns in a row that reason"
    report.mean("echo_frac", [share for share, *_ in echoes], why)
    copies = (
        echo_share(turn.reasoning[cut], turn.observation[-MAX_CHARS:])
        for episode in sample.episodes
        for turn in episode.turns
    )
    copied = [share for share in copies if share is not None]
    report.mean("prompt_copy_frac", copied, "no turn has a prompt and a reasoning with words")
    echoes.sort(key=lambda item: -item[0])
    report.show(
        "echo",
        (
            _in_turn(episode, now, now.reasoning_chars, f"{percent(share)} as in the turn before")
            for share, episode, now in echoes
            if share > 0.5
        ),
    )


def _measure_agreement(report: TextReport, sample: TextSample) -> None:
    moves = named_moves(sample.episodes)
    if len(moves) < 2:
        has_actions = any(turn.actions for episode in sample.episodes for turn in episode.turns)
        why = "actions are free text" if has_actions else "no turn executed an action"
        report.missing(("agreement_frac",), "every action is the same" if moves else why)
        return
    named = list(agreements(sample.episodes, moves))
    report.mean("agreement_frac", [agrees for *_, agrees in named], "no reasoning names an action")
    report.show(
        "disagreement",
        (
            _in_turn(episode, turn, turn.reasoning_chars, f"executed {turn.actions[-1]!r}")
            for episode, turn, agrees in named
            if not agrees
        ),
    )


def _measure_form(report: TextReport, trajectories: Sequence[Trajectory]) -> None:
    """Shares of turns, and the median length of a response in characters.

    NaN for what an imported file does not say.
    """
    turns = [(episode, turn) for episode in trajectories for turn in episode.turns]
    has_tags = not is_without_reasoning(trajectories)
    why = "the imported files do not say" if turns else "there are no turns"

    def share(key: str, holds: Callable[[Turn], bool | None]) -> None:
        answers = [held for _, turn in turns if (held := holds(turn)) is not None]
        report.mean(key, answers, why)

    share("valid_frac", lambda turn: turn.is_valid)
    share("closed_reasoning_frac", lambda turn: turn.is_reasoning_closed if has_tags else None)
    share("empty_reasoning_frac", _is_reasoning_empty)
    share("truncated_frac", _is_cut)
    if turns:
        lengths = [len(turn.response) for _, turn in turns]
        report.values["num_chars_p50"] = float(np.median(lengths))
    else:
        report.missing(("num_chars_p50",), why)
    report.show(
        "malformed",
        (
            _in_turn(episode, turn, (0, len(turn.response)), why_broken)
            for episode, turn in turns
            if (why_broken := _why_broken(turn))
        ),
    )


def _is_reasoning_empty(turn: Turn) -> bool | None:
    return None if turn.reasoning_chars is None else not words(turn.reasoning)


def _is_cut(turn: Turn) -> bool | None:
    return None if turn.finish_reason is FinishReason.UNKNOWN else turn.finish_reason.is_cut


def _why_broken(turn: Turn) -> str:
    if turn.reasoning_chars and not turn.is_reasoning_closed:
        return "the reasoning is never closed"
    return "no valid action" if turn.is_valid is False else ""


def _in_reasoning(
    reasoning: Reasoning, spans: Sequence[tuple[int, int]], note: str
) -> tuple[int, Shown]:
    """A prompt, and spans of its reasoning as spans of the response."""
    shifted = tuple((reasoning.start + start, reasoning.start + end) for start, end in spans)
    return reasoning.prompt, Shown(
        trajectory_id=reasoning.trajectory_id, turn=reasoning.turn, spans=shifted, note=note
    )


def _in_turn(
    episode: Trajectory, turn: Turn, span: tuple[int, int] | None, note: str
) -> tuple[str, Shown]:
    """A prompt, and a place in an episode of it."""
    return episode.prompt_key, Shown(
        trajectory_id=episode.id, turn=turn.index, spans=(span or (0, 0),), note=note
    )
