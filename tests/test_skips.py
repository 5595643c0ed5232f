"""Skip connections and feedback: in `build`, in settings, and in what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

from ffebm import (
    FFEBM,
    AveragePool,
    ConvLayer,
    Convolution,
    Dense,
    DenseLayer,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    MaxPool,
    RecurrentBackprop,
    build,
)
from ffebm.builder import Layer
from ffebm.diagnostics import gradients
from ffebm.experiment.architectures import build_model
from ffebm.experiment.preset import read_preset
from ffebm.experiment.settings import SettingsError, read_settings
from nets import CONVERGED, batch, worst

RESIDUAL: list[Layer] = [
    *(ConvLayer(4), ConvLayer(4), ConvLayer(6, stride=2, skip=2)),
    *(ConvLayer(6), ConvLayer(6, pool=MaxPool(), skip=()), DenseLayer(5, skip=2)),
]


def residual(estimator: GradientEstimator = EquilibriumPropagation(), **options: object) -> FFEBM:
    torch.manual_seed(0)
    options = {"split": 3, "relax": CONVERGED, **options}
    return build((3, 8, 8), RESIDUAL, classes=5, estimator=estimator, **options).double()


class TestBuild:
    def test_a_skip_ties_a_layer_to_one_further_down_by_single_pixels_or_densely_without_bias(self) -> None:
        (_, first), (_, second) = residual().chain
        *_, (pre, post, shortcut) = first.energy.graph
        assert (pre, post) == (0, 2)
        assert isinstance(shortcut, Convolution)
        assert (shortcut.weight.shape, shortcut.stride, shortcut.bias) == ((6, 4, 1, 1), 2, None)
        *_, (pre, post, shortcut) = second.energy.graph
        assert (pre, post) == (0, 2)
        assert isinstance(shortcut, Dense)
        assert (shortcut.weight.shape, shortcut.bias) == ((5, 6 * 4 * 4), None)

    @pytest.mark.parametrize("feedback", [1.0, 0.4])
    def test_the_gradient_of_nets_with_skips_is_that_of_recurrent_backprop(self, feedback: float) -> None:
        nudged = EquilibriumPropagation(FixedPoint(300, order="output-first"), beta=1e-4)
        ep, adjoint = (residual(estimator, feedback=feedback) for estimator in (nudged, RecurrentBackprop(CONVERGED)))
        x, y = batch(ep)
        assert worst(gradients(ep, x, y), gradients(adjoint, x, y)) < 1e-5

    def test_feedback_reaches_every_block(self) -> None:
        assert [block.energy.feedback for _, block in residual(feedback=0.4).chain] == [0.4, 0.4]
        with pytest.raises(ValueError, match="`feedback` must be positive"):
            residual(feedback=0.0)

    def test_a_layer_may_have_several(self) -> None:
        layers = [DenseLayer(4), DenseLayer(5), DenseLayer(6), DenseLayer(7, skip=(2, 3))]
        ((_, block),) = build((3,), layers, 4, 2).chain
        assert [(pre, post) for pre, post, _ in block.energy.graph] == [(0, 1), (1, 2), (2, 3), (1, 3), (0, 3)]

    @given(
        size=st.integers(12, 24),
        way=st.lists(st.sampled_from([{"stride": 2}, {}, {"stride": 3}]), min_size=2, max_size=3),
    )
    def test_it_follows_strides(self, size: int, way: list[dict[str, int]]) -> None:
        *between, last = way
        layers = [ConvLayer(2), *(ConvLayer(3, **options) for options in between), ConvLayer(4, skip=len(way), **last)]
        ((_, block),) = build((1, size, size), layers, len(layers), 2).chain
        assert block.energy.layer_shapes((2, size, size))[-1][0] == 4  # which raises where edges disagree

    @given(size=st.integers(12, 24), pools=st.lists(st.sampled_from([(2, 2), (3, 2), (2, 1)]), min_size=1, max_size=2))
    def test_it_averages_where_the_way_pools(self, size: int, pools: list[tuple[int, int]]) -> None:
        *between, last = (MaxPool(*pool) for pool in [(1, 1), *pools])
        layers = [ConvLayer(2), *(ConvLayer(3, pool=pool) for pool in between), ConvLayer(4, pool=last, skip=len(pools) + 1)]
        ((_, block),) = build((1, size, size), layers, len(layers), 2).chain
        *_, (_, _, shortcut) = block.energy.graph
        assert isinstance(shortcut, Convolution)
        assert isinstance(shortcut.pool, AveragePool)
        assert not shortcut.chooses

    def test_the_summary_counts_them(self) -> None:
        plain = build((3, 8, 8), [ConvLayer(4), ConvLayer(4), ConvLayer(6, stride=2)], 3, 5).summary()
        skipping = build((3, 8, 8), RESIDUAL[:3], 3, 5).summary()
        assert skipping.analog_macs - plain.analog_macs == 2 * 4 * 6 * 4 * 4  # up and down, 4 × 4 pixels
        assert skipping.parameters - plain.parameters == 4 * 6

    @pytest.mark.parametrize(
        ("layers", "split", "message"),
        [
            (
                [ConvLayer(4), ConvLayer(4), ConvLayer(4, skip=2)],
                2,
                "from layer 1 to layer 3 .* leaves the block, which begins",
            ),
            ([ConvLayer(4), ConvLayer(4), ConvLayer(4, skip=2)], 2, "the connection into a block is digital"),
            ([ConvLayer(4), ConvLayer(4, skip=2)], 2, "which begins with layer 1"),
            ([ConvLayer(4), ConvLayer(4), ConvLayer(4, skip=(2, 2))], 3, "is there twice"),
            (
                [ConvLayer(4), ConvLayer(4, padding=0), ConvLayer(4, skip=2)],
                3,
                r"\(4, 8, 8\), and the way around it in \(4, 6, 6\)",
            ),
        ],
    )
    def test_refuses_what_cannot_be(self, layers: list[Layer], split: int, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build((3, 8, 8), layers, split, 10)

    @pytest.mark.parametrize("skip", [1, 0, -2, True, 2.5, "2"])
    def test_refuses_what_skips_nothing(self, skip: object) -> None:
        with pytest.raises(ValueError, match="`skip` must be a whole number of at least 2"):
            ConvLayer(4, skip=skip)


class TestSettings:
    OVERRIDES = (
        "model.channels=[4, 4, 6, 6, 6]",
        "model.dense=[5]",
        "model.pooled=[5]",
        "model.strides=[1, 1, 2, 1, 1]",
        "model.skips=[[1, 3], [4, 6]]",
        "model.split=3",
        "model.feedback=0.4",
        "model.max_contraction=none",
    )

    def test_they_build_what_layers_build(self) -> None:
        settings = read_preset("digits", self.OVERRIDES)
        torch.manual_seed(0)
        built = build_model(settings, (3, 8, 8), 5).double().state_dict()
        expected = residual(feedback=0.4).state_dict()
        assert built.keys() == expected.keys()
        assert all(torch.equal(built[name], expected[name]) for name in expected)
        assert build_model(settings, (3, 8, 8), 5).chain[0][1].energy.feedback == 0.4

    def test_they_are_saved_and_read_again(self, tmp_path: Path) -> None:
        settings = read_preset("digits", self.OVERRIDES)
        settings.save(tmp_path / "settings.toml")
        assert read_settings(tmp_path / "settings.toml") == settings

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("model.skips=[[1, 3]]", "from layer 1 to layer 3 .* leaves the block, which begins with layer 3"),
            ("model.skips=[[1, 2]]", "skips nothing: it must go up by 2 layers at least"),
            ("model.skips=[[1, 9]]", "ends where there is no layer: they go from 1 to 4"),
            ("model.skips=[[1]]", r"a skip connection is a pair \[from, to\] of two layers"),
            ("model.skips=[1, 3]", r"input should be a list of pairs of whole numbers such as \[\[1, 3\]\], got 1"),
            ("model.skips=[[1, 99999999999]]", "2,147,483,647 at most"),
            ("model.strides=[1, 2]", r"`strides` is \[1, 2\], and 4 layers are convolutional; give one for each, or \[\]"),
            ("model.strides=[1, 1, 1, 0]", "at least 1"),
            ("model.feedback=0", "greater than 0"),
            ("model.feedback=1.1", "less than or equal to 1"),
        ],
    )
    def test_what_cannot_be_says_why(self, override: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            read_preset("digits", [override])

    def test_feedback_that_nothing_has_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"`model.feedback` has no effect here: in blocks of one layer"):
            read_preset("digits", ["model.feedback=0.5", "model.split=1"])
