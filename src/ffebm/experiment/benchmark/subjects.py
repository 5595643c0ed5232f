"""What is measured: named nets, the feedforward nets of the same layers, and the ways to get a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import islice

import torch
from torch import Tensor, nn

from ffebm.builder import DenseLayer, build
from ffebm.calibration import Tuning, calibrate, proposals, tune, watched_contractions
from ffebm.diagnostics import gradients, quiet_copy, smallest_cosine
from ffebm.energy import Hopfield
from ffebm.experiment.architectures import build_model
from ffebm.experiment.preset import read_preset_or_file
from ffebm.feedforward import Feedforward
from ffebm.gradient import BackpropThroughTime, EquilibriumPropagation, GradientEstimator, RecurrentBackprop, Unrolled
from ffebm.interaction import Convolution, Dense, Interaction
from ffebm.model import FFEBM
from ffebm.relaxation import FixedPoint
from ffebm.rules import Order
from ffebm.start import start_from_data

__all__ = [
    "CURVES",
    "FEW",
    "NETS",
    "PAPER",
    "POINTS",
    "PRESETS",
    "SMALL_BETA",
    "STEADY",
    "Gradient",
    "Method",
    "Net",
    "Schedule",
    "calibrated",
    "feedforward",
    "fixed",
    "noise",
    "proposed",
]
__dir__ = __all__.copy

PRESETS = {
    "conv6": "cifar10-l6-bs2",
    "conv12": "cifar10-l12-bs2",
    "conv12-bs3": "cifar10-l12-bs3",
    "conv12-bs4": "cifar10-l12-bs4",
    "conv15": "cifar100-l15",
}
NETS = ("dense", *PRESETS)
CLASSES = 10
STARTING = 64  # samples of noise that a start from data looks at
LEAST, ENOUGH = 0.9, 0.9999  # cosines between which gradients are compared
FEW = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2))  # free and nudged sweeps, fewer than training is ever given
POINTS = 7  # of the rest of a curve at most: the nudge may keep it from ever being good enough

Gradient = dict[str, Tensor]  # by the names of parameters


@dataclass(frozen=True)
class Net:
    """A net by name, at a scale, for batches of a size, with settings that differ from its preset's."""

    name: str
    width: float
    batch: int
    settings: tuple[str, ...] = ()  # KEY=VALUE, as `ffebm train` takes them

    @property
    def label(self) -> str:
        return ", ".join((f"{self.name}, width {self.width:g}, batch {self.batch}", *self.settings))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (784,) if self.name == "dense" else (3, 32, 32)

    def build(self) -> FFEBM:
        """The model at its initial weights, which are the same every time."""
        torch.manual_seed(0)
        if self.name == "dense":
            layers = [DenseLayer(round(size * self.width)) for size in (512, 512, 512, 512)]
            return build(self.input_shape, layers, 2, CLASSES)
        settings = read_preset_or_file(PRESETS[self.name], [f"model.width={self.width}", *self.settings])
        model = build_model(settings, self.input_shape, CLASSES)
        if settings.model.start is not None:
            start_from_data(model, noise(replace(self, batch=STARTING))[0], settings.model.start)
        return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def feedforward(model: FFEBM) -> nn.Sequential:
    """Plain backprop's net: the same layers, each a connection, its pooling, batch-norm and ReLU, and the same readout."""
    layers: list[nn.Module] = []
    for stage, block in model.chain:
        assert isinstance(stage, Feedforward)
        assert isinstance(block.energy, Hopfield)
        if any(post != pre + 1 for pre, post, _ in block.energy.graph):
            raise TypeError("Plain backprop has no net like one with skip connections: measure nets without.")
        for connection in (stage.connection, *block.energy.edges):
            layers += _plain_layer(connection)
    linear = model.readout[-1]  # pyright: ignore[reportIndexIssue]
    layers += [nn.Flatten(), nn.Linear(linear.in_features, linear.out_features)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@singledispatch
def _plain_layer(connection: Interaction) -> list[nn.Module]:
    """A connection with the normalisation and the activation behind it."""
    raise TypeError(f"Plain backprop has no layer like {connection}: measure nets of dense and convolutional layers.")


@_plain_layer.register
def _(connection: Dense) -> list[nn.Module]:
    outputs, inputs = connection.weight.shape
    return [nn.Flatten(), nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]


@_plain_layer.register
def _(connection: Convolution) -> list[nn.Module]:
    outputs, inputs, *kernel = connection.weight.shape
    windows = (connection.stride, connection.padding, connection.dilation, connection.groups)
    convolution = nn.Conv2d(inputs * connection.groups, outputs, tuple(kernel), *windows, bias=False)  # pyright: ignore[reportArgumentType]
    pool = connection.pool
    kind = nn.MaxPool2d if pool is not None and pool.chooses else nn.AvgPool2d  # for soft pooling, too
    pools = [] if pool is None else [kind(pool.window, pool.stride)]
    return [convolution, *pools, nn.BatchNorm2d(outputs), nn.ReLU()]


@dataclass(frozen=True)
class Method:
    """A way to get the gradient of every block."""

    name: str
    free: FixedPoint
    estimator: GradientEstimator
    tunings: tuple[Tuning, ...] | None = None  # sweeps of every block, where they are not the same for all

    def apply(self, model: FFEBM) -> FFEBM:
        model.use(self.estimator, self.free)
        return model if self.tunings is None else tune(model, self.tunings)

    def is_read(self, model: FFEBM) -> bool:
        """Whether its nudge moves the first layer of every block by more than rounding hides: feedback may leave too little."""
        return all(block.system.faintest >= self.estimator.faintest for _, block in model.chain)

    def sweeps(self, model: FFEBM) -> str:
        """Free ones, as the last forward pass made them, and those behind, the mean over blocks, once for every nudge."""
        blocks = [block for _, block in model.chain]
        free = _mean([block.sweeps.float().mean().item() for block in blocks if block.sweeps is not None])
        relaxations = [getattr(block.estimator, "relax", None) for block in blocks]
        after = [relax.steps for relax in relaxations if relax is not None]
        if not after:
            return free
        nudges = 1 if self.estimator.nudging is None else len(self.estimator.nudging.chosen.points)
        return f"{free} + {f'{nudges}·' if nudges > 1 else ''}{_mean(after)}"


def _mean(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Schedule:
    """Sweeps of the free and of the nudged phase (or recorded, or adjoint), how far each goes, and how strong the nudge is.

    Args:
        orders: of the free sweeps, of those that carry an error down, and of those that backprop goes through in reverse.
    """

    free: int
    nudged: int
    omega: float = 1.0
    beta: float = 0.2
    orders: tuple[Order, Order, Order] = ("upward", "downward", "upward")

    def methods(self, name: str, kinds: Sequence[str]) -> list[Method]:
        forward, down, up = self.orders
        free = FixedPoint(self.free, order=forward, omega=self.omega)
        first = FixedPoint(self.nudged, order=down, omega=self.omega)
        last = FixedPoint(self.nudged, order=up, omega=self.omega)
        estimators: dict[str, GradientEstimator] = {
            "ep": EquilibriumPropagation(first, beta=self.beta),
            "small-signal ep": EquilibriumPropagation(first, variant="small-signal"),
            "id": Unrolled(last),
            "recurrent-backprop": RecurrentBackprop(last),
            "bptt": BackpropThroughTime(),
        }
        return [Method(f"{kind}, {name}" if name else kind, free, estimators[kind]) for kind in kinds]


SMALL_BETA = 0.02  # with which every EP but the paper's is compared
PAPER = Schedule(20, 5, orders=("odd-even", "output-first", "output-last"))  # Table [tab:hyperparameters], twelve layers
STEADY = Schedule(6, 4, omega=1.1, beta=0.01)  # fixed, and enough for blocks of two layers while their weights are small
MOST = Schedule(40, 20, beta=SMALL_BETA)  # sweeps that the formula may propose


def fixed() -> list[Method]:
    """The paper's sweeps: with its own nudge, with a small one, and by the estimators that have none."""
    return [
        *PAPER.methods("paper", ["ep"]),
        *replace(PAPER, beta=SMALL_BETA).methods(f"paper, β {SMALL_BETA}", ["ep"]),
        *PAPER.methods("paper", ["id", "recurrent-backprop", "bptt"]),
    ]


CURVES = ("small-signal ep", "ep", "id", "recurrent-backprop", "bptt")


def proposed(model: FFEBM, x: Tensor, y: Tensor, truth: Gradient) -> list[Method]:
    """Every kind of gradient with more and more sweeps until it is as good as the true one.

    First they are very few, then as many as the formula says.

    Args:
        x: the samples of the true gradient; the contraction of blocks without a limit is watched on them, too.
    """
    found: list[Method] = []
    for method in (method for method in MOST.methods("", CURVES) if method.is_read(model)):
        asked = quiet_copy(method.apply(model))
        contractions = watched_contractions(asked, x)
        more = list(islice(proposals(asked, contractions, LEAST), POINTS))
        few = [tuple(replace(tuning, free=free, nudged=nudged) for tuning in more[0]) for free, nudged in FEW]
        for tunings in dict.fromkeys((*few, *more)):
            found.append(replace(method, tunings=tunings))
            if smallest_cosine(gradients(found[-1].apply(quiet_copy(model)), x, y), truth)[0] >= ENOUGH:
                break
    return found


def calibrated(model: FFEBM, x: Tensor, y: Tensor, quality: float = 0.99) -> Method:
    """EP with the sweeps that training would choose."""
    (method,) = MOST.methods(f"calibrated for {quality:g}", ["ep"])
    return replace(method, tunings=calibrate(method.apply(model), x, y, quality).tunings)


def noise(net: Net, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs that need no data set."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(net.batch, *net.input_shape, generator=generator)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    return x, torch.randint(CLASSES, (net.batch,), generator=generator)
