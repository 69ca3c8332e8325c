"""Decomposition against autograd on losses small enough to differentiate whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from echoscope.diagnostics.config import GradientConfig
from echoscope.diagnostics.measure.gradients import GradientMemoryError, GradientUnit, decompose

GROUPS, ROWS = 6, 3
STDS = (0.0, 0.0, 0.2, 0.4, 0.6, 0.8)
TOKENS = (2.0, 4.0, 3.0, 3.0, 5.0, 1.0)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "embed": nn.Linear(4, 5),
            "layers": nn.ModuleList([nn.Linear(5, 5)]),
            "critic": nn.Linear(5, 1),
        }
    )


@pytest.fixture
def data() -> torch.Tensor:
    return torch.randn(GROUPS, ROWS, 4, generator=torch.Generator().manual_seed(1))


def terms(model: nn.Module, rows: torch.Tensor, advantage: float) -> dict[str, torch.Tensor]:
    hidden = torch.tanh(model["layers"][0](torch.tanh(model["embed"](rows))))
    return {
        "policy": advantage * hidden[:, 0].sum() / sum(TOKENS),
        "entropy": -0.1 * hidden.square().sum() / sum(TOKENS),
        "value": 0.5 * model["critic"](hidden).square().sum() / sum(TOKENS),
    }


def units() -> list[GradientUnit]:
    return [GradientUnit(reward_std=s, weight=w) for s, w in zip(STDS, TOKENS, strict=True)]


def terms_of(model, data, chunks: int = 1):
    """Groups without spread have advantage 0, the others an advantage of their own."""

    def of(index: int):
        for rows in data[index].chunk(chunks):
            yield terms(model, rows, 0.0 if STDS[index] == 0 else 1.0 + index)

    return of


def report(model, data, chunks: int = 1, **config):
    return decompose(
        terms_of(model, data, chunks),
        units(),
        dict(model.named_parameters()),
        GradientConfig(**config),
    )


def flat(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(found, model.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def whole(model, data, name: str | None, groups=range(GROUPS)) -> torch.Tensor:
    """The gradient of one term, or of all, summed over some groups, by one backward pass."""
    parts = [part for g in groups for part in terms_of(model, data)(g)]
    return flat(sum(sum(p.values()) if name is None else p[name] for p in parts), model)


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def test_norms_of_terms_and_of_their_sum(model, data):
    found = report(model, data)
    for name in ("policy", "entropy", "value"):
        assert found.norms[name, "all"] == pytest.approx(
            float(whole(model, data, name).norm()), rel=1e-5
        )
    assert found.norms["total", "all"] == pytest.approx(
        float(whole(model, data, None).norm()), rel=1e-5
    )


def test_microbatches_of_a_group_add_up(model, data):
    one, three = report(model, data).metrics(), report(model, data, chunks=3).metrics()
    np.testing.assert_allclose(list(one.values()), list(three.values()), rtol=1e-3, atol=1e-6)


def test_a_bucket_is_divided_by_its_own_weight(model, data):
    found = report(model, data, buckets=2)
    assert {b.name: b.members for b in found.buckets} == {
        "zero": (0, 1),
        "bucket_1": (2, 3),
        "bucket_2": (4, 5),
    }
    expected = float(whole(model, data, "policy", (2, 3)).norm()) * sum(TOKENS) / (3 + 3)
    assert found.norms["policy", "bucket_1"] == pytest.approx(expected, rel=1e-5)
    assert found.bucket_stats["zero"] == {
        "num_groups": 2,
        "weight_frac": pytest.approx(6 / 18),
        "reward_std_mean": 0,
    }


def test_groups_without_spread_have_no_policy_gradient_but_regularisers_do(model, data):
    found = report(model, data)
    assert found.norms["policy", "zero"] == 0
    assert found.norms["entropy", "zero"] > 0
    assert math.isnan(found.rest_cosines["policy", "zero"])
    key = "gradient/policy/zero/cosine_rest"
    assert found.reasons[key] == "a gradient in it is zero or not finite"
    assert found.group_norms["policy"][:2].tolist() == [0, 0]


def test_cosines(model, data):
    found = report(model, data, buckets=2)
    policy, entropy = whole(model, data, "policy"), whole(model, data, "entropy")
    one, two = whole(model, data, "policy", (2, 3)), whole(model, data, "policy", (4, 5))
    assert found.cosines["policy", "entropy", "all"] == pytest.approx(
        angle(policy, entropy), abs=1e-5
    )
    assert found.bucket_cosines["policy", "bucket_1", "bucket_2"] == pytest.approx(
        angle(one, two), abs=1e-5
    )
    rest = whole(model, data, None, (0, 1, 2, 3))
    assert found.rest_cosines["total", "bucket_2"] == pytest.approx(
        angle(whole(model, data, None, (4, 5)), rest), abs=1e-5
    )


def test_every_group_has_its_norm_and_noise_follows_from_them(model, data):
    found = report(model, data)
    parts = torch.stack([whole(model, data, "policy", (g,)) for g in range(GROUPS)])
    scale = [sum(TOKENS) / tokens for tokens in TOKENS]
    np.testing.assert_allclose(
        found.group_norms["policy"], parts.norm(dim=1).numpy() * scale, rtol=1e-5
    )
    h = GROUPS * parts.numpy()
    pairs = [h[i] @ h[j] for i in range(GROUPS) for j in range(GROUPS) if i != j]
    assert found.noise["policy"].signal_squared == pytest.approx(np.mean(pairs), rel=1e-4)
    assert found.noise["policy"].trace == pytest.approx(h.var(axis=0, ddof=1).sum(), rel=1e-4)


def test_layer_norms_square_to_the_whole(model, data):
    found = report(model, data)
    layers = {label for term, label in found.layer_norms if term == "total"}
    assert layers == {"embedding", "layers_0_0", "value"}
    squares = sum(found.layer_norms["total", label] ** 2 for label in layers)
    assert squares == pytest.approx(found.norms["total", "all"] ** 2, rel=1e-5)
    assert found.layer_norms["policy", "value"] == 0


def test_no_gradient_of_a_parameter_is_touched(model, data):
    kept = torch.ones_like(model["critic"].weight)
    model["critic"].weight.grad = kept
    report(model, data)
    assert model["critic"].weight.grad is kept
    assert model["embed"].weight.grad is None


def test_frozen_parameters_take_no_part(model, data):
    model["embed"].requires_grad_(False)
    found = report(model, data)
    assert ("total", "embedding") not in found.layer_norms
    assert found.norms["policy", "all"] > 0


def test_a_group_that_gave_nothing_counts_as_nothing(model, data):
    empty = [GradientUnit(reward_std=math.nan, weight=0.0)]
    found = decompose(
        lambda g: [] if g == GROUPS else terms_of(model, data)(g),
        [*units(), *empty],
        dict(model.named_parameters()),
        GradientConfig(),
    )
    assert found.norms["policy", "all"] == pytest.approx(float(whole(model, data, "policy").norm()))
    assert found.group_norms["policy"].shape == (GROUPS + 1,)
    assert math.isnan(found.group_norms["policy"][-1])
    assert found.noise["policy"].num_groups == GROUPS + 1


def test_a_term_that_some_groups_lack_is_zero_there(model, data):
    def of(index: int):
        for part in terms_of(model, data)(index):
            yield part if index % 2 else {"policy": part["policy"]}

    found = decompose(of, units(), dict(model.named_parameters()), GradientConfig())
    expected = float(whole(model, data, "value", (1, 3, 5)).norm())
    assert found.norms["value", "all"] == pytest.approx(expected, rel=1e-5)


def test_no_groups_give_an_empty_report(model):
    found = decompose(lambda _: [], [], dict(model.named_parameters()), GradientConfig())
    assert found.terms == ("total",)
    assert found.noise["total"].reason == "noise needs two groups; there are none"


def test_every_metric_is_a_number_or_has_a_reason(model, data):
    found = report(model, data)
    missing = {key for key, value in found.metrics().items() if math.isnan(value)}
    assert missing == set(found.reasons)
    assert "gradient/policy/all/norm" in found.metrics()


def test_what_couples_groups_is_said(model, data):
    found = decompose(
        terms_of(model, data),
        units(),
        dict(model.named_parameters()),
        GradientConfig(),
        coupling="advantages are whitened over the batch",
    )
    assert found.reasons["note"].startswith("advantages are whitened over the batch: groups are")


def test_too_much_memory_is_refused_with_a_way_out(model, data):
    with pytest.raises(GradientMemoryError, match=r"lower gradient\.buckets"):
        report(model, data, max_buffer_gb=1e-6)


def test_a_gradient_that_is_not_finite_is_not_a_number(model, data):
    data[2, 0, 0] = math.nan
    found = report(model, data)
    assert math.isnan(found.norms["total", "all"])
    assert found.noise["total"].reason == "the gradient is not finite"
    assert found.norms["total", "zero"] > 0  # the other buckets are as they were


def test_signal_and_noise_of_gradients_with_a_known_covariance():
    """Group gradients are draws of N(G, Sigma) with |G|^2 = 4 and tr(Sigma) = 20 * 0.5^2 = 5.

    The loss is linear, so that the gradient is the draw itself. 150 steps of 8 groups: estimates
    lie within two standard errors of the truth, and the noise scale is 5 / 4 groups.
    """
    rng = np.random.default_rng(0)
    weights = nn.Parameter(torch.zeros(20))
    mean = np.zeros(20)
    mean[3] = 2.0
    signal, trace = [], []
    for _ in range(150):
        draws = torch.tensor(mean + 0.5 * rng.standard_normal((8, 20)), dtype=torch.float32)
        found = decompose(
            lambda g, draws=draws: [{"policy": weights @ draws[g] / 8}],
            [GradientUnit(reward_std=1.0, weight=1.0)] * 8,
            {"weights": weights},
            GradientConfig(),
        ).noise["policy"]
        signal.append(found.signal_squared)
        trace.append(found.trace)
    assert abs(np.mean(signal) - 4) < 2 * np.std(signal) / math.sqrt(150)
    assert abs(np.mean(trace) - 5) < 2 * np.std(trace) / math.sqrt(150)
    assert np.mean(trace) / np.mean(signal) == pytest.approx(5 / 4, rel=0.05)
