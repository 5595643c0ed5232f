"""What a limit on the gain of blocks does: to learning, to the sweeps that a gradient needs, and to its price.

Trains `cifar10-l12-bs2` at an eighth of its width for 500 steps of 64 images, with several limits and without one, by
small-signal equilibrium propagation from a start that comes from data. It learns from 45,000 training images with a seed that
no table uses, and is judged on the 5,000 others; the test set is not looked at. Then it holds the sweeps that the formula of
`ffebm.calibration` says against the converged gradient in float64 of 64 of those others, and times gradients of 128.

Needs CIFAR-10 in the folder that FFEBM_DATA names, and an idle machine. Trained weights go to runs/gain-limit; those that are
there are kept. Writes results/gain_limit.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor

from ffebm import EquilibriumPropagation, FixedPoint
from ffebm.calibration import Tuning
from ffebm.diagnostics import converged_gradients, gradients, smallest_cosine
from ffebm.experiment.architectures import build_model
from ffebm.experiment.benchmark.meter import fastest
from ffebm.experiment.benchmark.speed import images, plain_step, step
from ffebm.experiment.benchmark.subjects import feedforward
from ffebm.experiment.data import Dataset, default_folder, load
from ffebm.experiment.markup import table
from ffebm.experiment.preset import read_preset_or_file
from ffebm.model import FFEBM
from ffebm.start import start_from_data

ROOT = Path(__file__).parent.parent
LIMITS = (0.2, 0.35, 0.5, 0.7, None)
STEPS, BATCH, RATE, SEED, LEARNT = 500, 64, 2e-3, 100, 45_000
QUALITIES = (0.99, 0.999)
SMALL_SIGNAL = EquilibriumPropagation(FixedPoint(6, order="output-first"), variant="small-signal")


@dataclass(frozen=True)
class Found:
    """One net, trained."""

    limit: float | None
    loss: float
    accuracy: float  # on training images that were set apart
    contraction: float  # certified, of the block that has the largest
    rows: tuple[tuple[float, Tuning, float, float], ...]  # quality asked for, sweeps, cosine, time over plain backprop's


def make(limit: float | None, data: Dataset) -> FFEBM:
    chosen = [
        f"model.max_contraction={'none' if limit is None else limit}",
        "model.width=0.125",
        "gradient.variant=small-signal",
    ]
    torch.manual_seed(SEED)
    model = build_model(read_preset_or_file("cifar10-l12-bs2", chosen), data.shape, len(data.classes))
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    for _, block in model.chain:
        block.unsettled = "ignore"  # without a limit it does what it does
    return model.use(SMALL_SIGNAL, FixedPoint(8))


def train(model: FFEBM, data: Dataset, name: str) -> float:
    start_from_data(model, data.few(256)[0])
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=STEPS)
    losses: list[float] = []
    for picked in track(list(_batches()), description=f"training, limit {name}"):
        x, y = images(data, picked)
        loss = model(x, y).losses.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses[-50:]) / 50


def _batches() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    order = torch.cat([torch.randperm(LEARNT, generator=generator) for _ in range(math.ceil(STEPS * BATCH / LEARNT))])
    yield from order[: STEPS * BATCH].view(STEPS, BATCH)


@torch.no_grad()
def accuracy(model: FFEBM, data: Dataset) -> float:
    model.eval()
    right = 0
    for begin in range(LEARNT, len(data.train), 500):
        x, y = images(data, slice(begin, begin + 500))
        right += int((model(x).logits.argmax(1) == y).sum())
    model.train()
    return right / (len(data.train) - LEARNT)


def measure(limit: float | None, data: Dataset) -> Found:
    name = "none" if limit is None else str(limit)
    weights = ROOT / "runs" / "gain-limit" / f"{name}.safetensors"
    model = make(limit, data)
    if not weights.exists():
        loss = train(model, data, name)
        weights.parent.mkdir(parents=True, exist_ok=True)
        kept = {key: value.contiguous() for key, value in model.state_dict().items()}
        save_file({**kept, "loss": torch.tensor(loss)}, weights)
    kept = load_file(weights)
    loss = kept.pop("loss").item()
    model.load_state_dict(kept)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x, y = images(data, slice(LEARNT, LEARNT + 64))
    certificates = [visit.block.certify(visit.x.shape[1:]) for visit in model.walk(x[:1])]
    contraction = max(certificate.contraction for certificate in certificates if certificate is not None)
    scored = accuracy(model, data)
    rows: list[tuple[float, Tuning, float, float]] = []
    if limit is not None:
        truth = converged_gradients(model, x, y, tolerance=1e-10)
        for quality in QUALITIES:
            tuning = Tuning.from_bound(limit, 2, quality)
            cosine = smallest_cosine(gradients(tuned(model, tuning), x, y), truth)[0]
            rows.append((quality, tuning, cosine, price(tuned(model, tuning), data)))
    return Found(limit, loss, scored, contraction, tuple(rows))


def tuned(model: FFEBM, tuning: Tuning) -> FFEBM:
    for _, block in model.chain:
        tuning.apply(block)
    return model


def price(model: FFEBM, data: Dataset) -> float:
    x, y = images(data, slice(LEARNT, LEARNT + 128))
    plain = feedforward(model)
    best = fastest({"plain": lambda: plain_step(plain, x, y), "ep": lambda: step(model, x, y)}, 10)
    return best["ep"] / best["plain"]


def main() -> None:
    data = load("cifar10", default_folder())
    found = [measure(limit, data) for limit in LIMITS]
    learnt = [
        ("none" if f.limit is None else f"{f.limit:g}", f"{f.loss:.3f}", f"{100 * f.accuracy:.1f} %", f"{f.contraction:.2f}")
        for f in found
    ]
    priced = [
        (
            f"{f.limit:g}",
            f"{quality:g}",
            f"{tuning.free} + {tuning.nudged}",
            f"{tuning.omega:.3f}",
            f"{cosine:.5f}",
            f"{ratio:.2f}",
        )
        for f in found
        for quality, tuning, cosine, ratio in f.rows
    ]
    document = [
        "## A limit on the gain of blocks",
        "",
        f"Made by `python benchmarks/gain_limit.py` with torch {torch.__version__} and {torch.get_num_threads()} threads.",
        f"12 layers in blocks of 2, an eighth of the width, {STEPS} steps of {BATCH} CIFAR-10 images by small-signal EP,",
        f"Adam in one cycle to {RATE:g}, one seed ({SEED}). Accuracy is on 5,000 training images that were set apart.",
        "",
        table(("limit", "training loss", "accuracy", "largest certified contraction"), learnt),
        "",
        "The sweeps that the formula says for a smallest cosine, and the cosine that came of it on 64 other images, against",
        "the converged gradient in float64. The last column is the time of a gradient of 128 images over that of plain",
        "backprop through the feedforward net of the same layers.",
        "",
        table(("limit", "cosine asked for", "sweeps", "ω", "smallest cosine", "× plain"), priced),
    ]
    (ROOT / "results" / "gain_limit.md").write_text("\n".join(document) + "\n")


if __name__ == "__main__":
    main()
