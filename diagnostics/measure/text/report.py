"""What the text of a step says, in numbers, examples, and reasons for what is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from pydantic import TypeAdapter, ValidationError

from echoscope.store.records import DiagnosticRecord

from ...judge.record import Shown
from .templates import Template

METRICS = (
    "num_prompts",
    "retrieval_accuracy",
    "retrieval_chance",
    "retrieval_p_value",
    "dependence",
    "template_frac",
    "template_match_frac",
    "sibling_distance",
    "near_duplicate_frac",
    "conditional_entropy",
    "loop_frac",
    "echo_frac",
    "prompt_copy_frac",
    "agreement_frac",
    "valid_frac",
    "truncated_frac",
    "closed_reasoning_frac",
    "empty_reasoning_frac",
    "num_chars_p50",
)
"""Every key of `TextReport.metrics()`, without its `text/`; docs/text.md says what they are."""

MAX_EXEMPLARS = 3


@dataclass(slots=True, kw_only=True)
class TextReport:
    """What the text of a step says, and what it could not say. What nobody fills in stays NaN."""

    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, math.nan))
    """NaN where there is a reason."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Key to why it could not be measured."""
    template: Template | None = None
    exemplars: dict[str, tuple[Shown, ...]] = field(default_factory=dict)
    """By finding: template, duplicates, loop, echo, disagreement, malformed. Those of one finding
    answer different prompts; those of `template` are the most alike of them."""

    def missing(self, keys: Iterable[str], reason: str) -> None:
        self.reasons |= dict.fromkeys(keys, reason)

    def mean(self, key: str, values: Sequence[float | bool], reason: str) -> None:
        """The mean of some values, or why there are none."""
        if values:
            self.values[key] = float(np.mean(values))
        else:
            self.reasons[key] = reason

    def show(self, kind: str, exemplars: Iterable[tuple[Hashable, Shown]]) -> None:
        """Keep the first exemplar of each prompt: siblings prove nothing about other prompts.

        Args:
            exemplars: each with its prompt, the most telling first.
        """
        by_prompt: dict[Hashable, Shown] = {}
        for prompt, exemplar in exemplars:
            by_prompt.setdefault(prompt, exemplar)
            if len(by_prompt) == MAX_EXEMPLARS:
                break
        if by_prompt:
            self.exemplars[kind] = tuple(by_prompt.values())

    def metrics(self) -> dict[str, float]:
        """`text/...` of this step."""
        return {f"text/{name}": value for name, value in self.values.items()}

    def record(self, step: int) -> DiagnosticRecord:
        """What is stored beside the metrics: kind `text`, JSON with `template` (or null),
        `exemplars` and `reasons`. It names trajectories and spans, and copies no response."""
        fields = asdict(self)
        payload = {name: fields[name] for name in ("template", "exemplars", "reasons")}
        return DiagnosticRecord(step=step, kind="text", payload=json.dumps(payload))


def read_record(payload: str | None) -> TextReport:
    """The findings in a record that `TextReport.record` wrote; none where it is malformed."""
    try:
        return TypeAdapter(TextReport).validate_json(payload or "{}")
    except ValidationError:
        return TextReport()
