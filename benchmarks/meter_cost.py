"""What the fidelity meter of runs on hardware takes, beside the steps of training between two of its looks.

Processor time of a look on 16 images, and of a step on a batch, by the sweeps that calibration chooses, on one thread. Takes
a minute. Writes results/meter_cost.md.

    python benchmarks/meter_cost.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ffebm import calibrate, start_from_data
from ffebm.experiment.architectures import build_model
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset
from ffebm.experiment.training.fidelity_meter import EVERY, SAMPLES
from ffebm.hardware import block_fidelities

RESULT = Path(__file__).parent.parent / "results" / "meter_cost.md"
CASES = (("digits", (1, 8, 8)), ("cifar10-small", (3, 32, 32)))
TIMES = 7


def seconds(work: Callable[[], object]) -> float:
    """Of processor time, the median of several after one for warmth."""
    work()
    found: list[float] = []
    for _ in range(TIMES):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def row(preset: str, shape: tuple[int, ...], *overrides: str) -> str:
    settings = read_preset(preset, ["hardware.adc_bits=8", *overrides])
    torch.manual_seed(0)
    model = build_model(settings, shape, 10)
    x, y = torch.rand(settings.trainer.batch, *shape), torch.arange(settings.trainer.batch) % 10
    if settings.model.start:
        start_from_data(model, x, settings.model.start)
    calibrate(model, x[:SAMPLES], y[:SAMPLES], settings.gradient.quality).apply(model)
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimiser.zero_grad()
        model(x, y).losses.mean().backward()
        optimiser.step()

    one, look = seconds(step), seconds(lambda: block_fidelities(model, x[:SAMPLES], y[:SAMPLES]))
    nudge = "chosen" if settings.gradient.automatic_beta else "fixed"
    cells = (preset, nudge, f"{1000 * one:.0f} ms", f"{1000 * look:.0f} ms", f"{100 * look / (EVERY * one):.1f} %")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = describe_environment(0)
    lines = [
        "## What the fidelity meter takes",
        "",
        f"Made by `python benchmarks/meter_cost.py` at {place['commit'][:10]}, {place['time'][:10]}, torch "
        f"{place['packages']['torch']}, {place['machine']}:",
        f"processor time on one thread; a look on {SAMPLES} images every {EVERY} steps.",
        "",
        "| preset | β | a step | a look | of training |",
        "| --- | --- | --- | --- | --- |",
        *(row(*case, f"gradient.automatic_beta={chosen}") for case in CASES for chosen in ("false", "true")),
    ]
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())
