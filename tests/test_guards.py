"""What would give wrong numbers without a word is refused, or warned of, by the part that knows it first."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import parametrize, prune
from torch.utils import _pytree

from ffebm import (
    FFEBM,
    BackpropThroughTime,
    ConvLayer,
    Convolution,
    Dense,
    DenseLayer,
    DivergenceError,
    Energy,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    State,
    Unrolled,
    UnsettledError,
    UnsettledWarning,
    build,
    calibrate,
    clamp,
    identity,
)
from ffebm.diagnostics import converged_gradients, cosines, fidelity, gradients, smallest_cosine
from ffebm.model import Output
from nets import batch, make

LOW, HIGH = EquilibriumPropagation.window(torch.float32)


class TestWindowOfBeta:
    """`EquilibriumPropagation` knows which strengths of the nudge its precision cannot do."""

    @staticmethod
    def quality(dtype: torch.dtype, beta: float, kind: str = "dense", **options: object) -> float:
        """The smallest cosine of any parameter's gradient with the converged one."""
        estimator = EquilibriumPropagation(FixedPoint(60, order="output-first"), beta=beta)
        model = make(kind, [2, 4], estimator, FixedPoint(200), **options).to(dtype)
        x, y = batch(model)
        return smallest_cosine(gradients(model, x, y), converged_gradients(model, x, y))[0]

    def test_the_window_follows_from_the_rounding_of_the_precision(self) -> None:
        for dtype in (torch.float32, torch.float64):
            assert EquilibriumPropagation.window(dtype) == (2 * torch.finfo(dtype).eps, 1000)

    @pytest.mark.parametrize("beta", [1e-17, 1e6, math.nextafter(1000, math.inf)])
    def test_a_beta_that_no_precision_takes_is_refused_at_construction(self, beta: float) -> None:
        with pytest.raises(
            ValueError, match=r"`beta` must lie between 4\.4e-16 and 1000 for torch\.float64.* Take 0\.001 to 0\.2"
        ):
            EquilibriumPropagation(beta=beta)

    @pytest.mark.parametrize("nudge", ["elastic", "stationary"])
    @pytest.mark.parametrize("scale", ["unit", "paper"])
    def test_a_beta_that_float32_does_not_take_is_refused_when_it_nudges(self, nudge: str, scale: str) -> None:
        estimator = EquilibriumPropagation(beta=0.99 * LOW, scale=scale)
        model = make("dense", [3, 3], estimator, FixedPoint(50), nudge=nudge)
        x, y = batch(model)
        assert all(g.isfinite().all() for g in gradients(model, x, y).values())  # in float64 there is room
        with pytest.raises(ValueError, match=r"between 2\.4e-07 and 1000 for torch\.float32 in block 2 of 2, got 2\.36034e-07"):
            gradients(model.float(), x.float(), y)

    @pytest.mark.parametrize("beta", [LOW, HIGH])
    def test_a_beta_at_either_end_of_the_window_is_taken(self, beta: float) -> None:
        block = EnergyBlock(Hopfield([Dense(6, 4)]), estimator=EquilibriumPropagation(beta=beta))
        block(torch.rand(2, 6)).sum().backward()
        assert all(p.grad.isfinite().all() for p in block.parameters())

    @given(exponent=st.floats(-4, -2))
    def test_well_inside_gradients_are_good_in_float32(self, exponent: float) -> None:
        assert self.quality(torch.float32, 10**exponent) > 0.95

    @given(exponent=st.floats(-11, -2))
    def test_well_inside_gradients_are_good_in_float64(self, exponent: float) -> None:
        assert self.quality(torch.float64, 10**exponent) > 0.95

    @pytest.mark.parametrize("kind", ["dense", "average", "max"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_at_the_ends_of_the_window_the_gradient_is_lost_already(self, kind: str, dtype: torch.dtype) -> None:
        """At both ends the gradient is lost already."""
        for beta in EquilibriumPropagation.window(dtype):
            assert self.quality(dtype, beta, kind) < 0.55


class TestFidelity:
    def test_settled_phases_and_a_small_nudge_are_exact(self) -> None:
        for kind, dtype in (
            ("dense", torch.float32),
            ("dense", torch.float64),
            ("average", torch.float64),
            ("max", torch.float64),
        ):
            estimator = EquilibriumPropagation(FixedPoint(80, order="output-first"), beta=1e-3)
            model = make(kind, [2, 4], estimator, FixedPoint(200)).to(dtype)
            found = fidelity(model, *batch(model))
            assert found.cosine > 0.999, kind
            assert found.parameter in dict(model.named_parameters())
            assert found.ratio == pytest.approx(1, abs=1e-3)
            assert found.settled

    def test_fidelity_is_the_smallest_cosine_with_the_converged_gradient(self) -> None:
        estimator = EquilibriumPropagation(FixedPoint(4, order="output-first"), beta=0.1)
        model = make("dense", [3, 3], estimator, FixedPoint(12))
        x, y = batch(model)
        ours, truth = gradients(model, x, y), converged_gradients(model, x, y)
        expected = cosines(ours, truth)
        found = fidelity(model, x, y)
        assert found.cosine == pytest.approx(min(expected.values()), abs=1e-9)
        assert found.parameter == min(expected, key=expected.__getitem__)
        length, true_length = (torch.cat([g.flatten() for g in side.values()]).norm() for side in (ours, truth))
        assert found.ratio == pytest.approx((length / true_length).item(), abs=1e-9)

    def test_too_strong_a_nudge_has_a_low_fidelity(self) -> None:
        model = make("dense", [3, 3], EquilibriumPropagation(FixedPoint(80), beta=0.9 * HIGH), FixedPoint(200)).float()
        found = fidelity(model, *batch(model))
        assert found.cosine < 0.5
        assert found.ratio > 10
        assert found.settled

    def test_an_error_that_does_not_reach_a_layer_has_fidelity_zero(self) -> None:
        model = make("dense", 6, EquilibriumPropagation(FixedPoint(1, order="output-first"), beta=1e-3), FixedPoint(200))
        found = fidelity(model, *batch(model))
        assert found.cosine == 0  # not NaN
        assert found.ratio < 1

    def test_fidelity_leaves_the_model_and_the_random_numbers_as_they_were(self) -> None:
        model = make("max", [3, 3], EquilibriumPropagation(FixedPoint(3)), FixedPoint(5)).train()
        model.stages[1] = nn.Sequential(model.stages[1], nn.Dropout(0.5))
        x, y = batch(model)
        before = {name: t.clone() for name, t in model.state_dict().items()}
        held = [(block.relax, block.estimator, block.unsettled, block.residual) for _, block in model.chain]
        drawn = torch.get_rng_state()
        fidelity(model, x, y)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
        assert [(block.relax, block.estimator, block.unsettled, block.residual) for _, block in model.chain] == held
        assert all(p.grad is None for p in model.parameters())

    def test_both_gradients_see_the_same_dropout(self) -> None:
        estimator = EquilibriumPropagation(FixedPoint(80, order="output-first"), beta=1e-6)
        model = make("dense", [3, 3], estimator, FixedPoint(200)).train()
        model.stages[1] = nn.Sequential(nn.Dropout(0.5), model.stages[1])
        assert fidelity(model, *batch(model)).cosine > 0.999

    def test_parameters_whose_gradient_vanishes_but_for_rounding_do_not_count(self) -> None:
        """Linear layers before a batch-norm, which takes out of the output what a bias adds to it."""
        estimator = EquilibriumPropagation(FixedPoint(80, order="output-first"), beta=0.01)
        linear = {"activation": identity(0.5), "output_activation": identity(0.5)}
        model = make("dense", [3, 3], estimator, FixedPoint(200), **linear).float()
        x, y = batch(model)
        bias = "blocks.0.energy.interactions.1.bias"
        assert converged_gradients(model, x, y)[bias].norm() < 1e-10
        assert fidelity(model, x, y).cosine > 0.999

    @pytest.mark.parametrize("unsettled", ["warn", "raise"])
    def test_blocks_that_do_not_settle_are_reported_as_unsettled(self, unsettled: str) -> None:
        model = restless(unsettled=unsettled)
        found = fidelity(model, torch.randn(6, 4), torch.arange(6) % 3)
        assert not found.settled
        assert math.isfinite(found.cosine)
        assert math.isfinite(found.ratio)

    def test_blocks_that_diverge_have_fidelity_zero_and_raise_nothing(self) -> None:
        energy = Hopfield([Dense(6, 6)], identity())
        with torch.no_grad():
            energy.edges[0].weight.mul_(30)
        model = FFEBM([nn.Linear(4, 6)], [EnergyBlock(energy)], nn.Linear(6, 3))
        x, y = torch.randn(6, 4), torch.arange(6) % 3
        with pytest.raises(DivergenceError):
            model(x)
        found = fidelity(model, x, y)
        assert (found.cosine, found.parameter, found.settled) == (0.0, "", False)
        assert math.isnan(found.ratio)

    def test_settled_estimators_without_nudges_have_full_fidelity(self) -> None:
        for estimator in (Unrolled(FixedPoint(80)), RecurrentBackprop(FixedPoint(80)), BackpropThroughTime()):
            model = make("average", [3, 3], estimator, FixedPoint(200))
            assert fidelity(model, *batch(model)).cosine > 0.9999

    def test_smallest_cosine_passes_over_gradients_that_vanish(self) -> None:
        truth = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0, 1e-8]), "c": torch.zeros(2)}
        found = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([1.0, 0.0]), "c": torch.ones(2)}
        assert smallest_cosine(found, truth) == (0.0, "b")
        assert smallest_cosine(found, truth, 1e-7) == (pytest.approx(math.sqrt(0.5)), "a")
        assert smallest_cosine({"c": torch.ones(2)}, {"c": torch.zeros(2)}) == (1.0, "")
        assert smallest_cosine({"a": torch.zeros(2)}, {"a": torch.ones(2)}) == (0.0, "a")
        tiny = {"a": torch.tensor([1e-30, 0.0])}  # whose square is zero in float32
        assert smallest_cosine(tiny, tiny) == (pytest.approx(1), "a")


