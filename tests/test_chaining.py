from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ffebm import EquilibriumPropagation, FixedPoint, Unrolled
from ffebm.chaining import explicit_chain, implicit_chain
from ffebm.diagnostics import gradients, transients
from nets import batch, make, worst


@pytest.mark.parametrize("kind", ["dense", "max"])
@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
@pytest.mark.parametrize("beta", [1e-3, 0.5])
def test_both_chainings_and_autograd_agree_at_any_beta(kind: str, nudge: str, beta: float) -> None:
    estimator = EquilibriumPropagation(FixedPoint(7, order="output-first"), beta=beta)
    model = make(kind, [2, 3, 1], estimator, FixedPoint(25), nudge=nudge)
    x, y = batch(model)
    explicit = explicit_chain(model, x, y)
    # Energies subtracted, as the paper writes it, lose as many digits as the nudge is small.
    assert worst(implicit_chain(model, x, y), explicit) < 5e-14 / beta
    assert worst(gradients(model, x, y), explicit) < 1e-12


@pytest.mark.parametrize("variant", ["positive", "negative"])
def test_one_sided_variants_chain_too(variant: str) -> None:
    model = make("dense", 2, EquilibriumPropagation(variant=variant), FixedPoint(25))
    x, y = batch(model)
    assert worst(implicit_chain(model, x, y), gradients(model, x, y)) < 1e-12


def test_gradients_are_returned_and_not_written() -> None:
    model = make("dense", 2, EquilibriumPropagation())
    explicit_chain(model, *batch(model))
    assert all(p.grad is None for p in model.parameters())


def test_works_without_gradient_mode() -> None:
    model = make("dense", 2, EquilibriumPropagation())
    with torch.no_grad():
        assert explicit_chain(model, *batch(model))


def test_chaining_needs_equilibrium_propagation() -> None:
    model = make("dense", 2, Unrolled())
    with pytest.raises(TypeError, match="EquilibriumPropagation in every block, got Unrolled"):
        explicit_chain(model, *batch(model))


def test_frozen_parameters_are_left_out() -> None:
    model = make("dense", 2, EquilibriumPropagation())
    model.stages[1].requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    x, y = batch(model)
    found = explicit_chain(model, x, y)
    assert worst(found, gradients(model, x, y)) < 1e-12
    assert not any(name.startswith(("stages.1", "blocks.0")) for name in found)


class Tempered(nn.Module):
    """A criterion with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits / self.temperature, y, reduction="none")


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
def test_a_criterion_may_have_parameters(nudge: str) -> None:
    model = make("dense", 2, EquilibriumPropagation(), criterion=Tempered(), nudge=nudge)
    x, y = batch(model)
    found = explicit_chain(model, x, y)
    assert found["criterion.temperature"] != 0
    assert worst(found, gradients(model, x, y)) < 1e-12
    assert "criterion.temperature" in {t.name for t in transients(model, x, y, FixedPoint(2))}


def test_shared_parameters_are_refused() -> None:
    model = make("dense", 2, EquilibriumPropagation())
    model.blocks[1] = model.blocks[0]
    with pytest.raises(ValueError, match="several parts share"):
        explicit_chain(model, *batch(model))
