"""The measurement: every method on one net, beside plain backprop through the feedforward net of the same layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ffebm.diagnostics import converged_gradients, gradients, smallest_cosine
from ffebm.errors import UnsettledError
from ffebm.experiment.benchmark.meter import Task, fastest, matrix_product, operations, peak_memory
from ffebm.experiment.benchmark.subjects import STEADY, Method, Net, calibrated, feedforward, fixed, noise, proposed
from ffebm.experiment.data import Dataset
from ffebm.model import FFEBM

__all__ = ["Measurement", "images", "inference_memory", "measure", "memory", "plain_step", "step", "train"]
__dir__ = __all__.copy

PLAIN, PEAK = "plain backprop", "matrix product"
COMPARED = 128  # samples at most, whose gradient is held against the converged one
UNLIMITED = 32  # likewise where blocks have no limit, and some samples take thousands of sweeps


@dataclass(frozen=True)
class Measurement:
    """One method on one net."""

    net: str
    width: float
    batch: int
    method: str
    sweeps: str
    seconds: float  # of a training gradient, the shortest of several
    ratio: float  # to plain backprop
    gflop: float  # of one gradient
    gflops: float  # a second
    share: float  # of the matrix product's speed
    memory: int  # bytes alive at the worst moment, weights included
    cosine: (
        float | None
    )  # the smallest over all parameters, to the converged gradient; None where it was not asked, or there is none
    worst: str  # the parameter that has it
    settings: tuple[str, ...] = ()  # of the net, where they differ from its preset's

    @property
    def label(self) -> str:
        return Net(self.net, self.width, self.batch, tuple(self.settings)).label

    @property
    def title(self) -> str:
        """The method as tables have room for it."""
        return self.method.replace("recurrent-backprop", "rbp").replace("small-signal ep", "ep 1 nudge")


def measure(
    net: Net,
    model: FFEBM,
    x: Tensor,
    y: Tensor,
    *,
    rounds: int = 5,
    quality: bool = True,
    say: Callable[[str], object] = str,
) -> list[Measurement]:
    """Compare gradients with the converged one, time all methods in turn, then count operations and memory.

    Args:
        net: what the model is called.
        quality: whether to look for the fewest sweeps that make a good gradient; otherwise they are calibrated.
        say: is told what goes on.
    """
    plain = feedforward(model)
    for _, block in model.chain:
        block.unsettled = "ignore"  # the shortest schedules are not meant to settle: their cosine says what they are worth
    say(f"{net.label}: comparing gradients")
    most = COMPARED if all(block.limit is not None for _, block in model.chain) else UNLIMITED
    compared = _compared(model, x[:most], y[:most], quality=quality)
    tasks: dict[str, Task] = {
        PLAIN: lambda: plain_step(plain, x, y),
        **{key: lambda method=method: step(method.apply(model), x, y) for key, (method, *_) in compared.items()},
    }
    matrices, size = matrix_product()
    say(f"{net.label}: timing")
    seconds = fastest({PEAK: matrices, **tasks}, rounds)
    say(f"{net.label}: counting operations and memory")
    counts = {name: operations(task) for name, task in tasks.items()}
    sweeps: dict[str, str] = {}
    for key, (method, *_) in compared.items():
        tasks[key]()
        sweeps[key] = method.sweeps(model)
    weight_bytes = {name: sum(p.nbytes for p in (plain if name == PLAIN else model).parameters()) for name in tasks}
    alive = {name: weight_bytes[name] + peak_memory(task) for name, task in tasks.items()}
    peak = size / seconds[PEAK]
    return [
        Measurement(
            net.name,
            net.width,
            net.batch,
            compared[key][0].name if key in compared else key,
            sweeps.get(key, ""),
            seconds[key],
            seconds[key] / seconds[PLAIN],
            counts[key],
            counts[key] / seconds[key],
            counts[key] / seconds[key] / peak,
            alive[key],
            *(compared[key][1:] if key in compared else (None, "")),
            net.settings,
        )
        for key in tasks
    ]


def _compared(model: FFEBM, x: Tensor, y: Tensor, *, quality: bool) -> dict[str, tuple[Method, float | None, str]]:
    """What is to be timed, by keys: each method, its smallest cosine to the converged gradient, and whose that is."""
    methods = [method for method in fixed() if method.is_read(model)]
    try:
        truth = converged_gradients(model, x, y, tolerance=1e-10) if quality else None
    except UnsettledError:
        truth = None
    if truth is None:
        methods.append(calibrated(model, x, y))
        return {method.name: (method, None, "") for method in methods}
    methods += proposed(model, x, y, truth)
    similar = [smallest_cosine(gradients(method.apply(model), x, y), truth) for method in methods]
    return {
        f"{method.name} {number}": (method, *found) for number, (method, found) in enumerate(zip(methods, similar, strict=True))
    }


def memory(net: Net, method: Method, *, recompute: bool = False) -> int:
    """Bytes alive at the worst moment of a training gradient, weights included."""
    model = method.apply(net.build())
    model.recompute = recompute
    x, y = noise(net)
    return sum(p.nbytes for p in model.parameters()) + peak_memory(lambda: step(model, x, y))


def inference_memory(net: Net) -> int:
    """Bytes alive at the worst moment of a forward pass, with weights, and as many for their gradients."""
    model = net.build()
    x, _ = noise(net)

    @torch.no_grad()
    def forward() -> Tensor:
        return model(x).logits

    return 2 * sum(p.nbytes for p in model.parameters()) + peak_memory(forward)


def train(model: FFEBM, data: Dataset, steps: int, batch: int = 32, rate: float = 5e-4) -> None:
    """Bring the weights from where they start to where training takes them."""
    STEADY.methods("", ["ep"])[0].apply(model)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimiser.zero_grad()
        step(model, *images(data, torch.randint(len(data.train), (batch,), generator=generator)))
        optimiser.step()


def images(data: Dataset, which: slice | Tensor) -> tuple[Tensor, Tensor]:
    """Training images as the convolutional nets take them: three channels of 32 × 32."""
    x = data.normalise(data.train.x[which])
    if x.shape[1:] != (3, 32, 32):
        x = F.interpolate(x, (32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    return x.contiguous(memory_format=torch.channels_last), data.train.y[which]


def step(model: FFEBM, x: Tensor, y: Tensor) -> None:
    """A training gradient, with what a limit does after each step of an optimiser."""
    for _, block in model.chain:
        if block.limit is not None:
            block.limit.forget()
    losses = model(x, y).losses
    assert losses is not None
    model.zero_grad()
    losses.mean().backward()


def plain_step(model: torch.nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
