"""Decomposition and norms on policies that train: Qwen2 with tied embeddings, LoRA, a critic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from echoscope.core.config.loss import ClipLossConfig, CriticConfig
from echoscope.core.config.settings import LoraConfig, ModelConfig
from echoscope.core.policy import Policy, build_policy
from echoscope.core.update.batch import TokenBatch, select_rows
from echoscope.core.update.losses import Denominators, LossTerms, compute_loss
from echoscope.diagnostics.measure.gradients import decompose

GROUPS, SIBLINGS = 4, 2
LOSS = ClipLossConfig(entropy_coef=0.05, kl_coef=0.02)
CRITIC: TypeAdapter[CriticConfig] = TypeAdapter(CriticConfig)


def make_batch(*, rows_per_trajectory: int = 1) -> TokenBatch:
    """Trajectories of one or two rows; group 0 has no advantage."""
    torch.manual_seed(0)
    rows, width = GROUPS * SIBLINGS * rows_per_trajectory, 24
    lengths = torch.randint(12, width + 1, (rows,))
    columns = torch.arange(width)
    attention = columns < lengths[:, None]
    mask = attention & (columns >= 6)
    trajectory = torch.arange(rows) // rows_per_trajectory
    group = trajectory // SIBLINGS
    tokens = torch.zeros(int(trajectory.max()) + 1, dtype=torch.int64)
    tokens.index_add_(0, trajectory, mask.sum(1))
    noise = torch.randn(rows, width) * mask
    return TokenBatch(
        input_ids=torch.randint(1, 200, (rows, width)) * attention,
        attention_mask=attention,
        loss_mask=mask,
        turn_index=torch.where(mask, 0, -1),
        behaviour_logprobs=(-5.7 + 0.1 * noise) * mask,
        token_rewards=torch.zeros(rows, width),
        trajectory_index=trajectory,
        group_index=group,
        trajectory_num_tokens=tokens[trajectory],
        ref_logprobs=(-5.7 - 0.1 * noise) * mask,
        values=0.1 * noise,
        advantages=torch.where(group[:, None] == 0, 0.0, noise),
        returns=noise,
    )


@dataclass
class Step:
    """What the trainer has at hand when it asks for a decomposition."""

    policy: Policy
    batch: TokenBatch

    @property
    def modules(self) -> dict[str, nn.Module]:
        critic = {} if self.policy.critic is None else {"critic": self.policy.critic}
        return {"model": self.policy.model, **critic}

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}": parameter
            for prefix, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def loss(self, batch: TokenBatch) -> LossTerms:
        outputs = self.policy.outputs(batch)
        return compute_loss(outputs, batch, LOSS, Denominators.of(self.batch, norm_tokens=1))

    def terms_of(self, group: int) -> Iterator[Mapping[str, Tensor]]:
        """One microbatch per row."""
        for row in torch.nonzero(self.batch.group_index == group)[:, 0].tolist():
            yield self.loss(select_rows(self.batch, [row])).named

    def units(self) -> dict[str, np.ndarray]:
        tokens = [int(self.batch.loss_mask[self.batch.group_index == g].sum()) for g in range(4)]
        stds = np.array((0.0, 0.5, 0.5, 0.7))
        return {"reward_std_P": stds, "weights_P": np.array(tokens, dtype=np.float64)}

    def norm(self, loss: Callable[[], Tensor]) -> float:
        gradients = torch.autograd.grad(loss(), list(self.parameters.values()), allow_unused=True)
        return math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None))


@pytest.fixture(params=["full", "lora", "head", "detached_head", "model_critic", "checkpointing"])
def step(request: pytest.FixtureRequest, tiny_model: Path) -> Step:
    model = ModelConfig(path=str(tiny_model), device="cpu")
    critic: dict[str, object] = {"kind": "none"}
    if request.param == "lora":
        model = replace_model(model, lora=LoraConfig(rank=4, alpha=4))
    if request.param == "checkpointing":
        model = replace_model(model, gradient_checkpointing=True)
    if request.param in ("head", "detached_head"):
        critic = {"kind": "head", "detach": request.param == "detached_head"}
    if request.param == "model_critic":
        critic = {"kind": "model"}
    policy = build_policy(model, CRITIC.validate_python(critic), seed=1)
    with torch.no_grad():  # zeros at the start would hide a missing term
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
        for parameter in policy.critic_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return Step(policy, make_batch())


def replace_model(model: ModelConfig, **changes: object) -> ModelConfig:
    return ModelConfig.model_validate(model.model_dump() | changes)


def test_terms_and_groups_sum_to_the_gradient_of_the_update(step: Step) -> None:
    values = decompose(step.terms_of, step.parameters, **step.units()).values
    terms = {key.split("/")[0] for key in values if key.endswith("/all/norm")}
    assert terms >= {"policy", "kl", "entropy", "total"}
    for name in terms:
        expected = step.norm(
            lambda name=name: (
                step.loss(step.batch).total
                if name == "total"
                else step.loss(step.batch).named[name]
            )
        )
        assert values[f"{name}/all/norm"] == pytest.approx(expected, rel=1e-4), name


def test_a_group_without_advantage_has_no_policy_gradient(step: Step) -> None:
    values = decompose(step.terms_of, step.parameters, **step.units()).values
    assert values["policy/zero/norm"] == 0
    assert values["entropy/zero/norm"] > 0


def test_nothing_of_the_policy_changes(step: Step) -> None:
    before = [parameter.detach().clone() for parameter in step.parameters.values()]
    state = torch.get_rng_state()
    decompose(step.terms_of, step.parameters, **step.units())
    assert torch.equal(torch.get_rng_state(), state)
    for old, parameter in zip(before, step.parameters.values(), strict=True):
        assert torch.equal(old, parameter)
        assert parameter.grad is None
