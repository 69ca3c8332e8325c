"""vLLM in this process: its scheduler, its kernels, its cache; the policy's weights copied in."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import FinishReason, IntArray, Support

from ...config.engine import CPU_CACHE_GIB, VllmEngineConfig
from ...config.loading import ConfigError
from ..base import EngineError, ReplyWatch, Sample, SamplingParams
from ..batching import check_idle
from ..hf.sampling import PolicyNumericsError
from ..requests import StreamedEngine, checked_prompt, watched_end
from .install import VllmMissingError, require_vllm
from .weights import (
    SharedFolder,
    adapter_settings,
    named_weights,
    num_bytes,
    save_adapter,
    save_weights,
)
from .worker.echoscope_vllm_worker import repair_tied_head

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of an attention head that vLLM computes on the CPU. Others fail at the first request."""
MAX_SUPPORT = 4096
"""Tokens left in by truncation that are recorded at one place, at most."""
_TIES = 16
"""Tokens beyond `top_k` that are asked for: those as likely as the last one stay in too."""
_LIVE: WeakSet[VllmEngine] = WeakSet()
"""Engines of this process that are not closed: vLLM keeps its groups in global variables."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A request under way, and what has come of it."""

    prompt_len: int
    params: SamplingParams
    watch: ReplyWatch | None
    tokens: list[int]
    logprobs: list[float]
    support_sizes: list[int]
    support_tokens: list[int]


