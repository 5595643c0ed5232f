"""Looking into relaxations and gradients: what settles, how fast, and whether estimators agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.chaining import Passage, contrasts, passages, through_readout
from ffebm.derivative import Gradients, pulled_back, wanted
from ffebm.energy import Energy
from ffebm.errors import DivergenceError, UnsettledError
from ffebm.gradient import EquilibriumPropagation, RecurrentBackprop
from ffebm.model import FFEBM
from ffebm.nudge import Nudge
from ffebm.pruning import renew_pruned
from ffebm.relaxation import FixedPoint, Relaxation, Relaxed
from ffebm.state import State, change, error_at

__all__ = [
    "Fidelity",
    "Steps",
    "Trace",
    "Transient",
    "converged_gradients",
    "cosines",
    "fidelity",
    "gradients",
    "quiet_copy",
    "smallest_cosine",
    "trace",
    "transients",
]
__dir__ = __all__.copy

SETTLING = 300  # sweeps that are enough for whatever settles
SETTLED = 1e-5  # what units may still move by, in units of the largest state or of 1


@dataclass(frozen=True)
class Trace:
    """A relaxation, sweep by sweep."""

    energy: Tensor  # (sweeps + 1, B), of the free energy, before the first sweep and after each
    residual: Tensor  # (sweeps, B), the largest change of any unit

    @property
    def contraction(self) -> Tensor:
        """By how much the residual shrinks from one sweep to the next, shape (sweeps − 1, B)."""
        return self.residual[1:] / self.residual[:-1]


@torch.no_grad()
def trace(energy: Energy, relax: Relaxation, x: Tensor, *, start: State | None = None, nudge: Nudge | None = None) -> Trace:
    """Relax, and record energy and residual of every sweep."""
    energies: list[Tensor] = []
    residuals: list[Tensor] = []
    before: State | None = None

    def record(_: int, state: State) -> None:
        nonlocal before
        energies.append(energy(state, x))
        if before is not None:
            residuals.append(change(state, before))
        before = state

    relax(energy, x, start=start, nudge=nudge, observer=record)
    return Trace(torch.stack(energies), torch.stack(residuals))


def gradients(model: FFEBM, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean loss for every parameter that requires one, by name; `.grad` is left alone."""
    parameters = wanted(model)
    # A few recorded sweeps may not carry the error down to every parameter: zeros then, not an error.
    return dict(zip(parameters, pulled_back([model(x, y).losses.mean()], [*parameters.values()]), strict=True))


def converged_gradients(model: FFEBM, x: Tensor, y: Tensor, tolerance: float = 1e-12, steps: int = 1000) -> dict[str, Tensor]:
    """The gradient to hold others against: in float64, every relaxation and adjoint run until it settles.

    Where a block never settles there is no such gradient, and this raises.
    """
    relax = FixedPoint(steps, tolerance=tolerance)
    exact = quiet_copy(model).put_on(None).cpu().double().use(RecurrentBackprop(relax), relax)  # not every device knows float64
    found = gradients(exact, x.cpu().double(), y.cpu())
    for _, block in exact.chain:
        if block.residual is not None and block.residual.max() > tolerance:
            raise UnsettledError(
                f"{block.label} still moves by {block.residual.max():.1e} after {steps} sweeps: it has no gradient "
                "to converge to. Max-pooling inside a block can cause this; so can weights that are too large."
            )
    return found


def cosines(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, float]:
    """The cosine between two gradients of every parameter, computed in float64; NaN where one of them vanishes."""
    return {name: _cosine(g, second[name]) for name, g in first.items()}


def smallest_cosine(found: Mapping[str, Tensor], truth: Mapping[str, Tensor], rounding: float = 0.0) -> tuple[float, str]:
    """The smallest cosine of any parameter's gradient with the true one, and its name; 1 and no name where none counts.

    Args:
        rounding: a true gradient that is not longer than this part of the longest one has vanished, and does not count.
    """
    lengths = {name: _length([g]) for name, g in truth.items()}
    least = rounding * max(lengths.values(), default=0.0)
    similar = {name: cosine for name, cosine in cosines(found, truth).items() if not lengths[name] <= least}
    # NaN: nothing has arrived yet, or what has is not finite.
    return min(((0.0 if math.isnan(cosine) else cosine, name) for name, cosine in similar.items()), default=(1.0, ""))


def quiet_copy(model: FFEBM) -> FFEBM:
    """A copy to look into, whose blocks say nothing where they do not settle, and whose batch-norms may move."""
    with torch.no_grad():
        for part in model.modules():
            renew_pruned(part)  # what has a graph cannot be copied
    copy = deepcopy(model)
    for _, block in copy.chain:
        block.unsettled = "ignore"
    return copy


