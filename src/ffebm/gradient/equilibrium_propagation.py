"""Equilibrium propagation: the gradient as the contrast of nudged equilibria."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ffebm.checks import check_choice, check_type
from ffebm.derivative import Gradients, differentiate
from ffebm.energy import Energy
from ffebm.errors import block_name
from ffebm.gradient.automatic import AutomaticBeta
from ffebm.gradient.bridge import differentiable
from ffebm.gradient.estimator import ImplicitEstimator, divided, sample_norms
from ffebm.gradient.stencil import Stencil
from ffebm.nudge import Cost, Elastic, Nudge, Stationary
from ffebm.relaxation import FixedPoint, PhasesObserver, Relaxation, Relaxed
from ffebm.state import Deltas, State, error_at, in_complex_numbers, largest, of_samples, per_sample
from ffebm.system import FREE, Phase, Simulated, System

__all__ = ["EquilibriumPropagation", "LastBlock", "Scale", "Trial", "Variant"]
__dir__ = __all__.copy

Variant = Literal["centered", "positive", "negative", "one-sided", "random-sign", "small-signal"]
Scale = Literal["unit", "paper"]

FAINTEST = 2  # units of rounding: a nudge that moves units by less leaves nothing but rounding to contrast
STRONGEST = 1e3  # shared by a hundred thousand units, it still takes each of them from one clamp to the other

_STENCILS: dict[Variant, Stencil] = {
    "centered": Stencil.centered(),
    "positive": Stencil.one_sided(1, linearised=False),
    "negative": Stencil.one_sided(-1, linearised=False),
    "one-sided": Stencil.one_sided(),
    "random-sign": Stencil.random_sign(),
    "small-signal": Stencil.small_signal(),
}


@dataclass(frozen=True)
class EquilibriumPropagation(ImplicitEstimator):
    r"""Nudge the equilibrium by $\pm\beta$ and compare the energy's derivatives where it settles.

    $$g_\theta = \frac{1}{2\beta} \big( \nabla_\theta E(s_\beta, \theta, x) - \nabla_\theta E(s_{-\beta}, \theta, x) \big)$$

    and likewise for $x$; other stencils contrast other states. Memory does not grow with the number of sweeps.

    Args:
        relax: the nudged phases, which start from the free equilibrium. Starting with the last layer, where the error
            enters, wastes no half-sweep. A tolerance counts relative to `beta`, and has to be small: the nudge is
            spread over all units, each of which moves far less.
        beta: the strength of the nudge. Small is accurate until rounding drowns the contrast; in float32 that leaves a wide
            window, roughly 0.001 to 0.2. Far beyond it nudges are refused: see `window`.
        stencil: at which multiples of β to nudge, and what to contrast: `Stencil.centered()`, `one_sided()`, `random_sign()`,
            `small_signal()` or `roots(n)`. A linearised one nudges the last block, too, by the gradient of the loss at the free
            equilibrium.
        variant: a short name for a stencil. `"centered"` has an error of order β²; `"positive"` and `"negative"` contrast one
            nudged state with the free one, at half the cost of the nudged phase, with an error of order β, and only where the
            free phase settles: what it still moves by enters the contrast, which cancels in the centered variant. `"one-sided"`
            and `"random-sign"` are linearised.
        automatic: choose β anew for every block and batch, as `AutomaticBeta()` does; None is `beta` as it is.
        scale: `"unit"` brings each sample's error signal to norm 1 before the nudge and undoes it after, so that results
            do not change when a loss is scaled, summed instead of averaged, or accumulated. `"paper"` nudges by β times
            the per-sample gradient of a loss that is averaged over the batch, as the paper does. The elastic nudge of a
            last block takes β times the criterion itself: scaling or reducing its result changes nothing, scaling inside
            the criterion acts like scaling β.
        hold_pooling: keep the positions of max-pooling inside a block as they are at the free equilibrium while it is nudged.
            Otherwise a nudge makes some windows jump from one position to another, and with them a whole block may go over to
            another equilibrium: a finite step that is divided by β, in the wrong place. The paper lets them jump.

    Paper: Theorem [theorem:main-result], Eq. [def:c-ep-weight-update], Alg. [alg:explicit-bp-ep-chain],
    Alg. [alg:block-grad-last-block]
    """

    relax: Relaxation = field(default_factory=lambda: FixedPoint(10, order="output-first"))
    beta: float = field(default=0.05, kw_only=True)
    variant: Variant = field(default="centered", kw_only=True)
    stencil: Stencil | None = field(default=None, kw_only=True)
    automatic: AutomaticBeta | None = field(default=None, kw_only=True)
    scale: Scale = field(default="unit", kw_only=True)
    hold_pooling: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_type("relax", self.relax, Relaxation, "FixedPoint(10); the strength of the nudge is `beta=`")
        if self.beta == 0:
            raise ValueError(
                f"`beta` must be non-zero, got {self.beta}: equilibrium propagation divides by it. "
                "For an exact gradient use `RecurrentBackprop`."
            )
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise ValueError(f'`beta` must be positive, got {self.beta}. For the other sign use variant="negative".')
        check_choice("variant", self.variant, get_args(Variant))
        if self.stencil is not None:
            check_type("stencil", self.stencil, Stencil, "Stencil.one_sided()")
            if self.variant != "centered":
                raise ValueError(f"A variant is a stencil: got variant={self.variant!r} and {self.stencil}; leave one out.")
        if self.automatic is not None:
            check_type("automatic", self.automatic, AutomaticBeta, "AutomaticBeta()")
            if self.chosen.small or self.chosen.is_complex:
                raise ValueError(
                    f"`automatic` chooses among real strengths, and {self.chosen.name} nudges have none: leave it out, or use "
                    "`Stencil.centered()`."
                )
        check_choice("scale", self.scale, get_args(Scale))
        self.check_precision(torch.float64, "any block")  # which has the widest window

    @staticmethod
    def window(dtype: torch.dtype) -> tuple[float, float]:
        r"""The least and the greatest $\beta$ that this precision takes; nudges outside of it are refused.

        Inside, a gradient need not be good: take 0.001 to 0.2, and less where a readout has large weights. At both ends dense,
        convolutional, pooled, wide and faint nets have lost the gradient of some parameter already (results/nudge_window.md).
        Three kinds of nets keep theirs at one end, but a β inside does as well: where nothing is clamped a constant nudge is
        exact however strong; the elastic nudge of a readout with large weights is that much stronger than β; the nudge by a
        faint loss under `"paper"` that much weaker. `diagnostics.fidelity` measures the gradient of a model.
        """
        return FAINTEST * torch.finfo(dtype).eps, STRONGEST

    def check_precision(self, dtype: torch.dtype, where: str) -> None:
        if dtype in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"Equilibrium propagation needs at least float32 in {where}, got {dtype}: it contrasts two nearly equal "
                "states. Keep the parameters in float32 and put the model under `torch.autocast`."
            )
        low, high = self.window(dtype)
        if not low <= self.beta <= high:
            reason = "rounding hides so small a nudge" if self.beta < low else "so strong a nudge leaves no unit room to move"
            raise ValueError(
                f"`beta` must lie between {low:.2g} and {high:g} for {dtype} in {where}, got {self.beta:g}: {reason}. "
                "Take 0.001 to 0.2, and less where a readout has large weights."
            )

    @property
    def chosen(self) -> Stencil:
        """The stencil, given or by its short name."""
        return _STENCILS[self.variant] if self.stencil is None else self.stencil

    @property
    def faintest(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0.0 if self.chosen.small else self.window(torch.float32)[0] / self.beta

    @property
    def nudging(self) -> EquilibriumPropagation:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self

    def losses(self, energy: Energy, x: Tensor, relax: Relaxation, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        return self.losses_through(Simulated(energy, relax), x, cost, y)

    def gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        return self.response(Simulated(energy, self.relax), x, state, deltas).renamed("energy.", "")

    def through(self, system: System, x: Tensor) -> Relaxed:
        return differentiable(system, x, lambda system, x: system.settle(x, [FREE])[0], self.response)

    def losses_through(self, system: System, x: Tensor, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        if self.chosen.linearised:
            return super().losses_through(system, x, cost, y)
        if y.requires_grad:
            raise ValueError(
                f"An elastic nudge gives no gradient to the targets, got ones that require it (shape {tuple(y.shape)}). "
                'Detach them, or use nudge="stationary".'
            )

        def settle(last: LastBlock, x: Tensor) -> Relaxed:
            (free,) = last.system.settle(x, [FREE])
            return free._replace(state=(*free.state, last.cost(free.state[last.system.output_layer], last.y)))

        (*state, losses), residual, sweeps = differentiable(LastBlock(system, cost, y), x, settle, self.elastic_response)
        # A copy, to be changed in place if need be: what the backward pass saved is not.
        return losses.clone(), Relaxed(tuple(s.detach() for s in state), residual, sweeps)

    def response(self, system: System, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        """The derivative of a loss from how the system responds to its derivative `deltas` with respect to the state."""
        deltas = system.arriving(state, deltas)
        sizes = self.sizes(deltas)

        def nudge(part: slice) -> Nudge:
            return _stationary(of_samples(deltas, part), None if sizes is None else sizes[part])

        return self._summed(system, x, state, sizes, nudge, None)

    def elastic_response(self, last: LastBlock, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        """The derivative of a loss from its derivative with respect to the samples' losses, which come last in the state."""
        *layers, _ = state
        *_, weights = deltas
        assert weights is not None
        return self._summed(last.system, x, tuple(layers), weights, lambda part: last.nudge(x, part), last)

    def _summed(
        self,
        system: System,
        x: Tensor,
        state: State,
        weights: Tensor | None,
        nudge: Callable[[slice], Nudge],
        last: LastBlock | None,
    ) -> Gradients:
        """Portion by portion: memory does not hold the nudged states of all samples at once."""
        suited = self.suited(system, x, state, nudge)
        strengths = self.chosen.strengths(suited.beta, x)
        pieces: list[Gradients] = []
        for part in system.portions(x, state, len(strengths)):
            pull = nudge(part)
            phases = [Phase(pull, strength) for strength in of_samples(strengths, part)]
            weighed = None if weights is None else weights[part]
            trial = suited.trial(system, x[part], of_samples(state, part), phases, weighed, last)
            pieces.append(trial.gradients(trial.read()))
        return Gradients.summed(pieces)

    def suited(self, system: System, x: Tensor, free: State, nudge: Callable[[slice], Nudge]) -> EquilibriumPropagation:
        """With the strength that suits a block and a batch, where it is to be chosen."""
        if self.automatic is None:
            return self
        beta = self.automatic.choose(system, x, free, nudge, self.relax_for(x), latched=self.hold_pooling)
        return replace(self, beta=beta)

    def trial(
        self,
        system: System,
        x: Tensor,
        free: State,
        phases: Sequence[Phase],
        weights: Tensor | None,
        last: LastBlock | None = None,
    ) -> Trial:
        """Nudged phases around the free equilibrium."""
        latched = self.hold_pooling or self.chosen.small
        return Trial(self, system.latched(free) if latched else system, x, free, phases, weights, last)

    def trial_by_error(self, system: System, x: Tensor, free: State, delta: Tensor) -> Trial:
        """Those by an error at the system's output."""
        deltas = system.arriving(free, error_at(system.output_layer, delta, len(free)))
        sizes = self.sizes(deltas)

        def nudge(part: slice) -> Nudge:
            return _stationary(of_samples(deltas, part), None if sizes is None else sizes[part])

        suited = self.suited(system, x, free, nudge)
        return suited.trial(system, x, free, suited.phases(nudge(slice(None)), x), sizes)

    def phases(self, nudge: Nudge, x: Tensor) -> list[Phase]:
        """The nudge at every strength of the stencil."""
        return [Phase(nudge, strength) for strength in self.chosen.strengths(self.beta, x)]

    def sizes(self, deltas: Deltas) -> Tensor | None:
        """What each sample's error signal is divided by before the nudge and multiplied by after it, shape (B,).

        None where nothing is: responses to small signals are in proportion, and only a tolerance asks how large they are.
        """
        if self.chosen.small and self.relax.tolerance is None and all(d is None or bool(largest(d).isfinite()) for d in deltas):
            return None
        norms = sample_norms(deltas)
        if self.scale == "unit":
            return norms
        return torch.where(norms.isfinite(), 1 / norms.numel(), torch.nan)

    def relax_for(self, x: Tensor) -> Relaxation:
        """The nudged relaxation, its tolerance relative to β: a nudge of 0.05 settles within 1e-4 before it has acted."""
        if self.relax.tolerance is None:
            return self.relax
        strength = 1.0 if self.chosen.small else self.beta
        return replace(self.relax, tolerance=max(strength * self.relax.tolerance, 16 * torch.finfo(x.dtype).eps))