def restless_block(estimator: GradientEstimator = EquilibriumPropagation(), **options: object) -> EnergyBlock:
    """Two layers, each drawn to the opposite of the other: moving at once, they flip for ever under inputs from 0 to 2."""
    energy = Hopfield([Dense(6, 6)], clamp(1, -1, 1))
    with torch.no_grad():
        energy.edges[0].weight.copy_(-3 * torch.eye(6))
        energy.edges[0].bias.fill_(1)
    return EnergyBlock(energy, FixedPoint(21, order="synchronous"), estimator, **options)


def restless(**options: object) -> FFEBM:
    return FFEBM([nn.Sequential(nn.Linear(4, 6), nn.Sigmoid())], [restless_block(**options)], nn.Linear(6, 3))


class TestBlocksThatDoNotSettle:
    def test_each_block_warns_once(self) -> None:
        net = nn.Sequential(restless_block(name="the first"), restless_block(name="the second"))
        x = torch.rand(2, 6)
        with pytest.warns(UnsettledWarning) as caught:
            net(x)
        assert len(caught) == 2
        assert "the first has not settled: units still move by" in str(caught[0].message)
        assert "after 21 sweeps" in str(caught[0].message)
        assert 'unsettled="ignore"' in str(caught[1].message)
        net(x).sum().backward()  # a second warning would be an error here

    def test_a_model_asked_for_losses_warns_too(self) -> None:
        with pytest.warns(UnsettledWarning, match="block 1 of 1 has not settled"):
            restless()(torch.randn(3, 4), torch.tensor([0, 1, 2]))

    def test_unsettled_raise_raises_every_time(self) -> None:
        block = restless_block(unsettled="raise")
        for _ in range(2):  # every time
            with pytest.raises(UnsettledError, match="has not settled"):
                block(torch.rand(2, 6))
        assert block.residual is not None
        assert block.residual.mean() > 0.1  # there to be looked at

    def test_unsettled_ignore_says_nothing(self) -> None:
        block = restless_block(unsettled="ignore")
        block(torch.rand(2, 6)).sum().backward()
        assert block.residual is not None
        assert block.residual.mean() > 0.1
        assert "unsettled='ignore'" in repr(block)

    def test_an_unknown_choice_for_unsettled_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Unknown unsettled 'never'; choose one of 'warn', 'raise', 'ignore'"):
            EnergyBlock(Hopfield([]), unsettled="never")

    def test_build_gives_every_block_the_choice_for_unsettled(self) -> None:
        model = build((6,), [DenseLayer(5), DenseLayer(4)], 1, 2, unsettled="raise")
        assert [block.unsettled for _, block in model.chain] == ["raise", "raise"]

    def test_a_block_that_a_single_sweep_leaves_unsettled_warns(self) -> None:
        block = EnergyBlock(Hopfield([Dense(6, 6)], identity(0.5)), FixedPoint(1))
        with torch.no_grad():
            block.energy.edges[0].weight.copy_(1.8 * torch.eye(6))  # contracts by 0.81 a sweep
        with pytest.warns(UnsettledWarning, match="after 1 sweep,"):
            block(torch.ones(2, 6))

    def test_a_single_layer_has_settled_after_one_sweep(self) -> None:
        """Its residual is all of the state, and yet it has settled."""
        block = EnergyBlock(Hopfield([], clamp()), FixedPoint(1), unsettled="raise")
        block(torch.ones(2, 6))
        assert block.residual.min() == 1

    def test_units_that_move_little_beside_their_size_have_settled(self) -> None:
        block = EnergyBlock(Hopfield([Dense(6, 6)], identity(0.5)), FixedPoint(10), unsettled="raise")
        block(torch.full((2, 6), 1e6))
        assert block.residual.mean() > 0.1
        block.relax = FixedPoint(2)
        with torch.no_grad():
            block.energy.edges[0].weight.copy_(1.8 * torch.eye(6))
        with pytest.raises(UnsettledError, match="after 2 sweeps"):
            block(torch.full((2, 6), 1e6))

    def test_a_few_restless_samples_of_a_batch_do_not_count_as_unsettled(self) -> None:
        """Max-pooling flips for a few samples here and there, and that is no reason to speak up."""
        block = restless_block(unsettled="raise")
        x = torch.rand(2, 6)
        still = torch.full_like(x, 10.0)  # clamped, whatever the other layer does
        block(torch.cat([x, *[still] * 30]))
        assert block.residual.max() > 0.1
        with pytest.raises(UnsettledError):
            block(torch.cat([x, still]))

    def test_backprop_through_time_warns_of_nothing_and_raises_where_asked_to(self) -> None:
        restless_block(BackpropThroughTime())(torch.rand(2, 6)).sum().backward()
        with pytest.raises(UnsettledError):  # unless one is asked for
            restless_block(BackpropThroughTime(), unsettled="raise")(torch.rand(2, 6))

    def test_a_copy_and_a_pickle_keep_the_choice_for_unsettled(self) -> None:
        block = restless_block(unsettled="raise")
        for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
            with pytest.raises(UnsettledError):
                other(torch.rand(2, 6))

    @pytest.mark.parametrize("unsettled", ["warn", "raise"])
    def test_calibration_and_diagnostics_do_not_warn_of_unsettled_blocks(self, unsettled: str) -> None:
        """Calibration and diagnostics work with unsettled blocks on purpose."""
        model = restless(unsettled=unsettled)
        x, y = torch.randn(6, 4), torch.arange(6) % 3
        calibrate(model, x, y)
        with pytest.raises(UnsettledError, match="it has no gradient to converge to"):
            converged_gradients(model, x, y, steps=1)
        assert [block.unsettled for _, block in model.chain] == [unsettled]


