"""What a sampling request and its answer look like: `/v1/completions` with token ids both ways.

Legend: **Lr** tokens of a reply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echoscope.store.records import FinishReason

from ..base import EngineError, SamplingParams

LEFT_OUT = -9000.0
"""Log-probs below are those of tokens that truncation left out: vLLM writes -9999 for -inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, checked."""

    prompt: Sequence[int]
    params: SamplingParams
    limit: int
    """New tokens, at most."""
    seed: int
    num_logprobs: int
    """Log-probs at each place beside the sampled token's: 0, or all that truncation leaves in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server sampled."""

    tokens: list[int]  # (Lr,)
    logprobs: list[float]  # (Lr,)
    finish_reason: FinishReason
    left_in: list[list[int]] | None = None
    """Per place, the tokens that truncation left in; None where nothing was asked."""


PATH = "/v1/completions"


def body_of(ask: Ask, model: str) -> dict[str, Any]:
    """What is sent for a request."""
    params = ask.params
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(ask.prompt),
        "max_tokens": ask.limit,
        "temperature": params.temperature,
        "top_p": 1.0,
        "seed": ask.seed % 2**63,
        "logprobs": ask.num_logprobs,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,  # only what the caller names ends a reply
        "add_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if params.temperature > 0:  # greedy leaves nothing out
        cuts = {"top_p": params.top_p, "top_k": params.top_k, "min_p": params.min_p}
        body |= {name: value for name, value in cuts.items() if value}
    return body


def reply_of(answer: Any, ask: Ask) -> Reply:
    """What an answer says.

    Raises:
        EngineError: a part is missing or of another type.
    """
    choice = _member(_member(answer, "choices", list, "choices"), 0, dict, "choices")
    tokens = _ids(choice.get("token_ids"), "choices[0].token_ids", "return_token_ids")
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and list(echoed) != list(ask.prompt):
        raise EngineError(
            f"the server sampled after a prompt of {len(echoed)} ids that is not the one of "
            f"{len(ask.prompt)} ids it was sent: it must take token ids as they are"
        )
    held = choice.get("logprobs")
    if not isinstance(held, dict):
        raise _no_logprobs("choices[0].logprobs")
    logprobs = _numbers(held.get("token_logprobs"), "choices[0].logprobs.token_logprobs")
    left_in = None
    if ask.num_logprobs:
        top = _member(held, "top_logprobs", list, "choices[0].logprobs.top_logprobs")
        left_in = [_left_in(entry) for entry in top]
    return Reply(
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=_reason(choice.get("finish_reason")),
        left_in=left_in,
    )


def checked_reply(reply: Reply, ask: Ask, vocab_size: int) -> Reply:
    """A reply that is what was asked for.

    Raises:
        EngineError: other ids, fewer tokens than asked, or log-probs that are none.
    """
    tokens, stops = reply.tokens, ask.params.stop_token_ids
    outside = [token for token in tokens if not 0 <= token < vocab_size]
    if outside:
        raise EngineError(
            f"the server sampled token id {outside[0]}, but the policy's vocabulary has "
            f"{vocab_size}: it serves another model"
        )
    if len(reply.logprobs) != len(tokens):
        raise EngineError(
            f"the server gave {len(tokens)} tokens and {len(reply.logprobs)} log-probs"
        )
    if any(value > 1e-3 or math.isnan(value) or math.isinf(value) for value in reply.logprobs):
        raise EngineError(
            "the server gave log-probs that are NaN, infinite or above 0: it must return those of "
            "the sampling distribution (vLLM: --logprobs-mode processed_logprobs)"
        )
    if not tokens or len(tokens) > ask.limit:
        raise EngineError(f"the server sampled {len(tokens)} tokens, but was asked for {ask.limit}")
    if reply.finish_reason is FinishReason.LENGTH and len(tokens) < ask.limit:
        raise EngineError(
            f"the server stopped after {len(tokens)} tokens, but was asked for {ask.limit}: give "
            "it room for context.max_prompt_tokens + context.max_response_tokens (vLLM: "
            "--max-model-len)"
        )
    if reply.finish_reason is FinishReason.STOP and tokens[-1] not in stops:
        raise EngineError(
            f"the server ended a reply with token {tokens[-1]}, which ends none here: it must "
            "return the stop token and have no stop tokens of its own (vLLM: --generation-config "
            "vllm)"
        )
    if reply.left_in is not None and len(reply.left_in) != len(tokens):
        raise EngineError("the server gave the likeliest tokens of some places only")
    return reply


def _member(value: Any, key: Any, kind: type, name: str) -> Any:
    try:
        member = value[key]
    except (KeyError, IndexError, TypeError):
        member = None
    if not isinstance(member, kind):
        raise EngineError(f"the server's answer has no {name}: does it speak /v1/completions?")
    return member


def _ids(value: Any, name: str, setting: str) -> list[int]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise EngineError(
            f"the server's answer has no token ids in {name}: it must know {setting}, as vLLM does"
        )
    return value


def _numbers(value: Any, name: str) -> list[float]:
    is_list = isinstance(value, list)
    if not is_list or any(type(item) not in (int, float) for item in value):
        raise _no_logprobs(name)
    return [float(item) for item in value]


def _no_logprobs(name: str) -> EngineError:
    return EngineError(
        f"the server's answer has no log-probs in {name}: training needs those of every sampled "
        "token"
    )


def _left_in(entry: Any) -> list[int]:
    """Token ids of `{"token_id:5": -0.3, ...}` that truncation left in."""
    if not isinstance(entry, dict):
        raise _no_logprobs("choices[0].logprobs.top_logprobs")
    out = []
    for name, value in entry.items():
        number = str(name).removeprefix("token_id:")
        if not number.isdigit():
            raise EngineError(f"the server names a token {str(name)[:40]!r} instead of by its id")
        if value is not None and value > LEFT_OUT:
            out.append(int(number))
    return sorted(out)


def _reason(value: Any) -> FinishReason:
    if value not in ("stop", "length"):
        raise EngineError(f"the server ended a reply with {str(value)[:40]!r}, not stop or length")
    return FinishReason(value)