@dataclass(frozen=True)
class Fidelity:
    """How close the gradient that a model makes is to the one at equilibrium."""

    cosine: float  # with the settled gradient, of the parameter that has the smallest; 0 where one of the two diverges
    parameter: str  # which one that is
    ratio: float  # the length of the whole gradient over that of the settled one; NaN where one of the two diverges
    settled: bool  # whether all blocks did: there is no true gradient otherwise, only the one where their sweeps ended
    # By how large a part of its size a layer is away from rest at most, where the free phase ends; None where nothing is known.
    unsettled: float | None = None


def fidelity(model: FFEBM, x: Tensor, y: Tensor) -> Fidelity:
    """Hold the gradient that a model makes as it is against recurrent backprop at settled phases, on a few samples.

    Unlike `converged_gradients` it stays in the precision of the model, follows its own kind of sweeps, and reports where a
    block does not settle instead of raising. Parameters whose true gradient vanishes, but for rounding, do not count. The
    model, its batch-norms and the random numbers to come are left as they were.
    """
    try:
        with _draws_put_back(x):
            found = gradients(quiet_copy(model), x, y)
        with _draws_put_back(x):
            exact, settled = _settled(quiet_copy(model).put_on(None), x)
        with _draws_put_back(x):
            truth = gradients(exact, x, y)
    except DivergenceError:
        return Fidelity(0.0, "", math.nan, settled=False)
    cosine, parameter = smallest_cosine(found, truth, 16 * torch.finfo(x.dtype).eps)
    length, true_length = _length(found.values()), _length(truth.values())
    ratio = length / true_length if true_length else math.nan
    return Fidelity(cosine, parameter, ratio, settled, _unsettled_part(quiet_copy(model), x))


def _unsettled_part(model: FFEBM, x: Tensor) -> float | None:
    with _draws_put_back(x), torch.no_grad():
        parts = [visit.block.unsettled_part(visit.x) for visit in model.walk(x)]
    bounds = [max(part) for part in parts if part is not None]
    return max(bounds) if len(bounds) == len(parts) and math.isfinite(max(bounds)) else None


def _draws_put_back(x: Tensor) -> AbstractContextManager[None]:
    """Random numbers that the next pass draws again: a stage may hold dropout, which must drop the same."""
    return torch.random.fork_rng([x.device] if x.is_cuda else [])


@torch.no_grad()
def _settled(model: FFEBM, x: Tensor) -> tuple[FFEBM, bool]:
    """The model with phases that last until they settle, and whether they do.

    The adjoint approaches its end as fast as a block its equilibrium, so it gets as many iterations, and one for each layer
    that an error has to cross. A tolerance would end it before a faint error has arrived.
    """

    def settle(block: EnergyBlock, x: Tensor) -> Relaxed:
        block.relax = replace(block.relax, steps=SETTLING, tolerance=None)  # it ends where only rounding is left
        return block.equilibrium(x)

    settled = True
    for _, _, block, _, _, (state, residual, sweeps) in model.walk(x, settle):
        settled &= residual.max().item() <= SETTLED * max(1.0, *(s.abs().max().item() for s in state))
        block.estimator = RecurrentBackprop(replace(block.relax, steps=int(sweeps.max()) + len(state)))
    return model, settled


@dataclass(frozen=True)
class Transient:
    """How the gradient of one parameter builds up over the nudged phase, by EP, and over the recorded sweeps, by ID."""

    name: str
    block: int  # 1-based; the readout counts with the last block
    ep: Tensor  # (T + 1, weights shown)
    id: Tensor  # likewise
    deviation: Tensor  # (T + 1,) of the whole parameter: ‖EP(t) − ID(t)‖ / ‖ID(t)‖, or over ‖ID(T)‖ while ID(t) vanishes
    cosine: float  # of the whole parameter at T


