"""The formats that are known, in the order in which a row is compared with them."""

from __future__ import annotations

from .format import Format
from .formats import (
    choices,
    flat_text,
    inspect_ai,
    ragen,
    rllm,
    roll,
    rows,
    slime,
    tinker,
    trl,
    verifiers,
    verl,
)

FORMATS: tuple[Format, ...] = (
    ragen.EVALUATION,
    ragen.PICKLED,
    verl.V1,
    verl.VAGEN,
    verl.CLASSIC,
    verl.AGENT,
    verl.PLAIN,
    trl.COMPLETIONS,
    verifiers.EPISODES,
    verifiers.LEGACY,
    rllm.EPISODES,
    flat_text.SKYRL,
    flat_text.NEMO,
    flat_text.AREAL,
    roll.COLUMNS,
    slime.SAMPLES,
    tinker.SUMMARIES,
    choices.GROUPS,
    choices.PARQUET,
    choices.EVENTS,
    inspect_ai.SAMPLES,
    rows.TAU,
    rows.PAIRS,
    rows.MESSAGES,
)
"""The first that matches counts: formats with fewer keys of their own come last."""
