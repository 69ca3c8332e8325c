"""Per-trajectory norms against one backward pass per trajectory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from echoscope.diagnostics.measure.gradient_norms import UnsupportedLayerError, trajectory_norms

VOCABULARY, WIDTH = 11, 6


class TiedModel(nn.Module):
    """Embedding, norm, two layers with biases, and the embedding again as output layer."""

    def __init__(self, padding_idx: int | None = None, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=padding_idx)
        self.norm = nn.LayerNorm(WIDTH)
        self.rms = nn.RMSNorm(WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)])
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.rms.weight)

    def hidden(self, ids: Tensor) -> Tensor:
        out = self.norm(self.embed(ids))
        for layer in self.layers:
            out = out + torch.tanh(layer(out)).cumsum(1)
        return self.rms(out)

    def loss(self, ids: Tensor, mask: Tensor) -> Tensor:
        """A sum over the masked positions, whose hidden states enter the output layer flat."""
        logits = self.lm_head(self.hidden(ids)[mask])
        return F.cross_entropy(logits, ids[mask], reduction="sum")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def batch(rows: int = 4, width: int = 7) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCABULARY, (rows, width))
    return ids, torch.rand(rows, width) < 0.6


def one_by_one(
    loss_of: Callable[[Tensor], Tensor], modules: list[nn.Module], sample_of_row: Tensor
) -> np.ndarray:
    """Norms from a backward pass per sample; `loss_of` takes the rows that count."""
    parameters = {id(p): p for m in modules for p in m.parameters() if p.requires_grad}
    out = []
    for sample in range(int(sample_of_row.max()) + 1):
        rows = torch.nonzero(sample_of_row == sample)[:, 0]
        found = torch.autograd.grad(loss_of(rows), list(parameters.values()), allow_unused=True)
        out.append(sum(float(g.double().square().sum()) for g in found if g is not None) ** 0.5)
    return np.array(out)


def check(model: TiedModel, ids: Tensor, mask: Tensor, sample_of_row: Tensor) -> None:
    found = trajectory_norms(
        lambda: model.loss(ids, mask),
        {"model": model},
        sample_of_row=sample_of_row,
        sample_of_token=sample_of_row[mask.nonzero()[:, 0]],
    )
    expected = one_by_one(lambda rows: model.loss(ids[rows], mask[rows]), [model], sample_of_row)
    np.testing.assert_allclose(found.norms_n, expected, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_norms_equal_one_backward_each(tied, padding_idx):
    check(TiedModel(padding_idx, tied), *batch(), torch.arange(4))


def test_a_trajectory_may_have_several_rows_in_any_order():
    check(TiedModel(), *batch(5), torch.tensor([2, 0, 2, 1, 0]))


@pytest.mark.parametrize("width", [2, 40])
def test_both_forms_of_a_linear_layer_agree(width):
    """Short sequences take the Gram form (L (d + p) < d p), long ones materialise."""
    check(TiedModel(), *batch(3, width), torch.arange(3))


def test_layers_split_into_steps_of_bounded_memory(monkeypatch):
    monkeypatch.setattr("echoscope.diagnostics.measure.gradient_norms._MAX_ELEMENTS", 1)
    check(TiedModel(), *batch(), torch.arange(4))


def test_an_output_layer_called_in_chunks_under_checkpointing():
    model, (ids, mask) = TiedModel(), batch()

    def loss_of(rows: Tensor) -> Tensor:
        def chunk(hidden: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(model.lm_head(hidden), targets, reduction="sum")

        hidden, targets = model.hidden(ids[rows])[mask[rows]], ids[rows][mask[rows]]
        parts = zip(hidden.split(3), targets.split(3), strict=True)
        return sum(checkpoint(chunk, h, t, use_reentrant=False) for h, t in parts)

    rows = torch.arange(4)
    found = trajectory_norms(
        lambda: loss_of(rows),
        {"model": model},
        sample_of_row=rows,
        sample_of_token=mask.nonzero()[:, 0],
    )
    np.testing.assert_allclose(found.norms_n, one_by_one(loss_of, [model], rows), rtol=1e-4)


def test_layers_computed_again_in_backward():
    model, (ids, mask) = TiedModel(), batch()
    plain = model.hidden
    model.hidden = lambda ids: checkpoint(plain, ids, use_reentrant=False)
    check(model, ids, mask, torch.arange(4))


def test_frozen_layers_take_no_part_and_cost_nothing():
    model, (ids, mask) = TiedModel(), batch()
    model.requires_grad_(False)
    model.layers[0].bias.requires_grad_(True)
    model.layers[1].weight.requires_grad_(True)
    check(model, ids, mask, torch.arange(4))


def test_activations_made_to_require_gradients_are_passed_through():
    """What adapter libraries do so that checkpointed layers have an input with a gradient."""
    model, (ids, mask) = TiedModel(), batch()
    model.requires_grad_(False)
    model.layers[0].weight.requires_grad_(True)
    model.embed.register_forward_hook(lambda module, args, output: output.requires_grad_(True))
    check(model, ids, mask, torch.arange(4))


def test_an_output_without_part_in_the_loss_adds_nothing():
    model, (ids, mask) = TiedModel(), batch()
    extra = nn.Linear(WIDTH, 1)

    def loss() -> Tensor:
        unused = model.hidden(ids)
        extra(unused)
        model.lm_head(unused[mask])
        return model.loss(ids, mask)

    found = trajectory_norms(
        loss,
        {"model": model, "critic": extra},
        sample_of_row=torch.arange(4),
        sample_of_token=mask.nonzero()[:, 0].repeat(2),
    )
    assert found.squared["value"].tolist() == [0.0] * 4
    # Trunk and output layer ran twice and counted once.
    expected = one_by_one(lambda r: model.loss(ids[r], mask[r]), [model], torch.arange(4))
    np.testing.assert_allclose(found.norms_n, expected, rtol=1e-4)


def test_a_trajectory_whose_tokens_do_not_count_has_norm_zero():
    model, (ids, mask) = TiedModel(), batch()
    mask[1] = False
    found = trajectory_norms(
        lambda: model.loss(ids, mask),
        {"model": model},
        sample_of_row=torch.arange(4),
        sample_of_token=mask.nonzero()[:, 0],
    )
    assert found.norms_n[1] == 0
    assert (found.norms_n[[0, 2, 3]] > 0).all()


def test_layer_groups_add_up_and_no_gradient_is_left_behind():
    model, (ids, mask) = TiedModel(), batch()
    found = trajectory_norms(
        lambda: model.loss(ids, mask),
        {"model": model},
        sample_of_row=torch.arange(4),
        sample_of_token=mask.nonzero()[:, 0],
        layer_bands=2,
    )
    assert set(found.squared) == {"embedding", "layers_0_0", "layers_1_1", "head", "other"}
    assert found.squared["head"].tolist() == [0.0] * 4  # tied: counted with the embedding
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_without_a_rule_is_named():
    model = nn.Sequential(nn.Conv1d(2, 2, 1))
    with pytest.raises(UnsupportedLayerError, match=r"model\.0 is a Conv1d"):
        trajectory_norms(
            lambda: torch.zeros(()), {"model": model}, sample_of_row=torch.zeros(1, dtype=torch.int)
        )


def test_layers_that_share_a_weight_otherwise_are_named():
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    two.weight = one.weight
    with pytest.raises(UnsupportedLayerError, match="share a weight"):
        trajectory_norms(
            lambda: torch.zeros(()),
            {"model": nn.Sequential(one, two)},
            sample_of_row=torch.zeros(1, dtype=torch.int64),
        )


def test_rows_and_tokens_that_do_not_fit_are_errors():
    model, (ids, mask) = TiedModel(), batch()
    with pytest.raises(ValueError, match="sample_of_row names 3"):
        trajectory_norms(
            lambda: model.loss(ids, mask), {"model": model}, sample_of_row=torch.arange(3)
        )
    with pytest.raises(ValueError, match="more than sample_of_token names"):
        trajectory_norms(
            lambda: model.loss(ids, mask), {"model": model}, sample_of_row=torch.arange(4)
        )
