"""What holding the positions of max-pooling does to EP's gradient, in nets that pool inside their blocks.

The paper's six layers, in one block and in two, at an eighth of the width and initial weights of two sizes, on noise. Blocks
relax until they settle; EP is held against ID through as many sweeps. Writes results/held_pooling.md.

    python benchmarks/held_pooling.py
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from rich.progress import track

from ffebm import EquilibriumPropagation, FixedPoint, Unrolled
from ffebm.diagnostics import cosines, gradients
from ffebm.experiment.architectures import build_model
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.preset import read_preset

RESULT = Path(__file__).parent.parent / "results" / "held_pooling.md"
NETS = {"cifar10-l6-bs6": "one block of 6", "cifar10-l6-bs3": "two blocks of 3"}
VARIANCES = (8.35e-5, 2e-4)
BETAS = (0.2, 0.05, 0.02, 0.005)
SEEDS = range(5)
SWEEPS = 30


def smallest(preset: str, variance: float, seed: int) -> dict[tuple[float, bool], float]:
    """The smallest cosine with ID over all weights, by β and whether positions are held."""
    settings = read_preset(preset, ["model.width=0.125", f"model.variance={variance}"])
    torch.manual_seed(seed)
    model = build_model(settings, (3, 32, 32), 10)
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    relax = FixedPoint(300, tolerance=1e-6)
    expected = gradients(model.use(Unrolled(FixedPoint(SWEEPS, order="output-last")), relax), x, y)
    found = {}
    for beta in BETAS:
        for hold in (False, True):
            estimator = EquilibriumPropagation(FixedPoint(SWEEPS, order="output-first"), beta=beta, hold_pooling=hold)
            similar = cosines(gradients(model.use(estimator, relax), x, y), expected)
            found[beta, hold] = min(value for name, value in similar.items() if "norm" not in name)
    return found


def main() -> None:
    place = describe_environment(seed=0)
    lines = [
        "## Max-pooling inside a block, held and free",
        "",
        f"Made by `python benchmarks/held_pooling.py` at {place['commit'][:10]}, {place['time'][:10]}, torch "
        f"{place['packages']['torch']}: six layers at an eighth of the width, {len(SEEDS)} seeds, eight images of noise, free",
        f"phases that settle, {SWEEPS} nudged sweeps. The smallest cosine of EP's gradient with ID's over all weights: the",
        "median over seeds, and behind it the worst.",
        "",
        "| net | initial variance | β | positions free | positions held |",
        "|---|---|---|---|---|",
    ]
    cases = [(preset, variance) for preset in NETS for variance in VARIANCES]
    for preset, variance in track(cases, "nets", transient=True):
        found = [smallest(preset, variance, seed) for seed in SEEDS]
        for beta in BETAS:
            values = {hold: [each[beta, hold] for each in found] for hold in (False, True)}
            free, held = (f"{statistics.median(values[hold]):.3f}, {min(values[hold]):.3f}" for hold in (False, True))
            lines.append(f"| {NETS[preset]} | {variance:g} | {beta} | {free} | {held} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
