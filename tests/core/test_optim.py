"""The optimizer: schedules, float32 masters, and the guard against NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from echoscope.core.config.settings import OptimConfig
from echoscope.core.optim import Optimizer, ParameterGroup, lr_multiplier


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def group(name: str, *parameters: nn.Parameter) -> ParameterGroup:
    return ParameterGroup(name=name, parameters=parameters)


def optimizer(*parameters: nn.Parameter, **settings: object) -> Optimizer:
    return Optimizer([group("policy", *parameters)], OptimConfig.model_validate(settings))


def take_step(
    made: Optimizer, weight: nn.Parameter, grad: Tensor, lr: float = 0.1, clip: float = 1e9
) -> float:
    weight.grad = grad.to(weight.dtype)
    made.accumulate()
    return made.step(lrs={"policy": lr}, grad_clip=clip).grad_norms["policy"]


# -- the schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1, 1]),
        ("constant", 3, [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        ("linear", 0, [1, 4 / 5, 3 / 5, 2 / 5, 1 / 5]),  # the step after the last would be 0
        ("linear", 1, [1 / 2, 1, 3 / 4, 2 / 4, 1 / 4]),
        ("cosine", 1, [1 / 2, 1, (2 + math.sqrt(2)) / 4, 1 / 2, (2 - math.sqrt(2)) / 4]),
    ],
)
def test_learning_rate_of_five_steps(schedule: str, warmup: int, expected: list[float]) -> None:
    config = OptimConfig.model_validate({"schedule": schedule, "warmup_steps": warmup})
    multipliers = [lr_multiplier(config, step, total_steps=5) for step in range(1, 6)]
    assert multipliers == pytest.approx(expected)


def test_the_schedule_stays_at_its_end_beyond_the_last_step() -> None:
    config = OptimConfig(schedule="linear")
    assert lr_multiplier(config, step=99, total_steps=5) == 0.0
    assert lr_multiplier(OptimConfig(warmup_steps=9), step=9, total_steps=5) == 0.9


# -- steps ---------------------------------------------------------------------------------------


def test_float32_weights_move_as_with_plain_adamw() -> None:
    ours, plain = parameter(1.0, -2.0, 3.0), parameter(1.0, -2.0, 3.0)
    ours.data, plain.data = ours.data[None], plain.data[None]
    made = optimizer(ours, betas=(0.9, 0.99), weight_decay=0.1)
    adamw = torch.optim.AdamW([plain], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)
    for index in range(5):
        grad = torch.tensor([[0.3, -0.1 * index, 0.7]])
        take_step(made, ours, grad)
        plain.grad = grad
        adamw.step()
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-7)


def test_each_group_has_its_own_learning_rate() -> None:
    policy, critic = parameter(1.0), parameter(1.0)
    made = Optimizer([group("policy", policy), group("critic", critic)], OptimConfig())
    policy.grad = critic.grad = torch.ones(1)
    made.step(lrs={"policy": 0.5, "critic": 0.25}, grad_clip=1e9)
    # Adam's first step is the learning rate times the sign of the gradient.
    assert float(policy.detach()) == pytest.approx(0.5, abs=1e-6)
    assert float(critic.detach()) == pytest.approx(0.75, abs=1e-6)


def test_each_group_is_clipped_by_its_own_norm() -> None:
    policy, critic = parameter(0.0), parameter(0.0, 0.0)
    made = Optimizer([group("policy", policy), group("critic", critic)], OptimConfig())
    policy.grad, critic.grad = torch.tensor([0.5]), torch.tensor([30.0, 40.0])
    done = made.step(lrs={"policy": 0.1, "critic": 0.1}, grad_clip=1.0)
    assert done.grad_norms == {"policy": pytest.approx(0.5), "critic": pytest.approx(50.0)}
    assert not done.is_skipped
    state = made.state_tensors()  # exp_avg = (1 - 0.9) * clipped gradient
    assert float(state["0.exp_avg"]) == pytest.approx(0.1 * 0.5, rel=1e-4)
    assert state["1.exp_avg"].tolist() == pytest.approx([0.1 * 3 / 5, 0.1 * 4 / 5], rel=1e-4)


def test_weight_decay_leaves_norms_biases_and_the_value_head_alone() -> None:
    matrix, norm, head = parameter(1.0), parameter(1.0), parameter(1.0)
    matrix.data, head.data = torch.ones(2, 2), torch.ones(1, 2)
    made = Optimizer(
        [
            group("policy", norm, matrix),
            ParameterGroup(name="critic_head", parameters=[head], is_decayed=False),
        ],
        OptimConfig(weight_decay=0.5),
    )
    for weight in (matrix, norm, head):
        weight.grad = torch.full_like(weight, 1e-15)  # moves nothing, yet is a gradient
    made.step(lrs={"policy": 0.1, "critic_head": 0.1}, grad_clip=1.0)
    assert matrix.detach().flatten().tolist() == pytest.approx([0.95] * 4)
    assert norm.tolist() == pytest.approx([1.0])
    assert head.detach().flatten().tolist() == pytest.approx([1.0, 1.0])


def test_a_group_without_gradient_is_not_moved_by_its_momentum() -> None:
    policy, critic = parameter(1.0), parameter(1.0)
    made = Optimizer([group("policy", policy), group("critic", critic)], OptimConfig())
    policy.grad, critic.grad = torch.ones(1), torch.ones(1)
    made.step(lrs={"policy": 0.1, "critic": 0.1}, grad_clip=1.0)
    before, state = policy.detach().clone(), clone(made.state_tensors())
    policy.grad, critic.grad = torch.zeros(1), torch.ones(1)
    done = made.step(lrs={"policy": 0.1, "critic": 0.1}, grad_clip=1.0)
    assert done.moved == {"critic"}
    assert torch.equal(policy, before)
    after = made.state_tensors()
    assert torch.equal(after["0.exp_avg"], state["0.exp_avg"])
    assert float(critic.detach()) == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_no_number_leaves_everything_as_it_was(
    bad: float, dtype: torch.dtype
) -> None:
    weight = parameter(1.0, 2.0, dtype=dtype)
    made = optimizer(weight)
    take_step(made, weight, torch.ones(2))
    before, state = weight.detach().clone(), clone(made.state_tensors())
    weight.grad = torch.tensor([1.0, bad], dtype=dtype)
    made.accumulate()
    done = made.step(lrs={"policy": 0.1}, grad_clip=1.0)
    assert done.is_skipped
    assert not math.isfinite(done.grad_norms["policy"])
    assert torch.equal(weight, before)
    assert_same(made.state_tensors(), state)
    assert weight.grad is None
    take_step(made, weight, torch.ones(2))  # and the next step counts again
    assert not torch.equal(weight, before)


# -- weights in bfloat16 -------------------------------------------------------------------------


def test_updates_too_small_for_bfloat16_add_up_in_the_master() -> None:
    """At 1.0 bfloat16 steps by 1/128 upward and 1/256 downward: 1e-5 alone rounds away."""
    weight = parameter(1.0, dtype=torch.bfloat16)
    made = optimizer(weight)
    take_step(made, weight, torch.ones(1), lr=1e-5)
    assert float(weight.detach()) == 1.0
    for _ in range(399):
        take_step(made, weight, torch.ones(1), lr=1e-5)
    # 400 steps of 1e-5 down from 1: the master stands at 0.996, the weight at its rounding.
    assert float(made.state_tensors()["0.master"]) == pytest.approx(0.996, abs=1e-5)
    assert float(weight.detach()) == 0.99609375


def test_microbatch_gradients_add_up_in_float32() -> None:
    """256 + 1 + 1 in bfloat16 is 256: the ones would be lost."""
    weight = parameter(0.0, dtype=torch.bfloat16)
    made = optimizer(weight)
    for part in (256.0, 1.0, 1.0):
        weight.grad = torch.tensor([part], dtype=torch.bfloat16)
        made.accumulate()
        assert weight.grad is None
    assert made.step(lrs={"policy": 0.1}, grad_clip=1e9).grad_norms["policy"] == 258.0


def test_a_weight_without_gradient_stays() -> None:
    used, unused = parameter(1.0), parameter(2.0)
    made = optimizer(used, unused)
    take_step(made, used, torch.ones(1))
    assert float(unused.detach()) == 2.0
    assert not [key for key in made.state_tensors() if key.startswith("1.")]


# -- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_goes_on_bit_for_bit_from_its_state(dtype: torch.dtype) -> None:
    first = [parameter(1.0, 2.0, dtype=dtype), parameter(3.0)]
    together = Optimizer([group("policy", first[0]), group("critic", first[1])], OptimConfig())

    def steps(made: Optimizer, weights: list[nn.Parameter], indices: range) -> None:
        for index in indices:
            weights[0].grad = torch.tensor([0.1 * index, -1.0], dtype=dtype)
            weights[1].grad = torch.tensor([0.3 + index])
            made.accumulate()
            made.step(lrs={"policy": 0.01, "critic": 0.1}, grad_clip=1.0)

    steps(together, first, range(3))
    second = [nn.Parameter(weight.detach().clone()) for weight in first]
    two = Optimizer([group("policy", second[0]), group("critic", second[1])], OptimConfig())
    two.load_state_tensors(clone(together.state_tensors()))
    steps(together, first, range(3, 6))
    steps(two, second, range(3, 6))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert_same(together.state_tensors(), two.state_tensors())


def test_a_fresh_optimizer_has_no_state_and_takes_none() -> None:
    weight = parameter(1.0)
    made = optimizer(weight)
    assert made.state_tensors() == {}
    made.load_state_tensors({})
    take_step(made, weight, torch.ones(1))
    assert float(weight.detach()) == pytest.approx(0.9, abs=1e-6)


def clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same(first: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert first.keys() == other.keys()
    for name in first:
        assert torch.equal(first[name], other[name]), name
