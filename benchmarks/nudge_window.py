"""What becomes of equilibrium propagation's gradient from one end of the window of β to the other.

Untrained nets on noise, whose phases settle, so that nothing but β and rounding stands between EP and the fully converged
adjoint in float64. Every number is the smallest cosine over all parameters: at both ends of `EquilibriumPropagation.window`,
beyond which a nudge is refused, and at strengths between them. Seven ordinary nets, and three that keep their gradient at one
of the ends. About a minute on one thread. Writes results/nudge_window.md.

    python benchmarks/nudge_window.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor

from ffebm import FFEBM, AveragePool, ConvLayer, DenseLayer, EquilibriumPropagation, FixedPoint, MaxPool, build, clamp, identity
from ffebm.builder import Layer
from ffebm.diagnostics import converged_gradients, gradients, quiet_copy, smallest_cosine
from ffebm.experiment.architectures import build_model
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset
from ffebm.gradient.equilibrium_propagation import Scale
from ffebm.pooling import Pool

RESULT = Path(__file__).parent.parent / "results" / "nudge_window.md"
SETTLE = FixedPoint(300)  # it ends where only rounding is left
NUDGED = FixedPoint(60, order="output-first")
SEEDS = range(3)
SAMPLES = 8
CLASSES = 10
GAIN = 300  # of the readout
BETWEEN = {torch.float32: (1e-5, 3e-5, 1e-3, 0.02, 0.1, 1.0, 10.0, 100.0), torch.float64: (1e-13, 1e-10, 1e-3)}


class Net(NamedTuple):
    words: str
    make: Callable[[], FFEBM]
    scale: Scale = "unit"


def dense() -> FFEBM:
    return build((20,), dense_layers(4), 2, CLASSES)


def convolutional(pool: Pool) -> FFEBM:
    """Clamped outputs, without which max-pooling inside a block hardly ever settles."""
    layers = [ConvLayer(8), ConvLayer(8, pool=pool), ConvLayer(16), DenseLayer(32)]
    return build((3, 8, 8), layers, 2, CLASSES, output_activation=clamp(0.5))


def single_layers() -> FFEBM:
    return build((3, 8, 8), [ConvLayer(8), ConvLayer(8), DenseLayer(32)], 1, CLASSES, output_activation=clamp(0.5))


def wide() -> FFEBM:
    return build((20,), dense_layers(2, 2000), 2, CLASSES, output_activation=clamp(0.5))


def recipe() -> FFEBM:
    """Its signals are faint; a readout with large weights makes up for it."""
    model = build_model(read_preset("cifar10-l6-bs2", ["model.width=0.125", "model.variance=1e-4"]), (3, 32, 32), CLASSES)
    with torch.no_grad():
        model.readout.get_parameter("1.weight").mul_(GAIN)
    return model


def linear() -> FFEBM:
    """No batch-norm either: it would take out of a linear block's output what a bias adds to it, and leave no gradient."""
    half = identity(0.5)
    return build(
        (20,), dense_layers(4), 2, CLASSES, activation=half, output_activation=half, batch_norm=False, nudge="stationary"
    )


def loud_readout() -> FFEBM:
    """One block, so that all of the net gets the nudge of its readout."""
    model = build((20,), dense_layers(2), 2, CLASSES)
    with torch.no_grad():
        model.readout.get_parameter("1.weight").mul_(GAIN)
    return model


