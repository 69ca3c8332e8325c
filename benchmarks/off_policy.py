"""What samples of another policy do to the gradient, and what each correction leaves of it.

The shipped policy on the bandit, with REINFORCE's leave-one-out baseline and sums over tokens, so
that the expected gradient on policy is the policy gradient. Three engines:

- stale: samples with the weights of three updates ago, and records their log-probs;
- differs: samples with weights that are the trainer's plus noise, as another precision would, and
  records their log-probs;
- lies: samples with the trainer's weights, and records 0.05 nats too much.

Every engine plays the same tasks with the same random numbers, so most of the noise cancels. Bias
squared is |E g - E g_on|^2 / |E g_on|^2, estimated without bias from pairs of batches (negative
where it is below the noise), with a jackknife standard error over batches. Gradients are compared
in a random sketch of 8,192 numbers, which keeps inner products within about 1 %.

    python benchmarks/off_policy.py [--batches 128] [--exact] [--json]

`--exact` prints the numbers of a policy so small that all its sequences can be enumerated.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

import numpy as np
import torch
from bench import Bench, make_bench
from common import describe_machine, markdown_table, read_options
from enumerated import World, bias, cosine
from numpy.typing import NDArray
from torch import Tensor, nn

from echoscope.core.config.loading import load_config
from echoscope.core.config.loss import ClipLossConfig, GspoLossConfig, LossConfig
from echoscope.core.config.settings import OffPolicyConfig
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.sources import EnvSource
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.losses import Denominators, compute_loss
from echoscope.core.update.update import update
from echoscope.envs.pool import EnvPool
from echoscope.store.records import RolloutBatch, Split

SUM = "seq_mean_token_sum"
CLIP, GSPO = ClipLossConfig(aggregation=SUM), GspoLossConfig(aggregation=SUM)
METHODS: Mapping[str, tuple[LossConfig, OffPolicyConfig]] = {
    "sampler's log-probs": (CLIP, OffPolicyConfig()),
    "sampler's log-probs, gspo": (GSPO, OffPolicyConfig()),
    "trainer's log-probs": (CLIP, OffPolicyConfig(old_logprobs="trainer")),
    "tis, token": (CLIP, OffPolicyConfig(old_logprobs="trainer", correction="tis")),
    "tis, sequence": (
        CLIP,
        OffPolicyConfig(old_logprobs="trainer", correction="tis", level="sequence"),
    ),
    "tis, sequence, no cap": (
        CLIP,
        OffPolicyConfig(old_logprobs="trainer", correction="tis", level="sequence", cap=None),
    ),
    "mis, token": (CLIP, OffPolicyConfig(old_logprobs="trainer", correction="mis")),
    "mis, sequence, 0.9 to 1.1": (
        CLIP,
        OffPolicyConfig(
            old_logprobs="trainer", correction="mis", level="sequence", low=0.9, high=1.1
        ),
    ),
}
MEASURED: Mapping[str, tuple[str, ...]] = {
    "stale": tuple(name for name in METHODS if name != "mis, sequence, 0.9 to 1.1"),
    "differs": ("sampler's log-probs", "trainer's log-probs", "tis, token", "tis, sequence"),
    "lies": ("sampler's log-probs", "sampler's log-probs, gspo", "trainer's log-probs"),
}
"""Methods that sampling measures; the exact numbers are of all."""
LIE = 0.05
NUM_UPDATES = 3
WEIGHT_NOISE = 0.05
"""Relative noise on the weights of the engine that differs."""
SKETCH = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One engine under one method."""

    engine: str
    method: str
    bias_squared: float
    bias_squared_se: float
    cosine: float
    cosine_se: float
    token_kl: float
    """KL(engine || trainer) per token, in nats, by its records."""


class Sketch:
    """Inner products of long vectors from short ones: random signs, summed in random places."""

    def __init__(self, size: int) -> None:
        random = torch.Generator().manual_seed(0)
        self._place = torch.randint(SKETCH, (size,), generator=random)
        self._sign = torch.randint(0, 2, (size,), generator=random) * 2.0 - 1

    def __call__(self, vector: Tensor) -> NDArray[np.float64]:
        out = torch.zeros(SKETCH, dtype=torch.float64)
        return out.index_add(0, self._place, (vector * self._sign).double()).numpy()


