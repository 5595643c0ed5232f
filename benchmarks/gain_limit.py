"""How a block is best kept within a limit on its gain: how tight, with how much feedback, and by which means.

Trains 12 layers at an eighth of the paper's width for 200 steps of 64 images by small-signal equilibrium propagation, from a
start that comes from data. It learns from 45,000 training images of CIFAR-10 with a seed that no table uses, and is judged on
the 5,000 others; the test set is not looked at. Then it holds the sweeps that the formula of `ffebm.calibration` says against
the converged gradient in float64 of 64 of those others.

Needs CIFAR-10 in the folder that FFEBM_DATA names. What was measured goes to runs/gain-limit-200; what is there is kept. Writes
results/gain_limit.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ffebm import EquilibriumPropagation, FixedPoint
from ffebm.calibration import Tuning
from ffebm.diagnostics import converged_gradients, gradients, smallest_cosine
from ffebm.experiment.allocator import keep_freed_memory
from ffebm.experiment.architectures import build_model
from ffebm.experiment.benchmark.speed import images
from ffebm.experiment.data import Dataset, default_folder, load
from ffebm.experiment.files import write_json
from ffebm.experiment.markup import table
from ffebm.experiment.preset import read_preset
from ffebm.limit import feedback_within, shares
from ffebm.model import FFEBM
from ffebm.start import rms, start_from_data

ROOT = Path(__file__).parent.parent
STEPS, BATCH, RATE, SEED, LEARNT = 200, 64, 2e-3, 100, 45_000
LIMITS = (0.2, 0.35, 0.5, 0.7, None)
GAINS = (None, 1.5, 2.25, 3.0)  # that feedback leaves to an edge; None has all the feedback there is
QUALITIES = (0.99, 0.999)
SMALL_SIGNAL = EquilibriumPropagation(FixedPoint(6, order="output-first"), variant="small-signal")


@dataclass(frozen=True)
class Kind:
    """A net to be trained."""

    split: int = 2
    limit: float | None = 0.5
    feedback: float = 1.0
    parametrised: bool = False  # limited by a parametrisation, not after each step

    @property
    def name(self) -> str:
        way = "-parametrised" if self.parametrised else ""
        return f"bs{self.split}-limit-{self.limit}-feedback-{self.feedback:.4f}{way}"

    def build(self, data: Dataset) -> FFEBM:
        torch.manual_seed(SEED)
        chosen = [
            f"model.split={self.split}",
            f"model.max_contraction={self.limit or 'none'}",
            f"model.feedback={self.feedback}",
            "model.pooled=[3, 5, 9]",
            "model.width=0.125",
            "model.variance=none",
            "gradient.variant=small-signal",
            "gradient.beta=0.05",
            "sweeps=settle",
        ]
        model = build_model(read_preset("cifar10-l12-bs4", chosen), data.shape, len(data.classes))
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        for _, block in model.chain:
            block.unsettled = "ignore"  # without a limit it does what it does
        return start_from_data(model.use(SMALL_SIGNAL, FixedPoint(8)), data.few(256)[0])


KINDS = [
    *(Kind(limit=limit) for limit in LIMITS),
    Kind(parametrised=True),
    *(
        Kind(split, feedback=1.0 if gain is None else feedback_within(0.5, split, gain))
        for split in (3, 4, 6)
        for gain in GAINS
    ),
]


class Capped(nn.Module):
    """Weights of a 3 × 3 convolution, scaled down to a gain where they have more; the gradient goes through the scale."""

    def __init__(self, share: float, below: tuple[int, ...]) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("vector", F.normalize(torch.randn(1, *below).flatten(1)).view(1, *below))

    vector: Tensor

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(2):
                turned = F.conv_transpose2d(F.conv2d(self.vector, weight, padding=1), weight, padding=1)
                self.vector.copy_(turned / turned.norm())
        gain = F.conv2d(self.vector.clone(), weight, padding=1).norm()
        return weight * (self.share / gain).clamp(max=1.0)


def parametrise(model: FFEBM, x: Tensor) -> None:
    """Limit blocks by parametrisations in place of their limits."""
    for visit in model.walk(x):
        energy, limit = visit.block.energy, visit.block.limit
        assert limit is not None
        ties = energy.ties(visit.x.shape[1:])
        for (edge, below), share in zip(ties, shares(energy, len(ties), limit.max_contraction), strict=True):
            parametrize.register_parametrization(edge.interaction, "weight", Capped(share, below))
        visit.block.limit = None


def train(kind: Kind, model: FFEBM, data: Dataset) -> tuple[float, float]:
    """The loss over the last 50 steps, and the seconds of a step."""
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=STEPS)
    losses: list[float] = []
    begin = time.perf_counter()
    for picked in track(list(_batches()), description=kind.name):
        with parametrize.cached():  # else every sweep would ask again
            x, y = images(data, picked)
            loss = model(x, y).losses.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses[-50:]) / 50, (time.perf_counter() - begin) / STEPS


def _batches() -> Iterator[Tensor]:
    order = torch.randperm(LEARNT, generator=torch.Generator().manual_seed(SEED))
    yield from order[: STEPS * BATCH].view(STEPS, BATCH)


@torch.no_grad()
def accuracy(model: FFEBM, data: Dataset) -> float:
    model.eval()
    right = 0
    with parametrize.cached():
        for begin in range(LEARNT, len(data.train), 500):
            x, y = images(data, slice(begin, begin + 500))
            right += int((model(x).logits.argmax(1) == y).sum())
    model.train()
    return right / (len(data.train) - LEARNT)


@dataclass(frozen=True)
class Found:
    """One net, trained."""

    kind: Kind
    signal: float  # root mean square of what blocks hand on at the start, their mean
    loss: float
    accuracy: float
    seconds: float  # of a step
    contraction: float  # certified, of the block that has the largest
    formula: list[tuple[float, int, int, float, float]]  # quality asked for, free and nudged sweeps, ω, cosine


def measure(kind: Kind, data: Dataset) -> Found:
    kept = ROOT / "runs" / f"gain-limit-{STEPS}" / f"{kind.name}.json"
    if kept.exists():
        return Found(**{**json.loads(kept.read_text()), "kind": kind})
    model = kind.build(data)
    x, y = images(data, slice(LEARNT, LEARNT + 64))
    with torch.no_grad():
        outputs = [rms(visit.output) for visit in model.walk(x)]
    if kind.parametrised:
        parametrise(model, x[:1])
    loss, seconds = train(kind, model, data)
    certificates = [visit.block.certify(visit.x.shape[1:]) for visit in model.walk(x[:1])]
    contraction = max(certificate.contraction for certificate in certificates if certificate is not None)
    formula: list[tuple[float, int, int, float, float]] = []
    if kind.limit is not None and kind.split == 2 and not kind.parametrised:
        truth = converged_gradients(model, x, y, tolerance=1e-10)
        for quality in QUALITIES:
            tuning = Tuning.from_bound(kind.limit, 2, quality)
            for _, block in model.chain:
                tuning.apply(block)
            cosine = smallest_cosine(gradients(model, x, y), truth)[0]
            formula.append((quality, tuning.free, tuning.nudged, tuning.omega, cosine))
        model.use(SMALL_SIGNAL, FixedPoint(8))
    signal = sum(outputs) / len(outputs)
    found = Found(kind, signal, loss, accuracy(model, data), seconds, contraction, formula)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, asdict(found))
    return found


def main() -> None:
    keep_freed_memory()
    data = load("cifar10", default_folder())
    found = [measure(kind, data) for kind in KINDS]
    limits = [each for each in found if each.kind.split == 2 and not each.kind.parametrised]
    step = next(each for each in limits if each.kind.limit == 0.5)
    ways = [("after each step", step), ("by a parametrisation", next(each for each in found if each.kind.parametrised))]
    document = [
        "## A limit on the gain of blocks",
        "",
        f"Made by `python benchmarks/gain_limit.py` with torch {torch.__version__} and {torch.get_num_threads()} threads.",
        f"12 layers at an eighth of the width, {STEPS} steps of {BATCH} CIFAR-10 images by small-signal EP, Adam in one",
        f"cycle to {RATE:g}, one seed ({SEED}). Accuracy is on 5,000 training images that were set apart.",
        "",
        "How tight, in blocks of two:",
        "",
        table(
            ("limit", "training loss", "accuracy", "largest certified contraction"),
            [
                (
                    "none" if f.kind.limit is None else f"{f.kind.limit:g}",
                    f"{f.loss:.3f}",
                    f"{100 * f.accuracy:.1f} %",
                    f"{f.contraction:.2f}",
                )
                for f in limits
            ],
        ),
        "",
        "By which means, with a limit of 0.5. A parametrisation scales weights where they are used, and gradients go through",
        "it. Steps were timed beside other programs.",
        "",
        table(
            ("weights are scaled", "training loss", "accuracy", "a step"),
            [(way, f"{f.loss:.3f}", f"{100 * f.accuracy:.1f} %", f"{1e3 * f.seconds:.0f} ms") for way, f in ways],
        ),
        "",
        "With how much feedback, in larger blocks with a limit of 0.5: less of it lets an edge have more gain. The signal is",
        "what blocks hand on at the start, its root mean square, the mean over blocks; blocks of two hand on "
        f"{step.signal:.3f}.",
        "",
        table(
            ("blocks of", "feedback", "gain of an edge", "signal", "training loss", "accuracy"),
            [
                (
                    str(f.kind.split),
                    f"{f.kind.feedback:.3g}",
                    "all feedback" if gain is None else f"{gain:g}",
                    f"{f.signal:.3f}",
                    f"{f.loss:.3f}",
                    f"{100 * f.accuracy:.1f} %",
                )
                for f, gain in zip((f for f in found if f.kind.split > 2), GAINS * 3, strict=True)
            ],
        ),
        "",
        "The sweeps that the formula says for a smallest cosine, and the cosine that came of it on 64 other images, against",
        "the converged gradient in float64:",
        "",
        table(
            ("limit", "cosine asked for", "sweeps", "ω", "smallest cosine"),
            [
                (f"{f.kind.limit:g}", f"{quality:g}", f"{free} + {nudged}", f"{omega:.3f}", f"{cosine:.5f}")
                for f in limits
                for quality, free, nudged, omega, cosine in f.formula
            ],
        ),
    ]
    (ROOT / "results" / "gain_limit.md").write_text("\n".join(document) + "\n")


if __name__ == "__main__":
    main()
