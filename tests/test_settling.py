"""Max-pooling inside a block: below layers that are not negative it settles, below others it flips for ever."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from ffebm import Activation, Convolution, FixedPoint, Hopfield, MaxPool, build, clamp, identity
from nets import batch, conv_layers

SETTLE = FixedPoint(300, tolerance=1e-10)


@pytest.mark.parametrize("omega", [1.0, 1.3])
@given(seed=st.integers(0, 2**16), gain=st.floats(0.2, 2.0), feedback=st.floats(0.2, 1.0))
def test_below_layers_that_are_not_negative_no_sweep_raises_the_energy_and_all_samples_settle(
    omega: float, seed: int, gain: float, feedback: float
) -> None:
    torch.manual_seed(seed)
    edges = [Convolution(3, 4, padding=1, pool=MaxPool()), Convolution(4, 4, padding=1, pool=MaxPool(3, 1))]
    energy = Hopfield(edges, clamp(0.5), feedback=feedback).double()
    for edge in edges:
        edge.weight.data.mul_(gain)
    x = torch.randn(8, 3, 8, 8, dtype=torch.float64)
    relax, state = FixedPoint(1, omega=omega), energy.init_state(x)
    energies = [energy(state, x)]
    with torch.no_grad():
        for _ in range(20):
            state = relax.sweep(energy, state, x)
            energies.append(energy(state, x))
        settled = FixedPoint(2000, omega=omega, tolerance=1e-10)(energy, x)
    rises = torch.stack(energies).diff(dim=0)
    assert rises.max() <= 1e-12 * torch.stack(energies).abs().max()
    assert (settled.residual <= 1e-10).all()


def test_what_build_chooses_settles_where_unclamped_outputs_flip() -> None:
    def settles(seed: int, output: Activation | None) -> bool:
        torch.manual_seed(seed)
        layers = conv_layers(MaxPool)
        model = build((3, 8, 8), layers, 2, 5, output_activation=output, relax=SETTLE, unsettled="ignore").double()
        model(batch(model, 16)[0])
        return all((block.residual <= 1e-10).all() for _, block in model.chain)

    assert all(settles(seed, None) for seed in range(12))
    assert sum(settles(seed, identity()) for seed in range(12)) <= 3