class Player:
    """Plays the bandit with some model's weights: the same tasks and random numbers for all."""

    def __init__(self, bench: Bench, model: nn.Module) -> None:
        envs = bench.config.envs
        self._config = bench.config
        self._source = EnvSource(
            EnvPool(envs.train, group_size=envs.group_size, seed=0, split=Split.TRAIN),
            HfEngine(model, config=bench.config.engine),  # type: ignore[arg-type]
            bench.chat,
            bench.config,
            Split.TRAIN,
            on_finished=lambda finished: None,
            should_abort=lambda: False,
        )

    def play(self, step: int) -> RolloutBatch:
        return self._source.collect(step, self._config)


def noisy(model: nn.Module) -> nn.Module:
    """A copy whose weights carry relative noise."""
    out, random = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in out.parameters():
            noise = torch.randn(weight.shape, generator=random)
            weight.add_(WEIGHT_NOISE * weight.std() * noise if weight.numel() > 1 else 0.0)
    return out


def gradient(
    bench: Bench, batch: TokenBatch, loss: LossConfig, method: OffPolicyConfig, sketch: Sketch
) -> NDArray[np.float64]:
    """Of the loss that trains, in the sketch."""
    denominators = Denominators.of(batch, bench.config.norm_tokens)
    outputs = bench.policy.outputs(batch)
    compute_loss(outputs, batch, loss, denominators, method).total.backward()
    return sketch(torch.cat([part.flatten() for part in bench.gradients().values()]))


def measured(num_batches: int, say: Callable[[str], None]) -> list[Outcome]:
    """The engines under the methods of `MEASURED`."""
    config = load_config(
        "bandit",
        overrides=[
            f"model.path={resolve_model('tiny')}",
            "loss.aggregation=seq_mean_token_sum",
            "optim.lr=3e-4",
            "envs.eval=[]",
        ],
    )
    bench = make_bench(config)
    old = copy.deepcopy(bench.policy.model)
    for step in range(1, NUM_UPDATES + 1):
        update(bench.policy, bench.optimizer, bench.batch(1_000_000 + step), config, step)
    players = {
        "honest": Player(bench, bench.policy.model),
        "stale": Player(bench, old),
        "differs": Player(bench, noisy(bench.policy.model)),
    }
    sketch = Sketch(sum(p.numel() for p in bench.policy.model.parameters() if p.requires_grad))
    own: list[NDArray[np.float64]] = []
    sketches: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    kls: dict[str, list[float]] = {}

    def outcomes() -> list[Outcome]:
        right = np.array(own)
        return [
            _outcome(engine, method, np.array(vectors), right, float(np.mean(kls[engine])))
            for (engine, method), vectors in sketches.items()
        ]

    for number in range(1, num_batches + 1):
        honest = bench.prepare(players["honest"].play(number))[0]
        own.append(gradient(bench, honest, CLIP, OffPolicyConfig(), sketch))
        lying = replace(
            honest, behaviour_logprobs=honest.behaviour_logprobs + LIE * honest.loss_mask
        )
        batches = {
            name: bench.prepare(players[name].play(number))[0] for name in ("stale", "differs")
        }
        for engine, batch in (batches | {"lies": lying}).items():
            with torch.no_grad():
                gap = (bench.policy.outputs(batch).logprobs - batch.behaviour_logprobs)[
                    batch.loss_mask
                ].double()
            kls.setdefault(engine, []).append(float((gap.exp() - 1 - gap).mean()))
            for method in MEASURED[engine]:
                new = gradient(bench, batch, *METHODS[method], sketch)
                sketches.setdefault((engine, method), []).append(new)
        if number % 8 == 0:
            say(f"{number} of {num_batches} batches\n{table(outcomes())}")
    return outcomes()


