"""What taking gradients apart costs: against the passes of an update.

Three cases, each on the same batch in the same run: the shipped policy on a step's worth of rows
(the decomposition into terms, buckets and groups too, against one update's passes), and wide models
of two layers at lengths up to 512, as full weights and as LoRA. Times are the best of a few.

    python benchmarks/gradient_norms.py [--width 1024] [--length 256] [--repeats 3] [--json]
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from common import describe_machine, print_json, read_options, seconds_of
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.loss import ClipLossConfig
from echoscope.core.config.settings import LoraConfig, ModelConfig
from echoscope.core.policy import Policy, load_model, with_adapters
from echoscope.core.update.batch import TokenBatch, microbatches, select_rows
from echoscope.core.update.losses import Denominators, LossTerms, compute_loss
from echoscope.diagnostics.measure.gradients import decompose

LOSS = ClipLossConfig()


def make_batch(rows: int, width: int, vocabulary: int, group_size: int) -> TokenBatch:
    """Full rows, the last three quarters of each sampled, with random advantages."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(width) >= width // 4).expand(rows, width).clone()
    noise = torch.randn(rows, width, generator=generator) * mask
    index = torch.arange(rows)
    return TokenBatch(
        input_ids=torch.randint(vocabulary, (rows, width), generator=generator),
        attention_mask=torch.ones(rows, width, dtype=torch.bool),
        loss_mask=mask,
        turn_index=torch.where(mask, 0, -1),
        behaviour_logprobs=-5.0 * mask,
        token_rewards=torch.zeros(rows, width),
        trajectory_index=index,
        group_index=index // group_size,
        trajectory_num_tokens=mask.sum(1),
        advantages=noise,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A policy and the batch it would train on."""

    name: str
    policy: Policy
    batch: TokenBatch
    max_tokens: int
    """Padded tokens of a microbatch."""

    def terms(self, micro: TokenBatch) -> LossTerms:
        outputs = self.policy.outputs(micro)
        return compute_loss(outputs, micro, LOSS, Denominators.of(self.batch, norm_tokens=1))

    def forward(self) -> None:
        for micro, _ in microbatches(self.batch, self.max_tokens):
            self.terms(micro)

    def plain(self) -> None:
        """What an update does: gradients of all weights."""
        for micro, _ in microbatches(self.batch, self.max_tokens):
            self.terms(micro).total.backward()
        for parameter in self.policy.policy_parameters():
            parameter.grad = None

    def decompose(self) -> None:
        def terms_of(group: int) -> Iterator[dict[str, Tensor]]:
            rows = torch.nonzero(self.batch.group_index == group)[:, 0]
            for micro, _ in microbatches(select_rows(self.batch, rows), self.max_tokens):
                yield self.terms(micro).named

        num_groups = int(self.batch.group_index.max()) + 1
        stds = 0.1 * np.arange(num_groups)
        names = {n: p for n, p in self.policy.model.named_parameters() if p.requires_grad}
        decompose(terms_of, names, reward_std_P=stds, weights_P=np.ones(num_groups))


def shipped(rows: int, length: int) -> Case:
    config = ModelConfig(path="tiny", device="cpu")
    model = load_model("tiny", config)
    batch = make_batch(rows, length, model.config.vocab_size, group_size=8)
    policy = Policy(model, config, None)
    return Case(name="tiny", policy=policy, batch=batch, max_tokens=1024)


def wide(width: int, length: int, rows: int, *, lora: bool) -> Case:
    shape = Qwen2Config(
        vocab_size=2048,
        hidden_size=width,
        intermediate_size=int(2.75 * width),
        num_hidden_layers=2,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 256),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(shape).eval()
    config = ModelConfig(path="tiny", device="cpu")
    if lora:
        model = with_adapters(model, LoraConfig(rank=16, alpha=16), 0)
    batch = make_batch(rows, length, shape.vocab_size, group_size=2)
    name = f"width {width}, length {length}{', LoRA' if lora else ''}"
    policy = Policy(model, config, None)
    return Case(name=name, policy=policy, batch=batch, max_tokens=rows * length)


def measure(case: Case, repeats: int) -> dict[str, float | str]:
    forward, plain = (seconds_of(do, repeats) for do in (case.forward, case.plain))
    apart = seconds_of(case.decompose, repeats)
    return {
        "case": case.name,
        "forward_s": forward,
        "forward_backward_s": plain,
        "decompose_over_both": apart / plain,
    }


def main() -> None:
    arguments = read_options(__doc__, width=1024, length=256, rows=4, repeats=3, json=False)
    torch.set_num_threads(1)
    size = (arguments.width, arguments.length, arguments.rows)
    cases = [shipped(64, 128), wide(*size, lora=False), wide(*size, lora=True)]
    rows = [measure(case, arguments.repeats) for case in cases]
    if arguments.json:
        print_json(rows=rows)
        return
    print(describe_machine())
    for row in rows:
        print(
            f"{row['case']}: forward {row['forward_s']:.2f} s, with backward "
            f"{row['forward_backward_s']:.2f} s; the decomposition takes "
            f" {row['decompose_over_both']:.2f}"
        )


if __name__ == "__main__":
    main()
