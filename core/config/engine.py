"""Settings of the engine that samples replies. Defaults live here and in `settings.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from echoscope.diagnostics.config import FrozenModel


class _EngineConfig(FrozenModel):
    """What every engine is told."""

    max_batch_rows: int = Field(256, ge=1, le=1_000_000, description="Rows decoded at once.")


class HfEngineConfig(_EngineConfig):
    """The built-in sampling loop over the trained weights themselves."""

    kind: Literal["hf"] = "hf"
    reuse_cache: bool = Field(True, description="Keep key/value caches across turns.")


class VllmEngineConfig(_EngineConfig):
    """vLLM in the process that trains. Its extra: `pip install 'echoscope[vllm]'`."""

    kind: Literal["vllm"] = "vllm"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Of vLLM's weights; auto: as the policy's."
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        le=1e4,
        description="Memory for keys and values; null: 1 GiB on the CPU, engine.gpu_memory on "
        "CUDA.",
    )
    gpu_memory: float = Field(
        0.4,
        gt=0,
        lt=1,
        description="Share of the GPU's memory for vLLM's weights and cache. The trainer needs the "
        "rest.",
    )
    eager: bool | None = Field(
        None, description="Neither compile nor capture graphs; null: on the CPU."
    )
    sleep: bool = Field(
        True,
        description="Move vLLM's weights to the host and free its cache while the policy updates. "
        "On CUDA only.",
    )
    weights: Literal["memory", "files"] = Field(
        "memory",
        description="How new weights reach vLLM: tensors one by one, or files in shared memory, "
        "for models whose weights have other names in memory than in their files.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description="Further arguments of vLLM's `EngineArgs`, such as {tensor_parallel_size: 2}.",
    )


EngineConfig = Annotated[HfEngineConfig | VllmEngineConfig, Field(discriminator="kind")]