def _outcome(
    engine: str,
    method: str,
    vectors: NDArray[np.float64],
    right: NDArray[np.float64],
    token_kl: float,
) -> Outcome:
    gap = vectors - right
    products = {
        "bias": gap @ gap.T,
        "right": right @ right.T,
        "both": (vectors @ right.T + right @ vectors.T) / 2,
        "found": vectors @ vectors.T,
    }
    share, share_se = _jackknife(products, lambda p: p["bias"] / p["right"])
    angle, angle_se = _jackknife(products, _cosine)
    return Outcome(
        engine=engine,
        method=method,
        bias_squared=share,
        bias_squared_se=share_se,
        cosine=angle,
        cosine_se=angle_se,
        token_kl=token_kl,
    )


def _cosine(products: Mapping[str, float]) -> float:
    """NaN where the noise leaves no length."""
    lengths = products["right"] * products["found"]
    return products["both"] / math.sqrt(lengths) if lengths > 0 else math.nan


def _jackknife(
    products: Mapping[str, NDArray[np.float64]], value: Callable[[Mapping[str, float]], float]
) -> tuple[float, float]:
    """A function of inner products of means, each from pairs of different batches, and its
    standard error."""
    num = len(next(iter(products.values())))

    def pairs(left_out: int | None) -> dict[str, float]:
        kept = np.array([n for n in range(num) if n != left_out])
        out = {}
        for name, matrix in products.items():
            part = matrix[np.ix_(kept, kept)]
            out[name] = float((part.sum() - np.trace(part)) / (len(kept) * (len(kept) - 1)))
        return out

    values = np.array([value(pairs(n)) for n in range(num)])
    error = float(np.sqrt((num - 1) / num * np.square(values - values.mean()).sum()))
    return value(pairs(None)), error


def exact() -> list[tuple[str, str, float, float]]:
    """(engine, method, bias, cosine) over all 256 sequences of 4 tokens out of 4."""
    world, random = World.of(vocabulary=4, length=4, seed=0), torch.Generator().manual_seed(1)
    shape = (world.num_contexts, world.vocabulary)
    before = now = 0.5 * torch.randn(shape, generator=random, dtype=torch.float64)
    for _ in range(NUM_UPDATES):
        step = world.policy_gradient(now)
        now = now + 0.1 * step / step.norm()
    noise = torch.randn(shape, generator=random, dtype=torch.float64)
    own, old, other = (world.logprobs_NT(logits) for logits in (now, before, now + 0.05 * noise))
    right = world.policy_gradient(now)
    engines = {"stale": (old, old), "differs": (other, other), "lies": (own, own + LIE)}
    out = []
    for engine, (sampled, recorded) in engines.items():
        for method, (loss, off_policy) in METHODS.items():
            gradient_CV = world.update_gradient(
                now, sampled_NT=sampled, recorded_NT=recorded, loss=loss, off_policy=off_policy
            )
            out.append((engine, method, bias(gradient_CV, right), cosine(gradient_CV, right)))
    return out


def table(outcomes: Sequence[Outcome]) -> str:
    """In Markdown. A bias below two standard errors of its square is not given."""
    rows = []
    for o in outcomes:
        is_seen = o.bias_squared > 2 * o.bias_squared_se
        size = f"{100 * o.bias_squared**0.5:.1f} %" if is_seen else "-"
        squared = f"{o.bias_squared:.4f} +- {o.bias_squared_se:.4f}"
        cosine = f"{o.cosine:.4f} +- {o.cosine_se:.4f}"
        rows.append((o.engine, o.method, squared, size, cosine, f"{o.token_kl:.4f}"))
    head = ("engine", "method", "bias squared", "bias", "cosine", "KL per token")
    return markdown_table(head, rows)


def main() -> None:
    args = read_options(__doc__, batches=128, exact=False, json=False)
    if args.exact:
        print(markdown_table(("engine", "method", "bias", "cosine")))
        for engine, method, share, angle in exact():
            print(f"| {engine} | {method} | {100 * share:.1f} % | {angle:.4f} |")
        return
    outcomes = measured(args.batches, lambda line: print(line, file=sys.stderr, flush=True))
    if args.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
        return
    print(f"{describe_machine()}; {args.batches} batches of 128 trajectories\n")
    print(table(outcomes))


if __name__ == "__main__":
    main()
