"""How much memory a run needs, how much there is, and what to change where it cannot fit.

The estimate counts the run's tensors from the model's `config.json`, the headers of its weight
files and the run's settings. Nothing is loaded; torch is imported only to ask a CUDA device.

There are two bounds. `at_least` is for short prompts and the smallest microbatches: a run that
lacks so much cannot work and is refused. `at_most` is for every prompt and reply at its limit.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from echoscope.store.models import weight_shapes
from echoscope.text.amounts import memory_size

from .config.engine import CPU_CACHE_GIB
from .config.loading import ConfigError
from .config.settings import RunConfig
from .pretrained.names import named_models
from .update.learners.launched import ranks_here

DeviceKind = Literal["cpu", "cuda"]

LOGITS_AT_ONCE = 1 << 24
"""Logits held at once (64 MiB in float32); beyond it they are computed again in backward."""
MAX_KEYS = 4
"""Keys that packed rows attend to, at most, per token of a microbatch: a shared beginning is
forwarded once, but each row reads a copy of its keys and values."""
MAX_PREFILL_TOKENS = 8192
"""Padded tokens of one prefill pass."""
MAX_MASK_ENTRIES = 1 << 25
"""Entries of one prefill pass's attention mask."""
MIN_MICROBATCH = 1024
MAX_MICROBATCH = 65_536
"""Padded tokens of a microbatch whose size follows from the free memory."""

_USABLE = 0.92
"""Share of the free memory that is counted on: blocks do not fit together without gaps."""
_COPIES_OF_LOGITS = 4
"""In the update: the model's, scaled, log-probs, and the gradient."""
_COPIES_IN_CHUNKS = 3
"""... of a chunk: logits, probabilities, and what an operation on them has not freed yet."""
_SAVED_LOGITS = 2
"""Of copies in one piece, between forward and backward: log-probs and probabilities."""
_COPIES_OF_SAMPLED = 8
"""In sampling, float32 equivalents: scaled, sorted, cumulated in float64, and probabilities."""
_BYTES_OF_MOMENTS = 8.0
"""Of one weight, both of them."""
_MOST_WHOLE_GRADIENT = 2 << 30
"""Bytes; above them ranks sum their gradients after each part of a step."""
_SHORTEST_ROW = 64
"""Columns of the key/value cache that every row has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a causal language model that its memory depends on."""

    weights: Mapping[str, tuple[int, ...]]
    """Name to shape of every weight."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    """Of the experts that see one token together, in a mixture of experts."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.weights.values())

    def num_adapter_parameters(self, rank: int, targets: list[str] | str) -> int:
        """Weights of low-rank adapters on the layers' matrices."""
        total = 0
        for name, shape in self.weights.items():
            module = name.removesuffix(".weight").rpartition(".")[2]
            is_target = ".layers." in name if isinstance(targets, str) else module in targets
            if len(shape) == 2 and is_target:
                total += rank * sum(shape)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of a run on one device."""

    device: DeviceKind
    weights: int
    """Of the policy, the reference and the critic, and a float32 copy of the head if asked for."""
    optimizer: int
    """Moments, and float32 copies of bfloat16 weights."""
    gradients: int
    caches_at_least: int
    caches_at_most: int
    """Keys and values, and the logits of one token of every row; held while sampling only."""
    prefill_at_most: int
    """Of one pass over prompts, beside the caches."""
    activations_at_least: int
    activations_at_most: int
    """Of one microbatch, logits included; held in the update only."""
    activations_per_token: int
    """Without logits."""
    keys_per_token: int
    """At most: copies of shared beginnings' keys and values that packed rows attend to."""
    logits_at_most: int
    engine: int = 0
    """What the engine holds for itself all the time: weights of its own, a cache of fixed size."""
    samples_ahead: bool = False
    """Sampling and update go on at the same time, so both are held together."""

    @property
    def at_least(self) -> int:
        """Sampling and update, with short prompts and small microbatches."""
        return self._held(self.caches_at_least, self.activations_at_least)

    @property
    def at_most(self) -> int:
        """Sampling and update, with every prompt and reply at its limit."""
        return self._held(self.caches_at_most + self.prefill_at_most, self.activations_at_most)

    def _held(self, sampling: int, activations: int) -> int:
        update = self.gradients + activations
        most = sampling + update if self.samples_ahead else max(sampling, update)
        return self.weights + self.optimizer + self.engine + most

    @property
    def text(self) -> str:
        """One line for people."""
        where = {"cpu": "on the CPU", "cuda": "on the CUDA device"}[self.device]
        return (
            f"{_span(self.at_least, self.at_most)} {where}, estimated: weights "
            f"{memory_size(self.weights)}, optimizer {memory_size(self.optimizer)}"
            f"{f', engine {memory_size(self.engine)}' if self.engine else ''}; while "
            "sampling, caches of "
            f"{_span(self.caches_at_least, self.caches_at_most)}; in the update, gradients of "
            f"{memory_size(self.gradients)} and activations of "
            f"{_span(self.activations_at_least, self.activations_at_most)}"
        )