class TestTracing:
    """A trace would keep what the relaxation did for one example."""

    @pytest.mark.parametrize("estimator", [EquilibriumPropagation(), RecurrentBackprop(), Unrolled(), BackpropThroughTime()])
    def test_a_block_refuses_to_be_traced(self, estimator: GradientEstimator) -> None:
        net = nn.Sequential(nn.Linear(4, 6), EnergyBlock(Hopfield([Dense(6, 5)]), estimator=estimator))
        with pytest.raises(RuntimeError, match=r"cannot be traced \(by `torch\.jit\.trace` or `torch\.onnx\.export`\)"):
            traced(net, torch.rand(2, 4))

    def test_a_model_refuses_to_be_traced_before_batch_norm_changes(self) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2)
        before = {name: t.clone() for name, t in model.state_dict().items()}
        with pytest.raises(RuntimeError, match="The model cannot be traced"):
            traced(model, torch.rand(2, 6))
        assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def traced(module: nn.Module, x: Tensor) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tracing itself is on its way out
        return torch.jit.trace(module, x)


RENEWED: dict[str, Callable[[nn.Module], object]] = {
    "weight norm": nn.utils.weight_norm,
    "spectral norm": nn.utils.spectral_norm,
}


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


class TestHooksOnInteractions:
    """Old norms renew a weight by a hook on `forward`; sweeps call `up` and `down`, and would never see it."""

    @staticmethod
    def apply(name: str, edge: nn.Module) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the old weight norm is deprecated
            RENEWED[name](edge)

    @pytest.mark.parametrize("name", RENEWED)
    @pytest.mark.parametrize("edge", [Dense(6, 6), Convolution(6, 6, padding=1)])
    def test_a_block_refuses_weights_that_a_hook_renews(self, name: str, edge: nn.Module) -> None:
        edge = copy.deepcopy(edge)
        self.apply(name, edge)
        block = EnergyBlock(Hopfield([copy.deepcopy(Dense(6, 6)), edge] if isinstance(edge, Dense) else [edge]), name="mine")
        x = torch.rand(2, 6) if isinstance(edge, Dense) else torch.rand(2, 6, 4, 4)
        number = len(block.energy.edges)
        with pytest.raises(
            RuntimeError, match=rf"`weight` of \w+\(.* \(interactions\.{number - 1} of mine\).*`torch.nn.utils.parametrize`"
        ):
            block(x)

    @pytest.mark.parametrize("name", RENEWED)
    def test_a_stage_refuses_weights_that_a_hook_renews(self, name: str) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2)
        self.apply(name, model.stages[0].connection)
        with pytest.raises(RuntimeError, match=r"`weight` of Dense\(.* \(the connection of a stage\)"):
            model(torch.rand(2, 6))

    def test_a_pruning_made_permanent_is_accepted(self) -> None:
        edge = Dense(6, 6)
        prune.l1_unstructured(edge, "weight", 0.5)
        prune.remove(edge, "weight")
        EnergyBlock(Hopfield([edge]))(torch.rand(2, 6)).sum().backward()
        assert edge.weight.grad is not None

    def test_parametrisations_are_accepted(self) -> None:
        edge = Dense(6, 6)
        parametrize.register_parametrization(edge, "weight", Half())
        nn.utils.parametrizations.spectral_norm(edge, "weight")
        EnergyBlock(Hopfield([edge]))(torch.rand(2, 6)).sum().backward()
        assert edge.parametrizations.weight.original.grad is not None

    def test_hooks_that_renew_no_tensor_are_accepted(self) -> None:
        edge = Dense(6, 6)
        edge.register_forward_pre_hook(lambda *_: None)
        EnergyBlock(Hopfield([edge]))(torch.rand(2, 6)).sum().backward()
        assert edge.weight.grad is not None

    def test_tensors_without_a_hook_are_accepted(self) -> None:
        edge = Dense(6, 6)
        edge.note = torch.ones(3)
        EnergyBlock(Hopfield([edge]))(torch.rand(2, 6)).sum().backward()
        assert edge.weight.grad is not None

    def test_hooks_of_modules_that_an_energy_calls_are_accepted_and_run(self) -> None:
        class Tied(Energy):
            def __init__(self) -> None:
                super().__init__([identity(0.5)])
                self.linear = nn.Linear(6, 6)

            def forward(self, state: State, x: Tensor) -> Tensor:
                return (state[0].square() / 2 - state[0] * self.linear(x)).sum(1)

        energy = Tied()
        prune.l1_unstructured(energy.linear, "weight", 0.5)
        x = torch.rand(2, 6)
        found = EnergyBlock(energy, FixedPoint(60))(x)
        torch.testing.assert_close(found, energy.linear(x))
        with torch.no_grad():
            energy.linear.weight_orig.mul_(2)
        assert not torch.allclose(EnergyBlock(energy, FixedPoint(60))(x), found)