@torch.enable_grad()
def transients(
    model: FFEBM,
    x: Tensor,
    y: Tensor,
    recorded: Relaxation = FixedPoint(20, order="output-last"),
    *,
    beta: float = 0.02,
    shown: int | None = None,
    seed: int = 0,
) -> list[Transient]:
    """EP's and ID's gradients of every parameter at every time step, chained through all blocks.

    EP's nudged sweeps run in the order opposite to ID's recorded ones, which makes the two equal at every step for small β at
    equilibrium. The model is left as it was.

    Args:
        recorded: ID's sweeps, whose number is T; EP nudges by `recorded.transposed`.
        shown: keep the curves of this many randomly chosen weights of each parameter, instead of all.

    Paper: section 4.2 [subsec:gdd], appendix A.5, Eq. [eq:gdd]
    """
    if recorded.tolerance is not None:
        raise ValueError(f"Transients need a fixed number of sweeps, got tolerance={recorded.tolerance}: leave it at None.")
    model = deepcopy(model)  # batch-norm must not move for a look
    estimator = EquilibriumPropagation(recorded.transposed, beta=beta)
    generator = torch.Generator().manual_seed(seed)
    free, unrolled = passages(model, x), passages(model, x, recorded)
    ep_delta: Tensor | None = None
    id_delta: Tensor | None = None
    found: list[Transient] = []
    for settled, recording in zip(reversed(free), reversed(unrolled), strict=True):
        curves: dict[str, _Curve] = {}
        ep_steps = _ep_steps(model, settled, y, estimator, ep_delta)
        id_steps = _id_steps(model, recording, y, recorded, id_delta)
        for ep, id_ in zip(ep_steps, id_steps, strict=True):
            ep_delta, of_stage = settled.through_stage(ep.x)
            id_delta, of_stage_by_id = recording.through_stage(id_.x)
            expected = id_.parameters | of_stage_by_id
            for name, g in (ep.parameters | of_stage).items():
                if name not in curves:
                    curves[name] = _Curve(g, shown, generator)
                curves[name].add(g, expected[name])
        found += [curve.transient(name, settled.visit.number) for name, curve in curves.items()]
    return found


Steps = Iterator[Gradients]  # of a block, and of the readout behind it, after 0, 1, ... T sweeps


def _ep_steps(model: FFEBM, passage: Passage, y: Tensor, estimator: EquilibriumPropagation, delta: Tensor | None) -> Steps:
    readout: dict[str, Tensor] = {}
    if delta is None and model.nudge == "stationary":
        delta, readout = through_readout(model, passage, y)
    for found, _ in contrasts(model, passage, estimator, delta, y):
        yield Gradients(found.x, readout | found.parameters)


def _id_steps(model: FFEBM, passage: Passage, y: Tensor, recorded: Relaxation, delta: Tensor | None) -> Steps:
    """Backpropagation through the recorded sweeps, one at a time, from the last to the first."""
    readout: dict[str, Tensor] = {}
    if delta is None:
        delta, readout = through_readout(model, passage, y)
    block, states = passage.visit.block, passage.states
    errors = error_at(block.output_layer, delta, len(states[0]))
    adjoint = tuple(torch.zeros_like(s) if error is None else error for s, error in zip(states[0], errors, strict=True))
    x = passage.visit.x.detach().requires_grad_()
    parameters = wanted(block.energy, f"blocks.{passage.visit.number - 1}.energy.")
    total = [torch.zeros_like(t) for t in (x, *parameters.values())]
    yield Gradients(total[0], readout | dict(zip(parameters, total[1:], strict=True)))
    for before in reversed(states[:-1]):
        state = tuple(s.detach().requires_grad_() for s in before)
        pulled = pulled_back(recorded.sweep(block.energy, state, x), [*state, x, *parameters.values()], adjoint)
        adjoint = pulled[: len(state)]
        total = [so_far + g for so_far, g in zip(total, pulled[len(state) :], strict=True)]
        yield Gradients(total[0], readout | dict(zip(parameters, total[1:], strict=True)))


class _Curve:
    """Collects the gradients of one parameter over time."""

    def __init__(self, like: Tensor, shown: int | None, generator: torch.Generator) -> None:
        kept = torch.randperm(like.numel(), generator=generator)[:shown].sort().values
        self.kept = kept.to(like.device)
        self.rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.cosine = 0.0

    def add(self, ep: Tensor, id_: Tensor) -> None:
        shown = ep.flatten()[self.kept].clone(), id_.flatten()[self.kept].clone()
        self.rows.append((*shown, (ep - id_).norm(), id_.norm()))
        self.cosine = _cosine(ep, id_)

    def transient(self, name: str, block: int) -> Transient:
        ep, id_, off, norm = (torch.stack(column) for column in zip(*self.rows, strict=True))
        rounding = 1e4 * torch.finfo(norm.dtype).eps * norm.max()
        return Transient(name, block, ep, id_, off / torch.where(norm > rounding, norm, norm[-1]), self.cosine)


def _length(gradients: Iterable[Tensor]) -> float:
    """The Euclidean norm of them all, in float64: the square of a small gradient is zero in float32."""
    return math.hypot(*(g.detach().cpu().double().norm().item() for g in gradients))


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().flatten().cpu().double(), b.detach().flatten().cpu().double()
    return (a @ b / (a.norm() * b.norm())).item()
