"""The engine that `engine.kind` names."""

from __future__ import annotations

import sys
from collections.abc import Callable

from echoscope.text.user_code import load

from ..config.settings import RunConfig
from ..policy import Policy
from ..policy_assets import resolve_model
from .base import Engine
from .hf.engine import HfEngine
from .ray.session import check_ray
from .vllm.install import require_vllm


def check_engine(config: RunConfig) -> None:
    """Refuse an engine whose package is not installed, before anything is loaded or written.

    Raises:
        ConfigError: it names the command that installs the package.
    """
    if config.engine.kind == "ray":
        check_ray()
    elif config.engine.kind == "vllm":
        require_vllm(config.engine.python or sys.executable)


def build_engine(
    config: RunConfig,
    policy: Policy,
    *,
    report: Callable[[str], None] = lambda text: None,
    on_token: Callable[[int, int], None] = lambda done, of: None,
) -> Engine:
    """An engine that samples from the policy's present weights. Whoever builds it closes it.

    Args:
        report: is told in one sentence what the engine changed by itself.
        on_token: told how far the replies under way have come, by an engine that knows.

    Raises:
        ValueError: a model that the engine cannot run.
        EngineError: engines that cannot be placed or reached.
    """
    engine = config.engine
    if engine.kind == "hf":
        # Episodes that are played during the update need weights that rest meanwhile.
        copies = config.collection.max_staleness > 0
        return HfEngine(
            policy.model, config=engine, copies=copies, report=report, on_token=on_token
        )
    if engine.kind == "ray":
        from .ray.engine import RayEngine

        return RayEngine(policy, engine, report=report)
    positions = config.context.max_prompt_tokens + config.context.max_response_tokens
    if engine.kind == "openai":
        from .server.engine import ServerEngine

        if engine.sync_hook is not None:
            load("weight_sync", engine.sync_hook)
        return ServerEngine(
            policy.model,
            config=engine,
            positions=positions,
            policy_version=policy.version,
            report=report,
        )
    from .vllm.server import VllmEngine

    return VllmEngine(
        policy.model,
        resolve_model(config.model.path),
        config=engine,
        positions=positions,
        policy_version=policy.version,
        report=report,
    )
