from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ffebm import (
    FFEBM,
    Activation,
    ConvLayer,
    Convolution,
    Dense,
    DenseLayer,
    EnergyBlock,
    EquilibriumPropagation,
    Feedforward,
    FixedPoint,
    Hopfield,
    MaxPool,
    RecurrentBackprop,
    Unrolled,
    build,
    clamp,
    goe_,
    identity,
    initialise,
    tanh,
)
from ffebm.builder import Layer
from ffebm.rules import block_sizes
from nets import batch, make

LAYERS: list[Layer] = [ConvLayer(4), ConvLayer(5, pool=MaxPool()), ConvLayer(6, pool=MaxPool()), ConvLayer(6), DenseLayer(7)]


def test_build_makes_first_layers_of_blocks_digital_and_the_others_analog() -> None:
    model = build((3, 8, 8), LAYERS, [2, 3], 10)
    (first_stage, first), (second_stage, second) = model.chain
    assert isinstance(first_stage, Feedforward)
    assert isinstance(second_stage, Feedforward)
    assert first_stage.connection.weight.shape == (4, 3, 3, 3)
    assert first_stage.connection.bias is None  # batch-norm follows
    assert isinstance(first_stage.norm, nn.BatchNorm2d)
    assert [type(edge) for edge in first.energy.edges] == [Convolution]
    assert first.energy.edges[0].pool is not None
    assert first.energy.edges[0].bias is not None
    assert isinstance(second_stage.connection, Convolution)
    assert isinstance(second_stage.connection.pool, MaxPool)
    assert [type(edge) for edge in second.energy.edges] == [Convolution, Dense]
    assert model(torch.randn(2, 3, 8, 8)).logits.shape == (2, 10)


def test_outputs_of_blocks_are_unclamped_by_default_but_for_those_above_max_pooling() -> None:
    def activations(**options: object) -> list[list[str]]:
        return [
            [repr(a) for a in block.energy.activations] for _, block in build((3, 8, 8), LAYERS, [2, 3], 10, **options).chain
        ]

    half, whole = "clamp(slope=0.5)", "clamp(slope=1)"
    assert activations() == [[half, half], [half, half, "identity"]]
    assert activations(activation=clamp(1)) == [[whole, whole], [whole, whole, "identity"]]
    assert activations(output_activation=identity()) == [[half, "identity"], [half, half, "identity"]]  # as it is given
    assert activations(output_activation=[None, clamp(1)]) == [[half, half], [half, half, whole]]


def test_max_pooling_below_layers_that_may_be_negative_is_refused_unless_all_is_given() -> None:
    with pytest.raises(ValueError, match=r"Block 1 of 2 has max-pooling inside, and its layers \(tanh\) may be negative"):
        build((3, 8, 8), LAYERS, [2, 3], 10, activation=tanh())
    build((3, 8, 8), LAYERS, [1, 1, 3], 10, activation=tanh())  # in stages it may be
    (_, block), *_ = build((3, 8, 8), LAYERS, [2, 3], 10, activation=tanh(), output_activation=identity()).chain
    assert list(map(repr, block.energy.activations)) == ["tanh", "identity"]


def test_build_takes_options_block_by_block() -> None:
    outputs: list[Activation] = [clamp(1), identity(), clamp(1)]
    estimators = [Unrolled(), RecurrentBackprop(), Unrolled()]
    model = build(
        (3, 8, 8), LAYERS, [2, 2, 1], 10, batch_norm=[True, False, False], output_activation=outputs, estimator=estimators
    )
    assert [block.energy.activations[-1] for _, block in model.chain] == outputs
    assert [block.estimator for _, block in model.chain] == estimators
    for (stage, _), norm in zip(model.chain, [True, False, False], strict=True):
        assert isinstance(stage, Feedforward)
        assert isinstance(stage.norm, nn.Identity) != norm
        assert (stage.connection.bias is None) == norm


def test_a_dense_layer_may_open_a_block() -> None:
    model = build((3, 4, 4), [DenseLayer(8), DenseLayer(6)], 1, 3)
    assert isinstance(model.chain[0][0].norm, nn.BatchNorm1d)
    assert model(torch.randn(4, 3, 4, 4)).logits.shape == (4, 3)


