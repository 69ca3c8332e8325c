"""Decomposition against autograd on losses small enough to differentiate whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from echoscope.diagnostics.measure import gradients
from echoscope.diagnostics.measure.gradients import GradientMemoryError, decompose

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


def units() -> dict[str, np.ndarray]:
    return {"reward_std_P": np.array(STDS), "weights_P": np.array(TOKENS, dtype=np.float64)}


def terms_of(model, data, chunks: int = 1):
    """Groups without spread have advantage 0, the others an advantage of their own."""

    def of(index: int):
        for rows in data[index].chunk(chunks):
            yield terms(model, rows, 0.0 if STDS[index] == 0 else 1.0 + index)

    return of


def report(model, data, chunks: int = 1):
    return decompose(terms_of(model, data, chunks), dict(model.named_parameters()), **units())


def flat(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(parts, model.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def whole(model, data, name: str | None, groups=range(GROUPS)) -> torch.Tensor:
    """The gradient of one term, or of all, summed over some groups, by one backward pass."""
    parts = [part for g in groups for part in terms_of(model, data)(g)]
    return flat(sum(sum(p.values()) if name is None else p[name] for p in parts), model)


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def test_norms_of_terms_and_of_their_sum(model, data):
    values = report(model, data).values
    for name in ("policy", "entropy", "value"):
        expected = float(whole(model, data, name).norm())
        assert values[f"{name}/all/norm"] == pytest.approx(expected, rel=1e-5)
    assert values["total/all/norm"] == pytest.approx(
        float(whole(model, data, None).norm()), rel=1e-5
    )


def test_microbatches_of_a_group_add_up(model, data):
    whole, three = report(model, data).metrics(), report(model, data, chunks=3).metrics()
    np.testing.assert_allclose(list(whole.values()), list(three.values()), rtol=1e-3, atol=1e-6)


def test_a_bucket_is_divided_by_its_own_weight(model, data):
    gradient_report = report(model, data)
    assert gradient_report.buckets == {"zero": (0, 1), "bucket_1": (2, 3), "bucket_2": (4, 5)}
    expected = float(whole(model, data, "policy", (2, 3)).norm()) * sum(TOKENS) / (3 + 3)
    assert gradient_report.values["policy/bucket_1/norm"] == pytest.approx(expected, rel=1e-5)
    assert gradient_report.values["zero/num_groups"] == 2
    assert gradient_report.values["zero/reward_std_mean"] == 0


def test_groups_without_spread_have_no_policy_gradient_but_regularisers_do(model, data):
    values = report(model, data).values
    assert values["policy/zero/norm"] == 0
    assert values["entropy/zero/norm"] > 0
    assert math.isnan(values["policy/zero/cosine_rest"])


def test_the_cosine_of_a_bucket_with_the_rest(model, data):
    rest = whole(model, data, None, (0, 1, 2, 3))
    expected = angle(whole(model, data, None, (4, 5)), rest)
    cosine = report(model, data).values["total/bucket_2/cosine_rest"]
    assert cosine == pytest.approx(expected, abs=1e-5)


def test_signal_and_noise_follow_from_the_groups(model, data):
    parts = torch.stack([whole(model, data, "policy", (g,)) for g in range(GROUPS)]).numpy()
    h = GROUPS * parts
    signal = np.mean([h[i] @ h[j] for i in range(GROUPS) for j in range(GROUPS) if i != j])
    trace = h.var(axis=0, ddof=1).sum()
    values = report(model, data).values
    assert values["policy/all/snr"] == pytest.approx(GROUPS * signal / trace, rel=1e-4)
    assert values["policy/all/noise_scale"] == pytest.approx(trace / signal, rel=1e-4)


def test_no_gradient_of_a_parameter_is_touched(model, data):
    kept = torch.ones_like(model["critic"].weight)
    model["critic"].weight.grad = kept
    report(model, data)
    assert model["critic"].weight.grad is kept
    assert model["embed"].weight.grad is None


def test_frozen_parameters_take_no_part(model, data):
    model["embed"].requires_grad_(False)
    gradient_report = report(model, data)
    assert gradient_report.values["policy/all/norm"] > 0


def test_a_group_that_gave_nothing_counts_as_nothing(model, data):
    with_empty = {
        name: np.append(values, {"reward_std_P": math.nan, "weights_P": 0.0}[name])
        for name, values in units().items()
    }
    gradient_report = decompose(
        lambda g: [] if g == GROUPS else terms_of(model, data)(g),
        dict(model.named_parameters()),
        **with_empty,
    ).values
    expected = float(whole(model, data, "policy").norm())
    assert gradient_report["policy/all/norm"] == pytest.approx(expected)
    assert math.isnan(gradient_report["policy/undefined/norm"])


def test_a_term_that_some_groups_lack_is_zero_there(model, data):
    def of(index: int):
        for part in terms_of(model, data)(index):
            yield part if index % 2 else {"policy": part["policy"]}

    values = decompose(of, dict(model.named_parameters()), **units()).values
    expected = float(whole(model, data, "value", (1, 3, 5)).norm())
    assert values["value/all/norm"] == pytest.approx(expected, rel=1e-5)


def test_no_groups_give_no_numbers(model):
    none = dict.fromkeys(units(), np.zeros(0))
    values = decompose(lambda _: [], dict(model.named_parameters()), **none).values
    assert math.isnan(values["total/all/snr"])


def test_too_much_memory_is_refused_with_a_way_out(model, data, monkeypatch):
    monkeypatch.setattr(gradients, "MAX_BUFFER_GB", 1e-6)
    with pytest.raises(GradientMemoryError, match=r"train adapters \(model\.lora\)"):
        report(model, data)


def test_a_gradient_that_is_not_finite_is_not_a_number(model, data):
    data[2, 0, 0] = math.nan
    values = report(model, data).values
    assert math.isnan(values["total/all/norm"])
    assert math.isnan(values["total/all/snr"])
    assert values["total/zero/norm"] > 0  # the other buckets are as they were
