"""The engine that `engine.kind` names."""

from __future__ import annotations

from collections.abc import Callable

from ..config.settings import RunConfig
from ..policy import Policy
from .base import GenerationEngine
from .hf.engine import HfEngine


def build_engine(
    config: RunConfig, policy: Policy, *, report: Callable[[str], None] = lambda text: None
) -> GenerationEngine:
    """An engine that samples from the policy's present weights. Whoever builds it closes it.

    Args:
        report: is told in one sentence what the engine changed by itself.

    Raises:
        ValueError: a model that the engine cannot run.
    """
    return HfEngine(policy.model, config=config.engine, report=report)
