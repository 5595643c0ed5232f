"""Equilibrium propagation: the gradient as the contrast of two nudged equilibria."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ffebm.checks import check_choice, check_type
from ffebm.energy import Energy, State
from ffebm.gradient.estimator import (
    Deltas,
    Gradients,
    ImplicitEstimator,
    Names,
    differentiate,
    divided,
    full_precision,
    holdings,
    of_samples,
    refuse_second_derivatives,
    sample_norms,
    twin,
)
from ffebm.iteration import Observer, Relaxed
from ffebm.nudge import Cost, Elastic, Nudge, Stationary
from ffebm.portions import portions
from ffebm.relaxation import FixedPoint, Relaxation

Variant = Literal["centered", "positive", "negative"]
Scale = Literal["unit", "paper"]

FAINTEST = 2  # units of rounding: a nudge that moves units by less leaves nothing but rounding to contrast
STRONGEST = 1e3  # shared by a hundred thousand units, it still takes each of them from one clamp to the other


@dataclass(frozen=True)
class EquilibriumPropagation(ImplicitEstimator):
    r"""Nudge the equilibrium by $\pm\beta$ and compare the energy's derivatives where it settles.

    $$g_\theta = \frac{1}{2\beta} \big( \nabla_\theta E(s_\beta, \theta, x) - \nabla_\theta E(s_{-\beta}, \theta, x) \big)$$

    and likewise for $x$. Memory does not grow with the number of sweeps.

    Args:
        relax: the nudged phases, which start from the free equilibrium. Starting with the last layer, where the error
            enters, wastes no half-sweep. A tolerance counts relative to `beta`, and has to be small: the nudge is
            spread over all units, each of which moves far less.
        beta: the strength of the nudge. Small is accurate until rounding drowns the contrast; in float32 that leaves a wide
            window, roughly 0.001 to 0.2. Far beyond it nudges are refused: see `window`.
        variant: `"centered"` has an error of order β²; `"positive"` and `"negative"` contrast one nudged state with the
            free one, at half the cost of the nudged phase, with an error of order β, and only where the free phase settles:
            what it still moves by enters the contrast, which cancels in the centered variant.
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
    def betas(self) -> tuple[float, float]:
        """The strengths of the two states that are contrasted, the larger first."""
        return {"centered": (self.beta, -self.beta), "positive": (self.beta, 0.0), "negative": (0.0, -self.beta)}[self.variant]

    def gradient(self, energy: Energy, x: Tensor, state: State, deltas: Deltas) -> Gradients:
        sizes = self.sizes(deltas)

        def portion(samples: slice) -> Gradients:
            part = tuple(s[samples] for s in state)
            nudge = self.stationary(of_samples(deltas, samples), sizes[samples])
            around = self.around(energy, part)
            high, low = self.nudged(around, x[samples], part, nudge)
            return Gradients(*around.contrast_gradient(high, low, x[samples], self._per_beta(sizes[samples])))

        return Gradients.summed([portion(samples) for samples in self._portions(x, state)])

    def elastic_gradient(self, last: LastBlock, x: Tensor, y: Tensor, state: State, weights: Tensor) -> Gradients:
        """The derivative of the weighted sum of per-sample losses, for block and readout together."""

        def portion(samples: slice) -> Gradients:
            part = tuple(s[samples] for s in state)
            around = LastBlock(self.around(last.energy, part), last.cost)
            high, low = self.nudged(around.energy, x[samples], part, self.elastic(last.cost, y[samples], like=x[samples]))
            return self._elastic_contrast_gradient(around, x[samples], y[samples], high, low, weights[samples])

        return Gradients.summed([portion(samples) for samples in self._portions(x, state)])

    def _elastic_contrast_gradient(
        self, last: LastBlock, x: Tensor, y: Tensor, high: State, low: State, weights: Tensor
    ) -> Gradients:
        r"""The derivative of the contrast of the augmented energy $E + \beta \ell$: the block's part, and the readout's.

        With the centered variant the latter is the mean of $\nabla_\omega \ell$ over the two nudged states.
        """
        weights = self._per_beta(weights)
        grad_x, of_block = last.energy.contrast_gradient(high, low, x, weights)
        beta_high, beta_low = self.betas
        with torch.enable_grad():
            costs = beta_high * last.cost(high[-1], y) - beta_low * last.cost(low[-1], y)
            gradients = differentiate((weights * costs).sum(), x.detach().requires_grad_(), last).parameters
        held = dict(last.energy.named_parameters())
        block = {held[name]: gradient for name, gradient in of_block.items()}
        for name, parameter in last.named_parameters():
            if parameter in block:  # maybe in the readout as well
                gradients[name] += block[parameter]
        return Gradients(grad_x, gradients)

    def _portions(self, x: Tensor, state: State) -> list[slice]:
        """Small enough for both phases, which are stacked, to stay in the cache; and memory does not hold all at once."""
        sample = (x[:1], *(s[:1] for s in state))
        return portions(len(x), sample * 2 if self.variant == "centered" else sample)

    def losses(self, energy: Energy, x: Tensor, relax: Relaxation, cost: Cost, y: Tensor) -> tuple[Tensor, Relaxed]:
        if y.requires_grad:
            raise ValueError(
                f"An elastic nudge gives no gradient to the targets, got ones that require it (shape {tuple(y.shape)}). "
                'Detach them, or use nudge="stationary".'
            )
        last = LastBlock(energy, cost)
        names, tensors = holdings(last)
        losses, residual, sweeps, *state = _ElasticLosses.apply(self, last, relax, names, x, y, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
        return losses, Relaxed(tuple(state), residual, sweeps)

    def around(self, energy: Energy, state: State) -> Energy:
        """The energy that nudged phases minimise, around the free equilibrium `state`."""
        return energy.held(state) if self.hold_pooling else energy

    def sizes(self, deltas: Deltas) -> Tensor:
        """What each sample's error signal is divided by before the nudge and multiplied by after it, shape (B,)."""
        norms = sample_norms(deltas)
        if self.scale == "unit":
            return norms
        return torch.where(norms.isfinite(), 1 / norms.numel(), torch.nan)

    def stationary(self, deltas: Deltas, sizes: Tensor) -> Nudge:
        """The nudge by `deltas` brought to the set size."""
        return Stationary(self._strengths(sizes), divided(deltas, sizes))

    def elastic(self, cost: Cost, y: Tensor, like: Tensor) -> Nudge:
        """The nudge by the gradient of `cost`, taken anew at every sweep."""
        return Elastic(self._strengths(like), cost, self._stack(y))

    @torch.no_grad()
    def nudged(
        self,
        energy: Energy,
        x: Tensor,
        state: State,
        nudge: Nudge,
        observer: Callable[[int, State, State], None] | None = None,
    ) -> tuple[State, State]:
        """The two states to contrast, `betas[0]` first; both phases of the centered variant run as one batch."""
        self.check_precision(x.dtype, energy.label)

        def pair(stacked: State) -> tuple[State, State]:
            if self.variant == "centered":
                halves = [s.chunk(2) for s in stacked]
                return tuple(high for high, _ in halves), tuple(low for _, low in halves)
            return (stacked, state) if self.variant == "positive" else (state, stacked)

        watch: Observer | None = None if observer is None else lambda sweeps, stacked: observer(sweeps, *pair(stacked))
        copies = 2 if self.variant == "centered" else 1
        return pair(self._relax_for(x)(energy, x, start=state, nudge=nudge, observer=watch, copies=copies).state)

    def _relax_for(self, x: Tensor) -> Relaxation:
        """The nudged relaxation, its tolerance relative to β: a nudge of 0.05 settles within 1e-4 before it has acted."""
        if self.relax.tolerance is None:
            return self.relax
        return replace(self.relax, tolerance=max(self.beta * self.relax.tolerance, 16 * torch.finfo(x.dtype).eps))

    def contrast(self, energy: Energy, x: Tensor, high: State, low: State, weights: Tensor) -> Tensor:
        r"""The scalar $\sum_b w_b (E_b(high) - E_b(low)) / (\beta_{high} - \beta_{low})$ whose derivative is the gradient."""
        return (self._per_beta(weights) * energy.contrast(high, low, x)).sum()

    def elastic_contrast(self, last: LastBlock, x: Tensor, y: Tensor, high: State, low: State, weights: Tensor) -> Tensor:
        r"""The same for the augmented energy $E + \beta \ell$, from which the readout's gradient follows as well.

        With the centered variant that is the mean of $\nabla_\omega \ell$ over the two nudged states.
        """
        beta_high, beta_low = self.betas
        costs = beta_high * last.cost(high[-1], y) - beta_low * last.cost(low[-1], y)
        return (self._per_beta(weights) * (last.energy.contrast(high, low, x) + costs)).sum()

    def _per_beta(self, weights: Tensor) -> Tensor:
        return weights / (self.betas[0] - self.betas[1])

    def _strengths(self, like: Tensor) -> Tensor:
        """β of every sample of the stacked batch."""
        return like.new_tensor([beta for beta in self.betas if beta]).repeat_interleave(like.shape[0])

    def _stack(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor]) if self.variant == "centered" else tensor


