"""As few sweeps as a gradient of a given quality needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    Dense,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    Relaxation,
    State,
    Unrolled,
    calibrate,
    identity,
    portions,
)
from ffebm.calibration import Tuning
from ffebm.diagnostics import converged_gradients, cosines, gradients
from ffebm.energy import Session
from ffebm.experiment.architectures import build_model
from ffebm.experiment.preset import read_preset
from ffebm.nudge import Nudge
from nets import batch, make

MOST = FixedPoint(60)
ESTIMATORS: dict[str, GradientEstimator] = {
    "ep": EquilibriumPropagation(FixedPoint(40, order="output-first"), beta=1e-3),
    "id": Unrolled(FixedPoint(40, order="output-last")),
    "recurrent backprop": RecurrentBackprop(FixedPoint(40, order="output-last")),
}


def work(model: FFEBM, quality: float) -> int:
    x, y = batch(model, 12)
    return sum(tuning.free + 2 * tuning.nudged for tuning in calibrate(model, x, y, quality).tunings)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("kind", ["dense", "average"])
@pytest.mark.parametrize("quality", [0.9, 0.999])
def test_the_calibrated_gradient_is_as_good_as_asked_for(kind: str, name: str, quality: float) -> None:
    """By the measure of the tests: the converged gradient in float64."""
    model = make(kind, 2, ESTIMATORS[name], relax=MOST).float()
    x, y = batch(model, 12)
    found = calibrate(model, x, y, quality)
    assert found.reached
    assert found.cosine >= quality
    assert min(cosines(gradients(found.apply(model), x, y), converged_gradients(model, x, y)).values()) > quality - 1e-3
    for (_, block), tuning in zip(model.chain, found.tunings, strict=True):
        assert (block.relax.steps, block.estimator.relax.steps) == (tuning.free, tuning.nudged)
        assert block.relax.omega == tuning.omega
        assert 1 <= block.estimator.relax.omega == tuning.nudged_omega <= tuning.omega
        assert block.estimator.relax.order == ESTIMATORS[name].relax.order


def test_a_higher_quality_takes_more_sweeps() -> None:
    model = make("average", 2, ESTIMATORS["ep"], relax=MOST).float()
    assert work(model, 0.9) < work(model, 0.99) < work(model, 0.9999)


def test_calibrating_leaves_the_model_as_it_was() -> None:
    model = make("average", 2, ESTIMATORS["ep"], relax=MOST).float().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    relaxations = [(block.relax, block.estimator) for _, block in model.chain]
    calibrate(model, *batch(model, 12))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [(block.relax, block.estimator) for _, block in model.chain] == relaxations
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_slow_block_gets_more_sweeps_than_a_fast_one() -> None:
    model = make("dense", 2, ESTIMATORS["ep"], relax=MOST).float()
    _, slow, _ = (block for _, block in model.chain)
    with torch.no_grad():
        slow.energy.edges[0].weight.mul_(1.8)
    found = calibrate(model, *batch(model, 12))
    first, second, third = found.tunings
    assert found.contractions[1] == max(found.contractions)
    assert second.free > max(first.free, third.free)
    assert second.omega > max(first.omega, third.omega)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_contraction_of_a_linear_block_is_the_square_of_its_singular_value(rate: float) -> None:
    """Odd, then even layers: errors shrink by the square of the largest singular value."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(6, 5)], identity())
    with torch.no_grad():
        u, _, v = torch.linalg.svd(energy.edges[0].weight, full_matrices=False)
        energy.edges[0].weight.copy_(math.sqrt(rate) * u @ v)  # all singular values alike
    block = EnergyBlock(energy, FixedPoint(50), EquilibriumPropagation(FixedPoint(50, order="output-first")))
    model = FFEBM([nn.Linear(4, 6)], [block], nn.Linear(5, 3))
    found = calibrate(model, torch.randn(8, 4), torch.arange(8) % 3)
    assert found.contractions[0] == pytest.approx(rate, rel=0.02)
    assert found.tunings[0].omega == pytest.approx(2 / (1 + math.sqrt(1 - rate)), rel=0.01)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_long_weak_block_gets_enough_sweeps_for_errors_to_reach_its_first_layer(name: str) -> None:
    """One sweep moves an error by two layers. The error of weak layers is small, and yet all that the first ones learn from."""
    torch.manual_seed(0)
    energy = Hopfield([Dense(6, 6) for _ in range(3)], identity())
    with torch.no_grad():
        for edge in energy.edges:
            edge.weight.mul_(0.05)
    model = FFEBM([nn.Linear(4, 6)], [EnergyBlock(energy, MOST, ESTIMATORS[name])], nn.Linear(6, 3))
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    found = calibrate(model, x, y, quality=0.9)
    assert found.reached
    assert all(g.any() for g in gradients(found.apply(model), x, y).values())


