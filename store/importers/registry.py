"""The formats that are known, in the order in which a row is compared with them."""

from __future__ import annotations

from .format import Format
from .formats import (
    art,
    flat_text,
    inspect_ai,
    openai,
    ragen,
    rllm,
    roll,
    tinker,
    trl,
    vagen,
    verifiers,
    verl,
)

FORMATS: tuple[Format, ...] = (
    ragen.EVALUATION,
    verl.V1,
    verl.VAGEN,
    verl.CLASSIC,
    verl.AGENT,
    trl.COMPLETIONS,
    verifiers.EPISODES,
    verifiers.LEGACY,
    rllm.EPISODES,
    flat_text.SKYRL,
    flat_text.NEMO,
    flat_text.AREAL,
    roll.COLUMNS,
    tinker.SUMMARIES,
    art.GROUPS,
    inspect_ai.SAMPLES,
    vagen.EVALUATION,
    openai.MESSAGES,
)
"""The first that matches counts: formats with fewer keys of their own come last."""
