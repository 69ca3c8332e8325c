"""The engine that `engine.kind` names."""

from __future__ import annotations

import sys
from collections.abc import Callable

from echoscope.text.user_code import load

from ..config.settings import RunConfig
from ..policy import Policy
from ..policy_assets import resolve_model
from .base import GenerationEngine
from .hf.copied import CopiedHfEngine
from .hf.engine import HfEngine
from .ray.session import check_ray
from .ray.workers import ray_cpus_of_workers
from .vllm.install import require_server_vllm, require_vllm


def check_engine(config: RunConfig) -> None:
    """Refuse an engine whose package is not installed, before anything is loaded or written.

    Raises:
        ConfigError: it names the command that installs the package.
    """
    if config.collection.workers == "ray":
        check_ray("collection.workers=ray")
    match config.engine.kind:
        case "ray":
            check_ray()
        case "vllm":
            require_vllm()
        case "vllm_server":
            require_server_vllm(config.engine.python or sys.executable)


def build_engine(
    config: RunConfig,
    policy: Policy,
    *,
    report: Callable[[str], None] = lambda text: None,
    on_token: Callable[[int, int], None] = lambda done, of: None,
) -> GenerationEngine:
    """An engine that samples from the policy's present weights. Whoever builds it closes it.

    Args:
        report: is told in one sentence what the engine changed by itself.
        on_token: told how far the replies of one call have come, by an engine that knows.

    Raises:
        ValueError: a model that the engine cannot run.
        EngineError: engines that cannot be placed or reached.
    """
    context = config.context
    positions = context.max_prompt_tokens + context.max_response_tokens
    match config.engine.kind:
        case "hf":
            # Episodes that are played during the update need weights that rest meanwhile.
            make = CopiedHfEngine if config.collection.max_staleness else HfEngine
            return make(policy.model, config=config.engine, report=report, on_token=on_token)
        case "ray":
            from .ray.engine import RayEngine

            workers = ray_cpus_of_workers(config.collection)
            return RayEngine(policy, config.engine, more_cpus=workers, report=report)
        case "vllm":
            from .vllm.engine import VllmEngine

            return VllmEngine(
                policy.model,
                resolve_model(config.model.path),
                config=config.engine,
                positions=positions,
                policy_version=policy.version,
                report=report,
            )
        case "openai":
            from .server.engine import ServerEngine

            if config.engine.sync_hook is not None:
                load("weight_sync", config.engine.sync_hook)
            return ServerEngine(
                policy.model,
                config=config.engine,
                positions=positions,
                policy_version=policy.version,
                report=report,
            )
        case "vllm_server":
            from .vllm.server import VllmServerEngine

            return VllmServerEngine(
                policy.model,
                resolve_model(config.model.path),
                config=config.engine,
                positions=positions,
                policy_version=policy.version,
                report=report,
            )
