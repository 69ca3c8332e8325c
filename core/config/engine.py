"""Settings of the engine that samples replies. Defaults live here and in `settings.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from echoscope.diagnostics.config import FrozenModel

from .limits import PluginName

CPU_CACHE_GIB = 1.0
"""vLLM's memory for keys and values on the CPU, unless it is set."""


class _EngineConfig(FrozenModel):
    """What every engine is told."""

    max_batch_rows: int = Field(256, ge=1, le=1_000_000, description="Rows decoded at once.")


class HfEngineConfig(_EngineConfig):
    """The built-in sampling loop over the trained weights themselves."""

    kind: Literal["hf"] = "hf"
    reuse_cache: bool = Field(True, description="Keep key/value caches across turns.")


class VllmEngineConfig(_EngineConfig):
    """vLLM in a process of its own on this machine, started and ended with the run."""

    kind: Literal["vllm"] = "vllm"
    replicas: int = Field(
        1,
        ge=1,
        le=1024,
        description="Servers that share the work. Each gets as many GPUs as tensor-parallel-size "
        "says: those after the ranks' where there are enough, else the ranks' own.",
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="The Python of the environment that has vLLM; null: the one that trains.",
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
    sleep: bool = Field(
        True,
        description="Move vLLM's weights to the host and free its cache while the policy updates. "
        "On CUDA only.",
    )
    transfer: Literal["auto", "nccl", "ipc", "files"] = Field(
        "auto",
        description="How new weights go to the servers. nccl: to other GPUs. ipc: to the one GPU "
        "that trains and samples. files: through shared memory. auto: the first that is possible.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description="Further flags of vLLM's server without the dashes, such as "
        "{tensor-parallel-size: 2}; true for a flag without a value.",
    )

    @property
    def gpus_per_replica(self) -> int:
        return int(self.options.get("tensor-parallel-size", 1))

    def leaves_ranks_alone(self, num_ranks: int, num_gpus: int) -> bool:
        """Whether the replicas of this machine find GPUs beside those of its ranks."""
        return num_ranks + self.replicas * self.gpus_per_replica <= num_gpus


class OpenAiEngineConfig(_EngineConfig):
    """A server that is there already, with token ids and log-probs of sampled tokens."""

    kind: Literal["openai"] = "openai"
    url: str = Field(
        "http://127.0.0.1:8000",
        min_length=1,
        max_length=10_000,
        description="Where the server listens; several that share the work, with commas between.",
    )
    model: str | None = Field(
        None, min_length=1, description="The server's name for the model; null: its first."
    )
    api_key_env: str | None = Field(
        None, min_length=1, description="The environment variable that holds the server's key."
    )
    weights: Literal["fixed", "vllm", "hook"] = Field(
        "fixed",
        description="How the server gets new weights. fixed: never, so its samples grow stale. "
        "vllm: from files, in shared memory or in engine.weights_folder. hook: by "
        "engine.sync_hook.",
    )
    weights_folder: str | None = Field(
        None,
        min_length=1,
        description="With engine.weights=vllm: a folder on a disk that the servers' machines see "
        "under the same path. The weights go through it instead of shared memory.",
    )
    transfer: Literal["auto", "nccl", "files"] = Field(
        "auto",
        description="With engine.weights=vllm: nccl sends weights from GPU to GPU, files goes "
        "through engine.weights_folder or shared memory. auto: nccl where both sides can.",
    )
    sync_hook: PluginName | None = Field(
        None, description="`module:function(model, version, server)`, called after each update."
    )

    @property
    def urls(self) -> tuple[str, ...]:
        """Of all servers."""
        return tuple(url.strip() for url in self.url.split(","))

    @model_validator(mode="after")
    def _urls_differ(self) -> OpenAiEngineConfig:
        if len(set(self.urls)) < len(self.urls):
            raise ValueError(f"engine.url is {self.url}, but must name each server once")
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> OpenAiEngineConfig:
        if (self.weights == "hook") != (self.sync_hook is not None):
            raise ValueError(
                f"engine.weights is {self.weights} and engine.sync_hook is {self.sync_hook}: set "
                "engine.weights=hook and engine.sync_hook together"
            )
        if self.weights_folder is not None and self.weights != "vllm":
            raise ValueError(
                f"engine.weights_folder is {self.weights_folder}, but only engine.weights=vllm "
                f"goes through files, not {self.weights}"
            )
        if self.transfer != "auto" and self.weights != "vllm":
            raise ValueError(
                f"engine.transfer is {self.transfer}, but only engine.weights=vllm sends weights, "
                f"not {self.weights}"
            )
        return self


class RayEngineConfig(_EngineConfig):
    """Several engines, each in an actor of Ray; prompts are split over them."""

    kind: Literal["ray"] = "ray"
    num_engines: int = Field(1, ge=1, le=1024, description="Actors that sample.")
    cpus_per_engine: int = Field(
        1, ge=1, le=1024, description="Cores that an engine reserves, and threads that it uses."
    )
    gpus_per_engine: float = Field(
        0.0,
        ge=0,
        le=64,
        description="GPUs that an engine reserves; a fraction shares one. 0: it samples on the "
        "CPU.",
    )
    vllm: VllmEngineConfig | None = Field(
        None,
        description="Settings of the vLLM that each actor starts on its node, such as {}; null: "
        "the built-in engine.",
    )
    address: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="`host:port` of a running Ray cluster, or `auto`. null: the run starts a Ray "
        "of its own on this machine, reachable on loopback only, and ends it.",
    )


EngineConfig = Annotated[
    HfEngineConfig | VllmEngineConfig | OpenAiEngineConfig | RayEngineConfig,
    Field(discriminator="kind"),
]
