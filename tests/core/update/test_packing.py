"""Packed rows: no padding, shared beginnings once, and the numbers and gradients of padded rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from bench import Bench, make_bench
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from echoscope.core.config.settings import ModelConfig, RunConfig
from echoscope.core.policy import Policy
from echoscope.core.update import packing
from echoscope.core.update.batch import TokenBatch, select_rows
from echoscope.core.update.losses import Denominators, compute_loss
from echoscope.core.update.packing import (
    PackedRows,
    attend_ragged,
    enable_packing,
    packed_hidden,
    packed_microbatches,
    padded_hidden,
    shared_beginnings,
)
from echoscope.core.update.update import annotate, update

MakeConfig = Callable[..., RunConfig]

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
KINDS = {
    "llama": LlamaConfig(num_key_value_heads=2, **SHAPE),
    "qwen2": Qwen2Config(num_key_value_heads=1, **SHAPE),
    "qwen3": Qwen3Config(num_key_value_heads=4, head_dim=16, **SHAPE),
    "gpt_neox": GPTNeoXConfig(**SHAPE),
    "gpt2": GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}


def make_model(config: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def random_rows(rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded rows (B, T) of a few prompts' siblings, and which tokens are sampled."""
    ids, sampled = np.zeros((count, 30), np.int64), np.zeros((count, 30), bool)
    prompts = [rng.integers(0, 50, rng.integers(1, 14)) for _ in range(3)]
    for row in range(count):
        prompt = prompts[rng.integers(3)]
        replies = rng.integers(0, 50, rng.integers(1, 16))
        both = np.concatenate([prompt, replies])
        ids[row, : len(both)] = both
        sampled[row, len(prompt) : len(both)] = rng.random(len(replies)) < 0.6
    return torch.from_numpy(ids), torch.from_numpy(sampled)


# -- the layout ----------------------------------------------------------------------------------


def test_the_example_of_the_docstring() -> None:
    a, b, c, d, e, x = range(6)
    ids = torch.tensor([[a, b, c, d, x], [a, b, e, x, 0]])
    sampled = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 0, 1, 0]]).bool()
    rows = PackedRows.of(ids, sampled)
    assert rows.input_ids.tolist() == [[a, b, c, d, e]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 2]]
    assert rows.states_S.tolist() == [1, 3, 4]  # after b, after d, after e
    assert rows.num_row_tokens == 7


def test_rows_share_what_their_neighbours_begin_with() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ids, sampled = (t.numpy() for t in random_rows(rng, int(rng.integers(1, 9))))
        order, shared, ends = shared_beginnings(ids, sampled)
        assert sorted(order) == list(range(len(ids)))
        kept = [tuple(ids[row, : max(np.flatnonzero(sampled[row]), default=0)]) for row in order]
        assert [len(row) for row in kept] == ends.tolist()
        distinct = {row[:n] for row in kept for n in range(1, len(row) + 1)}
        assert int((ends - shared).sum()) == len(distinct), "a beginning is forwarded twice"


def test_microbatches_hold_every_row_once_and_siblings_together() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 9], [5, 6, 7, 8, 9], [1, 2, 3, 5, 9], [5, 6, 7, 9, 9]])
    batch = some_rows(ids, torch.tensor([[0, 0, 0, 1, 1]] * 4).bool())
    parts = packed_microbatches(batch, 5)
    assert [rows.tolist() for _, rows in parts] == [[0, 2], [1, 3]]
    together = packed_microbatches(batch, 10)
    assert [rows.tolist() for _, rows in together] == [[0, 2, 1, 3]]
    # A prompt longer than the limit still takes its siblings along, up to the limit once more.
    assert [rows.tolist() for _, rows in packed_microbatches(batch, 1)] == [[0, 2], [1, 3]]


def some_rows(ids: torch.Tensor, sampled: torch.Tensor) -> TokenBatch:
    zeros = torch.zeros(ids.shape)
    each = torch.arange(len(ids))
    return TokenBatch(
        input_ids=ids,
        attention_mask=torch.ones_like(sampled),
        loss_mask=sampled,
        turn_index=sampled.long() - 1,
        behaviour_logprobs=zeros,
        token_rewards=zeros,
        trajectory_index=each,
        group_index=each,
        trajectory_num_tokens=sampled.sum(1),
        advantages=torch.randn(ids.shape, generator=torch.Generator().manual_seed(1)),
    )


