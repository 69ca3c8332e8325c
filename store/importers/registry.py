"""The formats that are known, in the order in which a row is compared with them."""

from __future__ import annotations

from .format import Format
from .formats import openai, ragen, trl, verl

FORMATS: tuple[Format, ...] = (
    ragen.EVALUATION,
    verl.V1,
    verl.VAGEN,
    verl.CLASSIC,
    verl.AGENT,
    trl.COMPLETIONS,
    openai.MESSAGES,
)
"""The first that matches counts: formats with fewer keys of their own come last."""
