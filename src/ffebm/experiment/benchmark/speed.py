"""The measurement: every method on one net, beside plain backprop through the feedforward net of the same layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ffebm.diagnostics import converged_gradients, cosines, gradients
from ffebm.errors import UnsettledError
from ffebm.experiment.benchmark.meter import Task, fastest, matrix_product, operations, peak_memory
from ffebm.experiment.benchmark.subjects import STEADY, Method, Net, feedforward, noise
from ffebm.experiment.data import Dataset
from ffebm.model import FFEBM

PLAIN, PEAK = "plain backprop", "matrix product"
COMPARED = 128  # samples at most, whose gradient is held against the converged one
WATCHED = 64  # other samples, which calibration looks at


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

    @property
    def label(self) -> str:
        return Net(self.net, self.width, self.batch).label

    @property
    def title(self) -> str:
        """The method as tables have room for it."""
        return self.method.replace("recurrent-backprop", "rbp")


def measure(
    net: Net,
    methods: Sequence[Method],
    *,
    rounds: int = 5,
    trained: int = 0,
    data: Dataset | None = None,
    quality: bool = True,
    say: Callable[[str], object] = str,
) -> list[Measurement]:
    """Time all methods in turn, then count operations and memory, then compare gradients.

    Args:
        trained: steps of training before anything is measured; these need `data`.
        say: is told what goes on.
    """
    model = net.build()
    x, y = noise(net)
    if data is not None:
        if trained:
            say(f"{net.label}: training {trained} steps")
            train(model, data, trained)
        x, y = images(data, slice(0, net.batch))
    plain = feedforward(model)
    say(f"{net.label}: calibrating")
    others = noise(net, seed=1) if data is None else images(data, slice(net.batch, net.batch + WATCHED))
    methods = [method.calibrated(model, others[0][:WATCHED], others[1][:WATCHED]) for method in methods]
    tasks: dict[str, Task] = {
        PLAIN: lambda: plain_step(plain, x, y),
        **{method.name: lambda method=method: step(method.apply(model), x, y) for method in methods},
    }
    matrices, size = matrix_product()
    say(f"{net.label}: timing")
    seconds = fastest({PEAK: matrices, **tasks}, rounds)
    say(f"{net.label}: counting operations and memory")
    counts = {name: operations(task) for name, task in tasks.items()}
    sweeps: dict[str, str] = {}
    for method in methods:
        tasks[method.name]()
        sweeps[method.name] = method.sweeps(model)
    weight_bytes = {name: sum(p.nbytes for p in (plain if name == PLAIN else model).parameters()) for name in tasks}
    alive = {name: weight_bytes[name] + peak_memory(task) for name, task in tasks.items()}
    worst: dict[str, tuple[float | None, str]] = dict.fromkeys(tasks, (None, ""))
    if quality:
        say(f"{net.label}: comparing gradients")
        worst |= compare(model, methods, x[:COMPARED], y[:COMPARED])
    peak = size / seconds[PEAK]
    return [
        Measurement(
            net.name,
            net.width,
            net.batch,
            name,
            sweeps.get(name, ""),
            seconds[name],
            seconds[name] / seconds[PLAIN],
            counts[name],
            counts[name] / seconds[name],
            counts[name] / seconds[name] / peak,
            alive[name],
            *worst[name],
        )
        for name in tasks
    ]


def compare(model: FFEBM, methods: Sequence[Method], x: Tensor, y: Tensor) -> dict[str, tuple[float | None, str]]:
    """The smallest cosine of every method's gradient to the fully converged one, and the parameter that has it."""
    try:
        truth = converged_gradients(model, x, y, tolerance=1e-10)
    except UnsettledError:
        return {}
    found: dict[str, tuple[float | None, str]] = {}
    for method in methods:
        similar = cosines(gradients(method.apply(model), x, y), truth)
        name = min(similar, key=lambda name: similar[name])
        found[method.name] = (similar[name], name)
    return found


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
    losses = model(x, y).losses
    assert losses is not None
    model.zero_grad()
    losses.mean().backward()


def plain_step(model: torch.nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
