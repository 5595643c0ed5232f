"""How few sweeps a model can do with: chosen block by block, until its gradient is as good as asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.diagnostics import gradients, quiet_copy, smallest_cosine
from ffebm.gradient import EquilibriumPropagation
from ffebm.model import FFEBM
from ffebm.relaxation import Relaxation
from ffebm.state import State
from ffebm.walk import Visit

WATCHED = 8  # plain sweeps that tell how fast a block contracts
BEYOND = 1.3  # over-relaxation beyond what is best in the long run: better for the first few sweeps, by trial on trained nets
SWEEPS, TOLERANCE = 300, 1e-5  # of a relaxation that counts as the equilibrium to compare with
SENSITIVE = 25  # how much more an error of the state matters than one of its response, by trial: it moves units across kinks
LEAST = 1e-4  # a relative error of states that nothing would be gained below


@dataclass(frozen=True)
class Tuning:
    """What one block relaxes by."""

    free: int  # sweeps
    nudged: int  # likewise; recorded ones, or adjoint iterations, where the gradient needs those
    omega: float

    def apply(self, block: EnergyBlock) -> None:
        """Give it to a block, whose orders, nudge and kind of gradient stay.

        So does what it does where it does not settle: sweeps that make a good gradient leave far less than it warns of, and
        when they no longer do, weights have grown, and it is time to calibrate anew.
        """
        block.relax = block.relax.tuned(self.free, self.omega)
        block.estimator = block.estimator.swept(self.nudged, self.omega)


@dataclass(frozen=True)
class Calibration:
    """Sweeps for every block of a model, and how good its gradient was with them."""

    tunings: tuple[Tuning, ...]
    contractions: tuple[float, ...]  # of every block: by how much a plain sweep moves less than the one before
    cosine: float  # with the settled gradient, of the parameter that has the smallest
    reached: bool  # whether that is as good as asked for

    def apply(self, model: FFEBM) -> FFEBM:
        """Give every block its own; returns the model."""
        return tune(model, self.tunings)


def tune(model: FFEBM, tunings: Sequence[Tuning]) -> FFEBM:
    """Give every block of a model its own tuning; returns the model."""
    for (_, block), tuning in zip(model.chain, tunings, strict=True):
        tuning.apply(block)
    return model


def calibrate(model: FFEBM, x: Tensor, y: Tensor, quality: float = 0.99) -> Calibration:
    r"""The fewest sweeps for each block that make the gradient of a small batch good enough; `apply` puts them to use.

    Blocks differ: the larger their weights have grown, the slower they settle. So every block is watched on its own. By how
    much a plain sweep moves less than the one before, $\rho$, sets its over-relaxation: $\omega = 2 / (1 + \sqrt{1 - \rho})$ is
    the best in the long run, and a little more for a few sweeps. How its state, and its response to a nudge, approach where
    they settle gives the numbers of sweeps that leave a certain error. That error is lowered until the whole model's gradient
    is good enough.

    Weights change: calibrate anew now and then. The model itself is left as it was, batch-norm included.

    Args:
        model: with as many sweeps as each of its blocks may have at most.
        x: a few dozen samples.
        quality: the smallest cosine of any parameter's gradient with the one of settled phases. Errors that other settings
            cause, such as the strength of the nudge, are in both.
    """
    if not 0 < quality < 1:
        raise ValueError(f"`quality` must lie between 0 and 1, got {quality}: it is a cosine, and 1 takes sweeps without end.")
    model = quiet_copy(model)
    with torch.no_grad():
        visits = list(model.walk(x))
    courses = [_watch(visited) for visited in visits]
    truth = _settled_gradients(model, x, y, [course.omega for course in courses])
    # Squares of errors add up, and each sweep divides them: the least work has ε² in proportion to the work of a sweep.
    work = [visited.block.energy.sweep_macs(tuple(visited.x.shape[1:])) or 1 for visited in visits]
    shares = [math.sqrt(part * len(work) / sum(work)) for part in work]
    error = math.sqrt(2 * (1 - quality) / len(work))  # an error ε of a vector costs its cosine ε²/2
    tried: dict[tuple[Tuning, ...], float] = {}
    while not tried or (error > LEAST and max(tried.values()) < quality):  # what is out of reach is tried once, too
        tunings = tuple(course.tuning(error * share) for course, share in zip(courses, shares, strict=True))
        if tunings not in tried:
            tried[tunings], _ = smallest_cosine(gradients(tune(model, tunings), x, y), truth)
        error *= min(max(math.sqrt((1 - quality) / (1 - tried[tunings] + 1e-12)), 0.4), 0.85)
    best = max(tried.values())
    # Where nothing is good enough, the least work of what is as good as it gets.
    tunings = next(tunings for tunings, cosine in tried.items() if cosine >= min(quality, best - 0.1 * (1 - best)))
    contractions = tuple(course.contraction for course in courses)
    return Calibration(tunings, contractions, tried[tunings], tried[tunings] >= quality)


@dataclass(frozen=True)
class _Course:
    """How a block settles: the relative errors that remain after 1, 2, … sweeps."""

    contraction: float
    omega: float
    free: list[float]
    nudged: list[float]

    def tuning(self, error: float) -> Tuning:
        free = 1 + _first_below(self.free[1:], error / SENSITIVE)  # what a first sweep moved says nothing of what is left
        return Tuning(free, _first_below(self.nudged, error), self.omega)


@torch.no_grad()
def _watch(visited: Visit) -> _Course:
    """Relax a block to its equilibrium, and from there under a nudge, and see how far off the first sweeps are."""
    block, energy, x = visited.block, visited.block.energy, visited.x
    relax = block.relax.tuned(block.relax.steps, 1.0)
    contraction = _contraction(block, x, relax)
    omega = 1.0
    if relax.over_relaxes:
        omega = min(1 + BEYOND * (2 / (1 + math.sqrt(1 - contraction)) - 1), 1.9)
    relax = relax.tuned(relax.steps, omega)
    goal = _until_settled(relax)(energy, x).state
    free: list[float] = []
    relax(energy, x, observer=lambda _, state: free.append(_apart(state, goal)))

    own = block.estimator.relax  # recorded sweeps, or adjoint ones, carry an error as nudged sweeps in the opposite order do
    given = block.estimator.nudging or (EquilibriumPropagation() if own is None else EquilibriumPropagation(own.transposed))
    sweeps = 1 if own is None else own.steps
    estimator = replace(given, variant="centered", stencil=None).swept(sweeps, omega)
    generator = torch.Generator().manual_seed(0)
    output = goal[block.output_layer]
    error = torch.randn(output.shape, generator=generator).to(x)  # the one that backprop will send is not known here
    settled = estimator.swept(_long(sweeps), omega).trial_by_error(block.system, x, goal, error)
    response = _difference(*settled.read())
    nudged: list[float] = []
    replace(settled, estimator=estimator).read(lambda _, pair: nudged.append(_apart(_difference(*pair), response)))
    return _Course(contraction, omega, free[1:], nudged[1:])


def _until_settled(relax: Relaxation) -> Relaxation:
    return replace(relax, steps=SWEEPS, tolerance=TOLERANCE)


def _contraction(block: EnergyBlock, x: Tensor, relax: Relaxation) -> float:
    """By how much a sweep moves less than the one before, at the end of a few plain ones: the first are faster."""
    states: list[State] = []
    replace(relax, steps=WATCHED)(block.energy, x, observer=lambda _, state: states.append(state))
    moves = [_size(_difference(after, before)) for before, after in pairwise(states)]
    rounding = 1e3 * torch.finfo(x.dtype).eps * _size(states[-1])
    ratios = [after / move for move, after in pairwise(moves) if after > rounding]
    return min(ratios[-1], 0.95) if ratios else 0.0


def _settled_gradients(model: FFEBM, x: Tensor, y: Tensor, omegas: Sequence[float]) -> dict[str, Tensor]:
    """What gradients are compared with: the same estimators, with phases that last until they settle.

    Over-relaxed as the ones to be judged: a block that pools inside has many equilibria, and ω decides which one is reached.
    """
    model = deepcopy(model)
    for (_, block), omega in zip(model.chain, omegas, strict=True):
        block.relax = _until_settled(block.relax.tuned(SWEEPS, omega))
        if block.estimator.relax is not None:
            block.estimator = block.estimator.swept(_long(block.estimator.relax.steps))
    return gradients(model, x, y)


def _long(sweeps: int) -> int:
    """A nudged phase that lasts so much longer that it counts as settled."""
    return max(40, 2 * sweeps)


def _first_below(errors: Sequence[float], allowed: float) -> int:
    """The number of sweeps that leave no more than this, or all there are."""
    return next((sweeps for sweeps, error in enumerate(errors, 1) if error <= allowed), len(errors))


def _difference(high: State, low: State) -> State:
    return tuple(a - b for a, b in zip(high, low, strict=True))


def _apart(state: State, goal: State) -> float:
    """The distance from a goal over the size of it."""
    return _size(_difference(state, goal)) / max(_size(goal), 1e-30)


def _size(state: State) -> float:
    return math.hypot(*(s.norm().item() for s in state))