class TestInputs:
    @pytest.mark.parametrize(
        ("dtype", "value"),
        [(torch.float32, 1e19), (torch.float32, 1e30), (torch.float32, -1e19), (torch.float64, 1e160), (torch.bfloat16, 1e19)],
    )
    def test_an_input_that_overflows_when_squared_is_refused_before_batch_norm_sees_it(
        self, dtype: torch.dtype, value: float
    ) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2).to(torch.float64 if dtype == torch.float64 else torch.float32)
        before = {name: t.clone() for name, t in model.state_dict().items()}
        x = torch.zeros(4, 6, dtype=dtype)
        x[1, 2] = value
        with pytest.raises(ValueError, match=r"values of up to 1\.0e\+\d+, too large for .* batch-norms"):
            model(x)
        assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())

    def test_a_large_input_that_can_be_squared_is_accepted(self) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2)
        model(1e17 * torch.randn(4, 6))
        assert all(t.isfinite().all() for t in model.state_dict().values())
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.full((4, 6), 6e4, dtype=torch.float16))  # near the end of its range, not of float32's

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_an_input_that_is_not_finite_is_refused_with_a_count(self, value: float) -> None:
        x = torch.full((4, 6), 1e30)
        x[0, 0] = value
        with pytest.raises(ValueError, match="1 non-finite values among 24"):
            build((6,), [DenseLayer(5)], 1, 2)(x)

    def test_arrays_and_lists_are_refused_as_inputs_and_targets(self) -> None:
        model, x, y = build((6,), [DenseLayer(5)], 1, 2), torch.rand(2, 6), torch.tensor([0, 1])
        block = EnergyBlock(Hopfield([Dense(6, 4)]))
        for bad in (x.numpy(), x.tolist()):
            kind = type(bad).__name__
            with pytest.raises(TypeError, match=rf"The input of the model must be a tensor, got a {kind}: .*`torch.as_tensor`"):
                model(bad)
            with pytest.raises(TypeError, match=rf"The input of an unnamed Hopfield block must be a tensor, got a {kind}"):
                block(bad)
        for bad in (y.numpy(), y.tolist()):
            with pytest.raises(TypeError, match=rf"The targets must be a tensor, got a {type(bad).__name__}"):
                model(x, bad)
            with pytest.raises(TypeError, match=rf"The targets must be a tensor, got a {type(bad).__name__}"):
                block.losses(x, lambda s, y: F.cross_entropy(s, y, reduction="none"), bad)

    @pytest.mark.parametrize("nudge", ["elastic", "stationary"])
    @pytest.mark.parametrize(
        ("y", "error", "message"),
        [
            (
                torch.tensor([0, 7, 1]),
                IndexError,
                r"torch.int64 of shape \(3,\) between 0 and 7, .* \(3, 4\).*Target 7 is out of",
            ),
            (torch.tensor([0, -1, 1]), IndexError, r"between -1 and 1, .* int64 from 0 to 3"),
            (torch.tensor([0.0, 1.0, 2.0]), RuntimeError, r"torch.float32 of shape \(3,\) between 0 and 2"),
            (torch.zeros(3, 5), RuntimeError, r"torch.float32 of shape \(3, 5\) .* a probability for each of the 4 classes"),
        ],
    )
    def test_targets_that_the_criterion_refuses_are_explained(
        self, nudge: str, y: Tensor, error: type[Exception], message: str
    ) -> None:
        model = build((6,), [DenseLayer(5)], 1, 4, nudge=nudge)
        with pytest.raises(error, match=message) as caught:
            model(torch.rand(3, 6), y)
        assert type(caught.value.__cause__) is error

    def test_other_errors_of_the_criterion_pass_as_they_are(self) -> None:
        class DeviceError(RuntimeError):
            """As a device out of memory raises it."""

        def criterion(*_: Tensor) -> Tensor:
            raise DeviceError("no memory")

        with pytest.raises(DeviceError, match=r"^no memory$"):
            build((6,), [DenseLayer(5)], 1, 4, criterion=criterion)(torch.rand(3, 6), torch.tensor([0, 1, 2]))


