"""The formats that are known, in the order in which a row is compared with them."""

from __future__ import annotations

from .format import Format
from .formats import (
    art,
    inspect_log,
    nemo,
    ragen,
    rllm,
    roll,
    slime,
    table,
    tinker,
    trl,
    verifiers,
)

FORMATS: tuple[Format, ...] = (
    ragen.EVALUATION,
    ragen.PICKLED,
    inspect_log.LOGS,
    table.EASYR1,
    table.TRACES,
    table.VAGEN_FOLDER,
    table.VERL_V1,
    table.VAGEN,
    table.VERL,
    table.VERL_AGENT,
    table.VERL_PLAIN,
    trl.COMPLETIONS,
    verifiers.EPISODES,
    verifiers.LEGACY,
    rllm.EPISODES,
    table.OBSERVED,
    table.SKYRL,
    nemo.NEMO,
    table.AREAL,
    roll.COLUMNS,
    slime.SAMPLES,
    tinker.SUMMARIES,
    art.GROUPS,
    table.ART_PARQUET,
    art.EVENTS,
    table.TAU,
    table.PAIRS,
    table.MESSAGES,
)
"""The first that matches counts: formats with fewer keys of their own come last."""
