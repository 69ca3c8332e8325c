"""An engine over a server that samples: a request each, many at once, in threads that wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import IntArray, Support
from echoscope.text.user_code import call, loaded

from ...config.engine import OpenAiEngineConfig
from ...config.loading import ConfigError
from ...policy import causal_model
from ..base import (
    Engine,
    EngineError,
    PromptLimits,
    ReplyWatch,
    Sample,
    SamplingParams,
    check_idle,
)
from ..vllm.transfer import Transfer, Transfers
from ..vllm.weights import WeightFiles
from .http import HttpServer, ServerRefusedError
from .protocol import PATH, Ask, Reply, body_of, checked_reply, reply_of

MAX_SUPPORT = 1024
"""Tokens left in by truncation that are asked of a server at one place, at most."""
_RELOAD = "echoscope_reload"
_DEV_MODE = "VLLM_SERVER_DEV_MODE=1 in its environment"
_EXTENSION = (
    "core/engines/vllm/worker on its PYTHONPATH and with --worker-extension-cls "
    "echoscope_vllm_worker.EchoscopeWorker"
)
_ADAPTERS = (
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment and with --enable-lora --max-lora-rank N"
)
_TIES = 16


@dataclass(slots=True, kw_only=True, eq=False)
class _Pending:
    ask: Ask
    watch: ReplyWatch | None
    future: Future[Reply]


class ServerEngine(Engine):
    """An engine over a server with token ids and log-probs.

    Entropies are None. A watch ends a reply after the server has sampled it to its end.

    Args:
        config: of its servers the first is asked.
        model: the policy whose weights the server gets; its vocabulary and positions bound
            requests.
        positions: longest prompt and reply together; None for what the model allows.
        api_key: of the server; None for the one in the variable `engine.api_key_env`.
        files: through which several engines of one policy give their servers its weights; whoever
            made them says when all have loaded them. None: this engine makes its own.
        transfers: through which it gives its server the weights where they can go so; else, and
            where it is None, they go through files.

    Raises:
        ConfigError: settings that do not fit each other or the model.
        EngineError: the server cannot be reached, or takes no weights.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        *,
        config: OpenAiEngineConfig,
        positions: int | None = None,
        policy_version: int = 0,
        report: Callable[[str], None] = lambda text: None,
        api_key: str | None = None,
        files: WeightFiles | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        base = causal_model(model)
        most = int(base.config.max_position_embeddings)
        self._config = config
        self._report = report
        self._limits = PromptLimits(
            vocab_size=int(base.get_input_embeddings().num_embeddings),
            positions=most if positions is None else min(positions, most),
        )
        if api_key is None and config.api_key_env is not None:
            api_key = os.environ.get(config.api_key_env)
            if not api_key:
                raise ConfigError(
                    f"engine.api_key_env names {config.api_key_env}, but no such variable is set"
                )
        self._server = HttpServer(config.urls[0], api_key=api_key)
        self._pending: dict[int, _Pending] = {}
        self._policy_version = policy_version
        self._num_adapters = 0
        self._sync_s = 0.0
        self._own_files = None
        if files is None and config.weights == "vllm":
            files = self._own_files = WeightFiles(model, config.weights_folder)
        self._files = files
        self._transfers = transfers
        self._transfer: Transfer | None = None
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(
            max_workers=min(config.max_batch_rows, 256), thread_name_prefix="echoscope-engine"
        )
        try:
            self._model_name = self._served_model()
            if transfers is not None and config.weights == "vllm":
                self._transfer = transfers.opened(self._server)
            self._sync(model, policy_version)
        except BaseException:
            self.close()
            raise

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        self._check_open()
        ids, limit = self._limits.checked(key, prompt, params, self._pending)
        ask = Ask(
            prompt=ids.tolist(),
            params=params,
            limit=limit,
            seed=seed,
            num_logprobs=self._num_logprobs(params),
        )
        watch = params.watch() if params.watch is not None else None
        assert self._threads is not None
        self._pending[key] = _Pending(
            ask=ask, watch=watch, future=self._threads.submit(self._asked, ask)
        )

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """Wait for a reply, at most `max_wait_s`, and return those that have come.

        Raises:
            EngineError: a request failed in every attempt, or its answer is not what was asked for.
        """
        if not self._pending:
            return []
        self._check_open()
        futures = {pending.future: key for key, pending in self._pending.items()}
        done, _ = wait(futures, timeout=max_wait_s, return_when=FIRST_COMPLETED)
        finished: list[tuple[int, Sample]] = []
        for future in done:
            key = futures[future]
            finished.append((key, self._sample(self._pending.pop(key), future.result())))
        return finished

    def cancel(self) -> None:
        if self._pending:
            for pending in self._pending.values():
                pending.future.cancel()
            self._pending.clear()
            self._server.abort()

    def take_metrics(self) -> dict[str, float]:
        out = {
            "engine/sync_s": self._sync_s,
            "engine/num_retries": float(self._server.num_retries),
        }
        self._sync_s, self._server.num_retries = 0.0, 0
        return out

    def sync_weights(self, policy: Any) -> None:
        """Give the server the policy's weights, as `engine.weights` says.

        A server with fixed weights keeps them, and its samples keep their version.

        Raises:
            RuntimeError: requests are pending, or the engine is closed.
            EngineError: the server does not take the weights.
        """
        check_idle(self.num_pending, "sync_weights")
        self._check_open()
        started = time.perf_counter()
        self._sync(policy.model, int(policy.version))
        self._sync_s += time.perf_counter() - started

    def close(self) -> None:
        """Cut off what is under way. The server itself goes on."""
        self.cancel()
        threads, self._threads = self._threads, None
        if threads is not None:
            self._server.abort()
            threads.shutdown(wait=True, cancel_futures=True)
        if self._transfer is not None:
            self._transfer.close()
        if self._own_files is not None:
            self._own_files.remove()

    # -- requests --------------------------------------------------------------------------------

    def _asked(self, ask: Ask) -> Reply:
        answer = self._server.post(PATH, body_of(ask, self._model_name))
        return checked_reply(reply_of(answer, ask), ask, self._limits.vocab_size)

    def _num_logprobs(self, params: SamplingParams) -> int:
        vocab_size = self._limits.vocab_size
        if not (params.records_support and params.truncates(vocab_size)):
            return 0
        if params.top_k and params.top_k + _TIES <= MAX_SUPPORT:
            return min(params.top_k + _TIES, vocab_size)
        if vocab_size <= MAX_SUPPORT:
            return vocab_size
        raise ConfigError(
            "a server tells which tokens truncation left in only up to "
            f"{MAX_SUPPORT - _TIES}: set sampling.top_k to at most {MAX_SUPPORT - _TIES} beside "
            "sampling.top_p or sampling.min_p, or set engine.kind=hf"
        )

    def _sample(self, pending: _Pending, reply: Reply) -> Sample:
        size, reason = len(reply.tokens), reply.finish_reason
        if (watch := pending.watch) is not None:
            for index, token in enumerate(reply.tokens):
                watched = watch.ends(token)
                # A stop token ends a reply before the watch does.
                if watched is not None and token not in pending.ask.params.stop_token_ids:
                    size, reason = index + 1, watched
                    break
        return Sample(
            tokens=np.array(reply.tokens[:size], dtype=np.int32),
            logprobs=np.array(reply.logprobs[:size], dtype=np.float32),
            entropies=None,
            support=self._support(reply.left_in, size),
            finish_reason=reason,
            policy_version=self._policy_version,
        )

    def _support(self, left_in: Sequence[list[int]] | None, size: int) -> Support | None:
        if left_in is None:
            return None
        places = [[] if len(ids) == self._limits.vocab_size else ids for ids in left_in[:size]]
        if not any(places):
            return None
        return Support(
            sizes=np.array([len(ids) for ids in places], dtype=np.int32),
            tokens=np.array([token for ids in places for token in ids], dtype=np.int32),
        )

    # -- weights ---------------------------------------------------------------------------------

    def _sync(self, model: PreTrainedModel | PeftModel, version: int) -> None:
        if self._config.weights == "fixed":
            return
        name = self._config.sync_hook
        if name is not None:
            call("weight_sync", name, loaded("weight_sync", name), model, version, self._server)
        else:
            self._sync_vllm(model, version)
        self._policy_version = version

    def _sync_vllm(self, model: PreTrainedModel | PeftModel, version: int) -> None:
        """Through vLLM's development routes and the worker extension of this package."""
        if self._transfer is not None:
            _check_versions(self._sent(self._transfer, model, version), version, self._server.url)
        else:
            self._load(model, version)
        if self._own_files is not None:
            self._own_files.are_loaded()
        self._weights_are_in()
        emptied = self._told("/reset_prefix_cache", needs=_DEV_MODE)
        if not (isinstance(emptied, dict) and emptied.get("success")):
            raise EngineError(
                f"{self._server.url} could not empty its prefix cache after new weights came: it "
                "serves somebody else too"
            )

    def _sent(self, transfer: Transfer, model: PreTrainedModel | PeftModel, version: int) -> Any:
        assert self._transfers is not None
        try:
            return transfer.send(model, version)
        except EngineError as error:
            self._transfers.has_failed(error)
            raise

    def _load(self, model: PreTrainedModel | PeftModel, version: int) -> None:
        """Through files."""
        assert self._files is not None
        with self._files.reading(model) as path:
            if isinstance(model, PeftModel):
                self._load_adapter(path)
            else:
                body = {"method": _RELOAD, "args": [str(path), version]}
                answer = self._told("/collective_rpc", body, needs=_DEV_MODE)
                _check_versions(answer, version, self._server.url)

    def _told(
        self, path: str, body: dict[str, Any] | None = None, *, needs: str, is_text: bool = False
    ) -> Any:
        """The answer of a route that a server has only if it was started with what it `needs`."""
        try:
            return self._server.post(path, body, is_text=is_text)
        except ServerRefusedError as error:
            has_no_method = f"no attribute '{_RELOAD}'" in str(error)
            if error.status != 404 and not has_no_method:
                raise
            raise EngineError(
                f"{self._server.url} cannot take new weights: start vLLM with "
                f"{_EXTENSION if has_no_method else needs}"
            ) from None

    def _weights_are_in(self) -> None:
        """Between new weights and the emptying of the caches that hold the old ones' states."""

    def _load_adapter(self, path: Path) -> None:
        """Adapters under a new name each time: cached prefixes of the old ones are not theirs."""
        self._num_adapters += 1
        name = f"policy-{os.getpid()}-{self._num_adapters}"
        old_name, is_first = self._model_name, self._num_adapters == 1
        body = {"lora_name": name, "lora_path": str(path)}
        self._told("/v1/load_lora_adapter", body, needs=_ADAPTERS, is_text=True)
        self._model_name = name
        if not is_first:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": old_name}, is_text=True)

    def _served_model(self) -> str:
        """The name that the server gives its model, which has room for a prompt and its reply."""
        name, served_name, room = self._config.model, None, None
        try:
            models = self._server.get("/v1/models")["data"]
            model = next(model for model in models if name in (None, model["id"]))
            served_name, room = str(model["id"]), model.get("max_model_len")
        except (KeyError, TypeError, AttributeError, StopIteration):
            pass  # it names none
        except ServerRefusedError as error:
            if name is None or error.status != 404:
                raise
        most = self._limits.positions
        if isinstance(room, int) and room < most:
            raise EngineError(
                f"{self._server.url} has room for {room} tokens, but a prompt and its reply may "
                f"have {most}: start vLLM with --max-model-len {most}, or "
                "lower context.max_prompt_tokens or context.max_response_tokens"
            )
        if name is None and served_name is None:
            raise EngineError(f"{self._server.url}/v1/models names no model: set engine.model")
        return str(name or served_name)

    def _check_open(self) -> None:
        if self._threads is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")


def _check_versions(answer: Any, version: int, url: str) -> None:
    """Every worker of a server says which version of the weights it holds now."""
    held = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(held, list) or {str(version_text) for version_text in held} != {str(version)}:
        raise EngineError(
            f"{url} was sent version {version} of the weights, but says that it holds "
            f"{str(held)[:80]}"
        )