def estimate_memory(config: RunConfig, device: DeviceKind) -> MemoryEstimate:
    """What a run needs on a device of this kind.

    Raises:
        ConfigError: the model is not on this disk, or its files do not say what is needed.
    """
    critic = None
    if config.critic.kind == "model":
        critic = read_shape(config.critic.path or config.model.path)
    return estimate(config, read_shape(config.model.path), device, critic=critic)


def estimate(
    config: RunConfig, shape: ModelShape, device: DeviceKind, *, critic: ModelShape | None = None
) -> MemoryEstimate:
    """As `estimate_memory`, from shapes."""
    width = bytes_per_weight(config, device)
    weights = shape.num_parameters * width
    trained, trained_width = shape.num_parameters, width
    lora = config.model.lora
    if lora is not None:  # adapters are float32
        trained, trained_width = shape.num_adapter_parameters(lora.rank, lora.target_modules), 4
        weights += trained * trained_width
    elif config.loss.kl_coef > 0 or config.reward.kl is not None:
        weights += shape.num_parameters * width
    offloads, ranks = config.optim.offload and device == "cuda", config.trainer.ranks

    def to_train(shape: ModelShape, trained: int, trained_width: int) -> tuple[int, int, int]:
        """(weights beside the whole ones, which rank 0 samples from; moments; gradients)"""
        if ranks > 1:
            return _split_bytes(ranks, shape, trained, width)
        return 0, *_optimizer_bytes(trained, trained_width, offloads=offloads)

    of_ranks, optimizer, gradients = to_train(shape, trained, trained_width)
    per_token, of_critic_trunk = activation_bytes(config, shape, device), 0
    if critic is not None:
        size = critic.num_parameters
        of_critic = to_train(critic, size, width)
        weights, of_ranks = weights + size * width, of_ranks + of_critic[0]
        optimizer, gradients = optimizer + of_critic[1], gradients + of_critic[2]
        of_critic_trunk = activation_bytes(config, critic, device)
    longest = config.context.max_prompt_tokens + config.context.max_response_tokens
    microbatch = config.optim.max_microbatch_tokens or MIN_MICROBATCH
    rows = min(config.engine.max_batch_rows, _num_episodes(config))
    column = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width
    sampled = rows * shape.vocab_size * 4 * _COPIES_OF_SAMPLED
    largest, sampled_at_most = _largest_part(config, microbatch, longest)
    keys = _keys_per_token(config, shape, device) * width
    copied = int(largest * keys * _extra_share(config, largest))

    # Engines elsewhere, and vLLM with its own cache, take no cache from the trainer.
    caches = config.engine.kind in ("hf", "ray")

    def activations(tokens: int, sampled: int) -> int:
        logits, saved = _logits_bytes(shape, sampled, width, trains_head=lora is None)
        # The backward pass frees the critic's before it takes the logits' gradient.
        return tokens * per_token + max(logits, tokens * of_critic_trunk + saved)

    return MemoryEstimate(
        device=device,
        weights=weights + of_ranks,
        optimizer=optimizer,
        gradients=gradients,
        caches_at_least=caches * (rows * _SHORTEST_ROW * column + sampled),
        caches_at_most=caches * (rows * longest * column + sampled),
        prefill_at_most=caches * _prefill_bytes(config, shape, rows, width),
        activations_at_least=activations(microbatch, microbatch),
        activations_at_most=activations(largest, sampled_at_most) + copied,
        activations_per_token=per_token + of_critic_trunk,
        keys_per_token=(MAX_KEYS - 1) * keys,
        logits_at_most=_logits_bytes(shape, MAX_MICROBATCH, width, trains_head=lora is None)[0],
        engine=_engine_bytes(config, shape, device, trained * trained_width if lora else 0),
        samples_ahead=config.collection.max_staleness > 0,
    )


