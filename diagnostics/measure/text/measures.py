"""Tier 1: everything that text alone can tell about a policy's reasoning. No model is needed.

`text_metrics` draws a stated sample, measures, and says in words what it could not measure. The
larger measures have a file each: `retrieval.py` (does the reasoning depend on the prompt?),
`templates.py`, `siblings.py` (do siblings differ?), `repetition.py` (loops, echo), `actions.py`
(does the action follow?). Form (tags, lengths, truncation) and copying are measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FinishReason, RolloutBatch, Trajectory, Turn

from .actions import action_entropies, agreements, named_moves
from .repetition import echo_share, loops, repeated_action_shares, turn_pairs
from .report import MAX_EXEMPLARS, Exemplar, Findings, TextReport
from .retrieval import information_bound, retrieve
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
from .siblings import sibling_metrics, sibling_pairs
from .similarity import most_alike, similarity
from .templates import CommonGrams, find_template


def form_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Shares of turns, and quantiles of the length of a response in characters. NaN without turns.

    A reasoning is closed if the response goes on after it: its closing tag was written. NaN for
    what an imported file does not say.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    has_tags = not is_without_reasoning(episodes)

    def share(holds: Callable[[Turn], bool | None]) -> float:
        known = [held for held in map(holds, turns) if held is not None]
        return sum(known) / len(known) if known else float("nan")

    lengths = [float(len(turn.response)) for turn in turns] or [np.nan]
    p10, p50, p90 = np.quantile(lengths, [0.1, 0.5, 0.9]).tolist()
    return {
        "valid_frac": share(lambda turn: turn.is_valid),
        "effective_frac": share(lambda turn: turn.is_effective),
        "truncated_frac": share(
            lambda turn: (
                None if turn.finish_reason is FinishReason.UNKNOWN else turn.finish_reason.is_cut
            )
        ),
        "closed_reasoning_frac": share(lambda t: is_reasoning_closed(t) if has_tags else None),
        "empty_reasoning_frac": share(lambda t: not t.reasoning.strip() if has_tags else None),
        "num_chars_p10": p10,
        "num_chars_p50": p50,
        "num_chars_p90": p90,
    }


def is_reasoning_closed(turn: Turn) -> bool:
    return turn.reasoning_chars is not None and turn.reasoning_chars[1] < len(turn.response)


PERMUTATIONS = 200
"""Of the labels, for a p-value."""
TEMPLATE_WORDS = 5
"""Words in a phrase of a template."""
NEAR_DUPLICATE = 0.9
"""TF-IDF similarity from which two reasonings of one task are near duplicates."""
GRAM = 3
"""Words in the n-grams that count as copied."""


def copied_share(reasoning: Reasoning) -> float | None:
    """Share of a reasoning's n-grams of three words that stand in its observation.

    A shorter reasoning is one gram. None without words.
    """
    size = min(len(reasoning.words), GRAM)
    if not size:
        return None
    known = set(ngrams(words(reasoning.observation), size))
    grams = ngrams(reasoning.words, size)
    return sum(gram in known for gram in grams) / len(grams)


def masked_texts(reasonings: Sequence[Reasoning]) -> list[str]:
    """The reasonings without any word that stands in one of their observations.

    Words are taken out wherever *some* observation has them: masking only a reasoning's own
    observation would leave a trace of it, namely which words are gone.
    """
    shown = {
        word
        for observation in {reasoning.observation for reasoning in reasonings}
        for word in words(observation)
    }
    return [
        " ".join(word for word in reasoning.words if word not in shown) for reasoning in reasonings
    ]


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
    found = Findings()
    found.values["num_trajectories"] = float(sample.num_seen)
    found.values["num_prompts"] = float(sample.num_prompts)
    found.values["num_siblings"] = float(sample.num_siblings)
    similarity_nn = similarity([reasoning.text for reasoning in sample.reasonings])
    _measure_dependence(found, sample, similarity_nn, rng)
    _measure_template(found, sample, similarity_nn)
    _measure_siblings(found, sample, similarity_nn)
    _measure_copying(found, sample)
    _measure_repetition(found, sample)
    _measure_actions(found, sample)
    _measure_form(found, trajectories)
    return TextReport(
        values=MappingProxyType(found.values),
        reasons=MappingProxyType(found.reasons),
        template=found.template,
        exemplars=MappingProxyType(found.exemplars),
    )


def _measure_dependence(
    found: Findings,
    sample: TextSample,
    similarity_nn: NDArray[np.float64],
    rng: np.random.Generator,
) -> None:
    plain = ("retrieval_accuracy", "retrieval_chance", "retrieval_p_value")
    masked = ("retrieval_masked_accuracy", "retrieval_masked_p_value")
    bound = ("information_bound", "information_bound_se", "dependence")
    if sample.too_small:
        found.missing((*plain, *masked, *bound), sample.too_small)
        return
    labels = sample.prompt_n
    result = retrieve(similarity_nn, labels, rng, permutations=PERMUTATIONS)
    found.values |= dict(zip(plain, (result.accuracy, result.chance, result.p_value), strict=True))
    rest = masked_texts(sample.reasonings)
    if any(rest):
        result = retrieve(similarity(rest), labels, rng, permutations=PERMUTATIONS)
        found.values |= dict(zip(masked, (result.accuracy, result.p_value), strict=True))
    else:
        found.missing(masked, "every word of every reasoning stands in an observation")
    if sample.num_siblings < 3:
        found.missing(bound, "a classifier needs three reasonings of each prompt; there are two")
        return
    information = information_bound(similarity_nn, labels)
    found.values["information_bound"] = information.bound
    found.values["information_bound_se"] = information.standard_error
    found.values["dependence"] = information.dependence


def _measure_template(
    found: Findings, sample: TextSample, similarity_nn: NDArray[np.float64]
) -> None:
    keys = ("template_frac", "template_coverage", "template_match_frac")
    if sample.too_few_prompts:
        found.missing(keys, sample.too_few_prompts)
        return
    grams = CommonGrams(sample.reasonings, TEMPLATE_WORDS)
    shares = [grams.share(reasoning) for reasoning in sample.reasonings]
    found.mean(keys[0], [s for s in shares if not math.isnan(s)], "no reasoning has a word")
    found.template = find_template(sample.reasonings, similarity_nn)
    # No common word is a finding, not a gap: nothing is fixed.
    found.values[keys[1]] = found.template.coverage if found.template else 0.0
    found.values[keys[2]] = found.template.match_frac if found.template else 0.0
    sharing = np.flatnonzero(np.nan_to_num(shares) > 0)
    among = similarity_nn[np.ix_(sharing, sharing)]
    alike = sharing[most_alike(among, sample.prompt_n[sharing], MAX_EXEMPLARS)].tolist()
    # What is marked is what the shown reasonings share: whoever compares them finds it in each.
    shown = CommonGrams([sample.reasonings[k] for k in alike], TEMPLATE_WORDS)
    found.show(
        "template",
        (
            _in_reasoning(
                sample.reasonings[k],
                _covered(sample.reasonings[k], shown),
                f"{100 * shares[k]:.0f} % of its phrases also occur under most other prompts",
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


def _measure_siblings(
    found: Findings, sample: TextSample, similarity_nn: NDArray[np.float64]
) -> None:
    if sample.too_few_siblings:
        keys = ("sibling_distance", "near_duplicate_frac", "duplicate_frac")
        found.missing(
            (*keys, "distinct_1", "distinct_2", "conditional_entropy"), sample.too_few_siblings
        )
        return
    labels = sample.prompt_n
    found.values |= sibling_metrics(
        sample.reasonings, similarity_nn, labels, near_duplicate=NEAR_DUPLICATE
    )
    rows, columns = sibling_pairs(labels)
    alike = similarity_nn[rows, columns]
    found.show(
        "duplicates",
        (
            _in_reasoning(
                sample.reasonings[rows[k]],
                [(0, len(sample.reasonings[rows[k]].text))],
                f"similarity {alike[k]:.2f} with {sample.reasonings[columns[k]].trajectory_id}",
            )
            for k in np.argsort(-alike, kind="stable").tolist()
            if alike[k] >= NEAR_DUPLICATE
        ),
    )


def _measure_copying(found: Findings, sample: TextSample) -> None:
    if not any(reasoning.observation.strip() for reasoning in sample.reasonings):
        found.missing(("copied_frac",), "there are no observations to copy from")
        return
    shares = [(copied_share(reasoning), reasoning) for reasoning in sample.reasonings]
    known = [(share, reasoning) for share, reasoning in shares if share is not None]
    found.mean("copied_frac", [share for share, _ in known], "no reasoning has a word")
    known.sort(key=lambda pair: -pair[0])
    found.show(
        "copied",
        (
            _in_reasoning(r, [(0, len(r.text))], f"{share:.0%} stands in its observation")
            for share, r in known
            if share > 0.5
        ),
    )


def _measure_repetition(found: Findings, sample: TextSample) -> None:
    turns = [(episode, turn) for episode in sample.episodes for turn in episode.turns]
    seen = []
    for episode, turn in turns:
        offset = max(0, len(turn.response) - MAX_CHARS)  # loops stand at the end
        seen.append((episode, turn, offset, loops(turn.response[offset:])))
    for key in ("repeated_ngram_frac", "compression_ratio", "longest_char_run", "longest_word_run"):
        values = [float(getattr(one, key)) for *_, one in seen]
        found.mean(key, values, "there are no turns")
    found.mean("loop_frac", [float(one.is_loop) for *_, one in seen], "there are no turns")
    looping = [item for item in seen if item[3].is_loop]
    looping.sort(key=lambda item: -item[3].compression_ratio)
    found.show(
        "loop",
        (
            _exemplar(
                episode,
                turn,
                [(offset + one.char_run[0], offset + one.char_run[1])],
                f"{one.repeated_ngram_frac:.0%} of its 4-grams repeat; longest run of one sign "
                f"{one.longest_char_run}, of one word {one.longest_word_run}",
            )
            for episode, turn, offset, one in looping
        ),
    )
    _measure_echo(found, sample)
    repeated, state_action = repeated_action_shares(sample.episodes)
    found.values["repeated_action_frac"] = repeated
    found.values["repeated_state_action_frac"] = state_action
    if math.isnan(repeated):
        found.missing(
            ("repeated_action_frac", "repeated_state_action_frac"),
            "no episode has a second turn with an action",
        )


def _measure_echo(found: Findings, sample: TextSample) -> None:
    cut = slice(MAX_CHARS)
    pairs = [
        (echo_share(now.reasoning[cut], before.reasoning[cut]), episode, now)
        for episode, before, now in turn_pairs(sample.episodes)
    ]
    known = [(share, episode, now) for share, episode, now in pairs if share is not None]
    found.mean(
        "echo_frac", [share for share, *_ in known], "no episode has two turns in a row that reason"
    )
    known.sort(key=lambda item: -item[0])
    found.show(
        "echo",
        (
            _exemplar(
                episode, now, [now.reasoning_chars or (0, 0)], f"{share:.0%} as in the turn before"
            )
            for share, episode, now in known
            if share > 0.5
        ),
    )


def _measure_actions(found: Findings, sample: TextSample) -> None:
    overall, given = action_entropies(sample.episodes)
    found.values["action_entropy"] = overall
    found.values["action_conditional_entropy"] = given
    if math.isnan(overall):
        keys = ("action_entropy", "action_conditional_entropy", "agreement_frac")
        found.missing(keys, "no turn executed an action")
        return
    if math.isnan(given):
        found.missing(("action_conditional_entropy",), "no observation was met twice")
    moves = named_moves(sample.episodes)
    if len(moves) < 2:
        why = "actions are free text" if not moves else "every action is the same"
        found.missing(("agreement_frac",), why)
        return
    named = list(agreements(sample.episodes, moves, max_chars=MAX_CHARS))
    agree = [float(agrees) for *_, agrees in named]
    found.mean("agreement_frac", agree, "no reasoning names an action")
    found.show(
        "disagreement",
        (
            _exemplar(
                episode, turn, [turn.reasoning_chars or (0, 0)], f"executed {turn.actions[-1]!r}"
            )
            for episode, turn, agrees in named
            if not agrees
        ),
    )


def _measure_form(found: Findings, trajectories: Sequence[Trajectory]) -> None:
    values = form_metrics(trajectories)
    found.values |= values
    has_turns = any(episode.turns for episode in trajectories)
    why = "the imported files do not say" if has_turns else "there are no turns"
    found.missing([key for key, value in values.items() if math.isnan(value)], why)
    found.show(
        "malformed",
        (
            _exemplar(episode, turn, [(0, len(turn.response))], _why_broken(turn))
            for episode in trajectories
            for turn in episode.turns
            if turn.is_valid is False or (turn.reasoning_chars and not is_reasoning_closed(turn))
        ),
    )


def _why_broken(turn: Turn) -> str:
    if turn.reasoning_chars and not is_reasoning_closed(turn):
        return "the reasoning is never closed"
    return "no valid action"


def _in_reasoning(
    reasoning: Reasoning, spans: Sequence[tuple[int, int]], note: str
) -> tuple[int, Exemplar]:
    """A prompt, and spans of its reasoning as spans of the response."""
    shifted = tuple((reasoning.start + start, reasoning.start + end) for start, end in spans)
    return reasoning.prompt, Exemplar(
        trajectory_id=reasoning.trajectory_id, turn=reasoning.turn, spans=shifted, note=note
    )


def _exemplar(
    episode: Trajectory, turn: Turn, spans: Sequence[tuple[int, int]], note: str
) -> tuple[str, Exemplar]:
    """A prompt, and a place in an episode of it."""
    return episode.prompt_key, Exemplar(
        trajectory_id=episode.id, turn=turn.index, spans=tuple(spans), note=note
    )