class VllmEngine(StreamedEngine):
    """A `StreamingEngine` over vLLM in this process.

    Entropies are None: vLLM reports log-probs of sampled tokens only.

    Args:
        model: the policy, LoRA adapters included. Its weights are copied, now and at each
            `sync_weights`; adapters go as adapters, and the model under them is copied once.
        folder: a model folder with the shape of `model`, or a hub id.
        positions: longest prompt and reply together; None for what the model allows.

    Raises:
        VllmMissingError: vLLM is missing, of another version, or cannot be imported.
        ConfigError: a model that vLLM cannot run here.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        folder: str,
        *,
        config: VllmEngineConfig,
        positions: int | None = None,
        policy_version: int = 0,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        require_vllm()
        if _LIVE:
            raise RuntimeError(
                "vLLM runs once in a process: close its other engine first, or set "
                "engine.kind=vllm_server"
            )
        self._config = config
        self._report = report
        base = base_of(model)
        most = int(base.config.max_position_embeddings)
        self._positions = most if positions is None else min(positions, most)
        self._vocab_size = int(base.get_input_embeddings().num_embeddings)
        self._requests: dict[int, _Request] = {}
        self._lora: Any = None
        self._num_adapters = 0
        self._sync_s = 0.0
        self._is_asleep = False
        is_peft = isinstance(model, PeftModel)
        self._folder = SharedFolder(num_bytes(model) if is_peft or config.weights == "files" else 0)
        self._engine: Any = None
        try:
            with _undisturbed():
                _LIVE.add(self)
                self._engine = self._start(model, base, folder)
            self._load(model, policy_version)
        except BaseException:
            self.close()
            raise

    @property
    def num_pending(self) -> int:
        return len(self._requests)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        engine = self._open_engine()
        if key in self._requests:
            raise ValueError(f"request {key} is pending already: give each request its own key")
        ids, limit = checked_prompt(
            key, prompt, params, vocab_size=self._vocab_size, positions=self._positions
        )
        from vllm.inputs import tokens_input

        engine.add_request(
            str(key),
            tokens_input(ids),
            self._sampling(params, limit, seed),
            lora_request=self._lora,
        )
        self._requests[key] = _Request(
            prompt_len=len(ids),
            params=params,
            watch=params.watch() if params.watch is not None else None,
            tokens=[],
            logprobs=[],
            support_sizes=[],
            support_tokens=[],
        )

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """One token of every request; returns those that finished.

        Raises:
            PolicyNumericsError: NaN in the log-probs.
        """
        if not self._requests:
            return []
        engine = self._open_engine()
        finished: list[tuple[int, Sample]] = []
        with torch.inference_mode():
            outputs = engine.step()
        for output in outputs:
            key = int(output.request_id)
            request = self._requests.get(key)
            if request is None:
                continue
            sample = self._followed(key, request, output.outputs[0])
            if sample is not None:
                del self._requests[key]
                finished.append((key, sample))
        return finished

    def cancel(self) -> None:
        if self._requests and self._engine is not None:
            self._engine.abort_request([str(key) for key in self._requests])
        self._requests.clear()

    def release_memory(self) -> None:
        """Let the device sleep, where vLLM can: its weights move to the host, its cache is freed.

        On the CPU the cache keeps its fixed size (`engine.kv_cache_gib`).
        """
        engine = self._open_engine()
        if self._config.sleep and has_gpu() and not self._is_asleep:
            engine.sleep(level=1)
            self._is_asleep = True

    def sync_weights(self, policy: Any) -> None:
        """Sample from `policy.model` as `policy.version` from now on; the prefix cache is empty.

        Raises:
            RuntimeError: requests are pending, the engine is closed, or vLLM kept cached keys and
                values of the old weights.
        """
        check_idle(self.num_pending, "sync_weights")
        self._open_engine()
        started = time.perf_counter()
        self._load(policy.model, int(policy.version))
        self._sync_s += time.perf_counter() - started

    def take_metrics(self) -> dict[str, float]:
        """See `Measured`."""
        sync_s, self._sync_s = self._sync_s, 0.0
        return {"engine/sync_s": sync_s}

    def close(self) -> None:
        """End vLLM in this process and free its memory; what is pending is dropped."""
        self._requests.clear()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()
        _LIVE.discard(self)
        self._folder.remove()

    # -- the engine ------------------------------------------------------------------------------

    def _start(self, model: PreTrainedModel | PeftModel, base: PreTrainedModel, folder: str) -> Any:
        on_cpu = not has_gpu()
        if on_cpu:
            check_head_size(base)
        try:
            from vllm import EngineArgs, LLMEngine
        except (ImportError, RuntimeError) as error:
            raise VllmMissingError(
                f"vLLM cannot be imported: {_one_line(error)}; on a machine without a GPU type "
                "pip uninstall -y torchvision torchaudio torchcodec"
            ) from None
        config = self._config
        arguments: dict[str, Any] = {
            "model": folder,
            "dtype": dtype_name(base) if config.dtype == "auto" else config.dtype,
            "skip_tokenizer_init": True,
            "max_model_len": self._positions,
            "max_num_seqs": config.max_batch_rows,
            "enforce_eager": on_cpu if config.eager is None else config.eager,
            "enable_prefix_caching": True,
            "enable_sleep_mode": config.sleep and not on_cpu,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": min(self._vocab_size, MAX_SUPPORT + _TIES),
            "generation_config": "vllm",
            "disable_log_stats": True,
        }
        if config.kv_cache_gib is not None or on_cpu:
            arguments["kv_cache_memory_bytes"] = int((config.kv_cache_gib or CPU_CACHE_GIB) * 2**30)
        else:
            arguments["gpu_memory_utilization"] = config.gpu_memory
        if isinstance(model, PeftModel):
            arguments |= adapter_settings(model)
        arguments |= config.options
        try:
            return LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, RuntimeError, TypeError, NotImplementedError, OSError) as error:
            raise ConfigError(
                f"vLLM cannot run {folder}: {_one_line(error)}; change engine.options or "
                "engine.kv_cache_gib, or set engine.kind=hf"
            ) from None

    def _load(self, model: PreTrainedModel | PeftModel, version: int) -> None:
        engine = self._engine
        if self._is_asleep:  # the cache stays away while two copies of the weights are about
            give_back_cached_blocks()
            engine.wake_up(tags=["weights"])
        if isinstance(model, PeftModel):
            self._load_adapter(model)
        elif self._config.weights == "memory":
            engine.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": named_weights(model)}
            )
        else:
            path = save_weights(model, self._folder.path)
            engine.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            shutil.rmtree(path)
        engine.apply_model(repair_tied_head)
        if self._is_asleep:
            engine.wake_up(tags=["kv_cache"])
            self._is_asleep = False
        if not engine.reset_prefix_cache():
            raise EngineError("vLLM could not empty its prefix cache after new weights came")
        engine.set_weight_version(str(version))

    def _load_adapter(self, model: PeftModel) -> None:
        """Adapters under a name of their own: vLLM tells cached prefixes apart by it."""
        from vllm.lora.request import LoRARequest

        self._num_adapters += 1
        number = self._num_adapters
        path = save_adapter(model, self._folder.path, number)
        if self._lora is not None:
            self._engine.remove_lora(number - 1)
            shutil.rmtree(self._lora.lora_path, ignore_errors=True)
        self._lora = LoRARequest(
            lora_name=f"policy-{number}", lora_int_id=number, lora_path=str(path)
        )
        self._engine.add_lora(self._lora)

    def _wake(self) -> None:
        if self._is_asleep:
            give_back_cached_blocks()
            self._engine.wake_up()
            self._is_asleep = False

    def _open_engine(self) -> Any:
        if self._engine is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        return self._engine

    # -- one request -----------------------------------------------------------------------------

    def _sampling(self, params: SamplingParams, limit: int, seed: int) -> Any:
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._wake()
        greedy = params.temperature == 0
        return VllmSamplingParams(
            max_tokens=limit,
            temperature=params.temperature,
            top_p=1.0 if greedy else params.top_p,
            top_k=0 if greedy else params.top_k,
            min_p=0.0 if greedy else params.min_p,
            seed=seed % 2**63,
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=True,  # only what the caller names ends a reply
            logprobs=self._num_logprobs(params),
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY
            if params.watch is None
            else RequestOutputKind.DELTA,
        )

    def _num_logprobs(self, params: SamplingParams) -> int:
        """Log-probs at each place: of the sampled token alone, or of all that were left in."""
        if not (params.records_support and params.truncates(self._vocab_size)):
            return 0
        if params.top_k:
            return min(params.top_k + _TIES, self._vocab_size, MAX_SUPPORT)
        if self._vocab_size > MAX_SUPPORT:
            raise ConfigError(
                "the vLLM engine records which tokens truncation left in only up to "
                f"{MAX_SUPPORT}: set sampling.top_k to at most {MAX_SUPPORT} beside sampling.top_p "
                "or sampling.min_p, or set engine.kind=hf"
            )
        return self._vocab_size

    def _followed(self, key: int, request: _Request, output: Any) -> Sample | None:
        """Take in what a step brought; the sample if the request has ended."""
        new = list(output.token_ids)
        held: Any = output.logprobs or ()
        if len(held) != len(new):
            raise EngineError(
                f"vLLM gave {len(new)} tokens of request {key} and {len(held)} log-probs"
            )
        request.tokens += new
        if new and self._num_logprobs(request.params) == 0:
            request.logprobs += held.logprobs
        elif new:
            self._take_support(request, new, held)
        reason = output.finish_reason
        if request.watch is not None and new:
            end = watched_end(request.watch, new, request.params.stop_token_ids)
            if end is not None:
                size = len(request.tokens) - len(new) + end[0]
                if reason is None:
                    self._engine.abort_request([str(key)])
                return self._sample(request, size, end[1], output)
        if reason is None:
            return None
        if reason not in ("stop", "length"):
            raise EngineError(f"vLLM ended request {key} with {reason}: look at its log above")
        return self._sample(request, len(request.tokens), FinishReason(reason), output)

    def _take_support(self, request: _Request, new: list[int], held: Any) -> None:
        for token, by_token in zip(new, held, strict=True):
            request.logprobs.append(by_token[token].logprob)
            left_in = sorted(t for t, entry in by_token.items() if np.isfinite(entry.logprob))
            is_whole = len(left_in) == self._vocab_size
            request.support_sizes.append(0 if is_whole else len(left_in))
            request.support_tokens += [] if is_whole else left_in

    def _sample(self, request: _Request, size: int, reason: FinishReason, output: Any) -> Sample:
        logprobs = np.array(request.logprobs[:size], dtype=np.float32)
        if not np.isfinite(logprobs).all():
            raise PolicyNumericsError(
                "the policy's logits hold NaN or infinity: lower optim.lr and resume from the last "
                "checkpoint"
            )
        support = None
        if request.support_sizes and any(request.support_sizes):
            support = Support(
                sizes=np.array(request.support_sizes, dtype=np.int32),
                tokens=np.array(request.support_tokens, dtype=np.int32),
            ).first(size)
        return Sample(
            tokens=np.array(request.tokens[:size], dtype=np.int32),
            logprobs=logprobs,
            entropies=None,
            support=support,
            finish_reason=reason,
            policy_version=_version(output, self._engine),
        )


def _version(output: Any, engine: Any) -> int:
    """The version of the weights that sampled, by vLLM's own record."""
    spans = output.weight_versions
    label = spans[0].version if spans else engine.get_weight_version()
    return int(label)


def has_gpu() -> bool:
    """Whether vLLM samples on a GPU, where it may sleep."""
    return torch.cuda.is_available()


def give_back_cached_blocks() -> None:
    """Before vLLM wakes: torch keeps what the update has freed, and vLLM could not take it."""
    torch.cuda.empty_cache()


def base_of(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The model under its adapters."""
    base: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model
    return base


def dtype_name(model: PreTrainedModel) -> str:
    """As vLLM spells the precision of the weights."""
    return str(model.get_input_embeddings().weight.dtype).removeprefix("torch.")


def check_head_size(model: PreTrainedModel) -> None:
    """Raises ConfigError for attention heads that vLLM cannot compute on the CPU."""
    config: Mapping[str, Any] = model.config.to_dict()
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if size not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"the model's attention heads are {size} wide, but vLLM on the CPU computes widths "
            f"{', '.join(map(str, CPU_HEAD_SIZES))} only: set engine.kind=hf"
        )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Start vLLM without a trace in this process: it seeds every random generator, takes over
    `torch.set_num_threads`, and reads its mode from the environment."""
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    defaults = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)
        torch.set_default_dtype(dtype)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        for name, earlier in before.items():
            if earlier is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = earlier