def sums_each_part(num_trained: int) -> bool:
    """Whether ranks sum their gradients after each part of a step.

    Else a rank adds up the whole gradient in float32 and takes part in one sum a step, which costs
    less of the network and four bytes a weight.
    """
    return 4 * num_trained > _MOST_WHOLE_GRADIENT


def _split_bytes(ranks: int, shape: ModelShape, trained: int, width: int) -> tuple[int, int, int]:
    """Of one rank: its weights, its moments, its gradients, all kept in float32.

    While it computes it also holds what it has gathered: a layer, the next one, and what is outside
    of the layers.
    """
    outside = shape.vocab_size * shape.hidden_size
    layer = max(shape.num_parameters - outside, 0) // max(shape.num_layers, 1)
    weights = 4 * shape.num_parameters // ranks + width * (outside + 2 * layer)
    summed = trained // ranks + min(layer, trained) if sums_each_part(trained) else trained
    return weights, int(_BYTES_OF_MOMENTS * trained / ranks), 4 * summed


def _engine_bytes(config: RunConfig, shape: ModelShape, device: DeviceKind, adapters: int) -> int:
    """What the engine holds all the time beside the policy's own weights.

    The built-in one samples from the policy's weights, unless it samples ahead. On CUDA vLLM's
    cache is left out where `engine.gpu_memory` sizes it: the rest of the device is the trainer's.
    Replicas on GPUs of their own do not count.
    Ray's engines count where they are on this machine.
    """
    engine = config.engine
    copy = shape.num_parameters * bytes_per_weight(config, device) + adapters
    if engine.kind == "hf":
        return copy * (config.collection.max_staleness > 0)
    if engine.kind == "ray":
        return copy * (engine.address is None)
    if engine.kind == "openai":
        return 0
    default_gib = CPU_CACHE_GIB if device == "cpu" else 0.0
    cache = int((engine.kv_cache_gib or default_gib) * (1 << 30))
    if device == "cpu":
        return engine.replicas * (copy + cache)
    has_own = engine.leaves_ranks_alone(ranks_here(config.trainer.ranks), _num_gpus())
    return 0 if has_own else copy + cache


def _largest_part(config: RunConfig, microbatch: int, longest: int) -> tuple[int, int]:
    """Tokens of the largest microbatch, and those of them that are sampled.

    A row longer than a microbatch is one of its own; packed, its siblings' tokens join it.
    """
    if longest <= microbatch:
        return microbatch, microbatch
    turns = [group.max_turns for group in config.envs.train]
    reply = config.context.max_response_tokens
    sampled = min(longest, reply * max(t for t in turns if t)) if all(turns) else longest
    joined = min(microbatch, (config.envs.group_size - 1) * sampled) if config.model.packing else 0
    return longest + joined, sampled + joined


def _keys_per_token(config: RunConfig, shape: ModelShape, device: DeviceKind) -> int:
    """Numbers in one more copy of a token's keys and values; none where rows are padded."""
    layers = 1 if config.model.checkpoints_activations(device) else shape.num_layers
    return 2 * shape.num_kv_heads * shape.head_dim * layers * config.model.packing


