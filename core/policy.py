"""The policy that trains: a causal language model, its value head, and its reference.

Legend: **B** rows, **T** padded length, **S** sampled tokens of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from .config.loading import ConfigError
from .config.loss import CriticConfig
from .config.settings import LoraConfig, ModelConfig, OptimConfig
from .memory import MIN_MICROBATCH
from .optim import ParameterGroup
from .pretrained.policy_assets import check_weights, resolve_model
from .update.batch import PolicyOutputs, TokenBatch, microbatches
from .update.learners.world import ALONE
from .update.packing import (
    PackedRows,
    enable_packing,
    packed_hidden,
    packed_microbatches,
    padded_hidden,
)
from .update.vocabulary import SampledTokens, VocabularyHead

_T = TypeVar("_T")


def resolve_device(name: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` stands for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device is cuda, but torch sees no CUDA device; use cpu or auto")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_model(path: str, config: ModelConfig) -> PreTrainedModel:
    """Weights on the configured device and dtype, dropout off.

    Raises:
        ConfigError: the folder or model id cannot be loaded.
    """
    device = resolve_device(config.device)
    folder = resolve_model(path)
    check_weights(folder)
    transformers_logging.disable_progress_bar()  # the run has its own view
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # what does not fit is said below, in one line
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=resolve_dtype(config.dtype, device),
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # ... and refused below, by name
            trust_remote_code=False,  # or transformers asks whether to run the folder's code
        )
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        ImportError,
        SafetensorError,
    ) as error:
        reason = " ".join(str(error).split())[:300]
        if "trust_remote_code" in reason:
            reason = (
                "it brings code of its own (auto_map), and no code from a model folder is run; use "
                "a model of a type that transformers knows"
            )
        if "Unrecognized configuration class" in reason:
            reason = (
                "it is not a causal language model; name one that continues a text, such as a "
                "Qwen, Llama or GPT model"
            )
        raise ConfigError(f"model.path is {path!r}, which cannot be loaded: {reason}") from None
    finally:
        transformers_logging.set_verbosity(verbosity)
    if loading["mismatched_keys"]:
        name, saved, own_shape = min(loading["mismatched_keys"])
        raise ConfigError(
            f"model.path is {path!r}, whose weights do not fit its config.json: {name} is "
            f"{_shape_text(saved)} where {_shape_text(own_shape)} is due; copy both from one model"
        )
    if loading["missing_keys"]:  # transformers would train on random numbers in their place
        raise ConfigError(
            f"model.path is {path!r}, which has no weights for {min(loading['missing_keys'])}: "
            "copy the folder again, or name a causal language model with its head, not an encoder, "
            "a bare trunk or a reward model"
        )
    return model.to(device).eval()


def _shape_text(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


class ValueHead(nn.Module):
    """Hidden state to a value, zero at the start so that the first baseline is 0."""

    def __init__(self, hidden_size: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.linear(hidden.float())[..., 0].clone()
        return out


class ModelCritic(nn.Module):
    """A trunk of its own with a value head.

    Args:
        packs: the trunk takes packed rows.
    """

    def __init__(self, trunk: PreTrainedModel, head: ValueHead, *, packs: bool = False) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.packs = packs

    def forward(self, batch: TokenBatch, rows: PackedRows | None = None) -> Tensor:
        """Values of the sampled tokens, (B, T), zero elsewhere."""
        states_S = _states(self.trunk, batch, rows if self.packs else None)
        return _scatter(self.head(states_S), batch)


class Policy:
    """A model with its version, its critic and its reference.

    Args:
        model: the trained model, with adapters if `config.lora` is set.
        critic: a ValueHead on the trunk, a ModelCritic, or None.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        config: ModelConfig,
        critic: nn.Module | None,
        detach_value: bool = False,
    ) -> None:
        self.model = model
        self.config = config
        self.critic = critic
        self.version = 0
        self.fitting_tokens = MIN_MICROBATCH
        """Tokens per forward pass of the update, unless `optim.max_microbatch_tokens` is set.
        Few of them stay in a CPU's cache; more may fit on CUDA."""
        self.most_tokens: int | None = None
        """Bound on tokens per forward pass, set when a pass ran out of memory."""
        self._num_shrunk = 0
        self.padded_because = "model.packing is off"
        """Why the update pads its rows; empty where it packs them."""
        if config.packing:
            self.padded_because = enable_packing(causal_model(model)) or ""
        self.world = ALONE
        self.shards: nn.Module | None = None
        """Calls what it is given with the weights whole; None where they are not split."""
        self._detach_value = detach_value
        self.split: Callable[[PreTrainedModel], nn.Module | None] = lambda model: None
        """Splits the weights of another model over the same ranks."""
        self.sums_each_part = False
        """Gradients are summed over ranks after each part of a step, for want of memory."""
        self._reference: tuple[PreTrainedModel, nn.Module | None] | None = None
        model.requires_grad_(not isinstance(model, PeftModel))
        if isinstance(model, PeftModel):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("lora_" in name)
        if config.checkpoints_activations(self.device.type):
            _enable_checkpointing(model)
            if isinstance(critic, ModelCritic):
                _enable_checkpointing(critic.trunk)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def max_positions(self) -> int | None:
        """Longest sequence the model was made for; None if its configuration does not say."""
        config = causal_model(self.model).config.get_text_config()
        positions = config.to_dict().get("max_position_embeddings")
        return None if positions is None else int(positions)

    @property
    def vocabulary_size(self) -> int:
        """Tokens that the model has embeddings for; some may be beyond the tokenizer."""
        return int(causal_model(self.model).get_input_embeddings().weight.shape[0])

    def policy_parameters(self) -> list[nn.Parameter]:
        """Trainable weights of the model, without the critic."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def critic_parameters(self) -> list[nn.Parameter]:
        return [] if self.critic is None else list(self.critic.parameters())

    def microbatch_tokens(self, config: OptimConfig) -> int:
        """Tokens per forward pass of the update, padding included."""
        tokens = config.max_microbatch_tokens or self.fitting_tokens
        return tokens if self.most_tokens is None else min(tokens, self.most_tokens)

    def shrink(self, config: OptimConfig) -> None:
        """Forward a quarter of the tokens from now on: a pass ran out of memory."""
        self.most_tokens = max(self.microbatch_tokens(config) // 4, 1)
        self._num_shrunk += 1
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def take_num_shrunk(self) -> int:
        """Calls of `shrink` since the last call of this."""
        count, self._num_shrunk = self._num_shrunk, 0
        return count

    def microbatches(
        self, batch: TokenBatch, config: OptimConfig
    ) -> list[tuple[TokenBatch, Tensor]]:
        """Parts of a batch that are forwarded at once, and the rows (b,) that each one holds.

        `full[rows, :part.width] = values` puts a part's values back in their place.
        """
        make = microbatches if self.padded_because else packed_microbatches
        most = self.microbatch_tokens(config)
        if not self.world.is_alone:  # enough parts for all ranks
            most = max(1, min(most, -(-batch.num_row_tokens // self.world.size)))
        return self.world.share(make(batch, most), batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        """What the optimizer clips apart: the policy, the critic's own trunk, its value head."""
        groups = [ParameterGroup(name="policy", parameters=self.policy_parameters())]
        head = self.critic
        if isinstance(self.critic, ModelCritic):
            trunk = list(self.critic.trunk.parameters())
            groups.append(ParameterGroup(name="critic_trunk", parameters=trunk))
            head = self.critic.head
        if head is not None:
            parameters = list(head.parameters())
            groups.append(
                ParameterGroup(name="critic_head", parameters=parameters, is_decayed=False)
            )
        return groups

    def values(self, batch: TokenBatch) -> Tensor:
        """The critic's values of the sampled tokens, (B, T), without a pass for log-probs."""
        rows, critic = self._packed(batch), self.critic
        assert critic is not None

        def work() -> Tensor:
            if isinstance(critic, ModelCritic):
                values: Tensor = critic(batch, rows)
                return values
            states_S = _states(causal_model(self.model).base_model, batch, rows)
            return _scatter(critic(states_S), batch)

        return self._whole(work)

    def sums_gradients(self, *, is_last: bool) -> None:
        """Sum gradients over ranks with the last part of an optimizer step, or with each."""
        if isinstance(self.shards, FSDPModule):
            self.shards.set_requires_gradient_sync(is_last or self.sums_each_part)

    def keeps_parts(self) -> None:
        """Give back weights that a pass without gradients has left whole on each rank."""
        if isinstance(self.shards, FSDPModule):
            self.shards.reshard()

    def _whole(self, work: Callable[[], _T]) -> _T:
        """What `work` gives, called with whole weights. Only tensors carry gradients out of it."""
        return work() if self.shards is None else self.shards(work)

    def outputs(self, batch: TokenBatch) -> PolicyOutputs:
        """Log-probs, entropies and values of the sampled tokens, (B, T), zero elsewhere.

        Log-probs and entropies are those of the distribution that was sampled from: at the recorded
        temperature, over the recorded support alone. At the weights that sampled they are the
        recorded ones; when the weights move, the support stays.

        A token's value is that of the state it was sampled in: the hidden state one column before.
        """
        rows = self._packed(batch)

        def work() -> tuple[Tensor, Tensor, Tensor | None]:
            states_S, head = self._forward(self.model, batch, rows)
            logprobs_S, entropies_S = head(states_S, SampledTokens.of(batch))
            values = None
            if isinstance(self.critic, ModelCritic):
                values = self.critic(batch, rows)
            elif isinstance(self.critic, ValueHead):
                seen_S = states_S.detach() if self._detach_value else states_S
                values = _scatter(self.critic(seen_S), batch)
            return _scatter(logprobs_S, batch), _scatter(entropies_S, batch), values

        logprobs, entropies, values = self._whole(work)
        return PolicyOutputs(
            logprobs=logprobs,
            entropies=entropies,
            values=values,
            num_forwarded=batch.loss_mask[:, 1:].numel() if rows is None else rows.num_tokens,
        )

    def _packed(self, batch: TokenBatch) -> PackedRows | None:
        """None where rows are padded, or there is nothing to forward."""
        if self.padded_because or not batch.num_loss_tokens:
            return None
        return PackedRows.of(batch.input_ids, batch.loss_mask)

    def reference_logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probs under the reference policy, (B, T) float32, zero outside the loss mask.

        At the temperature and over the support of the sampling, as in `outputs`.
        With LoRA the reference is the base with its adapters off; else the weights that
        `model.path` names, loaded when first needed.
        """
        with torch.no_grad(), self._reference_model() as (model, shards):
            rows = self._packed(batch)

            def work() -> Tensor:
                states_S, head = self._forward(model, batch, rows)
                logprobs_S, _ = head(states_S, SampledTokens.of(batch))
                return _scatter(logprobs_S, batch)

            logprobs: Tensor = work() if shards is None else shards(work)
            return logprobs

    @contextmanager
    def _reference_model(self) -> Iterator[tuple[PreTrainedModel | PeftModel, nn.Module | None]]:
        """The reference, and what calls it with whole weights where they are split."""
        if isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                yield self.model, self.shards
            return
        if self._reference is None:
            model = load_model(self.config.path, self.config).requires_grad_(False)
            if not self.padded_because:
                enable_packing(model)
            self._reference = model, self.split(model)
        yield self._reference

    def _forward(
        self, model: PreTrainedModel | PeftModel, batch: TokenBatch, rows: PackedRows | None
    ) -> tuple[Tensor, VocabularyHead]:
        causal = causal_model(model)
        head = causal.get_output_embeddings()
        config = causal.config.get_text_config()
        return _states(causal.base_model, batch, rows), VocabularyHead(head, config)


def _enable_checkpointing(model: PreTrainedModel | PeftModel) -> None:
    """Compute the layers' activations again in backward.

    A layer does so in training mode only, which also switches on its dropout; the importance ratio
    of a sampled token is 1 only without any. So the layers alone are in training mode, nothing
    inside them is, and the dropout that a layer applies itself is set to 0.

    Raises:
        ConfigError: the model has no layers that can do so.
    """
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ConfigError(
            f"model.gradient_checkpointing is on, but {type(causal_model(model)).__name__} has no "
            "layers that support it: set model.gradient_checkpointing=false"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # renamed in transformers 5.23
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.eval()
    for layer in layers:
        layer.training = True
        for name, value in list(vars(layer).items()):
            if "drop" in name and isinstance(value, float):
                setattr(layer, name, 0.0)


def causal_model(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _states(trunk: PreTrainedModel, batch: TokenBatch, rows: PackedRows | None) -> Tensor:
    """(S, hidden), the last hidden state that each sampled token was drawn in."""
    if rows is not None:
        return packed_hidden(trunk, rows)[rows.states_S]
    return padded_hidden(trunk, batch.input_ids[:, :-1])[batch.loss_mask[:, 1:]]


def _scatter(values_S: Tensor, batch: TokenBatch) -> Tensor:
    out = values_S.new_zeros(batch.input_ids.shape)
    return out.masked_scatter(batch.loss_mask, values_S)


def build_policy(config: ModelConfig, critic: CriticConfig, *, seed: int) -> Policy:
    """A fresh policy at its starting weights."""
    model = load_model(config.path, config)
    if config.lora is not None:
        model = with_adapters(model, config.lora, seed)
    return Policy(
        model,
        config,
        _build_critic(model, config, critic),
        detach_value=critic.kind == "head" and critic.detach,
    )


def with_adapters(model: PreTrainedModel, lora: LoraConfig, seed: int) -> PeftModel:
    """`model` with fresh low-rank adapters; the same seed gives the same ones."""
    settings = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # peft draws its matrices from the global generator
        try:
            with warnings.catch_warnings():  # peft asks for a name that transformers has changed
                warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
                return get_peft_model(model, settings).eval()
        except ValueError as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"model.lora.target_modules is {lora.target_modules!r}, which does not fit the "
                f"model: {reason}"
            ) from None


def _build_critic(
    model: PreTrainedModel | PeftModel, config: ModelConfig, critic: CriticConfig
) -> nn.Module | None:
    if critic.kind == "none":
        return None
    device = next(model.parameters()).device
    head = ValueHead(causal_model(model).config.get_text_config().hidden_size, device)
    if critic.kind == "head":
        return head
    trunk = load_model(critic.path or config.path, config).base_model
    packs = config.packing and enable_packing(trunk) is None
    return ModelCritic(trunk.requires_grad_(True), head, packs=packs)
