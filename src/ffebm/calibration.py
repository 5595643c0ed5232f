"""How few sweeps a model can do with: a formula, and a check of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ffebm.block import EnergyBlock
from ffebm.diagnostics import gradients, quiet_copy, smallest_cosine
from ffebm.model import FFEBM
from ffebm.relaxation import Relaxation
from ffebm.state import State
from ffebm.walk import Visit

__all__ = ["Calibration", "Tuning", "calibrate", "proposals", "tune", "watched_contractions"]
__dir__ = __all__.copy

WATCHED = 8  # plain sweeps that tell how fast a block contracts
SWEEPS, TOLERANCE = 300, 1e-5  # of a relaxation that counts as the equilibrium to compare with
TIGHTER = 0.6  # what an error that was too large is multiplied by
STILL = 0.05  # what the last free sweep may move a layer by, as a part of its size: blocks warn of twice as much
FRESH = 0.25  # the part of what a cosine may fall short by that may show on the samples looked at: others show more
LENIENT = 8.0  # of this times as much the formula is asked for first: it holds for nets worse than most
WORTHWHILE = 0.03  # going further by less gains less than the pass over every layer costs that it takes
LEAST = 1e-6  # a relative error that nothing would be gained below

# Chosen by trial on nets of two layers a block, and raised where a small net fell short. benchmarks/gain_limit.py and
# tests/test_start.py hold the formula against converged gradients.
CLAMPED = 0.65  # the part of a certified contraction that is left, because many units are clamped
RESPONSIVE = 0.6  # the part of that which is left to responses: clamped units give none, and free ones still come and go
MISPLACED = 6.0  # the error of a gradient, over the square root of that of a state: it has units on the wrong side of a kink
RESPONDING = 7.0  # the error of the parameter that is worst off, over that of the response to a nudge


@dataclass(frozen=True)
class Tuning:
    """What one block relaxes by."""

    free: int  # sweeps
    nudged: int  # likewise; recorded ones, or adjoint iterations, where the gradient needs those
    omega: float
    nudged_omega: float = 1.0

    @classmethod
    def from_bound(cls, contraction: float, layers: int, quality: float, **how: Any) -> Tuning:
        """Enough sweeps for a block that is certified to contract so; `quality` is the smallest cosine of a gradient.

        Good for contractions up to 0.5, as far as was measured (results/gain_limit.md, tests/test_start.py). With 0.7 a small
        net fell short of 0.999: `calibrate` checks, and gives more where that is so.

        Args:
            how: as in `for_error`.
        """
        return cls.for_error(CLAMPED * contraction, layers, math.sqrt(1 - quality), **how)

    @classmethod
    def for_error(
        cls,
        contraction: float,
        layers: int,
        error: float,
        *,
        over_relaxed: bool = True,
        crossing: tuple[int, int] | None = None,
    ) -> Tuning:
        r"""Enough sweeps for free and nudged phase to leave a gradient with this relative error each.

        $\omega = 2 / (1 + \sqrt{1 - \rho})$, and a sweep then leaves $r = \omega - 1$ of the way. The first sweep carries the
        signal through the block and leaves ρ; odd before even, it takes a sweep for every two layers. Responses contract
        faster than free phases, so they take a smaller ω.

        Args:
            contraction: ρ, by how much a plain sweep moves less than the one before.
            over_relaxed: whether sweeps may go further than layers are drawn.
            crossing: how many sweeps a signal takes to cross the block, besides the first, in the free and the nudged phase;
                by default odd before even.
        """
        responding = RESPONSIVE * contraction
        further = [2 / (1 + math.sqrt(1 - rho)) - 1 for rho in (contraction, responding)]
        rate, nudged_rate = further if over_relaxed else (contraction, responding)
        omega, nudged_omega = (1 + more if over_relaxed and more >= WORTHWHILE else 1.0 for more in further)
        up, down = crossing or (-(-layers // 2) - 1,) * 2
        # The second sweep at the soonest shows whether anything still moves, and none may end where much does.
        free = max(_sweeps(contraction, rate, (error / MISPLACED) ** 2), 1 + _sweeps(contraction, rate, STILL))
        return cls(up + free, down + _sweeps(responding, nudged_rate, error / RESPONDING), omega, nudged_omega)

    def apply(self, block: EnergyBlock) -> None:
        """Give it to a block, whose orders, nudge and kind of gradient stay.

        So does what it does where it does not settle: sweeps that make a good gradient leave far less than it warns of, and
        when they no longer do, weights have grown, and it is time to calibrate anew.
        """
        block.relax = block.relax.tuned(self.free, self.omega)
        block.estimator = block.estimator.swept(self.nudged, self.nudged_omega)


def _sweeps(contraction: float, rate: float, error: float) -> int:
    """How many leave this error, if the first leaves `contraction` and each further one `rate` of what was left."""
    if contraction <= error or rate < torch.finfo(torch.float64).tiny:
        return 1
    return 1 + math.ceil(math.log(error / contraction) / math.log(rate) - 1e-9)


@dataclass(frozen=True)
class Calibration:
    """Sweeps for every block of a model, and how good its gradient was with them on the samples that were looked at."""

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
    r"""The sweeps that the formula says for each block, checked on a small batch; `apply` puts them to use.

    Blocks differ: the larger their weights have grown, the slower they settle. The contraction of a block comes from its limit,
    or is watched on the samples where it has none. The formula is for nets worse than most, so it is asked for little at first,
    and for less and less error until the gradient of the whole model is good enough.

    Weights of blocks without a limit change: calibrate anew now and then. The model itself is left as it was, batch-norm
    included.

    Args:
        model: with as many sweeps as each of its blocks may have at most.
        x: a few dozen samples.
        quality: the smallest cosine of any parameter's gradient with the one of settled phases. Other samples show more error,
            so on these a quarter of it may show. Errors that other settings cause, such as the strength of the nudge, are in
            both gradients.
    """
    if not 0 < quality < 1:
        raise ValueError(f"`quality` must lie between 0 and 1, got {quality}: it is a cosine, and 1 takes sweeps without end.")
    model = quiet_copy(model).put_on(None)
    goal = 1 - FRESH * (1 - quality)
    tried: dict[tuple[Tuning, ...], float] = {}
    truth: dict[str, Tensor] = {}
    contractions = watched_contractions(model, x)
    for tunings in proposals(model, contractions, 1 - LENIENT * (1 - quality)):
        truth = truth or _settled_gradients(model, x, y, tunings)
        tried[tunings] = smallest_cosine(gradients(tune(deepcopy(model), tunings), x, y), truth)[0]
        if tried[tunings] >= goal:
            break
    best = max(tried.values())
    # Where nothing is good enough, the least work of what is as good as it gets.
    enough = goal if best >= goal else best - 0.1 * (1 - best)
    tunings = next(tunings for tunings, cosine in tried.items() if cosine >= enough)
    return Calibration(tunings, contractions, tried[tunings], tried[tunings] >= quality)


def proposals(model: FFEBM, contractions: Sequence[float], quality: float) -> Iterator[tuple[Tuning, ...]]:
    """What the formula says for every block that contracts so, first for this quality, and then for less and less error."""
    error = math.sqrt(1 - quality)  # of each phase: an error ε of a vector costs its cosine ε²/2
    before: tuple[Tuning, ...] | None = None
    while before is None or error > LEAST:  # what is out of reach is proposed once, too
        tunings = tuple(_tuned(block, rho, error) for (_, block), rho in zip(model.chain, contractions, strict=True))
        if tunings != before:
            yield tunings
        before = tunings
        error *= TIGHTER


@torch.no_grad()
def watched_contractions(model: FFEBM, x: Tensor) -> tuple[float, ...]:
    """By how much a plain sweep of each block moves less than the one before, on these samples."""
    return tuple(_contraction(visited) for visited in model.walk(x))


def _tuned(block: EnergyBlock, contraction: float, error: float) -> Tuning:
    """What the formula says for a block, and no more sweeps than it may have."""
    layers = len(block.energy.activations)
    nudged = block.estimator.relax or block.relax
    crossing = block.relax.crossing(layers), nudged.crossing(layers)
    tuning = Tuning.for_error(contraction, layers, error, over_relaxed=block.relax.over_relaxes, crossing=crossing)
    if layers > 2 and block.energy.layer_weight(0) != block.energy.layer_weight(layers - 1):
        # Where feedback is held back, what overshoots grows on its way up. Plain sweeps settle as fast there.
        tuning = replace(tuning, omega=1.0, nudged_omega=1.0)
    return replace(tuning, free=min(tuning.free, block.relax.steps), nudged=min(tuning.nudged, _error_sweeps(block)))


def _error_sweeps(block: EnergyBlock) -> int:
    """How many sweeps carry the error, where they are the estimator's own."""
    return 1 if block.estimator.relax is None else block.estimator.relax.steps