class TestOutputs:
    def test_asking_for_losses_without_targets_says_what_to_do(self) -> None:
        output = build((6,), [DenseLayer(5)], 1, 2)(torch.rand(2, 6))
        with pytest.raises(AttributeError, match=r"no `losses`, because the model got no targets: call `model\(x, y\)`"):
            _ = output.losses
        logits, losses = output
        assert losses is None
        assert output.logits is logits
        assert getattr(output, "losses", None) is None

    def test_an_output_is_still_a_named_tuple(self) -> None:
        """Torch and accelerate go by the bases and the fields."""
        output = Output(torch.rand(2, 3), torch.rand(2))
        assert Output.__bases__ == (tuple,)
        assert Output._fields == ("logits", "losses")
        assert _pytree.is_namedtuple(output)
        doubled = _pytree.tree_map(lambda t: 2 * t, output)
        assert type(doubled) is Output
        torch.testing.assert_close(doubled.losses, 2 * output.losses)
        assert output._replace(losses=None)[1] is None
        assert output._asdict()["losses"] is output.losses
        for other in (pickle.loads(pickle.dumps(output)), copy.deepcopy(output)):
            torch.testing.assert_close(other.losses, output.losses)
        assert "losses=None" in repr(Output(torch.rand(2, 3)))

    @pytest.mark.parametrize("nudge", ["elastic", "stationary"])
    def test_logits_beside_losses_refuse_to_be_differentiated(self, nudge: str) -> None:
        """Added to a loss they would have counted for nothing, without a word."""
        model = build((6,), [DenseLayer(5)], 1, 2, nudge=nudge)
        x, y = torch.rand(3, 6), torch.tensor([0, 1, 0])
        logits, losses = model(x, y)
        with pytest.raises(RuntimeError, match="logits beside losses are for metrics"):
            model(x, y).logits.backward()
        model(x, y).logits.sub_(1).detach().numpy()  # as metrics do
        for loss in (logits.sum(), losses.mean() + logits.square().mean(), F.cross_entropy(logits, y)):
            with pytest.raises(RuntimeError, match=r"logits beside losses are for metrics .* `losses.mean\(\).backward\(\)`"):
                loss.backward(retain_graph=True)
        losses.mean().backward()
        model(x).logits.sum().backward()  # as always

    def test_a_function_around_the_model_may_pass_logits_and_losses_on(self) -> None:
        """As DDP does, or a checkpoint around the model: without a use of the logits there is nothing to refuse."""
        x, y = torch.rand(3, 6), torch.tensor([0, 1, 0])
        for materialise in (True, False):

            class Sink(torch.autograd.Function):
                @staticmethod
                def forward(ctx, *tensors, materialise=materialise):
                    ctx.set_materialize_grads(materialise)
                    return tuple(t.clone() for t in tensors)

                @staticmethod
                def backward(_, *grads):
                    return grads

            logits, losses = Sink.apply(*build((6,), [DenseLayer(5)], 1, 2)(x, y))
            losses.mean().backward(retain_graph=True)
            with pytest.raises(RuntimeError, match="for metrics"):
                logits.sum().backward()

    @pytest.mark.parametrize("nudge", ["elastic", "stationary"])
    def test_logits_beside_losses_need_no_gradient_where_nothing_is_differentiated(self, nudge: str) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2, nudge=nudge)
        x, y = torch.rand(3, 6), torch.tensor([0, 1, 0])
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert not model(x, y).logits.requires_grad
        assert not model.requires_grad_(False)(x, y).logits.requires_grad

    @pytest.mark.parametrize("nudge", ["elastic", "stationary"])
    def test_logits_that_are_kept_hold_no_graph_in_memory(self, nudge: str) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2, nudge=nudge)
        output = model(torch.rand(3, 6), torch.tensor([0, 1, 0]))
        held = weakref.ref(output.losses)
        logits = output.logits
        nodes, reached = [logits.grad_fn], []
        while nodes:
            reached.append(nodes.pop())
            nodes += [node for node, _ in reached[-1].next_functions if node is not None]
        assert len(reached) == 2  # itself and an empty leaf
        assert not any(name.startswith("_saved") for node in reached for name in dir(node))
        del output
        gc.collect()
        assert held() is None

    def test_a_compiled_step_gives_the_same_losses(self) -> None:
        model = build((6,), [DenseLayer(5)], 1, 2, batch_norm=False)
        x, y = torch.rand(3, 6), torch.tensor([0, 1, 0])
        expected = model(x, y).losses.mean()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler
            found = torch.compile(lambda x, y: model(x, y).losses.mean(), backend="eager")(x, y)
        torch.testing.assert_close(found, expected)