def _stationary(deltas: Deltas, sizes: Tensor | None) -> Nudge:
    """The nudge by `deltas`, brought to the set size if there is one."""
    if sizes is None:
        return Stationary(1.0, deltas)
    return Stationary(torch.ones_like(sizes), divided(deltas, sizes))


@dataclass(frozen=True)
class Trial:
    """Nudged phases around a free equilibrium, and the derivative that follows from what is read at their ends.

    Args:
        system: what is nudged, with the choices latched that are to be.
        weights: of the samples, shape (B,); None where each weighs 1.
        last: where nudges are elastic, the system with its cost: the parameters are then those of both.
    """

    estimator: EquilibriumPropagation
    system: System
    x: Tensor
    free: State
    phases: Sequence[Phase]
    weights: Tensor | None
    last: LastBlock | None = None

    @torch.no_grad()
    def read(self, observer: PhasesObserver | None = None) -> list[State]:
        """Where every phase ends, or how far from the free state by a small signal; `observer` sees every sweep."""
        estimator, system, x, state = self.estimator, self.system, self.x, self.free
        estimator.check_precision(x.dtype, block_name())
        if estimator.chosen.small:
            readings = system.tangent(state).settle(x, self.phases, relax=estimator.relax_for(x), observer=observer)
            return [reading.state for reading in readings]
        if (faintest := estimator.beta * system.faintest) < estimator.window(x.dtype)[0]:
            raise ValueError(
                f"A nudge of {estimator.beta:g} reaches a layer of {block_name()} as {faintest:.1g}, because of its "
                f"`feedback`: rounding hides that in {x.dtype}. Take more feedback, smaller blocks, or float64."
            )
        relax = estimator.relax_for(x)
        if estimator.chosen.is_complex:
            system, x, state = system.holomorphic(), in_complex_numbers(x), tuple(map(in_complex_numbers, state))
        watched = {} if observer is None else {"observer": observer}  # not every system can be
        return [reading.state for reading in system.settle(x, self.phases, start=state, relax=relax, **watched)]

    def contrast(self, readings: Sequence[State]) -> tuple[State, State, Tensor]:
        """Two states and the samples' weights: the gradient is that of the weighted difference of energies between them."""
        stencil = self.estimator.chosen
        if stencil.small:  # what is read are displacements
            readings = [tuple(s + step for s, step in zip(self.free, moved, strict=True)) for moved in readings]
        high, low = stencil.pair(self.free, readings)
        return high, low, self._weights / stencil.reach([phase.strength for phase in self.phases])

    @property
    def _weights(self) -> Tensor:
        return self.x.new_ones(len(self.x)) if self.weights is None else self.weights

    def cost(self, readings: Sequence[State]) -> Tensor:
        """What elastic nudges add to it: the mean of the cost over the nudged states, weighted likewise."""
        nudge = self.phases[0].nudge
        assert isinstance(nudge, Elastic)
        return (self._weights * self.estimator.chosen.mean([nudge.losses(state) for state in readings])).sum()

    def gradients(self, readings: Sequence[State]) -> Gradients:
        r"""The derivative from what was read at the end of each phase.

        Where nudges are elastic it is that of the augmented energy $E + \beta \ell$, from which the readout's gradient follows
        as well: with the centered stencil, the mean of $\nabla_\omega \ell$ over the two nudged states.
        """
        if self.estimator.chosen.small:
            (moved,) = readings
            if self.weights is not None:
                moved = tuple(per_sample(self.weights, step) * step for step in moved)
            return self.system.response(self.free, moved, self.x)
        high, low, weights = self.contrast(readings)
        of_system = self.system.contrast(high, low, self.x, weights)
        if self.last is None:
            return of_system
        with torch.enable_grad():
            found = differentiate(self.cost(readings), self.x.detach().requires_grad_(), self.last).parameters
        shared = of_system.renamed("", "system.").parameters.items()  # the readout may share them
        return Gradients(of_system.x, found | {name: found[name] + gradient for name, gradient in shared if name in found})


class LastBlock(nn.Module):
    """A system, the cost that its output is read by, and the targets: what an elastic nudge differentiates as one."""

    y: Tensor

    def __init__(self, system: System, cost: Cost, y: Tensor) -> None:
        super().__init__()
        self.system = system
        self.cost = cost
        self.register_buffer("y", y)

    def nudge(self, x: Tensor, samples: slice = slice(None)) -> Nudge:
        """The nudge by the gradient of the cost of some samples, taken anew at every sweep."""
        y = self.y[samples]
        return Elastic(x.new_ones(len(y)), self.cost, y, self.system.output_layer)