class LastBlock(nn.Module):
    """An energy and the cost that its output is read by: what an elastic nudge differentiates as one."""

    def __init__(self, energy: Energy, cost: Cost) -> None:
        super().__init__()
        self.energy = energy
        self.cost = cost


class _ElasticLosses(torch.autograd.Function):
    """Per-sample losses at equilibrium whose backward pass nudges with the loss itself."""

    @staticmethod
    def forward(
        ctx: Any,
        estimator: EquilibriumPropagation,
        last: LastBlock,
        relax: Relaxation,
        names: Names,
        x: Tensor,
        y: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        state, residual, sweeps = relax(last.energy, x.detach())
        losses = last.cost(state[-1], y)
        ctx.estimator, ctx.last, ctx.names, ctx.layers = estimator, last, names, len(state)
        ctx.save_for_backward(x, y, *state, *tensors)
        ctx.mark_non_differentiable(residual, sweeps, *state)
        return (losses, residual, sweeps, *state)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, y, *rest = ctx.saved_tensors
        state, tensors = tuple(s.detach() for s in rest[: ctx.layers]), rest[ctx.layers :]
        with full_precision(x):
            last = twin(ctx.last, ctx.names, tensors, ctx.needs_input_grad[6:])
            gradients = ctx.estimator.elastic_gradient(last, x.detach(), y, state, grads[0])
        return (None, None, None, None, gradients.x, None, *(gradients.parameters.get(aliases[0]) for aliases in ctx.names))