def test_max_pooling_is_compared_with_the_equilibrium_that_its_sweeps_reach() -> None:
    """Which one of many depends on how far sweeps go; the gradient at another would be asked for in vain."""
    torch.manual_seed(0)
    changes = ["model.width=0.0625", "model.variance=8.35e-5", "gradient.beta=0.005"]
    model = build_model(read_preset("cifar10-l6-bs6", changes), (3, 32, 32), 10)
    found = calibrate(model, torch.randn(8, 3, 32, 32), torch.arange(8))
    assert found.reached
    assert found.tunings[0].free < 20


def test_too_few_sweeps_are_reported_as_not_reached_and_not_exceeded() -> None:
    estimator = EquilibriumPropagation(FixedPoint(2, order="output-first"))
    model = make("dense", 3, estimator, relax=FixedPoint(2)).float()
    found = calibrate(model, *batch(model, 12), quality=0.9999)
    assert not found.reached
    assert found.cosine < 0.9999
    assert all(tuning.free <= 2 and tuning.nudged <= 2 for tuning in found.tunings)


def test_backprop_through_time_is_calibrated_in_its_free_phase_alone() -> None:
    model = make("dense", 2, BackpropThroughTime(), relax=MOST).float()
    found = calibrate(model, *batch(model, 12))
    assert found.reached
    assert all(block.estimator == BackpropThroughTime() for _, block in found.apply(model).chain)
    assert all(block.relax.steps < MOST.steps for _, block in model.chain)


def test_synchronous_sweeps_are_not_over_relaxed() -> None:
    estimator = EquilibriumPropagation(FixedPoint(60, order="synchronous"))
    model = make("dense", 2, estimator, relax=replace(MOST, order="synchronous")).float()
    assert all(tuning.omega == 1 for tuning in calibrate(model, *batch(model, 12)).tunings)


def test_a_block_without_interactions_gets_two_free_sweeps_the_second_of_which_moves_nothing() -> None:
    model = make("dense", 1, ESTIMATORS["ep"], relax=MOST).float()
    x, y = batch(model, 12)
    found = calibrate(model, x, y)
    assert set(found.tunings) == {Tuning(2, 1, 1.0)}
    found.apply(model)(x)
    assert all(block.residual.max() == 0 for _, block in model.chain)


@dataclass(frozen=True)
class Damped(Relaxation):
    """Somebody's own: a part of the way to where all layers are drawn at once."""

    pace: float = 0.7

    def sweep(self, energy: Energy | Session, state: State, x: Tensor, nudge: Nudge | None = None) -> State:
        drawn = FixedPoint(order="synchronous").sweep(energy, state, x, nudge)
        return tuple(torch.lerp(s, to, self.pace) for s, to in zip(state, drawn, strict=True))

    @property
    def transposed(self) -> Damped:
        return self


@pytest.mark.parametrize("quality", [0.9, 0.999])
@pytest.mark.parametrize("estimator", [EquilibriumPropagation, Unrolled, RecurrentBackprop])
def test_a_relaxation_of_somebodys_own_gets_as_many_sweeps_as_the_quality_needs(
    estimator: type[EquilibriumPropagation | Unrolled | RecurrentBackprop], quality: float
) -> None:
    model = make("average", 2, estimator(Damped(60, pace=0.6)), relax=Damped(90)).float()
    x, y = batch(model, 12)
    found = calibrate(model, x, y, quality)
    assert found.reached
    assert min(cosines(gradients(found.apply(model), x, y), converged_gradients(model, x, y)).values()) > quality - 1e-3
    for (_, block), tuning in zip(model.chain, found.tunings, strict=True):
        assert tuning.omega == 1, "its sweeps cannot go further than they do"
        assert block.relax == Damped(tuning.free)
        assert block.estimator.relax == Damped(tuning.nudged, pace=0.6)
        assert 1 < tuning.free < 90
        assert 1 < tuning.nudged < 60


@pytest.mark.parametrize("quality", [0.0, 1.0, 1.5, math.nan])
def test_a_quality_that_is_no_cosine_below_one_is_refused(quality: float) -> None:
    model = make("dense", 2, ESTIMATORS["ep"], relax=MOST).float()
    with pytest.raises(ValueError, match=f"`quality` must lie between 0 and 1, got {quality}"):
        calibrate(model, *batch(model), quality=quality)


def test_a_net_with_max_pooling_is_calibrated_on_more_samples_than_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("max", 2, EquilibriumPropagation(FixedPoint(10, order="output-first")), relax=MOST).float()
    found = []
    for cache in (2**40, 2000):
        monkeypatch.setattr(portions, "CACHE", cache)
        found.append([(t.free, t.nudged) for t in calibrate(model, *batch(model, 6), quality=0.9).tunings])
    assert found[0] == found[1]


def test_a_quality_beyond_rounding_gets_all_sweeps_that_there_are() -> None:
    model = make("dense", 2, ESTIMATORS["ep"], relax=FixedPoint(5)).float()
    found = calibrate(model, *batch(model, 12), quality=0.9999999999)
    assert not found.reached
    assert [tuning.free for tuning in found.tunings] == [5] * len(found.tunings)  # all that there are
    assert found.cosine > 0.9
