from __future__ import annotations

import math

import pytest
import torch

from ffebm import Dense, EquilibriumPropagation, FixedPoint, Hopfield, Unrolled, clamp, portions
from ffebm.diagnostics import converged_gradients, cosines, gradients, trace, transients
from ffebm.errors import UnsettledError
from ffebm.experiment.architectures import build_model, static_analysis
from ffebm.experiment.preset import read_preset
from ffebm.gradient.equilibrium_propagation import Variant
from nets import batch, make, relative, worst


def test_a_trace_ends_with_the_energy_and_residual_of_the_relaxation() -> None:
    energy, x = Hopfield([Dense(6, 5), Dense(5, 4)], clamp(0.5)).double(), torch.rand(3, 6, dtype=torch.float64)
    found = trace(energy, FixedPoint(12), x)
    assert found.energy.shape == (13, 3)
    assert found.residual.shape == (12, 3)
    relaxed = FixedPoint(12)(energy, x)
    torch.testing.assert_close(found.energy[-1], energy(relaxed.state, x))
    torch.testing.assert_close(found.residual[-1], relaxed.residual)
    assert (found.contraction[:5] < 1).all()


def test_last_point_of_the_transients_is_the_gradient() -> None:
    recorded = FixedPoint(6, order="output-last")
    model = make("max", [3, 3], Unrolled(recorded))
    x, y = batch(model)
    found = {t.name: t for t in transients(model, x, y, recorded, beta=0.05)}
    unrolled = gradients(model, x, y)
    nudged = gradients(model.use(EquilibriumPropagation(recorded.transposed, beta=0.05)), x, y)
    for name, transient in found.items():
        assert relative(transient.id[-1], unrolled[name].flatten()) < 1e-9
        assert relative(transient.ep[-1], nudged[name].flatten()) < 1e-9
        assert transient.cosine == pytest.approx(cosines(nudged, unrolled)[name])
    assert {t.block for t in found.values() if t.name.startswith("blocks.0")} == {1}
    assert {t.block for t in found.values() if t.name.startswith(("blocks.1", "readout"))} == {2}


def test_transients_leave_the_model_alone_and_can_be_thinned() -> None:
    model = make("max", [3, 3], EquilibriumPropagation())
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x, y = batch(model)
    first, second = (transients(model, x, y, FixedPoint(2), shown=3, seed=5) for _ in range(2))
    assert all(t.ep.shape[1] <= 3 for t in first)
    assert all(torch.equal(a.ep, b.ep) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_transients_need_a_fixed_number_of_sweeps() -> None:
    model = make("dense", 2, EquilibriumPropagation())
    with pytest.raises(ValueError, match="fixed number of sweeps"):
        transients(model, *batch(model), FixedPoint(5, tolerance=1e-3))


def test_cosines_are_nan_where_a_gradient_is_zero() -> None:
    a = {"w": torch.tensor([1.0, 0.0]), "b": torch.zeros(2)}
    b = {"w": torch.tensor([1.0, 1.0]), "b": torch.ones(2)}
    found = cosines(a, b)
    assert found["w"] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(found["b"])


def test_ep_and_id_agree_in_every_layer_of_the_papers_static_analysis() -> None:
    """15 layers in 6 blocks at full width, float32, T_free 15, T 20, β 0.02, two samples: EP and ID agree in every layer."""
    model = static_analysis()
    assert [len(block.energy.activations) for _, block in model.chain] == [2, 2, 3, 3, 2, 3]
    assert sum(p.numel() for p in model.parameters()) == 36_258_570
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([3, 7])
    recorded = FixedPoint(20, order="output-last")
    nudged = gradients(model.use(EquilibriumPropagation(recorded.transposed, beta=0.02)), x, y)
    unrolled = gradients(model.use(Unrolled(recorded)), x, y)
    found = cosines(nudged, unrolled)
    assert len(found) == len(list(model.parameters()))
    assert min(found.values()) > 0.999, min(found, key=found.__getitem__)


def test_transients_follow_the_nudge_of_the_model() -> None:
    recorded = FixedPoint(5, order="output-last")
    model = make("dense", [3, 3], EquilibriumPropagation(recorded.transposed, beta=0.5), nudge="stationary")
    x, y = batch(model)
    expected = gradients(model, x, y)
    for transient in transients(model, x, y, recorded, beta=0.5):
        assert relative(transient.ep[-1], expected[transient.name].flatten()) < 1e-9


def test_converged_gradients_raise_where_a_block_does_not_settle() -> None:
    model = make("dense", [3, 3], EquilibriumPropagation())
    with pytest.raises(UnsettledError, match=r"block \d of 2 still moves by .* after 3 sweeps"):
        converged_gradients(model, *batch(model), steps=3)


@pytest.mark.slow
def test_ep_overlays_id_at_every_step_of_the_static_analysis() -> None:
    """The curves of Fig. gdd: EP on top of ID for every parameter, block after block."""
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([3, 7])
    for transient in transients(static_analysis(), x, y, FixedPoint(20, order="output-last"), beta=0.02, shown=5):
        assert transient.cosine > 0.999
        assert transient.deviation.max() < 0.05, transient.name


@pytest.mark.slow
def test_static_analysis_falls_short_at_the_papers_variance_for_fifteen_layers() -> None:
    """Why `static_analysis` does not take 1e-5, the paper's value for 15 layers: EP then falls short of 0.999 somewhere."""
    model = static_analysis(variance=1e-5)
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([3, 7])
    recorded = FixedPoint(20, order="output-last")
    nudged = gradients(model.use(EquilibriumPropagation(recorded.transposed, beta=0.02)), x, y)
    found = cosines(nudged, gradients(model.use(Unrolled(recorded)), x, y))
    assert 0.99 < min(found.values()) < 0.999


def test_held_pooling_keeps_a_nudged_block_at_its_equilibrium() -> None:
    """Six layers in one block with three poolings inside: free to jump, they may take the whole block elsewhere.

    Whether they do hangs on rounding, and so on the machine: one of three nets is enough.
    """
    settings = read_preset("cifar10-l6-bs6", ["model.width=0.125", "model.variance=2e-4"])
    relax = FixedPoint(100, tolerance=1e-6)
    smallest: dict[bool, list[float]] = {True: [], False: []}
    for seed in (0, 2, 4):
        torch.manual_seed(seed)
        model = build_model(settings, (3, 32, 32), 10)
        x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
        expected = gradients(model.use(Unrolled(FixedPoint(30, order="output-last")), relax), x, y)
        weights = [name for name in expected if "norm" not in name]  # whose own gradient is a hundred times smaller
        for hold, found in smallest.items():
            estimator = EquilibriumPropagation(FixedPoint(30, order="output-first"), hold_pooling=hold)
            similar = cosines(gradients(model.use(estimator, relax), x, y), expected)
            found.append(min(similar[name] for name in weights))
    assert min(smallest[True]) > 0.85
    assert min(smallest[False]) < 0.5


@pytest.mark.parametrize("variant", ["centered", "positive", "negative"])
def test_held_pooling_does_not_depend_on_how_a_batch_is_cut(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("max", [3, 3], EquilibriumPropagation(FixedPoint(8, order="output-first"), variant=variant), FixedPoint(30))
    x, y = batch(model, samples=13)
    whole = gradients(model, x, y)
    for cache in (3000, 10_000, 20_000):
        monkeypatch.setattr(portions, "CACHE", cache)
        assert worst(gradients(model, x, y), whole) < 1e-9
