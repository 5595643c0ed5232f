"""Updates by pulses: what devices make of what an optimiser wants."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ffebm import Converter, Dense, EnergyBlock, Hardware, Hopfield, Pulses, identity

MANY = 100_000
DOUBLE = torch.float64


def changed(pulses: Pulses, weight: float, wanted: float) -> Tensor:
    at = torch.full((MANY,), weight, dtype=DOUBLE)
    return pulses.changed(at, torch.full_like(at, wanted)) - at


@settings(max_examples=10, deadline=None)
@given(wanted=st.floats(-0.05, 0.05))
def test_symmetric_pulses_are_right_in_the_mean_and_of_one_size(wanted: float) -> None:
    found = changed(Pulses(0.004), 0.1, wanted)
    assert set((found / 0.004).round(decimals=6).unique().tolist()) <= {float(n) for n in range(-14, 15)}
    assert found.mean().item() == pytest.approx(wanted, abs=4 * 0.002 / math.sqrt(MANY) + 1e-12)


def test_pulses_miss_by_their_noise() -> None:
    found = changed(Pulses(0.001, noise=0.5), 0.0, 0.009)  # nine pulses
    assert found.mean().item() == pytest.approx(0.009, rel=0.01)
    assert found.std().item() == pytest.approx(0.5 * 0.001 * 3, rel=0.01)


def test_no_pulse_changes_nothing() -> None:
    for pulses in (Pulses(0.01), Pulses.reram(), Pulses.ecram(), Pulses.oxide_ecram(), Pulses.capacitor()):
        assert not bool(changed(pulses, 0.3, 0.0).any())


@pytest.mark.parametrize(("up", "down"), [(1.0, 1.0), (0.1153, 0.5085)])
def test_pulses_shrink_towards_the_end_that_they_lead_to(up: float, down: float) -> None:
    """One pulse after the other, against all of them at once."""
    pulses = Pulses(0.01, up=up, down=down)
    for sign, shrink in ((1, up), (-1, down)):
        weight = 0.3
        for _ in range(20):
            weight += sign * 0.01 * (1 - sign * shrink * weight)
        assert 0.3 + changed(pulses, 0.3, sign * 0.2).mean().item() == pytest.approx(weight, rel=1e-9)


def test_soft_bounds_are_never_passed_and_hard_ones_are_kept() -> None:
    assert (0.99 + changed(Pulses(0.01, up=1.0), 0.99, 0.3)).max().item() < 1
    assert (0.99 + changed(Pulses(0.01), 0.99, 0.3)).max().item() == 1
    assert (1.9 + changed(Pulses(0.01, largest=2.0), 1.9, 0.3)).max().item() == 2


def test_an_update_has_so_many_pulses_at_most() -> None:
    assert changed(Pulses(0.001, most=5), 0.0, 1.0).max().item() == pytest.approx(0.005)


def test_asymmetric_pulses_draw_weights_to_where_up_and_down_are_alike() -> None:
    """Wanting nothing on average, by turns up and down: soft bounds pull to zero."""
    pulses, weight = Pulses(0.01, up=1.0, down=1.0), torch.full((1000,), 0.8, dtype=DOUBLE)
    for step in range(200):
        weight = pulses.changed(weight, torch.full_like(weight, 0.02 if step % 2 else -0.02))
    assert weight.abs().max().item() < 0.05


def test_an_optimiser_keeps_its_state_and_its_other_parameters() -> None:
    weight, bias = (torch.nn.Parameter(torch.zeros(4, dtype=DOUBLE)) for _ in range(2))
    twins = [torch.nn.Parameter(p.detach().clone()) for p in (weight, bias)]
    pulsed, plain = (torch.optim.Adam(parameters, lr=0.013) for parameters in ([weight, bias], twins))
    handles = Pulses(0.01).attach(pulsed, [weight])
    for optimiser, parameters in ((pulsed, (weight, bias)), (plain, twins)):
        for p in parameters:
            p.grad = torch.tensor([1.0, -1, 2, 0], dtype=DOUBLE)
        optimiser.step()
    torch.testing.assert_close(bias, twins[1])
    assert set(weight.tolist()) <= {-0.02, -0.01, 0.0, 0.01, 0.02}
    assert weight[3].item() == 0
    for a, b in zip(pulsed.state_dict()["state"].values(), plain.state_dict()["state"].values(), strict=True):
        assert torch.equal(a["exp_avg"], b["exp_avg"])
    for handle in handles:
        handle.remove()
    pulsed.step()
    assert not set(weight.tolist()) <= {-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03}


def test_a_block_learns_by_pulses() -> None:
    torch.manual_seed(0)
    block = EnergyBlock(Hopfield([Dense(6, 3)], identity(0.5)), hardware=Hardware(adc=Converter(12)))
    optimiser = torch.optim.SGD(block.parameters(), lr=0.5)
    Pulses.ecram().attach(optimiser, [p for p in block.parameters() if p.dim() > 1])
    x = torch.randn(64, 6)
    y = 0.2 * x[:, :3]
    losses = []
    for _ in range(60):
        loss = (block(x) - y).square().mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0.0}, "`step` must lie between 1e-09 and 0.5, got 0.0: it is what one pulse changes a weight by"),
        ({"largest": 0}, "`largest` must be positive, got 0"),
        ({"noise": -1.0}, "`noise` must be 0 or more"),
        ({"up": 2.0}, "`up` must lie between 0 and 1, got 2.0"),
        ({"most": 0}, "`most` must be a whole number of at least 1"),
    ],
)
def test_impossible_pulses_say_what_is_wrong(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pulses(**options)


def test_pulses_need_an_optimiser() -> None:
    with pytest.raises(TypeError, match="`optimiser` must be a Optimizer such as"):
        Pulses().attach("adam", [])