@pytest.mark.parametrize(
    ("layers", "split", "sizes"),
    [(6, 2, [2, 2, 2]), (6, 6, [6]), (15, 2, [2] * 7 + [1]), (5, [2, 3], [2, 3]), (3, 1, [1, 1, 1])],
)
def test_block_sizes(layers: int, split: int | list[int], sizes: list[int]) -> None:
    assert block_sizes(layers, split) == sizes


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (0, "between 1 and the number of layers, 5; got 0"),
        (6, "between 1 and the number of layers, 5; got 6"),
        ([2, 2], r"\[2, 2\] adds up to 4 layers, but there are 5"),
        ([3, 3], "adds up to 6 layers"),
        ([5, 0], "must be positive"),
        ([], "adds up to 0"),
    ],
)
def test_refuses_a_split_that_does_not_add_up(split: int | list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build((3, 8, 8), LAYERS, split, 10)


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, "at least one layer"),
        ([DenseLayer(4), ConvLayer(3)], {}, "put dense layers last"),
        ([ConvLayer(4, pool=MaxPool(16))], {}, "leaves nothing"),
        ([ConvLayer(0)], {}, "out_channels"),
        ([ConvLayer(4)], {"classes": 0}, "`classes`"),
        (
            [ConvLayer(4)],
            {"batch_norm": [True, False]},
            "`batch_norm` must be one value for all 1 blocks or one for each, got 2",
        ),
        ([ConvLayer(4)], {"nudge": "springy"}, "Unknown nudge 'springy'"),
    ],
)
def test_build_refuses_layers_and_options_that_do_not_fit(
    layers: list[Layer], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build((3, 8, 8), layers, 1, **({"classes": 10} | options))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build((3, 8, 8), [32, 16], 1, 10), "`layers` must be a Layer such as .* got 32"),
        (lambda: build((3, 8, 8), LAYERS, 1, 10, estimator="ep"), "`estimator` must be a GradientEstimator"),
        (lambda: build((3, 8, 8), LAYERS, 1, 10).use(Unrolled), "`estimator` must be a GradientEstimator"),
        (lambda: EnergyBlock(Hopfield([]), 30), r"`relax` must be a Relaxation such as FixedPoint\(20\), got 30"),
        (lambda: EnergyBlock(nn.Linear(2, 2)), "`energy` must be a Energy"),
        (lambda: Hopfield([], ["relu"]), "`activations` must be a Activation"),
        (lambda: Unrolled(10), "`relax` must be a Relaxation"),
        (lambda: RecurrentBackprop(10), "`relax` must be a Relaxation"),
    ],
)
def test_refuses_the_wrong_kind_at_construction(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_losses_are_those_of_the_logits() -> None:
    for nudge in ("elastic", "stationary"):
        model = build((3, 8, 8), LAYERS, 2, 10, nudge=nudge)
        x, y = torch.randn(3, 3, 8, 8), torch.tensor([1, 2, 3])
        logits, losses = model(x, y)
        torch.testing.assert_close(losses, nn.functional.cross_entropy(logits, y, reduction="none"))
        assert model(x).logits.requires_grad
        assert model(x)[1] is None


def test_a_criterion_of_ones_own_is_differentiated() -> None:
    def squared(logits: Tensor, y: Tensor) -> Tensor:
        return (logits - y).square().sum(1)

    model = build((6,), [DenseLayer(5), DenseLayer(4)], 2, 2, criterion=squared)
    losses = model(torch.randn(3, 6), torch.randn(3, 2)).losses
    assert losses is not None
    losses.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("nudge", ["elastic", "stationary"])
def test_refuses_a_criterion_that_reduces(nudge: str) -> None:
    model = build((6,), [DenseLayer(5)], 1, 2, criterion=nn.CrossEntropyLoss(), nudge=nudge)
    with pytest.raises(ValueError, match=r'one loss per sample, shape \(3,\), got \(\): .*reduction="none"'):
        model(torch.randn(3, 6), torch.tensor([0, 1, 0]))


def test_refuses_the_wrong_number_of_targets() -> None:
    model = build((6,), [DenseLayer(5)], 1, 2)
    with pytest.raises(ValueError, match=r"got 3 samples and targets of shape \(2,\)"):
        model(torch.randn(3, 6), torch.tensor([0, 1]))


@pytest.mark.parametrize("module", [nn.BatchNorm1d(5), nn.Dropout()])
def test_an_elastic_nudge_refuses_readouts_that_mix_samples_or_draw(module: nn.Module) -> None:
    readout = nn.Sequential(module, nn.Linear(5, 2))
    block = EnergyBlock(Hopfield([], clamp()))
    with pytest.raises(ValueError, match=r'The readout holds \w+ \(0\).*nudge="stationary"'):
        FFEBM([nn.Linear(6, 5)], [block], readout)
    FFEBM([nn.Linear(6, 5)], [block], readout, nudge="stationary")


def test_refuses_unpaired_stages_and_blocks() -> None:
    with pytest.raises(ValueError, match="got 1 stages and 0 blocks"):
        FFEBM([nn.Identity()], [], nn.Identity())


def test_errors_name_an_unnamed_block_by_its_place() -> None:
    model = FFEBM([nn.Linear(6, 5)], [EnergyBlock(Hopfield([], clamp()))], nn.Linear(5, 2))
    with torch.no_grad():
        model.stages[0].weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="The input of block 1 of 1 has 5 non-finite values"):
        model(torch.zeros(1, 6))