def test_an_energy_of_ones_own_may_have_a_pruned_part_that_it_calls_by_up() -> None:
    class Own(Energy):
        def __init__(self) -> None:
            super().__init__()
            self.edge = Dense(4, 4)

        def forward(self, state: State, x: Tensor) -> Tensor:
            (s,) = state
            return (s.square() / 2 - s * x - 0.1 * s * self.edge.up(s)).sum(1)

    energy = Own()
    prune.l1_unstructured(energy.edge, "weight", amount=0.5)
    block, x = EnergyBlock(energy, name="mine"), torch.rand(2, 4)
    found = block(x)
    found.sum().backward()
    assert torch.equal(energy.edge.weight_orig.grad == 0, energy.edge.weight_mask == 0)
    with torch.no_grad():
        energy.edge.weight_orig.mul_(2)
    assert not torch.allclose(block(x), found), "the weight is computed anew"


class TestShapesAlone:
    """Models without numbers, on the meta device or as fakes: everything has its shape, and nothing is looked at."""

    @staticmethod
    def made(tolerance: float | None = None, limit: float | None = 0.5) -> FFEBM:
        layers = [ConvLayer(4), ConvLayer(4), DenseLayer(6), DenseLayer(6)]
        return build((3, 8, 8), layers, 2, 3, relax=FixedPoint(20, tolerance=tolerance), max_contraction=limit)

    @pytest.mark.parametrize("tolerance", [None, 1e-3])
    def test_a_pass_on_the_meta_device_has_all_shapes(self, tolerance: float | None) -> None:
        with torch.device("meta"):
            net = self.made(tolerance)
        out = net.eval()(torch.rand(5, 3, 8, 8, device="meta"))
        assert out.logits.is_meta
        assert out.logits.shape == (5, 3)
        state = net.blocks[0].settle(torch.rand(5, 4, 8, 8, device="meta")).state
        assert [s.shape for s in state] == [(5, 4, 8, 8)] * 2

    @pytest.mark.parametrize("limit", [None, 0.5])
    def test_a_pass_of_fake_tensors_has_all_shapes(self, limit: float | None) -> None:
        with FakeTensorMode():
            assert self.made(limit=limit).eval()(torch.rand(5, 3, 8, 8)).logits.shape == (5, 3)

    @pytest.mark.parametrize("assign", [False, True])
    def test_a_model_built_without_numbers_takes_those_of_another(self, assign: bool) -> None:
        trained, x = self.made(), torch.rand(4, 3, 8, 8)
        trained(x)  # batch-norms and limits remember
        with torch.device("meta"):
            net = self.made()
        assert all(tensor.is_meta for tensor in (*net.parameters(), *net.buffers()))
        if not assign:
            net.to_empty(device="cpu")
        net.load_state_dict(trained.state_dict(), assign=assign)
        torch.testing.assert_close(net.eval()(x).logits, trained.eval()(x).logits)
