"""What an edge of an energy is: the current it sends up, its transpose, and its energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ffebm.checks import refuse_old_names
from ffebm.derivative import pulled_back, wanted
from ffebm.interaction.matrix import Matrix
from ffebm.pruning import pruned_names, renew_pruned
from ffebm.state import dot
from ffebm.tracing import refuse_exporting

if TYPE_CHECKING:
    from ffebm.interaction.crossbar import Crossbar

__all__ = ["Contact", "Ends", "Interaction", "Shape", "check_edges"]
__dir__ = __all__.copy

Shape = tuple[int, ...]
Ends = tuple[Tensor, Tensor]  # the states at the two ends of an edge, (pre, post)


class Interaction(nn.Module, ABC):
    r"""A bidirectional edge between layer $s_\ell$ (`pre`) and layer $s_{\ell+1}$ (`post`).

    $$U(s_\ell, s_{\ell+1}) = -\, s_{\ell+1} \cdot \mathrm{up}(s_\ell)$$

    A subclass of this class needs `up` and `out_shape`; `down`, its transpose, falls back on autograd. `Dense` and
    `Convolution` are final: their `down` and `contrast_gradient` belong to their `up`.

    Paper: appendix A.4, Deep Hopfield Networks, without the superfluous ½ of the per-layer sums
    """

    linear: bool = False  # whether `up` is linear but for its bias
    chooses: bool = False  # whether it takes one unit and leaves another, as max-pooling does
    holomorphic: bool = False  # whether it takes complex states
    units: int | None = None  # of the layer below, where it does not matter how they are arranged

    def __init_subclass__(cls) -> None:
        refuse_old_names(cls, held="latched", contrast="contrast_gradient")

    @abstractmethod
    def up(self, pre: Tensor) -> Tensor:
        """The bottom-up current into `post`."""

    @abstractmethod
    def out_shape(self, shape: Shape) -> Shape:
        """The shape of `post` for a `pre` of this shape, both without the batch; raises where they do not fit."""

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        r"""The top-down current into `pre`, $\partial_{pre} (post \cdot \mathrm{up}(pre))$."""
        refuse_exporting(self, "down")
        (current,) = torch.func.vjp(self.up, pre)[1](post)
        return current

    def forward(self, pre: Tensor, post: Tensor) -> Tensor:
        """The energy of the edge for every sample, shape (B,)."""
        return -dot(post, self.up(pre))

    def contact(self, pre: Tensor) -> Contact:
        """The edge where it meets this state below it, for sweeps that no graph records."""
        return Contact(self, pre)

    def contrast_gradient(self, high: Ends, low: Ends, weights: Tensor) -> dict[str, Tensor]:
        """The derivative of the weighted sum of `forward(*high) - forward(*low)`, for those parameters that want one.

        Override it to subtract states before they are multiplied, as `Dense` and `Convolution` do.
        """
        parameters = wanted(self)
        with torch.enable_grad():
            total = (weights * (self(*high) - self(*low))).sum()
        return dict(zip(parameters, pulled_back([total], [*parameters.values()]), strict=True))

    def response_gradient(self, at: Ends, moved: Ends, weights: Tensor | None = None) -> dict[str, Tensor]:
        """The derivative of the weighted sum of the change of `forward` as its ends move by a little, along a straight line.

        That is `contrast_gradient` of two states on both sides of `at`, as far apart as `moved`. By default all weigh 1.
        """
        weights = at[0].new_ones(len(at[0])) if weights is None else weights
        high, low = zip(*((s + step / 2, s - step / 2) for s, step in zip(at, moved, strict=True)), strict=True)
        return self.contrast_gradient(high, low, weights)

    def latched(self, pre: Tensor) -> Interaction:
        """The edge with those choices fixed that it makes for `pre`, as max-pooling does; itself, where it makes none."""
        return self

    def there_and_back(self, pre: Tensor) -> Tensor | None:
        r"""$A^\top\! A\, s$ for a linear map that is as long as `up` without its bias at its longest.

        Its largest eigenvalue is the square of the edge's gain. None where no such map is known.
        """
        return None

    def without_bias(self) -> Interaction:
        """The same edge with the same weights, but for its bias; asked only of edges that are linear once they are latched."""
        raise TypeError(f"{type(self).__name__} cannot be taken without its bias, which the response to a small signal needs.")

    def as_crossbar(self, *, doubled: bool = False) -> Crossbar:
        """A crossbar of conductances of the same shape, with conductances of its own; `doubled` is as in `Conductance`."""
        raise TypeError(
            f"{self} cannot be made of resistors: `Dense` and `Convolution` can, without pooling, dilation and groups."
        )

    def scale_(self, factor: float) -> None:
        """Multiply the current up, but for the bias, in place."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how its weights are scaled, which a limit on gain and a start from data need: "
            "give it `scale_`."
        )

    def _scale_weight_(self, factor: float) -> None:
        renew_pruned(self)
        pruned = "weight" in pruned_names(self)
        weight = self.weight_orig if pruned else self.weight
        assert isinstance(weight, Tensor)
        if not isinstance(weight, nn.Parameter):
            raise TypeError(
                f"The weight of {self} is no parameter of its own, but computed from others or handed over for one call, and "
                "cannot be scaled in place: take the parametrisation away, or hand weights over that are within the limit."
            )
        weight.mul_(factor)
        renew_pruned(self)

    def _pulled_back(self, **gradients: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Gradients of tensors that it computes with, as gradients of its parameters: a weight may be parametrised."""
        parameters = wanted(self)
        if parameters.keys() <= gradients.keys():
            return {name: gradients[name]() for name in parameters}
        with torch.enable_grad():
            used = {name: tensor for name in gradients if (tensor := getattr(self, name)) is not None}
        errors = [gradients[name]() for name in used]
        return dict(zip(parameters, pulled_back([*used.values()], [*parameters.values()], errors), strict=True))

    def check_hooks(self, where: str) -> None:
        """Refuse tensors that a hook on `forward` renews, but for those of pruning: sweeps call `up` and `down`."""
        pruned = pruned_names(self)
        held = [name for name, value in vars(self).items() if isinstance(value, Tensor)] if self._forward_pre_hooks else []
        stale = [name for name in held if name not in pruned]
        if stale:
            raise RuntimeError(
                f"{', '.join(f'`{name}`' for name in stale)} of {self} ({where}) is computed by a hook on `forward`, the way "
                "of the old `weight_norm` and `spectral_norm`: sweeps call `up` and `down`, which run no hooks, so it would "
                "never change. Use `torch.nn.utils.parametrize`."
            )

    def macs(self, shape: Shape) -> int | None:
        """Multiply-accumulates of one `up` for one sample, or None where they are not known."""
        return None

    def matrix(self, shape: Shape) -> Matrix | None:
        """The edge as a crossbar holds it, over a layer of this shape; None where it is not known to fit on one."""
        return None


def check_edges(module: nn.Module, where: str) -> None:
    """Have every edge in a module `check_hooks`: other parts are called as modules, and run theirs."""
    for name, part in module.named_modules():
        if isinstance(part, Interaction):
            part.check_hooks(f"{name} of {where}")


class Contact:
    """An edge where it meets a state below it. The currents it gives are the caller's to overwrite.

    Args:
        fresh: whether the edge returns new tensors; that of somebody else's may return its argument, or a buffer.
    """

    lasting: ClassVar[bool] = False  # whether it is worth keeping as long as that state stands; then it must not hold that

    def __init__(self, edge: Interaction, pre: Tensor, *, fresh: bool = False) -> None:
        self.edge = edge
        self.pre = pre
        self.fresh = fresh

    def up(self) -> Tensor:
        """The current up."""
        return self._own(self.edge.up(self.pre))

    def down(self, post: Tensor) -> Tensor:
        """The current down from `post`."""
        return self._own(self.edge.down(self.pre, post))

    def _own(self, current: Tensor) -> Tensor:
        return current if self.fresh else current.clone()