def test_summary_counts_parameters_and_macs() -> None:
    model = build((3, 8, 8), LAYERS, [2, 3], 10)
    summary = model.summary()
    assert summary.parameters == sum(p.numel() for p in model.parameters())
    assert [row.part for row in summary.rows] == ["stage 1", "block 1", "stage 2", "block 2", "readout"]
    assert summary.rows[1].shapes == ((4, 8, 8), (5, 4, 4))
    assert summary.rows[0].macs == 4 * 3 * 9 * 64
    assert summary.rows[1].macs == 2 * 5 * 4 * 9 * 64  # up and down, before the pooling
    assert summary.rows[3].macs == 2 * (6 * 6 * 9 * 4 + 6 * 4 * 7)
    assert summary.digital_macs == 4 * 3 * 9 * 64 + 6 * 5 * 9 * 16 + 7 * 10
    text = str(summary)
    assert "4×8×8  5×4×4" in text
    assert f"{summary.parameters:,} parameters" in text
    assert model.training  # left as it was


def test_summary_counts_macs_of_stages_that_are_no_feedforward() -> None:
    stages = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))]
    model = FFEBM(stages, [EnergyBlock(Hopfield([Dense(5, 4)]))], nn.Linear(4, 2))
    with pytest.raises(ValueError, match="give `input_shape`"):
        model.summary()
    assert model.summary((3, 8, 8)).digital_macs == 4 * 27 * 36 + 144 * 5 + 8


def test_summary_says_that_macs_of_a_custom_energy_are_unknown() -> None:
    from test_conformance import Memory

    model = FFEBM([nn.Linear(3, 5)], [EnergyBlock(Memory(5, 4))], nn.Linear(5, 2))
    summary = model.summary((3,))
    assert summary.analog_macs is None
    assert "unknown" in str(summary)


def test_repr_names_the_settings() -> None:
    text = repr(build((3, 8, 8), LAYERS, [2, 3], 10, relax=FixedPoint(17)))
    assert "steps=17" in text
    assert "beta=0.05" in text
    assert "activations=[clamp(slope=0.5), clamp(slope=0.5), identity]" in text


