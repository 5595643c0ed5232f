"""The feedforward-tied energy-based model: digital stages and analog blocks in turn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, NoReturn, cast, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ffebm.block import AnalogBlock, EnergyBlock
from ffebm.checks import check_choice, check_samples_stay_apart, check_type
from ffebm.gradient import GradientEstimator
from ffebm.relaxation import Relaxation, Relaxed
from ffebm.relaxation.relaxation import check_input, check_tensor
from ffebm.state import largest
from ffebm.substrate import Substrate
from ffebm.summary import Summary, summarise
from ffebm.tracing import exporting, not_compiled, refuse_training, unseen
from ffebm.walk import Settle, Visit, walk

__all__ = ["FFEBM", "Criterion", "LastNudge", "Output", "ReadoutCost", "per_sample_losses"]
__dir__ = __all__.copy

Criterion = Callable[[Tensor, Tensor], Tensor]  # (logits, y) -> one loss per sample
LastNudge = Literal["elastic", "stationary"]


class Output(NamedTuple):
    """What a model returns: logits, and losses if targets were given; `logits, losses = model(x)` has None for them."""

    logits: Tensor
    losses: Tensor | None = None  # (B,), when a target was given; asking for it by name raises where there is none


def _losses(output: Output) -> Tensor:
    losses = output[1]
    if losses is None:
        raise AttributeError("This output has no `losses`, because the model got no targets: call `model(x, y)`.")
    return losses


# Put in afterwards: torch and accelerate take only a tuple without a further base for a named tuple.
setattr(Output, "losses", property(_losses, doc="The loss of every sample, shape (B,), when a target was given."))  # noqa: B010


class FFEBM(nn.Module):
    r"""A feedforward-tied energy-based model.

    $$s^0 = x, \qquad x^k = F^k(s^{k-1}), \qquad s^k = \operatorname{argmin}_s E^k(s, \theta^k, x^k), \qquad o = F^N(s^{N-1})$$

    `model(x).logits` are the logits, differentiable like the output of any module. `model(x, y).losses` has the loss of every
    sample; reduce those as you like and call `backward`. The logits are then for metrics only: differentiating them raises.

    Args:
        stages: the digital parts $F^1 \ldots F^{N-1}$, any modules. Each runs once per step, so batch-norm is welcome.
        blocks: the analog parts, one behind each stage.
        readout: $F^N$.
        criterion: a loss per sample from logits and targets; cross-entropy by default. One with parameters must be a module.
        nudge: `"elastic"` nudges the last block by the gradient of its loss at the current state, as the paper does. It runs
            the readout at every sweep, which must therefore treat samples on their own. `"stationary"` takes that gradient
            once, at equilibrium, like in all other blocks.
        recompute: run every stage a second time in the backward pass instead of remembering what is inside of it: less memory,
            a little slower.

    Paper: Def. [def:ff-EBM-formal], Eq. [def:deeply-nested-model], Alg. [alg:detailed-inference-ff-ebm]
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        blocks: Sequence[AnalogBlock],
        readout: nn.Module,
        criterion: Criterion | None = None,
        *,
        nudge: LastNudge = "elastic",
        input_shape: Sequence[int] | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        if len(stages) != len(blocks) or not blocks:
            raise ValueError(
                f"A model needs as many stages as blocks, and at least one; got {len(stages)} stages and {len(blocks)} blocks. "
                "Put `nn.Identity()` where a block follows another directly."
            )
        check_choice("nudge", nudge, get_args(LastNudge))
        self.stages = nn.ModuleList(stages)
        self.blocks = nn.ModuleList(blocks)
        self.readout = readout
        self.criterion = nn.CrossEntropyLoss(reduction="none") if criterion is None else criterion
        self.nudge = nudge
        self.input_shape = None if input_shape is None else tuple(input_shape)
        self.recompute = recompute
        if nudge == "elastic":
            instead = 'Move it into the last stage, or use nudge="stationary".'
            check_samples_stay_apart("The readout", readout, instead)
        for number, block in enumerate(blocks, 1):
            check_type("blocks", block, AnalogBlock, "EnergyBlock(Hopfield([Dense(32, 16)]))")
            block.name = block.name or f"block {number} of {len(blocks)}"

    def forward(self, x: Tensor, y: Tensor | None = None) -> Output:
        if exporting():
            return Output(self.inference(x))
        self._check(x, y)
        losses: Tensor | None = None

        def nudged_by_loss(block: AnalogBlock, x: Tensor) -> Relaxed:
            nonlocal losses
            assert y is not None
            cost = ReadoutCost(self.readout, self.criterion)
            losses, relaxed = block(x, instead=lambda x, y=y: block.losses(x, cost, y))
            return relaxed

        elastic = y is not None and self.nudge == "elastic"
        visits = self.walk(x, lambda block, x: block(x, instead=block.equilibrium), nudged_by_loss if elastic else None)
        output = deque(visits, maxlen=1).pop().output
        with torch.set_grad_enabled(torch.is_grad_enabled() and losses is None):  # which come with their own
            logits = self.readout(output)
        if y is None:
            return Output(logits)
        losses = per_sample_losses(self.criterion, logits, y) if losses is None else losses
        return Output(_for_metrics(logits, losses), losses)

    def inference(self, x: Tensor) -> Tensor:
        """The logits, by tensor operations alone: what is kept of a model that is exported."""
        refuse_training("The model", self.training)
        for stage, block in zip(self.stages, self.blocks, strict=True):
            block = cast(AnalogBlock, block)
            entering = stage(x)
            block.check_samples(entering)
            x = block.inference(entering)
        return self.readout(x)

    def walk(
        self,
        s: Tensor,
        settle: Settle = AnalogBlock.settle,
        last: Settle | None = None,
        *,
        run: Callable[[nn.Module, Tensor], Tensor] | None = None,
    ) -> Iterator[Visit]:
        """Go through all stages and blocks, from the input on, and see what goes into each and where it settles.

        Args:
            settle: how a block settles; by default freely, without a graph.
            last: how the last one does, if otherwise.
            run: how a stage is run, if not simply called.
        """
        return walk(self.chain, s, run or self._run, settle, last)

    def _run(self, stage: nn.Module, s: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return stage(s)
        return checkpoint(stage, s, use_reentrant=False, context_fn=lambda: (nullcontext(), _statistics_aside(stage)))

    @not_compiled
    def _check(self, x: Tensor, y: Tensor | None) -> None:
        """Refuse bad input before a stage sees it: batch-norm would remember a NaN, or a variance that overflows."""
        check_input("the model", x, self.input_shape)
        if not unseen(x):
            _check_size(x)
        if y is None:
            return
        check_tensor("The targets", y)
        if y.shape[:1] != x.shape[:1]:
            raise ValueError(f"Each sample needs one target: got {len(x)} samples and targets of shape {tuple(y.shape)}.")

    @property
    def chain(self) -> list[tuple[nn.Module, EnergyBlock]]:
        """Every stage with the block behind it, from the input on."""
        return list(zip(self.stages, cast(list[EnergyBlock], list(self.blocks)), strict=True))

    def use(self, estimator: GradientEstimator, relax: Relaxation | None = None) -> FFEBM:
        """Give every block this estimator, and this free relaxation if there is one; returns the model."""
        check_type("estimator", estimator, GradientEstimator, "EquilibriumPropagation()")
        for _, block in self.chain:
            block.estimator = estimator
            if relax is not None:
                block.relax = relax
        return self

    def put_on(self, hardware: Substrate | None) -> FFEBM:
        """Run every block on this hardware, each on a chip of its own, or on none; returns the model."""
        for _, block in self.chain:
            block.put_on(hardware)
        return self

    def summary(self, input_shape: Sequence[int] | None = None) -> Summary:
        """Blocks, shapes, parameters, and the multiply-accumulates of the analog and the digital parts; print it.

        Args:
            input_shape: of one sample; not needed for a model made by `build`.
        """
        shape = self.input_shape if input_shape is None else tuple(input_shape)
        if shape is None:
            raise ValueError("This model does not know the shape of its input: give `input_shape`, for example (3, 32, 32).")
        return summarise(self.chain, self.readout, shape)

    def extra_repr(self) -> str:
        return f"nudge={self.nudge!r}"


def _check_size(x: Tensor) -> None:
    """Refuse what is not finite, and what is too large to be squared and summed, in one pass over the input."""
    size = largest(x.detach())
    precision = torch.promote_types(x.dtype, torch.float32)  # batch-norm computes the variance of halves in float32
    limit = math.sqrt(torch.finfo(precision).max / x.numel())
    if bool(size <= limit):
        return
    if bool(size.isfinite()):
        raise ValueError(
            f"The input has values of up to {size.item():.1e}, too large for {precision}: the sum of their squares "
            "overflows, and batch-norms would remember an infinite variance for ever. Look into the data, and normalise it."
        )
    raise ValueError(f"The input has {int((~x.isfinite()).sum())} non-finite values among {x.numel()}: look into the data.")


@not_compiled
def _for_metrics(logits: Tensor, losses: Tensor) -> Tensor:
    """Logits without a graph that say so when they are differentiated, where the losses beside them can be.

    Added to a loss they would otherwise count for nothing, without a word.
    """
    logits = logits.detach()
    if unseen(logits) or not (torch.is_grad_enabled() and losses.requires_grad):
        return logits
    logits = logits.requires_grad_().clone()  # a leaf could not be changed in place
    # DDP and checkpoints ask for zeros of what a loss does not depend on.
    logits.register_hook(lambda grad: _refuse_backward() if grad is not None and bool(grad.any()) else None)
    logits.backward = _refuse_backward  # torch would only say that they are several numbers
    return logits


def _refuse_backward(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        "The logits beside losses are for metrics and carry no gradient: the losses come with their own. Call "
        "`losses.mean().backward()`; to differentiate logits, call the model without targets, `model(x).logits`."
    )


@contextmanager
def _statistics_aside(stage: nn.Module) -> Iterator[None]:
    """Give batch-norms copies of their running statistics, so that a batch seen twice does not count twice in them."""
    norms = [module for module in stage.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    kept = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        norm._buffers.update({name: None if buffer is None else buffer.clone() for name, buffer in norm._buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


class ReadoutCost(nn.Module):
    r"""The cost $\ell(F^N(s), y)$ of a block's output, one per sample."""

    def __init__(self, readout: nn.Module, criterion: Criterion) -> None:
        super().__init__()
        self.readout = readout
        self.criterion = criterion

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        return per_sample_losses(self.criterion, self.readout(output), y)


def per_sample_losses(criterion: Criterion, logits: Tensor, y: Tensor) -> Tensor:
    try:
        losses = criterion(logits, y)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if type(error) not in (IndexError, RuntimeError, TypeError, ValueError):
            raise  # a device out of memory, for example
        raise type(error)(_refused(logits, y, error)) from error
    if losses.shape != logits.shape[:1]:
        raise ValueError(
            f"The criterion must return one loss per sample, shape ({logits.shape[0]},), got {tuple(losses.shape)}: "
            'nudges act sample by sample. Give it reduction="none", and sum over anything but the batch.'
        )
    return losses


def _refused(logits: Tensor, y: Tensor, error: Exception) -> str:
    """Why a criterion refuses targets; cross-entropy, the usual one, says little about them."""
    span = f" between {y.min().item():g} and {y.max().item():g}" if y.numel() and not y.is_complex() else ""
    classes = logits.shape[1] if logits.dim() > 1 else 1
    return (
        f"The criterion refuses these targets: {y.dtype} of shape {tuple(y.shape)}{span}, for logits of shape "
        f"{tuple(logits.shape)}. It says: {str(error).strip().rstrip('.')}. Cross-entropy takes one class per sample, "
        f"int64 from 0 to {classes - 1}, or a probability for each of the {classes} classes."
    )
