"""Log-probs and entropies chunk by chunk: the same numbers, with never more logits than a chunk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from echoscope.core.config.loading import ConfigError
from echoscope.core.update import vocabulary
from echoscope.core.update.vocabulary import SampledTokens, VocabularyHead

NUM_TOKENS, HIDDEN, VOCABULARY = 23, 8, 300
CHUNK = 5
KINDS = ["whole", "warm", "truncated", "partly truncated", "bias", "frozen"]


def case(kind: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, Tensor, SampledTokens]:
    """An output layer, hidden states, and what was sampled."""
    generator = torch.Generator().manual_seed(7)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=kind == "bias", dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    head.requires_grad_(kind != "frozen")
    hidden = torch.randn((NUM_TOKENS, HIDDEN), generator=generator).to(dtype).requires_grad_(True)
    targets = torch.randint(0, VOCABULARY, (NUM_TOKENS,), generator=generator)
    temperatures = None
    if kind != "whole":
        temperatures = torch.rand(NUM_TOKENS, generator=generator) + 0.5
    sizes, tokens = None, None
    if "truncated" in kind:
        sizes = torch.randint(1, 9, (NUM_TOKENS,), generator=generator)
        if kind == "partly truncated":
            sizes[::3] = 0
        others = torch.randperm(VOCABULARY, generator=generator).tolist()
        kept: list[int] = []
        for target, size in zip(targets.tolist(), sizes.tolist(), strict=True):
            some = [token for token in others if token != target][: max(size - 1, 0)]
            kept += [target, *some][:size]
        tokens = torch.tensor(kept)
    sampled = SampledTokens(
        targets=targets, temperatures=temperatures, support_sizes=sizes, support_tokens=tokens
    )
    return head, hidden, sampled


def naive(head: nn.Linear, hidden: Tensor, sampled: SampledTokens) -> tuple[Tensor, Tensor]:
    """Token by token, in the layer's own precision."""
    logprobs, entropies, start = [], [], 0
    for index, target in enumerate(sampled.targets.tolist()):
        logits = head(hidden[index])
        if sampled.temperatures is not None:
            logits = logits / sampled.temperatures[index]
        kept = list(range(VOCABULARY))
        if sampled.support_sizes is not None and sampled.support_tokens is not None:
            size = int(sampled.support_sizes[index])
            if size:
                kept = sampled.support_tokens[start : start + size].tolist()
            start += size
        logp = logits[kept].log_softmax(-1)
        logprobs.append(logp[kept.index(target)])
        entropies.append(-(logp.exp() * logp).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def loss_of(outputs: tuple[Tensor, Tensor], asked: str) -> Tensor:
    """Each token weighs differently, so that no gradient goes to another token unseen."""
    weights = torch.linspace(-1, 2, NUM_TOKENS)
    parts = {"logprobs": outputs[0] @ weights.to(outputs[0].dtype), "entropies": 0.0}
    if asked != "logprobs":
        parts["entropies"] = outputs[1] @ weights.flip(0).to(outputs[1].dtype)
    if asked == "entropies":
        parts["logprobs"] = 0.0
    return torch.as_tensor(parts["logprobs"] + parts["entropies"])


def gradients(head: nn.Linear, hidden: Tensor, loss: Tensor) -> list[Tensor]:
    inputs = [hidden, *(p for p in head.parameters() if p.requires_grad)]
    return list(torch.autograd.grad(loss, inputs, retain_graph=True))


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LOGITS_AT_ONCE", CHUNK * VOCABULARY)


@pytest.mark.parametrize("asked", ["logprobs", "entropies", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_give_the_numbers_and_gradients_of_each_token_alone(
    chunked: None, kind: str, asked: str
) -> None:
    head, hidden, sampled = case(kind, torch.float32)
    outputs = VocabularyHead(head, SimpleNamespace())(hidden, sampled)
    exact_head, exact_hidden, _ = case(kind)
    expected = naive(exact_head, exact_hidden, sampled)
    for actual, exact in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual.double(), exact, atol=1e-5, rtol=1e-6)
    found_gradients = gradients(head, hidden, loss_of(outputs, asked))
    exact_gradients = gradients(exact_head, exact_hidden, loss_of(expected, asked))
    for actual, exact in zip(found_gradients, exact_gradients, strict=True):
        torch.testing.assert_close(actual.double(), exact, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_one_piece_agree(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, sampled = case(kind, torch.float32)
    whole = VocabularyHead(head, SimpleNamespace())(hidden, sampled)
    expected = gradients(head, hidden, loss_of(whole, "both"))
    monkeypatch.setattr(vocabulary, "LOGITS_AT_ONCE", CHUNK * VOCABULARY)
    outputs = VocabularyHead(head, SimpleNamespace())(hidden, sampled)
    again = gradients(head, hidden, loss_of(outputs, "both"))
    torch.testing.assert_close(outputs, whole, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
    twice = gradients(head, hidden, loss_of(outputs, "both"))  # the graph was retained
    torch.testing.assert_close(twice, again, atol=0, rtol=0)
    head.__class__ = type("OwnLinear", (torch.nn.Linear,), {})  # a layer of another kind is called
    called = VocabularyHead(head, SimpleNamespace())(hidden, sampled)
    torch.testing.assert_close(called, whole, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        gradients(head, hidden, loss_of(called, "both")), expected, atol=1e-5, rtol=1e-5
    )
    with torch.no_grad():
        silent = VocabularyHead(head, SimpleNamespace())(hidden, sampled)
    torch.testing.assert_close(silent, whole, atol=1e-6, rtol=1e-6)


def test_bfloat16_layers_give_float32_numbers(chunked: None) -> None:
    head, hidden, sampled = case("warm", torch.bfloat16)
    outputs = VocabularyHead(head, SimpleNamespace())(hidden, sampled)
    assert {output.dtype for output in outputs} == {torch.float32}
    by_hidden, by_weight = gradients(head, hidden, loss_of(outputs, "both"))
    assert (by_hidden.dtype, by_weight.dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(
        outputs[0], naive(head, hidden, sampled)[0].float(), atol=0.2, rtol=0
    )


class Largest(TorchDispatchMode):
    """The most numbers that an operation has given back in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_than_a_chunk_of_logits_is_ever_made(chunked: None, kind: str) -> None:
    head, hidden, sampled = case(kind, torch.float32)
    with Largest() as largest:
        loss_of(VocabularyHead(head, SimpleNamespace())(hidden, sampled), "both").backward()
    # The layer's own weight and its gradient are larger than a chunk of logits.
    assert largest.size == HIDDEN * VOCABULARY > CHUNK * VOCABULARY
    assert largest.size < NUM_TOKENS * VOCABULARY


def test_a_model_that_scales_its_logits_is_refused() -> None:
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        VocabularyHead(nn.Linear(2, 3), SimpleNamespace(final_logit_softcapping=30.0))
