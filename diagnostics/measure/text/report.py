"""What the text of a step says, in numbers, examples, and reasons for what is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from echoscope.store.records import DiagnosticRecord

from .templates import Template

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "num_trajectories": "trajectories the sample was drawn from",
        "num_prompts": "N, distinct prompts compared",
        "num_siblings": "M, reasonings of each prompt",
        "retrieval_accuracy": "share of reasonings whose nearest other one answers the same prompt",
        "retrieval_chance": "its expectation if reasonings ignore their prompts",
        "retrieval_p_value": "share of label shuffles that retrieve as well",
        "retrieval_masked_accuracy": "retrieval without the words that observations hold",
        "retrieval_masked_p_value": "its share of label shuffles that retrieve as well",
        "information_bound": "nats, lower bound on I(X;Z) from a cross-validated classifier",
        "information_bound_se": "nats, its standard error over prompts",
        "dependence": "the bound, at least 0, over its ceiling ln N",
        "template_frac": "share of a reasoning's n-grams that also occur under most other prompts",
        "template_coverage": "share of the typical reasoning's words that are not slots",
        "template_match_frac": "share of reasonings that hold the template's words in order",
        "sibling_distance": "mean TF-IDF distance of two reasonings of one prompt, 0..1",
        "near_duplicate_frac": "share of sibling pairs that are nearly equal",
        "duplicate_frac": "share of sibling pairs that are equal",
        "distinct_1": "different words over all words, within a prompt",
        "distinct_2": "different word pairs over all word pairs, within a prompt",
        "conditional_entropy": "nats per word given the word before and the prompt",
        "repeated_ngram_frac": "share of a response's 4-grams said before in it",
        "compression_ratio": "bytes of a response over their compressed size",
        "longest_char_run": "mean over responses of the longest run of one sign",
        "longest_word_run": "mean over responses of the longest run of one word",
        "loop_frac": "share of responses that loop",
        "echo_frac": "share of a reasoning's 4-grams that stood in the turn before",
        "repeated_action_frac": "share of turns that repeat the actions of the turn before",
        "repeated_state_action_frac": "share of turns that repeat actions at the same observation",
        "action_entropy": "nats of the first action",
        "action_conditional_entropy": "nats of the first action given the observation",
        "copied_frac": "share of a reasoning's 3-grams that stand in its observation",
        "agreement_frac": "share of turns that execute the move their reasoning names last",
        "valid_frac": "share of turns with a valid action",
        "effective_frac": "share of turns that changed the state",
        "truncated_frac": "share of responses cut by the length limit",
        "closed_reasoning_frac": "share of responses that close their reasoning",
        "empty_reasoning_frac": "share of turns without reasoning",
        "num_chars_p10": "characters of a response, 10 % quantile",
        "num_chars_p50": "characters of a response, median",
        "num_chars_p90": "characters of a response, 90 % quantile",
    }
)
"""Every key of `TextReport.metrics()`, without its `text/`."""

MAX_EXEMPLARS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """A place in a stored response that shows a finding."""

    trajectory_id: str
    turn: int
    spans: tuple[tuple[int, int], ...]
    """Half-open character spans of the turn's response."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReport:
    """What the text of a step says, and what it could not say."""

    values: Mapping[str, float]
    """By the keys of `METRICS`; NaN where there is a reason."""
    reasons: Mapping[str, str]
    """Key to why it could not be measured."""
    template: Template | None
    exemplars: Mapping[str, tuple[Exemplar, ...]]
    """By finding: template, duplicates, loop, echo, copied, disagreement, malformed. Those of one
    finding answer different prompts; those of `template` are the most alike of them."""

    def metrics(self) -> dict[str, float]:
        """`text/...` of this step."""
        return {f"text/{name}": value for name, value in self.values.items()}

    def record(self, step: int) -> DiagnosticRecord:
        """What is stored beside the metrics: kind `text`, JSON with `family`, `template` (or null),
        `exemplars` and `reasons`. It names trajectories and spans, and copies no response."""
        template = None if self.template is None else asdict(self.template)
        exemplars = {kind: [asdict(one) for one in some] for kind, some in self.exemplars.items()}
        payload = {
            "family": "first_turn",
            "template": template,
            "exemplars": exemplars,
            "reasons": dict(self.reasons),
        }
        return DiagnosticRecord(step=step, kind="text", payload=json.dumps(payload))

    @property
    def insufficient(self) -> str:
        """Why dependence on the prompt could not be judged; empty if it could."""
        return self.reasons.get("retrieval_accuracy", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredText:
    """What a stored record of kind `text` shows. It comes from a file: nothing in it is trusted."""

    template: str
    """The template with its slots; empty where none was found."""
    match_frac: float
    """Share of the reasonings that fit the template: the number that every page gives for it."""
    coverage: float
    """Share of the typical reasoning's words that are template."""
    fillers: tuple[tuple[str, ...], ...]
    """What was seen in each slot."""
    exemplars: Mapping[str, tuple[Exemplar, ...]]
    """By finding."""


def read_record(record: DiagnosticRecord) -> StoredText:
    """The findings in a record that `TextReport.record` wrote; what is malformed is left out."""
    try:
        payload = json.loads(record.payload or "{}")
    except (ValueError, RecursionError):
        payload = {}
    payload = payload if isinstance(payload, dict) else {}
    template = payload.get("template")
    template = template if isinstance(template, dict) else {}
    shown = payload.get("exemplars")
    slots = template.get("fillers")
    return StoredText(
        template=str(template.get("text") or ""),
        match_frac=_number(template.get("match_frac")),
        coverage=_number(template.get("coverage")),
        fillers=tuple(
            tuple(str(filler) for filler in slot)
            for slot in (slots if isinstance(slots, list) else ())
            if isinstance(slot, list)
        ),
        exemplars={
            str(kind): tuple(_exemplar(one) for one in some if isinstance(one, dict))
            for kind, some in (shown.items() if isinstance(shown, dict) else ())
            if isinstance(some, list)
        },
    )


def _exemplar(entry: Mapping[str, Any]) -> Exemplar:
    turn = _number(entry.get("turn"))
    spans = entry.get("spans")
    return Exemplar(
        trajectory_id=str(entry.get("trajectory_id", "")),
        turn=int(turn) if math.isfinite(turn) else 0,
        spans=tuple(
            (int(span[0]), int(span[1]))
            for span in (spans if isinstance(spans, list) else ())
            if isinstance(span, list)
            and len(span) == 2
            and all(math.isfinite(_number(end)) for end in span)
        ),
        note=str(entry.get("note", "")),
    )


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number else math.nan
    except OverflowError:
        return math.nan


@dataclass(slots=True, kw_only=True)
class Findings:
    """A report while it is made. What nobody fills in stays NaN."""

    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, math.nan))
    reasons: dict[str, str] = field(default_factory=dict)
    template: Template | None = None
    exemplars: dict[str, tuple[Exemplar, ...]] = field(default_factory=dict)

    def missing(self, keys: Iterable[str], reason: str) -> None:
        for key in keys:
            self.reasons[key] = reason

    def mean(self, key: str, values: Sequence[float], reason: str) -> None:
        if values:
            self.values[key] = float(np.mean(values))
        else:
            self.reasons[key] = reason

    def show(self, kind: str, exemplars: Iterable[tuple[Hashable, Exemplar]]) -> None:
        """Keep the first exemplar of each prompt: siblings prove nothing about other prompts.

        Args:
            exemplars: each with its prompt, the most telling first.
        """
        shown: dict[Hashable, Exemplar] = {}
        for prompt, exemplar in exemplars:
            shown.setdefault(prompt, exemplar)
            if len(shown) == MAX_EXEMPLARS:
                break
        if shown:
            self.exemplars[kind] = tuple(shown.values())