@torch.no_grad()
def _contraction(visited: Visit) -> float:
    """By how much a sweep moves less than the one before: by the limit, or at the end of a few plain ones."""
    block, x = visited.block, visited.x
    if block.limit is not None and block.relax.over_relaxes:
        return CLAMPED * block.limit.max_contraction
    moves: list[float] = []
    before: State | None = None

    def note(_: int, state: State) -> None:
        nonlocal before
        if before is not None:
            moves.append(_size([s - old for s, old in zip(state, before, strict=True)]))
        before = state

    relax = replace(block.relax.tuned(WATCHED, 1.0), steps=WATCHED)
    rounding = 1e3 * torch.finfo(x.dtype).eps * _size(relax(block.energy, x, observer=note).state)
    ratios = [after / move for move, after in pairwise(moves) if after > rounding]
    return min(ratios[-1], 0.95) if ratios else 0.0


def _settled_gradients(model: FFEBM, x: Tensor, y: Tensor, tunings: Sequence[Tuning]) -> dict[str, Tensor]:
    """What gradients are compared with: the same estimators, with phases that last until they settle.

    Over-relaxed as the ones to be judged: a block that pools inside has many equilibria, and ω decides which one is reached.
    """
    model = deepcopy(model)
    for (_, block), tuning in zip(model.chain, tunings, strict=True):
        block.relax = _until_settled(block.relax.tuned(SWEEPS, tuning.omega))
        block.estimator = block.estimator.swept(max(40, 2 * _error_sweeps(block)))
    return gradients(model, x, y)


def _until_settled(relax: Relaxation) -> Relaxation:
    return replace(relax, steps=SWEEPS, tolerance=TOLERANCE)


def _size(state: Sequence[Tensor]) -> float:
    return math.hypot(*(s.norm().item() for s in state))
