"""What is measured: named nets, the feedforward nets of the same layers, and the ways to get a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor, nn

from ffebm.builder import DenseLayer, build
from ffebm.calibration import Calibration, calibrate
from ffebm.energy import Hopfield
from ffebm.experiment.architectures import build_model
from ffebm.experiment.preset import read_preset_or_file
from ffebm.feedforward import Feedforward
from ffebm.gradient import BackpropThroughTime, EquilibriumPropagation, GradientEstimator, RecurrentBackprop, Unrolled
from ffebm.interaction import Convolution, Dense, Interaction
from ffebm.model import FFEBM
from ffebm.relaxation import FixedPoint

PRESETS = {
    "conv6": "cifar10-l6-bs2",
    "conv12": "cifar10-l12-bs2",
    "conv12-bs3": "cifar10-l12-bs3",
    "conv12-bs4": "cifar10-l12-bs4",
    "conv15": "cifar100-l15",
}
NETS = ("dense", *PRESETS)
CLASSES = 10


@dataclass(frozen=True)
class Net:
    """A net by name, at a scale, for batches of a size."""

    name: str
    width: float
    batch: int

    @property
    def label(self) -> str:
        return f"{self.name}, width {self.width:g}, batch {self.batch}"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (784,) if self.name == "dense" else (3, 32, 32)

    def build(self) -> FFEBM:
        """The model at its initial weights, which are the same every time."""
        torch.manual_seed(0)
        if self.name == "dense":
            layers = [DenseLayer(round(size * self.width)) for size in (512, 512, 512, 512)]
            return build(self.input_shape, layers, 2, CLASSES)
        settings = read_preset_or_file(PRESETS[self.name], [f"model.width={self.width}"])
        return build_model(settings, self.input_shape, CLASSES).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def feedforward(model: FFEBM) -> nn.Sequential:
    """Plain backprop's net: the same layers, each a connection, its pooling, batch-norm and ReLU, and the same readout."""
    layers: list[nn.Module] = []
    for stage, block in model.chain:
        assert isinstance(stage, Feedforward)
        assert isinstance(block.energy, Hopfield)
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
    outputs, inputs, kernel, _ = connection.weight.shape
    convolution = nn.Conv2d(inputs, outputs, kernel, connection.stride, connection.padding, bias=False)
    pools = [] if connection.pool is None else [nn.MaxPool2d(connection.pool.window, connection.pool.stride)]
    return [convolution, *pools, nn.BatchNorm2d(outputs), nn.ReLU()]


@dataclass(frozen=True)
class Method:
    """A way to get the gradient of every block."""

    name: str
    free: FixedPoint
    estimator: GradientEstimator
    quality: float | None = None  # to calibrate to, from as many sweeps as the others are given
    calibration: Calibration | None = None

    def calibrated(self, model: FFEBM, x: Tensor, y: Tensor) -> Method:
        """The method as it suits these weights."""
        if self.quality is None:
            return self
        return replace(self, calibration=calibrate(model.use(self.estimator, self.free), x, y, self.quality))

    def apply(self, model: FFEBM) -> FFEBM:
        model.use(self.estimator, self.free)
        return model if self.calibration is None else self.calibration.apply(model)

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
    """Sweeps of the free and of the nudged phase (or recorded, or adjoint), how far each goes, and how strong the nudge is."""

    free: int
    nudged: int
    omega: float = 1.0
    beta: float = 0.2
    quality: float | None = None  # where the numbers of sweeps are the largest that calibration may choose

    def methods(self, name: str, kinds: Sequence[str]) -> list[Method]:
        free = FixedPoint(self.free, omega=self.omega)
        first = FixedPoint(self.nudged, order="output-first", omega=self.omega)
        last = FixedPoint(self.nudged, order="output-last", omega=self.omega)
        estimators: dict[str, GradientEstimator] = {
            "ep": EquilibriumPropagation(first, beta=self.beta),
            "id": Unrolled(last),
            "recurrent-backprop": RecurrentBackprop(last),
            "bptt": BackpropThroughTime(),
        }
        return [Method(f"{kind}, {name}", free, estimators[kind], self.quality) for kind in kinds]


PAPER = Schedule(20, 5)  # Table [tab:hyperparameters], twelve layers
STEADY = Schedule(6, 4, omega=1.1, beta=0.01)  # fixed, and enough for blocks of two layers while their weights are small
GOOD = Schedule(20, 10, beta=0.02, quality=0.995)
FINE = Schedule(20, 10, beta=0.01, quality=0.9995)
KINDS = ("ep", "id", "recurrent-backprop", "bptt")


def methods(*, calibrated: Sequence[str] = KINDS[:3]) -> list[Method]:
    """All that are compared.

    Args:
        calibrated: the kinds to calibrate, which takes a while where nets are wide.
    """
    return [
        *PAPER.methods("paper", KINDS),
        *GOOD.methods(f"calibrated for {GOOD.quality}", calibrated),
        *FINE.methods(f"calibrated for {FINE.quality}", calibrated),
    ]


def noise(net: Net, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs that need no data set."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(net.batch, *net.input_shape, generator=generator)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    return x, torch.randint(CLASSES, (net.batch,), generator=generator)
