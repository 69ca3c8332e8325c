"""The engine that `engine.kind` names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from echoscope.text.user_code import load

from ..config.engine import OpenAiEngineConfig, VllmEngineConfig
from ..config.settings import RunConfig
from ..policy import Policy
from ..pretrained.policy_assets import resolve_model
from ..update.learners.launched import ranks_here
from .base import Engine
from .hf.engine import HfEngine
from .ray.session import check_ray
from .replicas import Replicas
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
    positions = config.context.max_prompt_tokens + config.context.max_response_tokens
    if engine.kind == "ray":
        from .ray.engine import RayEngine, RayFleet

        fleet = RayFleet(policy, engine, positions=positions, report=report)
        return Replicas(
            policy,
            lambda index: RayEngine(policy, fleet),
            engine.num_engines,
            weights_rest=config.collection.max_staleness == 0,
            report=report,
            forget_weights=fleet.forget_weights,
            after_close=fleet.close,
        )
    if engine.kind == "openai" and engine.sync_hook is not None:
        load("weight_sync", engine.sync_hook)
    return _over_servers(config, policy, engine, positions, report)


def _over_servers(
    config: RunConfig,
    policy: Policy,
    engine: OpenAiEngineConfig | VllmEngineConfig,
    positions: int,
    report: Callable[[str], None],
) -> Engine:
    """An engine over servers of this machine that it starts, or over those that are there."""
    from .server.engine import ServerEngine
    from .vllm.server import VllmEngine, devices_of, visible_gpus
    from .vllm.transfer import Transfers
    from .vllm.weights import WeightFiles

    transfers: Transfers | None = None
    files: WeightFiles | None = None
    if engine.kind == "vllm" or engine.weights == "vllm":
        transfers = Transfers(engine.transfer, policy.model, report)
        folder = None if engine.kind == "vllm" else engine.weights_folder
        files = WeightFiles(policy.model, folder)
    num_ranks = ranks_here(config.trainer.ranks)

    def start(index: int) -> Engine:
        shared: dict[str, Any] = {
            "positions": positions,
            "policy_version": policy.version,
            "report": report,
            "files": files,
            "transfers": transfers,
        }
        if engine.kind == "vllm":
            assert transfers is not None
            devices, visible = devices_of(engine, index, num_ranks), visible_gpus()
            backend = transfers.backend_for(
                devices or visible, visible, has_ranks=config.trainer.ranks > 1
            )
            return VllmEngine(
                policy.model,
                resolve_model(config.model.path),
                config=engine,
                devices=devices,
                backend=backend,
                **shared,
            )
        settings = engine.model_copy(update={"url": engine.urls[index]})
        return ServerEngine(policy.model, config=settings, **shared)

    return Replicas(
        policy,
        start,
        engine.replicas if engine.kind == "vllm" else len(engine.urls),
        weights_rest=config.collection.max_staleness == 0,
        report=report,
        forget_weights=files.are_loaded if files is not None else lambda: None,
        after_close=files.remove if files is not None else lambda: None,
    )