# -- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_states_and_gradients_are_those_of_padded_rows(kind: str, seed: int) -> None:
    model = make_model(KINDS[kind])
    ids, sampled = random_rows(np.random.default_rng(seed), 9)
    weights = torch.randn(int(sampled[:, 1:].sum()), 32, generator=torch.Generator().manual_seed(2))

    def run(states: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        parameters = [p for p in model.base_model.parameters() if p.requires_grad]
        return states.detach(), list(torch.autograd.grad((states * weights).sum(), parameters))

    padded = run(padded_hidden(model.base_model, ids[:, :-1])[sampled[:, 1:]])
    assert enable_packing(model) is None
    rows = PackedRows.of(ids, sampled)
    packed = run(packed_hidden(model.base_model, rows)[rows.states_S])
    assert rows.num_tokens < rows.num_row_tokens
    torch.testing.assert_close(packed[0], padded[0], atol=1e-5, rtol=1e-5)
    for mine, other in zip(packed[1], padded[1], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5 * float(other.abs().max()), rtol=1e-5)


def test_a_window_and_a_foreign_attention_are_padded() -> None:
    windowed = make_model(MistralConfig(num_key_value_heads=2, sliding_window=8, **SHAPE))
    assert "sliding_window" in (enable_packing(windowed) or "")
    assert windowed.config._attn_implementation == "sdpa"
    policy = Policy(windowed, ModelConfig(), None)
    assert policy.padded_because
    ids, sampled = random_rows(np.random.default_rng(0), 4)
    assert policy.outputs(some_rows(ids, sampled)).num_forwarded == 4 * 29


@pytest.mark.parametrize("takes_groups", [True, False])
def test_a_kernel_for_sequences_of_any_length_gives_the_same(takes_groups: bool) -> None:
    """The call that CUDA makes, answered by a loop over the sequences.

    Kernels of older torch take as many heads of keys as of queries.
    """

    def naive(
        q, k, v, query_ends, key_ends, most_q, most_k, *, scale, window_size, enable_gqa=False
    ):  # type: ignore[no-untyped-def]
        assert window_size == (-1, 0)
        out = torch.empty_like(q)
        for i in range(len(query_ends) - 1):
            mine = slice(int(query_ends[i]), int(query_ends[i + 1]))
            seen = slice(int(key_ends[i]), int(key_ends[i + 1]))
            num_q, num_k = mine.stop - mine.start, seen.stop - seen.start
            assert 0 < num_q <= most_q
            assert num_q <= num_k <= most_k
            groups = q.shape[1] // k.shape[1]
            assert enable_gqa == (groups > 1)
            assert groups == (2 if takes_groups else 1)
            for head in range(q.shape[1]):
                scores = scale * q[mine, head] @ k[seen, head // groups].T
                hidden = torch.ones(num_q, num_k).triu(num_k - num_q + 1).bool()
                weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
                out[mine, head] = weights @ v[seen, head // groups]
        return out

    ids, sampled = random_rows(np.random.default_rng(3), 7)
    rows = PackedRows.of(ids, sampled)
    make = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(rows.num_tokens, n, 8, generator=make) for n in (4, 2, 2))
    by_kernel = attend_ragged(naive, rows.ragged, query, key, value, 0.3, takes_groups=takes_groups)
    batched = (states.transpose(0, 1)[None] for states in (query, key, value))
    by_buckets, _ = packing.packed_attention(
        torch.nn.Identity(), *batched, None, packed_rows=rows, scaling=0.3
    )
    torch.testing.assert_close(by_buckets[0], by_kernel, atol=1e-5, rtol=1e-5)


# -- the update ----------------------------------------------------------------------------------

LORA = "model.lora={rank: 4, alpha: 8}"
SETTINGS = {
    "plain": (),
    "lora": (LORA,),
    "checkpointing": ("model.gradient_checkpointing=true",),
    "lora and checkpointing": (LORA, "model.gradient_checkpointing=true"),
    "critic head": ("critic.kind=head", "advantage.kind=gae", "loss.kl_coef=0.1"),
    "critic model": ("critic.kind=model", "advantage.kind=gae"),
    "entropy": ("loss.entropy_coef=0.1", "sampling.top_p=0.9"),
}


def numbers(bench: Bench, batch: TokenBatch) -> dict[str, torch.Tensor]:
    outputs = bench.policy.outputs(batch)
    denominators = Denominators.of(batch, bench.config.norm_tokens)
    compute_loss(outputs, batch, bench.config.loss, denominators).total.backward()
    critic = [] if bench.policy.critic is None else list(bench.policy.critic.named_parameters())
    named = [*bench.policy.model.named_parameters(), *critic]
    out = {f"gradient of {name}": p.grad.clone() for name, p in named if p.grad is not None}
    bench.optimizer.zero_grad()
    out |= {"logprobs": outputs.logprobs.detach(), "entropies": outputs.entropies.detach()}
    if outputs.values is not None:
        out["values"] = outputs.values.detach()
    return out


@pytest.mark.parametrize("name", SETTINGS)
def test_packed_is_padded_within_1e_5(make_config: MakeConfig, name: str) -> None:
    packed, padded = (
        make_bench(make_config(*SETTINGS[name], f"model.packing={flag}")) for flag in (True, False)
    )
    assert packed.policy.padded_because == ""
    assert padded.policy.padded_because == "model.packing is off"
    batch = packed.batch()
    mine, other = numbers(packed, batch), numbers(padded, batch)
    assert mine.keys() == other.keys()
    for key, value in other.items():
        gap = float((mine[key] - value).abs().max())
        assert gap <= 1e-5 * max(1.0, float(value.abs().max())), (key, gap)


def test_an_update_counts_what_it_forwards(make_config: MakeConfig) -> None:
    seen = {}
    for flag in (True, False):
        bench = make_bench(make_config(f"model.packing={flag}", "envs.group_size=4"))
        batch = bench.batch()
        seen[flag] = update(bench.policy, bench.optimizer, batch, bench.config, 1).metrics
    assert seen[True]["optim/forwarded_frac"] < 1 <= seen[False]["optim/forwarded_frac"]
    chosen = batch.advantages.ne(0).any(1)  # type: ignore[union-attr]
    rows = select_rows(batch, chosen.nonzero()[:, 0])
    packed = PackedRows.of(rows.input_ids, rows.loss_mask)
    frac = packed.num_tokens / packed.num_row_tokens
    assert seen[True]["optim/num_forwarded_tokens"] == packed.num_tokens
    assert seen[True]["optim/forwarded_frac"] == pytest.approx(frac)


def test_annotations_do_not_depend_on_packing(make_config: MakeConfig) -> None:
    settings = ("critic.kind=head", "advantage.kind=gae", "loss.kl_coef=0.1", "optim.epochs=2")
    benches = [make_bench(make_config(*settings, f"model.packing={f}")) for f in (True, False)]
    batch = benches[0].batch()
    (packed, mine), (padded, other) = (annotate(b.policy, batch, b.config) for b in benches)
    for left, right in ((packed.values, padded.values), (packed.ref_logprobs, padded.ref_logprobs)):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