def _extra_share(config: RunConfig, tokens: int) -> float:
    """Keys that packed rows read beyond their own, per token, with one prompt's siblings."""
    prompt, reply = config.context.max_prompt_tokens, config.context.max_response_tokens
    siblings = min(config.envs.group_size, max(1, (tokens - prompt) // reply))
    return min(siblings * (prompt + reply) / (prompt + siblings * reply), MAX_KEYS) - 1


def _prefill_bytes(config: RunConfig, shape: ModelShape, rows: int, width: int) -> int:
    """What a pass over prompts at their limit holds at once: a layer's MLP, and the mask."""
    prompt = config.context.max_prompt_tokens
    tokens = min(rows * prompt, MAX_PREFILL_TOKENS)
    entries = min(tokens * prompt, MAX_MASK_ENTRIES)
    return tokens * width * (3 * shape.intermediate_size + 4 * shape.hidden_size) + entries * width


def bytes_per_weight(config: RunConfig, device: DeviceKind) -> int:
    """2 in bfloat16, 4 in float32."""
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    return {"bfloat16": 2, "float32": 4}[dtype]


def activation_bytes(config: RunConfig, shape: ModelShape, device: DeviceKind) -> int:
    """What one padded token of a microbatch holds until backward, without its logits.

    A layer with a gated MLP keeps four vectors of the MLP's width, two of its heads' and eight of
    the model's; in bfloat16 its norms keep float32 beside. With checkpointing every layer keeps its
    input, and one layer at a time the rest.
    """
    width = bytes_per_weight(config, device)
    layer = width * (
        4 * shape.intermediate_size + 2 * shape.num_heads * shape.head_dim + 8 * shape.hidden_size
    )
    if width < 4:
        layer += 6 * shape.hidden_size
    if config.model.checkpoints_activations(device):
        return layer + shape.num_layers * shape.hidden_size * width
    return layer * shape.num_layers


def fitting_microbatch(needs: MemoryEstimate, available: int) -> int:
    """Padded tokens per forward pass of the update that the memory has room for.

    Args:
        needs: of the run.
        available: free bytes before the model is loaded.
    """
    fixed = needs.weights + needs.optimizer + needs.gradients + needs.logits_at_most
    per_token = needs.activations_per_token + needs.keys_per_token
    tokens = (int(available * _USABLE) - fixed) // per_token
    return min(max(tokens // MIN_MICROBATCH, 1) * MIN_MICROBATCH, MAX_MICROBATCH)


def check_memory(config: RunConfig, device: DeviceKind, available: int) -> MemoryEstimate | None:
    """The estimate, once it is known that the run can fit; None where there is none to be had.

    Raises:
        ConfigError: the run needs more than there is, whatever the prompts; it says what to change.
    """
    try:
        needs = estimate_memory(config, device)
    except ConfigError:
        return None  # a model that is not on this disk yet
    usable = int(available * _USABLE)
    if needs.at_least <= usable:
        return needs
    raise ConfigError(
        f"the run needs at least {memory_size(needs.at_least)} of memory, but "
        f"{memory_size(usable)} can be used of the {memory_size(available)} that are free: set "
        f"{', '.join(_savings(config, device))}, or choose a smaller model.path. As configured: "
        f"{needs.text}"
    )


def _savings(config: RunConfig, device: DeviceKind) -> Iterator[str]:
    """Settings that save memory and are not used yet, those that change the least first."""
    if not config.model.checkpoints_activations(device):
        yield "model.gradient_checkpointing=true"
    if (config.optim.max_microbatch_tokens or 0) > MIN_MICROBATCH:
        yield f"optim.max_microbatch_tokens={MIN_MICROBATCH}"
    if bytes_per_weight(config, device) == 4 and device == "cuda":
        yield "model.dtype=bfloat16"
    if device == "cuda" and not config.optim.offload:
        yield "optim.offload=true"
    if config.critic.kind == "model":
        yield "critic.kind=head"
    if config.model.lora is None:
        yield "'model.lora={rank: 64}'"
    yield "engine.max_batch_rows=16"


def _optimizer_bytes(trained: int, width: int, *, offloads: bool) -> tuple[int, int]:
    """(kept between steps, gradients of a step): AdamW's moments, and masters in float32."""
    if offloads:  # a microbatch's gradients alone are on the device
        return 0, trained * width
    has_master = width < 4
    kept = int(trained * (_BYTES_OF_MOMENTS + 4 * has_master))
    return kept, trained * (4 + width * has_master)


def _logits_bytes(
    shape: ModelShape, tokens: int, width: int, *, trains_head: bool
) -> tuple[int, int]:
    """(at the peak of the backward pass, saved for it).

    In bfloat16 there are the model's own logits and their gradient as well. In chunks nothing is
    saved; the output layer's gradient is a sum over chunks, beside that of the embedding.
    """
    logits = tokens * shape.vocab_size
    if logits <= LOGITS_AT_ONCE:
        copies = _COPIES_OF_LOGITS + (width < 4)
        return logits * 4 * copies, logits * 4 * copies * _SAVED_LOGITS // _COPIES_OF_LOGITS
    copies = _COPIES_IN_CHUNKS + (width < 4)
    summed = shape.vocab_size * shape.hidden_size * width * trains_head
    return LOGITS_AT_ONCE * 4 * copies + summed, 0


def _num_episodes(config: RunConfig) -> int:
    envs = config.envs
    train = sum(group.groups for group in envs.train) * envs.group_size
    return max(train, sum(group.groups for group in envs.eval) * envs.eval_group_size)


# -- the model's files ---------------------------------------------------------------------------


def read_shape(path: str) -> ModelShape:
    """The shape of a model on this disk: a shipped name, a folder, or a downloaded model id.

    Raises:
        ConfigError: it is not here, or its files do not say.
    """
    folder = _folder(path)
    if folder is None:
        raise ConfigError(f"{path!r} is not on this disk, so its memory cannot be estimated")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = sorted(folder.glob("*.safetensors"))
        weights = {name: shape for file in files for name, shape in weight_shapes(file).items()}
        return _shape(config.get("text_config", config), weights)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the memory of {path!r} cannot be estimated: its files do not say {error}"
        ) from None


def _shape(config: Mapping[str, Any], weights: Mapping[str, tuple[int, ...]]) -> ModelShape:
    def number(*names: str, default: int | None = None) -> int:
        values = [config[name] for name in names if config.get(name) is not None]
        if values:
            return int(values[0])
        if default is None:
            raise KeyError(names[0])
        return default

    if not weights:
        raise KeyError("any weight in *.safetensors")
    hidden = number("hidden_size", "n_embd")
    heads = number("num_attention_heads", "n_head")
    intermediate = number("intermediate_size", "n_inner", default=4 * hidden)
    if config.get("num_experts_per_tok") is not None:
        width = number("moe_intermediate_size", default=intermediate)
        intermediate = number("num_experts_per_tok") * width
    return ModelShape(
        weights=weights,
        num_layers=number("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=hidden // heads),
        vocab_size=number("vocab_size"),
    )


def _folder(path: str) -> Path | None:
    names = named_models()
    folder = Path(names.get(path, Path(path))).expanduser()
    if folder.is_dir():
        return folder
    if path.count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(path, "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


# -- what there is -------------------------------------------------------------------------------


def likely_device(setting: str) -> DeviceKind:
    """The kind of device that `model.device` means, without asking torch."""
    if setting == "cpu":
        return "cpu"
    has_driver = Path("/proc/driver/nvidia/version").exists()
    return "cuda" if setting == "cuda" or has_driver else "cpu"


def _num_gpus() -> int:
    """GPUs that this process may use, without asking torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([name for name in named.split(",") if name.strip()])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def free_bytes(device: DeviceKind) -> int:
    """Free memory: of the CUDA device, or of the host and of the container that it runs in."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return _free_host_bytes(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


def _free_host_bytes(meminfo: Path, cgroup: Path) -> int:
    free = 1 << 62  # a system that does not say
    if meminfo.is_file():
        lines = meminfo.read_text(encoding="ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines if ":" in line)
        free = int(sizes["MemAvailable"].split()[0]) << 10
    limit = cgroup / "memory.max"
    most = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    if most.isdigit():
        used = (cgroup / "memory.current").read_text(encoding="ascii")
        free = min(free, int(most) - int(used))
    return free


def _span(least: int, most: int) -> str:
    ends = dict.fromkeys((memory_size(least), memory_size(most)))
    return " to ".join(ends)
