"""The static analysis: whether EP and ID agree at every step, in every layer, on a pair of samples."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from ffebm.checks import brief, brief_name
from ffebm.diagnostics import Transient, converged_gradients, cosines, gradients, transients
from ffebm.errors import DivergenceError, UnsettledError
from ffebm.experiment.architectures import static_analysis
from ffebm.experiment.data import Dataset, default_folder, load, load_for
from ffebm.experiment.environment import describe_environment
from ffebm.experiment.errors import UserError
from ffebm.experiment.figures import picture
from ffebm.experiment.files import read_regular, write_atomically, write_json
from ffebm.experiment.markup import code, table, text
from ffebm.experiment.reproduction.static_figures import bars_figure, transients_figure
from ffebm.experiment.run import Run
from ffebm.experiment.trained import load_relaxing, usable
from ffebm.gradient import EquilibriumPropagation, Unrolled
from ffebm.model import FFEBM
from ffebm.relaxation import FixedPoint

__all__ = [
    "Layer",
    "Static",
    "analyse",
    "analyse_initial",
    "analyse_run",
    "markdown",
    "read_analyses",
    "read_static",
    "save_static",
]
__dir__ = __all__.copy

SAMPLES, SWEEPS, FREE, BETA, VARIANCE = 2, 20, 15, 0.02, 5.9e-5
WIDTHS = {"paper": 1.0, "converged": 0.125, "tiny": 1 / 32}
LARGEST = 1 << 24  # bytes of an analysis; the paper's net has 100,000
LAYERS, STEPS, SHOWN = 60, 1000, 100  # of an analysis that figures can show
TRUSTED = 0.999  # the cosine between EP and ID below which a layer needs an explanation
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
    ep_truth: float | None = None  # cosine of EP's gradient with the fully converged one, where that was asked for and exists
    id_truth: float | None = None

    @property
    def label(self) -> str:
        """F² for the digital stage before block 2, θ²₁ for the first edge inside of it."""
        return f"$\\theta^{self.block}_{self.edge}$" if self.edge else f"$F^{self.block}$"

    @property
    def edge(self) -> int:
        """Inside the block, from 1; 0 for the stage before it."""
        parts = self.name.split(".")
        return int(parts[parts.index("interactions") + 1]) + 1 if "interactions" in parts else 0


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
    trouble: str = ""  # why there is no converged gradient

    @property
    def worst(self) -> Layer:
        return min(self.layers, key=lambda layer: layer.cosine if math.isfinite(layer.cosine) else -math.inf)

    @property
    def deviation(self) -> float:
        return max((layer.deviation for layer in self.layers), key=lambda value: value if math.isfinite(value) else math.inf)

    def explanation(self) -> list[str]:
        """Of every layer in which EP and ID part, why; nothing where none does."""
        return [self._reason(layer) for layer in self.layers if not layer.cosine >= TRUSTED]

    def _reason(self, layer: Layer) -> str:
        start = f"{layer.name} (block {layer.block}): cosine {layer.cosine:.5f}"
        if layer.ep_truth is None or layer.id_truth is None:
            return f"{start}; there is no converged gradient to say which is off: {self.trouble}"
        compared = f"{start}; with the converged gradient EP has {layer.ep_truth:.5f} and ID {layer.id_truth:.5f}"
        if layer.id_truth < TRUSTED:
            return f"{compared}: {self.sweeps} sweeps are too few for {'both' if layer.ep_truth < TRUSTED else 'ID'}"
        return f"{compared}: β {self.beta} is too large for EP, or rounding too coarse"


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
    dataset = load_for(settings.data, data, run.description())
    model = load_relaxing(run, dataset.description)
    for _, block in model.chain:
        block.relax = SETTLED
    x, y, words = _samples(dataset, seed)
    title = f"{run.folder.name}, {settings.model.layers} layers in {settings.model.blocks} blocks"
    free = f"until no unit moves by {SETTLED.tolerance}, {SETTLED.steps} sweeps at most"
    with usable(run):
        return analyse(model, x, y, title=title, samples=words, free=free, seed=seed, shown=shown)


def analyse(model: FFEBM, x: Tensor, y: Tensor, *, title: str, samples: str, free: str, seed: int, shown: int) -> Static:
    recorded = FixedPoint(SWEEPS, order="output-last")
    found = transients(model, x, y, recorded, beta=BETA, shown=shown, seed=seed)
    weights = [transient for transient in found if transient.name.endswith("weight") and "norm" not in transient.name]
    layers = [_layer(transient) for transient in weights if not transient.name.startswith("readout")]
    layers.sort(key=lambda layer: (layer.block, layer.edge))
    trouble = ""
    if not all(layer.cosine >= TRUSTED for layer in layers):
        layers, trouble = _with_truth(layers, model, x, y, recorded)
    return Static(title, samples, BETA, SWEEPS, free, layers, describe_environment(seed), trouble)


def _with_truth(layers: Sequence[Layer], model: FFEBM, x: Tensor, y: Tensor, recorded: FixedPoint) -> tuple[list[Layer], str]:
    """The same, held against the fully converged gradient; or why there is none."""
    try:
        truth = converged_gradients(model, x, y)
    except (UnsettledError, DivergenceError) as error:
        return list(layers), str(error)
    copy = deepcopy(model)
    by_ep = cosines(gradients(copy.use(EquilibriumPropagation(recorded.transposed, beta=BETA)), x, y), truth)
    by_id = cosines(gradients(copy.use(Unrolled(recorded)), x, y), truth)
    return [replace(layer, ep_truth=by_ep[layer.name], id_truth=by_id[layer.name]) for layer in layers], ""


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
    write_json(folder / "static.json", asdict(static))
    write_atomically(folder / "static.md", markdown(static).encode("utf-8", "replace"))
    for name, figure in (("transients", transients_figure(static)), ("cosines", bars_figure([static]))):
        for kind in ("png", "svg"):
            write_atomically(folder / f"{name}.{kind}", picture(figure, kind))


def read_static(path: Path) -> Static:
    try:
        content = json.loads(read_regular(path, LARGEST))
        for layer in content["layers"]:  # JSON knows no NaN
            layer |= {key: math.nan for key in ("cosine", "deviation") if layer[key] is None}
        found = Static(**{**content, "layers": [Layer(**layer) for layer in content["layers"]]})
        TypeAdapter(Static).validate_python(asdict(found))  # the types that the class says
        _check_layers(found.layers)
        return found
    except ValidationError as error:
        reason = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        reason = str(error)
    raise UserError(f"{path} is no static analysis that can be read: {brief_name(reason, 200)}. Make it again, or remove it.")


def _check_layers(layers: Sequence[Layer]) -> None:
    """Refuse what the figures cannot draw: names of no layer, gradients of different lengths, or far too many of them."""
    if not 0 < len(layers) <= LAYERS:
        raise ValueError(f"it has {len(layers):,} layers; figures show 1 to {LAYERS}")
    for layer in layers:
        sizes = {len(step) for step in (*layer.ep, *layer.id)}
        if len(layer.ep) != len(layer.id) or not 0 < len(layer.ep) <= STEPS or len(sizes) != 1 or not 0 < max(sizes) <= SHOWN:
            raise ValueError(f"the gradients of {brief(layer.name)} by EP and by ID are not of one shape")
        if not re.fullmatch(r"(stages|blocks)\.\d{1,4}\.[\w.]{1,200}", layer.name) or not 0 < layer.block <= LAYERS:
            raise ValueError(f"{brief(layer.name)} is the name of no layer")
        layer.label  # noqa: B018 - which finds the number of an edge in the name


def read_analyses(paths: Iterable[Path]) -> tuple[list[Static], list[str]]:
    """Those that can be read, and a sentence on each that cannot."""
    found: list[Static] = []
    trouble: list[str] = []
    for path in paths:
        try:
            found.append(read_static(path))
        except UserError as error:
            trouble.append(str(error))
    return found, trouble


def markdown(static: Static) -> str:
    place = static.environment
    program, *arguments = place["command"]
    made = code(shlex.join([Path(program).name, *arguments]))
    lines = [
        f"## EP against ID: {text(static.title)}",
        "",
        f"Made by {made} at {place['commit'][:10]}, {place['time'][:10]}:",
        f"{text(static.samples)}; β {static.beta}; {static.sweeps} sweeps a block; free phases: {text(static.free)}. Cosine of "
        "the final",
        "gradients of every layer, and the largest relative deviation ‖EP(t) − ID(t)‖ / ‖ID(t)‖ at any step.",
        "",
    ]
    rows = [(str(layer.block), layer.name, f"{layer.cosine:.6f}", f"{layer.deviation:.2e}") for layer in static.layers]
    return "\n".join([*lines, table(("block", "weights", "cosine", "deviation"), rows)]) + "\n"
