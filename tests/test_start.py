"""Initial weights from data, and sweeps from a limit: what they promise before anything is learnt."""

from __future__ import annotations

import pytest
import torch

from ffebm import AveragePool, ConvLayer, DenseLayer, EquilibriumPropagation, FixedPoint, MaxPool, build, calibrate, clamp
from ffebm.builder import Layer
from ffebm.calibration import Tuning
from ffebm.diagnostics import converged_gradients, gradients, smallest_cosine
from ffebm.model import FFEBM
from ffebm.pooling import Pool
from ffebm.start import rms, start_from_data


def layers(pool: type[Pool] = MaxPool) -> list[Layer]:
    return [ConvLayer(6), ConvLayer(6), ConvLayer(6), ConvLayer(6, pool=pool()), ConvLayer(6), DenseLayer(9)]


def made(split: int, limit: float | None, pool: type[Pool] = MaxPool, **options: object) -> FFEBM:
    torch.manual_seed(0)
    model = build((3, 8, 8), layers(pool), split, 4, max_contraction=limit, relax=FixedPoint(60), **options)
    return start_from_data(model, images(), size=0.5)


def images(samples: int = 32, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + 1


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("limit", [0.2, 0.6, None])
@pytest.mark.parametrize("split", [2, 3, 6])
def test_every_block_gets_a_signal_of_the_set_size_and_edges_stay_below_the_limit(
    split: int, limit: float | None, batch_norm: bool
) -> None:
    model = made(split, limit, batch_norm=batch_norm)
    with torch.no_grad():
        visits = list(model.walk(images()))
        logits = model(images()).logits
    for visit in visits:
        assert rms(visit.x) == pytest.approx(0.5, rel=0.02)
        assert all(rms(s) <= 0.51 for s in visit.relaxed.state[1:])
        certificate = visit.block.certify(visit.x.shape[1:])
        assert certificate is not None
        assert certificate.contraction <= (limit or 0.5) * 1.01
        assert all(not edge.bias.any() for edge in visit.block.energy.edges)
    assert rms(logits) == pytest.approx(0.5, rel=0.02)


def test_feedback_lets_large_blocks_pass_on_more() -> None:
    outputs = {
        feedback: rms(next(iter(made(6, 0.35, feedback=feedback).walk(images()))).output) for feedback in (1.0, 0.3, 0.1)
    }
    assert outputs[1.0] < outputs[0.3] / 3 < outputs[0.1] / 9


@pytest.mark.parametrize("limit", [0.2, 0.5])
def test_blocks_of_every_size_start_with_as_much_signal_as_blocks_of_two_with_all_feedback(limit: float) -> None:
    def signal(split: int, feedback: float | None = None) -> float:
        torch.manual_seed(1)
        relax, activation = FixedPoint(60), clamp(1.0)
        twelve: list[Layer] = [ConvLayer(16)] * 12
        model = build((3, 8, 8), twelve, split, 4, activation=activation, max_contraction=limit, relax=relax, feedback=feedback)
        return min(rms(visit.output) for visit in start_from_data(model, images()).walk(images()))

    two = signal(2, feedback=1.0)
    assert all(signal(split) > 0.8 * two for split in (2, 3, 4, 6))


def test_the_start_does_not_depend_on_how_large_weights_were_drawn() -> None:
    expected = made(3, 0.4)
    torch.manual_seed(0)
    other = build((3, 8, 8), layers(), 3, 4, max_contraction=0.4, relax=FixedPoint(60))
    with torch.no_grad():
        for connection in [stage.connection for stage in other.stages] + [e for b in other.blocks for e in b.energy.edges]:
            connection.weight.mul_(0.01)
    start_from_data(other, images(), size=0.5)
    for (name, p), q in zip(expected.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-4, msg=name)


def test_a_model_that_was_in_evaluation_stays_in_it() -> None:
    torch.manual_seed(0)
    assert not start_from_data(build((3, 8, 8), layers(), 2, 4).eval(), images()).training


@pytest.mark.parametrize("quality", [0.99, 0.999])
@pytest.mark.parametrize("limit", [0.2, 0.35, 0.5])
@pytest.mark.parametrize("split", [2, 3])
def test_the_formula_holds_on_fresh_samples(split: int, limit: float, quality: float) -> None:
    estimator = EquilibriumPropagation(FixedPoint(30, order="output-first"), variant="small-signal")
    model = made(split, limit, AveragePool, estimator=estimator).double()  # which has one equilibrium
    for _, block in model.chain:
        Tuning.from_bound(limit, len(block.energy.activations), quality).apply(block)
    x, y = images(24, seed=5).double(), torch.arange(24) % 4
    assert smallest_cosine(gradients(model, x, y), converged_gradients(model, x, y))[0] >= quality


@pytest.mark.parametrize("quality", [0.99, 0.999])
@pytest.mark.parametrize("limit", [0.5, None])
@pytest.mark.parametrize("split", [2, 3])
def test_a_calibrated_gradient_is_as_good_as_asked_for_on_samples_that_calibration_did_not_see(
    split: int, limit: float | None, quality: float
) -> None:
    nudges = FixedPoint(30, order="output-first")
    estimator = EquilibriumPropagation(nudges, variant="small-signal" if limit else "centered", beta=1e-4)
    model = made(split, limit, AveragePool, estimator=estimator).double()
    found = calibrate(model, images().double(), torch.arange(32) % 4, quality)
    x, y = images(24, seed=5).double(), torch.arange(24) % 4
    settled = gradients(model.use(estimator.swept(100), FixedPoint(300)), x, y)
    assert smallest_cosine(gradients(found.apply(model), x, y), settled)[0] >= quality


def test_the_check_of_the_formula_takes_no_more_sweeps_than_it_says() -> None:
    estimator = EquilibriumPropagation(FixedPoint(30, order="output-first"), variant="small-signal")
    model = made(2, 0.35, estimator=estimator)
    found = calibrate(model, images(), torch.arange(32) % 4, quality=0.99)
    said = Tuning.from_bound(0.35, 2, 0.99)
    assert found.reached
    assert all(t.free + t.nudged < said.free + said.nudged and t.omega == said.omega for t in found.tunings)


def test_slower_blocks_larger_ones_and_better_gradients_take_more_sweeps() -> None:
    def work(*arguments: float) -> tuple[int, int]:
        tuning = Tuning.from_bound(*arguments)
        return tuning.free, tuning.nudged

    assert work(0.2, 2, 0.99) < work(0.9, 2, 0.99) < work(0.9, 2, 0.9999)
    assert work(0.5, 2, 0.99) < work(0.5, 4, 0.99) < work(0.5, 6, 0.99)
    assert work(1e-12, 1, 0.99) == (2, 1)
