"""Systems: phases in, readings out, whoever settles."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    Convolution,
    Dense,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    Hopfield,
    MaxPool,
    Phase,
    Simulated,
    State,
    Stencil,
    SystemBlock,
    SystemWrapper,
    clamp,
    identity,
    portions,
)
from ffebm.diagnostics import gradients
from ffebm.nudge import Nudge, Stationary

RELAX = FixedPoint(30)
NUDGED = FixedPoint(12, order="output-first")


class Counting(SystemWrapper):
    """Changes nothing, and counts what it is asked for."""

    def __init__(self, system) -> None:
        super().__init__(system)
        self.phases: list[int] = []

    def settle(self, x, phases, **how):
        self.phases.append(len(phases))
        return super().settle(x, phases, **how)


def energy() -> Hopfield:
    torch.manual_seed(0)
    edges = [Convolution(2, 3, padding=1, pool=MaxPool()), Dense(27, 4)]
    return Hopfield(edges, [clamp(0.5), clamp(0.5), identity()]).double()


def images(samples: int = 4) -> Tensor:
    return torch.rand(samples, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def model(wrap: bool, stencil: Stencil) -> FFEBM:
    estimator = EquilibriumPropagation(NUDGED, stencil=stencil)
    torch.manual_seed(0)
    stages = [nn.Conv2d(2, 2, 3, padding=1) for _ in range(1)]
    block = SystemBlock(Counting(Simulated(energy(), RELAX)), estimator) if wrap else EnergyBlock(energy(), RELAX, estimator)
    return FFEBM(stages, [block], nn.Linear(4, 3), input_shape=(2, 6, 6)).double()


@pytest.mark.parametrize("stencil", [Stencil.centered(), Stencil.one_sided()], ids=lambda stencil: stencil.name)
def test_a_wrapper_that_changes_nothing_changes_no_bit(stencil: Stencil) -> None:
    """Loss, gradients of block, stage and readout; elastic for the centered stencil, stationary for the other."""
    x, y = images(), torch.arange(4) % 3
    plain, wrapped = model(False, stencil), model(True, stencil)
    expected = {name.replace(".energy.", ".system.system.energy."): g for name, g in gradients(plain, x, y).items()}
    found = gradients(wrapped, x, y)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (counting,) = (part for part in wrapped.modules() if hasattr(part, "phases"))
    assert counting.phases[0] == 1, "the free phase"
    assert wrapped.summary().parameters == plain.summary().parameters


def test_phases_that_settle_together_are_those_that_settle_alone() -> None:
    net, x = energy(), images()
    system = Simulated(net, RELAX)
    (free,) = system.settle(x, [Phase()])
    error = torch.randn(4, 4, dtype=torch.float64)
    nudge = Stationary(torch.ones(4, dtype=torch.float64), (None, None, error))
    phases = [Phase(nudge, 0.1), Phase(nudge, -0.1), Phase(nudge, torch.tensor([0.1, -0.1, 0.2, 0.0]).double()), Phase()]
    latched = system.latched(free.state)
    together = latched.settle(x, phases, start=free.state, relax=NUDGED)
    for phase, reading in zip(phases, together, strict=True):
        (alone,) = latched.settle(x, [phase], start=free.state, relax=NUDGED)
        torch.testing.assert_close(reading.state, alone.state, rtol=0, atol=1e-14)


def test_a_nudge_of_somebody_elses_is_asked_for_every_phase() -> None:
    class Spring(Nudge):
        """Pulls the output to zero; of its samples it does not tell which force is whose."""

        def force(self, state: State, layer: int) -> Tensor | None:
            return state[layer] if layer == len(state) - 1 else None

    system, x = Simulated(energy(), RELAX), images()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "CACHE", 1)  # which would have every sample relax alone, if the nudge could be cut
        spring = Spring()
        strong, weak, free = (
            reading.state[-1].norm()
            for reading in system.settle(x, [Phase(spring, 0.5), Phase(spring, 0.1), Phase(spring, 0.0)])
        )
    assert strong < weak < free


def test_phases_with_different_nudges_settle_together() -> None:
    nudges = [Stationary(torch.ones(4).double(), (None, None, error)) for error in torch.randn(2, 4, 4, dtype=torch.float64)]
    system, x = Simulated(energy(), RELAX), images()
    together = system.settle(x, [Phase(nudge, 0.1) for nudge in nudges])
    alone = [system.settle(x, [Phase(nudge, 0.1)])[0] for nudge in nudges]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-14)
    assert not torch.allclose(together[0].state[-1], together[1].state[-1])


@pytest.mark.parametrize("cache", [1, 30_000, 2**30])
def test_portions_change_nothing(cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = model(False, Stencil.random_sign()), images(7), torch.arange(7) % 3
    torch.manual_seed(3)
    expected = gradients(net, x, y)
    monkeypatch.setattr(portions, "CACHE", cache)
    torch.manual_seed(3)
    found = gradients(net, x, y)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)


def test_latched_positions_serve_as_many_samples_and_no_others() -> None:
    net, x = energy(), images(2)
    (free,) = Simulated(net, RELAX).settle(x, [Phase()])
    latched = net.latched(free.state)
    assert latched.drive(free.state, x, 1).shape[0] == 2
    with pytest.raises(ValueError, match="Positions are latched for 2 images, got 4"):
        latched.drive(tuple(torch.cat([s, s]) for s in free.state), torch.cat([x, x]), 1)


def test_two_blocks_that_share_an_energy_have_names_of_their_own() -> None:
    net = Hopfield([Dense(4, 4)])
    blocks = [EnergyBlock(net), EnergyBlock(net)]
    FFEBM([nn.Identity(), nn.Identity()], blocks, nn.Linear(4, 2))
    assert [block.label for block in blocks] == ["block 1 of 2", "block 2 of 2"]
    for block in blocks:
        with pytest.raises(ValueError, match=rf"does not fit {block.label}\."):
            block(torch.rand(2, 5))


def test_errors_of_a_backward_pass_name_the_block() -> None:
    block = EnergyBlock(Hopfield([Dense(4, 4)]), FixedPoint(5), EquilibriumPropagation(), name="block 4 of 9")
    output = block(torch.rand(2, 4, requires_grad=True))

    def refuse(_: object, _dtype: torch.dtype, where: str) -> None:
        raise ValueError(where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EquilibriumPropagation, "check_precision", refuse)
        with pytest.raises(ValueError, match="block 4 of 9"):
            output.sum().backward()


def test_a_block_of_a_system_is_copied_and_pickled() -> None:
    block = SystemBlock(Counting(Simulated(energy(), RELAX)))
    x = images()
    with torch.no_grad():
        expected = block(x)
        for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
            other.load_state_dict(block.state_dict())
            assert torch.equal(other(x), expected)