def faint_loss() -> FFEBM:
    def criterion(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none") / 1024

    return build((20,), dense_layers(4), 2, CLASSES, criterion=criterion, nudge="stationary")


def dense_layers(count: int, units: int = 32) -> list[Layer]:
    return [DenseLayer(units) for _ in range(count)]


ORDINARY = (
    Net("dense", dense),
    Net("dense, scale `paper`", dense, "paper"),
    Net("convolutional, max-pool inside", lambda: convolutional(MaxPool())),
    Net("convolutional, average pool inside", lambda: convolutional(AveragePool())),
    Net("single-layer blocks", single_layers),
    Net("2 × 2000 clamped units", wide),
    Net(f"`cifar10-l6-bs2`, an eighth of the width, readout × {GAIN}", recipe),
)
SPARED = (
    Net("linear, stationary nudge", linear),
    Net(f"one dense block, readout × {GAIN}", loud_readout),
    Net("dense, stationary nudge, scale `paper`, loss ÷ 1024", faint_loss, "paper"),
)

Found = dict[Net, list[list[float]]]  # smallest cosines, by seed and β


def main() -> None:
    torch.set_num_threads(1)  # these nets are too small for threads to pay
    betas = {dtype: strengths(dtype, between) for dtype, between in BETWEEN.items()}
    found: dict[torch.dtype, Found] = {
        dtype: {
            net: [qualities(net, seed, dtype, betas[dtype]) for seed in SEEDS]
            for net in track((*ORDINARY, *SPARED), str(dtype), transient=True)
        }
        for dtype in betas
    }
    lines = [*introduction(), ""]
    for dtype, of_nets in found.items():
        lines += [f"### In {str(dtype).removeprefix('torch.')}", "", *table(betas[dtype], of_nets), ""]
    lines += reading(list(found.values()))
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def strengths(dtype: torch.dtype, between: Sequence[float]) -> list[float]:
    """The ends of the window, four times the lower one, and those between."""
    low, high = EquilibriumPropagation.window(dtype)
    return [low, 4 * low, *between, high]


def qualities(net: Net, seed: int, dtype: torch.dtype, betas: Sequence[float]) -> list[float]:
    """The smallest cosine of any parameter's gradient with the converged one, for every β."""
    torch.manual_seed(seed)
    model = net.make()
    assert model.input_shape is not None
    x, y = torch.randn(SAMPLES, *model.input_shape).to(dtype), torch.arange(SAMPLES) % CLASSES
    model = model.to(dtype)
    truth = converged_gradients(model, x, y)
    found = []
    for beta in betas:
        estimator = EquilibriumPropagation(NUDGED, beta=beta, scale=net.scale)
        found.append(smallest_cosine(gradients(quiet_copy(model).use(estimator, SETTLE), x, y), truth)[0])
    return found


def introduction() -> list[str]:
    place = describe_environment(seed=0)
    return [
        "## The window of the nudge",
        "",
        f"Made by `python benchmarks/nudge_window.py` at {place['commit'][:10]}, {place['time'][:10]}, torch "
        f"{place['packages']['torch']}, {place['machine']}:",
        "the smallest cosine over all parameters between the gradient of EP (centered, up to 300 free sweeps, which end where",
        f"only rounding is left, 60 nudged ones) and the fully converged adjoint (float64), on {SAMPLES} samples of noise; the",
        f"median of {len(SEEDS)} seeds. Nets are untrained: 32 units or 8 to 16 channels a layer, blocks of two layers,",
        "elastic nudges and scale `unit`, unless they say otherwise. The first and the last β are the ends of",
        "`EquilibriumPropagation.window`.",
    ]


def table(betas: Sequence[float], found: Found) -> list[str]:
    header = ["net", *(f"{beta:.2g}" if beta < 1 else f"{beta:g}" for beta in betas)]
    rows = [
        [net.words, *(f"{round(statistics.median(values), 3) + 0.0:.3f}" for values in zip(*seeds, strict=True))]
        for net, seeds in found.items()
    ]
    return ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]


def reading(found: Sequence[Found]) -> list[str]:
    ends = [(seed[0], seed[-1]) for of_nets in found for net in ORDINARY for seed in of_nets[net]]
    low, high = (max(values) for values in zip(*ends, strict=True))
    return [
        f"Beyond the ends a nudge is refused. The first {len(ORDINARY)} nets lose nothing by that: at the lower end no seed",
        f"of theirs comes above {low:.2f} in either precision, at the upper none above {high:.2f}. The last {len(SPARED)} keep",
        "their gradient at one end, so that some of what is refused would work there: where nothing is clamped a constant",
        "nudge is exact however strong, the elastic nudge of a readout with large weights is that much stronger than β, and",
        "the nudge by a faint loss under `paper` that much weaker. They lose nothing either: a β inside the window does as",
        "well.",
        "",
        "Between the ends every β is accepted, though its gradient may be poor, and which β is good depends on the net:",
        "`ffebm.diagnostics.fidelity` measures it. Single-layer blocks come out alike at the lower end of both precisions:",
        "there it is set in units of rounding, and nothing but the nudge is rounded.",
    ]


if __name__ == "__main__":
    main()
