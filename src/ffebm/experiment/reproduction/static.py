"""The static analysis: whether EP and ID agree at every step, in every layer, on a pair of samples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ffebm.diagnostics import Transient, transients
from ffebm.experiment.architectures import build_model, static_analysis
from ffebm.experiment.data import Dataset, default_folder, load
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.files import write_atomically
from ffebm.experiment.reproduction.static_figures import bars_figure, transients_figure
from ffebm.experiment.run import Run
from ffebm.model import FFEBM
from ffebm.relaxation import FixedPoint

SAMPLES, SWEEPS, FREE, BETA, VARIANCE = 2, 20, 15, 0.02, 5.9e-5
WIDTHS = {"paper": 1.0, "small": 0.125, "tiny": 1 / 32}
SETTLED = FixedPoint(500, tolerance=1e-6)  # the free phase of trained nets, which fifteen sweeps may leave short of equilibrium


@dataclass(frozen=True)
class Layer:
    """The weights between two layers: how their gradient builds up by EP and by ID."""

    name: str
    block: int
    cosine: float  # of the gradients at the end
    deviation: float  # the largest over all steps: ‖EP(t) − ID(t)‖ / ‖ID(t)‖
    ep: list[list[float]]  # by step, then by weight shown
    id: list[list[float]]

    @property
    def label(self) -> str:
        """F² for the digital stage before block 2, θ²₁ for the first edge inside of it."""
        parts = self.name.split(".")
        if "interactions" not in parts:
            return f"$F^{self.block}$"
        return f"$\\theta^{self.block}_{int(parts[parts.index('interactions') + 1]) + 1}$"


@dataclass(frozen=True)
class Static:
    """An analysis, with all that it takes to repeat it."""

    title: str
    samples: str  # what the net was shown
    beta: float
    sweeps: int
    free: str
    layers: list[Layer]
    environment: dict[str, Any]

    @property
    def worst(self) -> Layer:
        return min(self.layers, key=lambda layer: layer.cosine)

    @property
    def deviation(self) -> float:
        return max(layer.deviation for layer in self.layers)

    def explanation(self, threshold: float) -> list[str]:
        """Why layers fall below a cosine, as far as can be told; nothing where none does."""
        return [
            f"{layer.name} (block {layer.block}): {layer.cosine:.5f}, EP and ID part by {layer.deviation:.1%} at the worst step"
            for layer in self.layers
            if layer.cosine < threshold
        ]


def analyse_initial(scale: str, data: Path | None = None, seed: int = 0, shown: int = 5) -> Static:
    """The paper's net of fifteen layers in six blocks, at its initial weights."""
    torch.manual_seed(seed)
    # The gain of a convolution grows with the square root of its channels: fewer of them get larger weights.
    model = static_analysis(WIDTHS[scale], variance=VARIANCE / WIDTHS[scale])
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    folder = data or default_folder()
    dataset = None if folder is None or scale == "tiny" else load("cifar10", folder)
    x, y, words = _samples(dataset, seed)
    width = "" if WIDTHS[scale] == 1 else f", {WIDTHS[scale]:g} of the width"
    title = f"15 layers in 6 blocks at initial weights{width}"
    return analyse(model, x, y, title=title, samples=words, free=f"{FREE} sweeps", seed=seed, shown=shown)


def analyse_run(run: Run, data: Path | None = None, seed: int = 0, shown: int = 5) -> Static:
    """The net of a run, at the weights that it has come to; batch-norm as in tests, free phases until they settle."""
    settings = run.settings()
    dataset = load(settings.data.name, data or settings.data.root)
    model = build_model(settings, dataset.shape, len(dataset.classes)).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    run.load_weights(model)
    for _, block in model.chain:
        block.relax = SETTLED
    x, y, words = _samples(dataset, seed)
    title = f"{run.folder.name}, {settings.model.layers} layers in {settings.model.blocks} blocks"
    free = f"until no unit moves by {SETTLED.tolerance}, {SETTLED.steps} sweeps at most"
    return analyse(model.eval(), x, y, title=title, samples=words, free=free, seed=seed, shown=shown)


def analyse(model: FFEBM, x: Tensor, y: Tensor, *, title: str, samples: str, free: str, seed: int, shown: int) -> Static:
    found = transients(model, x, y, FixedPoint(SWEEPS, order="output-last"), beta=BETA, shown=shown, seed=seed)
    weights = [transient for transient in found if transient.name.endswith("weight") and "norm" not in transient.name]
    weights = [transient for transient in weights if not transient.name.startswith("readout")]
    layers = [_layer(transient) for transient in reversed(weights)]
    return Static(title, samples, BETA, SWEEPS, free, layers, describe_environment(seed))


def _layer(transient: Transient) -> Layer:
    ep, id_ = transient.ep.tolist(), transient.id.tolist()
    return Layer(transient.name, transient.block, transient.cosine, transient.deviation.max().item(), ep, id_)


def _samples(dataset: Dataset | None, seed: int) -> tuple[Tensor, Tensor, str]:
    generator = torch.Generator().manual_seed(seed)
    if dataset is None:
        x, y = torch.randn(SAMPLES, 3, 32, 32, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)
        return x.to(memory_format=torch.channels_last), y, f"{SAMPLES} images of noise"
    which = torch.randint(len(dataset.train), (SAMPLES,), generator=generator)
    x = dataset.normalise(dataset.train.x[which]).to(memory_format=torch.channels_last)
    return x, dataset.train.y[which], f"training images {', '.join(map(str, which.tolist()))} of {dataset.name}"


def save_static(static: Static, folder: Path) -> None:
    """The numbers as JSON, both figures as PNG and SVG, and a table as Markdown."""
    write_atomically(folder / "static.json", json.dumps(asdict(static), indent=1).encode())
    write_atomically(folder / "static.md", markdown(static).encode())
    for name, figure in (("transients", transients_figure(static)), ("cosines", bars_figure([static]))):
        for kind in ("png", "svg"):
            write_atomically(folder / f"{name}.{kind}", partial(figure.savefig, format=kind))


def read_static(path: Path) -> Static:
    content = json.loads(path.read_text(encoding="utf-8"))
    return Static(**{**content, "layers": [Layer(**layer) for layer in content["layers"]]})


def markdown(static: Static) -> str:
    lines = [
        f"## EP against ID: {static.title}",
        "",
        f"{static.samples}; β {static.beta}; {static.sweeps} sweeps a block; free phases: {static.free}. Cosine of the final",
        "gradients of every layer, and the largest relative deviation ‖EP(t) − ID(t)‖ / ‖ID(t)‖ at any step.",
        "",
        "| block | weights | cosine | deviation |",
        "|---|---|---|---|",
    ]
    lines += [f"| {layer.block} | {layer.name} | {layer.cosine:.6f} | {layer.deviation:.2e} |" for layer in static.layers]
    return "\n".join(lines) + "\n"