class TestGaussianOrthogonalEnsemble:
    def test_goe_kernels_are_symmetric_with_the_right_variances(self) -> None:
        weight = goe_(torch.empty(300, 300, 3, 3), variance=0.6)
        assert torch.equal(weight, weight.transpose(-1, -2))
        diagonal = weight.diagonal(dim1=-1, dim2=-2)
        assert diagonal.var().item() == pytest.approx(2 * 0.6 / 3, rel=0.02)
        assert weight[..., 0, 1].var().item() == pytest.approx(0.6 / 3, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=0.01)

    def test_square_matrices_follow_the_semicircle(self) -> None:
        values = torch.linalg.eigvalsh(goe_(torch.empty(400, 400), variance=1.0))
        assert values.max().item() == pytest.approx(2, rel=0.05)
        assert values.min().item() == pytest.approx(-2, rel=0.05)

    def test_the_same_generator_gives_the_same_weights(self) -> None:
        first, second = (goe_(torch.empty(2, 2, 3, 3), generator=torch.Generator().manual_seed(7)) for _ in range(2))
        assert torch.equal(first, second)

    def test_initialise_reaches_every_convolution_and_nothing_else(self) -> None:
        model = build((3, 8, 8), LAYERS, [2, 3], 10, weights=partial(goe_, variance=1e-4))
        for name, p in model.named_parameters():
            if p.dim() == 4:
                assert torch.equal(p, p.transpose(-1, -2)), name
        dense = model.blocks[1].energy.edges[1].weight
        assert dense.abs().max() > 0.1

    def test_initialise_takes_those_of_torch(self) -> None:
        model = initialise(build((3, 8, 8), LAYERS, 2, 10), nn.init.zeros_)
        assert all((p == 0).all() for p in model.parameters() if p.dim() == 4)

    @pytest.mark.parametrize("shape", [(3,), (4, 4, 3, 2)])
    def test_refuses_what_cannot_be_symmetric(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="symmetric matrices"):
            goe_(torch.empty(shape))

    @pytest.mark.parametrize("variance", [0.0, -1.0, float("nan")])
    def test_refuses_a_variance_that_is_not_positive(self, variance: float) -> None:
        with pytest.raises(ValueError, match="`variance` must be positive"):
            goe_(torch.empty(3, 3), variance)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.randn(2, 1, 8, 8), ValueError, r"inputs of shape \(batch, 3, 8, 8\) .* got \(2, 1, 8, 8\)"),
        (torch.randn(2, 3, 9, 8), ValueError, "build the model for this shape"),
        (torch.randn(3, 8, 8), ValueError, "Add a batch dimension"),
        (torch.randn(0, 3, 8, 8), ValueError, "skip empty batches"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), TypeError, "normalise images"),
        (torch.full((2, 3, 8, 8), torch.nan), ValueError, "384 non-finite values among 384"),
    ],
)
def test_refuses_input_before_batch_norm_sees_it(x: Tensor, error: type[Exception], message: str) -> None:
    model = build((3, 8, 8), LAYERS, 2, 10)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(error, match=message):
        model(x)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_refuses_targets_that_are_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"The targets must be a tensor, got a list: .*`torch\.as_tensor`"):
        build((6,), [DenseLayer(5)], 1, 2)(torch.randn(2, 6), [0, 1])


def test_summary_of_a_readout_without_parameters_and_of_unknown_layers() -> None:
    stages = [nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 1), nn.Flatten())]
    model = FFEBM(stages, [EnergyBlock(Hopfield([]))], nn.Identity()).double()
    assert model.summary((8,)).digital_macs == 2 * 3 * 4
    model = FFEBM([nn.Sequential(nn.Embedding(3, 2))], [EnergyBlock(Hopfield([]))], nn.Identity())
    model.stages[0] = nn.Bilinear(2, 2, 3)
    model.stages[0].forward = lambda x: x
    assert model.summary((4,)).digital_macs is None


@pytest.mark.parametrize("momentum", [0.1, None])
def test_recomputed_stages_give_the_same_gradients_and_statistics(momentum: float | None) -> None:
    torch.manual_seed(0)
    models = [
        make("max", 2, EquilibriumPropagation(FixedPoint(5)), relax=FixedPoint(8), recompute=twice) for twice in (False, True)
    ]
    assert [model.recompute for model in models] == [False, True]
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.momentum = momentum
        for _ in range(2):
            x, y = batch(model)
            model.zero_grad()
            model(x, y).losses.mean().backward()
    for (name, ours), theirs in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name
    for (name, ours), theirs in zip(models[0].named_buffers(), models[1].buffers(), strict=True):
        assert torch.equal(ours, theirs), name


def test_summary_counts_a_shared_layer_where_it_runs() -> None:
    linear = nn.Linear(4, 4)
    stages = [nn.Sequential(linear), nn.Sequential(nn.ReLU(), linear), linear]
    model = FFEBM(stages, [EnergyBlock(Hopfield([Dense(4, 4)])) for _ in stages], nn.Linear(4, 2), input_shape=(4,))
    assert [row.macs for row in model.summary().rows if row.kind == "digital"] == [16, 16, 16, 8]
