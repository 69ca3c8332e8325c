"""The configuration of a run that an earlier version of this package may have stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from .loading import validate
from .settings import RunConfig

FIXED: Mapping[str, Any] = MappingProxyType(
    {
        "advantage.eps": 1e-6,
        "collection.cpus_per_worker": 1.0,
        "critic.epochs": None,
        "critic.grad_clip": None,
        "critic.lr_warmup_steps": 0,
        "critic.schedule": "policy",
        "curriculum.least_weight": 0.1,
        "curriculum.memory": 0.8,
        "diagnostics.information.level": 0.95,
        "diagnostics.information.memory_budget_mib": 1024,
        "diagnostics.information.permutations": 1000,
        "diagnostics.information.seed": 20_260,
        "diagnostics.text.family": "first_turn",
        "diagnostics.text.max_chars": 2000,
        "diagnostics.text.near_duplicate": 0.9,
        "diagnostics.text.permutations": 200,
        "diagnostics.text.prompts": 8,
        "diagnostics.text.siblings": 8,
        "diagnostics.text.template_words": 5,
        "diagnostics.text.trajectories": 32,
        "engine.max_replacements": 8,
        "engine.max_restarts": 3,
        "engine.retries": 2,
        "engine.start_s": 600.0,
        "engine.start_timeout_s": 600.0,
        "engine.wraps": {"max_batch_rows": 256, "kind": "hf", "reuse_cache": True},
        "envs.probe": [],
        "optim.max_nonfinite_steps": 5,
        "probe.min_p": 0.0,
        "probe.temperature": 1.0,
        "probe.top_k": 0,
        "probe.top_p": 1.0,
    }
)
"""What holds now in place of a setting that is gone, by dotted key."""


def read_stored(values: Mapping[str, Any]) -> tuple[RunConfig, Mapping[str, Any]]:
    """A stored configuration without the settings that are gone.

    Returns the configuration and, by dotted key, the left-out values that differ from what holds
    now: with them the run trained otherwise than it would go on.

    Raises:
        ConfigError: it does not fit for another reason.
    """
    kept = deepcopy(dict(values))
    changed: dict[str, Any] = {}
    try:
        RunConfig.model_validate(kept)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            if problem["type"] == "extra_forbidden":
                key, value = _taken(kept, problem["loc"])
                if key not in FIXED or FIXED[key] != value:
                    changed[key] = value
    return validate(kept), changed


def _taken(values: dict[str, Any], location: Sequence[int | str]) -> tuple[str, Any]:
    """Remove what pydantic found at a location; its dotted key and value.

    A location also names the kind of a setting that has several, as in ("critic", "head", "lr").
    """
    parent: Any = values
    parts: list[str] = []
    for part in location[:-1]:
        if isinstance(part, int) or part in parent:
            parent = parent[part]
            parts.append(str(part))
    last = str(location[-1])
    return ".".join([*parts, last]), parent.pop(last)
