r"""Energies $E(s, \theta, x)$: what an analog block minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast, final

import torch
from torch import Tensor, nn

from ffebm.activation import Activation, clamp, identity
from ffebm.checks import check_type
from ffebm.interaction import Interaction, dot, with_children

State = tuple[Tensor, ...]  # s_1 .. s_L, each with the batch first


class Energy(nn.Module, ABC):
    r"""A scalar function of a layered state, one value per sample, whose minimum over the state is the block's output.

    $$E(s, \theta, x) = \sum_\ell G_\ell(s_\ell) - \Phi(s, \theta, x)$$

    Your own energy needs only `forward`. Each layer then relaxes by $s_\ell \leftarrow \sigma_\ell(\partial_\ell \Phi)$ with
    the derivative taken by autograd. With `clamp(a)` or `identity(a)` that is (projected) gradient descent on $E$ with
    step $a$, whatever the form of $E$: choose $a$ below 2 over the largest curvature of $E$. Give `drive` in closed form when
    speed matters.

    Samples must not interact: no batch-norm and no dropout inside an energy.

    Args:
        activations: one per layer of the state; the default is one layer, unclamped, descending with step 1.

    Paper: Eq. [def:energy-block-k-version-1], Eq. [app:def:primitive]
    """

    def __init__(self, activations: Sequence[Activation] = (identity(),)) -> None:
        super().__init__()
        self.activations: tuple[Activation, ...] = tuple(activations)
        if not self.activations:
            raise ValueError("An energy needs at least one layer, got no `activations`: give one activation per layer.")
        for activation in self.activations:
            check_type("activations", activation, Activation, "clamp(0.5)")
        self.name = ""  # shown in errors; a model sets it to the position of the block

    @abstractmethod
    def forward(self, state: State, x: Tensor) -> Tensor:
        """The energy of every sample, shape (B,); never reduced over the batch."""

    def init_state(self, x: Tensor) -> State:
        r"""Where relaxations start, $\sigma(0)$ in every layer; this default knows only one layer, of the shape of `x`."""
        activation, *others = self.activations
        if others:
            raise NotImplementedError(
                f"{type(self).__name__} has {len(self.activations)} layers, and only its first is known to be shaped like "
                "the input: override `init_state` to return one tensor per layer."
            )
        return (activation.sigma(torch.zeros_like(x)),)

    def drive(self, state: State, x: Tensor, layer: int) -> Tensor:
        r"""The current $\partial_\ell \Phi$ into one layer (0-based); the activation of it is the layer's next state."""
        tracked = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            state = tuple(_outside_inference(s) for s in state)
            # A fresh alias is very important here: other layers may have been computed from this one in the same sweep, and
            # differentiating the original would follow that path too and give the total instead of the partial derivative.
            s = state[layer]
            s = s.view_as(s) if tracked and s.requires_grad else s.detach().requires_grad_()
            state = (*state[:layer], s, *state[layer + 1 :])
            phi = self.activations[layer].potential(s).sum() - self._checked(state, _outside_inference(x)).sum()
            (current,) = torch.autograd.grad(phi, s, create_graph=tracked)
        return current

    def contrast(self, high: State, low: State, x: Tensor) -> Tensor:
        r"""A value per sample, shape (B,), whose derivative to `x` and the parameters is that of $E(high) - E(low)$."""
        return self._checked(high, x) - self._checked(low, x)

    def contrast_gradient(self, high: State, low: State, x: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r"""The derivative of $\sum_b w_b (E_b(high) - E_b(low))$ to `x` and, by name, to the parameters that want one."""
        wanted = {name: p for name, p in self.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = (weights * self.contrast(high, low, x)).sum()
            # Zeros, not None, for a parameter that plays no part: DDP waits for a gradient of every parameter.
            grad_x, *grads = torch.autograd.grad(total, (x, *wanted.values()), allow_unused=True, materialize_grads=True)
        return grad_x, dict(zip(wanted, grads, strict=True))

    def _checked(self, state: State, x: Tensor) -> Tensor:
        """`forward`, of which a wrong shape would go unnoticed: sums and products broadcast."""
        energies = self(state, x)
        if energies.shape != x.shape[:1]:
            raise ValueError(
                f"`forward` of {self.label} must return one energy per sample, shape ({x.shape[0]},), "
                f"got {tuple(energies.shape)}: sum over everything but the batch."
            )
        return energies

    def check_hooks(self) -> None:
        """Refuse interactions whose hooks a relaxation would pass by; parts that `forward` calls as modules run theirs."""
        for name, part in self.named_modules():
            if isinstance(part, Interaction):
                part.check_hooks(f"{name} of {self.label}")

    def held(self, state: State) -> Energy:
        """The energy with those choices fixed that it makes at `state`, as max-pooling does; itself, where it makes none.

        It has the same value and the same derivatives there, and around it is as smooth as the rest of it is.
        """
        return self

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        """Multiply-accumulates of one sweep for one sample with an input of this shape, or None where not known."""
        return None

    @property
    def label(self) -> str:
        """How errors name this energy."""
        return self.name or f"an unnamed {type(self).__name__} block"

    def extra_repr(self) -> str:
        return f"activations=[{', '.join(map(repr, self.activations))}]"


@final
class Hopfield(Energy):
    r"""A deep Hopfield network: a chain of layers, each bidirectionally tied to its neighbours.

    $$E = \sum_\ell G_\ell(s_\ell) - s_1 \cdot x - \sum_\ell s_{\ell+1} \cdot \mathrm{up}_\ell(s_\ell)$$

    With no interactions it is a single layer, and the block an ordinary activation $s = \sigma(x)$. The bias of layer
    $\ell + 1$ belongs to interaction $\ell$; that of layer 1 to whatever computes `x`.

    Args:
        interactions: the edges, from the input side up; L layers have L − 1.
        activations: one for all layers, or one per layer.

    Paper: appendix A.4 [subsec:details-model], Deep Hopfield Networks
    """

    def __init__(
        self, interactions: Sequence[Interaction] = (), activations: Activation | Sequence[Activation] = clamp(0.5)
    ) -> None:
        layers = len(interactions) + 1
        if not isinstance(activations, Sequence):
            check_type("activations", activations, Activation, "clamp(0.5), or a list with one for each layer")
            activations = (activations,) * layers
        if len(activations) != layers:
            raise ValueError(
                f"{len(interactions)} interactions make {layers} layers, got {len(activations)} activations: "
                "give one per layer, or a single one for all."
            )
        super().__init__(activations)
        self.interactions = nn.ModuleList(interactions)

    @property
    def edges(self) -> list[Interaction]:
        """The interactions, from the input side up."""
        return cast(list[Interaction], list(self.interactions))

    def layer_shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """The shape of every layer, without the batch, for an input of this shape."""
        shapes = [tuple(shape)]
        for edge in self.edges:
            shapes.append(edge.out_shape(shapes[-1]))
        return shapes

    def init_state(self, x: Tensor) -> State:
        try:
            shapes = self.layer_shapes(x.shape[1:])
        except ValueError as error:
            raise ValueError(f"An input of shape {tuple(x.shape)} does not fit {self.label}. {error}") from None
        return tuple(
            activation.sigma(x.new_zeros(x.shape[0], *shape))
            for activation, shape in zip(self.activations, shapes, strict=True)
        )

    @property
    def starts_blank(self) -> bool:
        """Whether every layer starts at zero."""
        return all(activation.slope is not None and activation.low <= 0 <= activation.high for activation in self.activations)

    def drive(self, state: State, x: Tensor, layer: int) -> Tensor:
        edges = self.edges
        current = x if layer == 0 else edges[layer - 1].up(state[layer - 1])
        if layer < len(edges):
            current = current + edges[layer].down(state[layer], state[layer + 1])
        return current

    def forward(self, state: State, x: Tensor) -> Tensor:
        energy = -dot(state[0], x)
        for activation, s in zip(self.activations, state, strict=True):
            energy = energy + activation.potential(s).flatten(1).sum(1)
        for edge, pre, post in zip(self.edges, state[:-1], state[1:], strict=True):
            energy = energy + edge(pre, post)
        return energy

    def contrast(self, high: State, low: State, x: Tensor) -> Tensor:
        contrast = -dot(high[0] - low[0], x)  # the potentials have neither parameters nor x
        for edge, *ends in zip(self.edges, high[:-1], high[1:], low[:-1], low[1:], strict=True):
            contrast = contrast + edge.contrast((ends[0], ends[1]), (ends[2], ends[3]))
        return contrast

    def contrast_gradient(self, high: State, low: State, x: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        sums: dict[Tensor, Tensor] = {}  # by parameter: one may serve several edges
        for edge, *ends in zip(self.edges, high[:-1], high[1:], low[:-1], low[1:], strict=True):
            held = dict(edge.named_parameters())
            for name, gradient in edge.contrast_gradient((ends[0], ends[1]), (ends[2], ends[3]), weights).items():
                sums[held[name]] = sums[held[name]] + gradient if held[name] in sums else gradient
        grad_x = (low[0] - high[0]) * per_sample(weights, x)
        wanted = {name: p for name, p in self.named_parameters() if p.requires_grad}
        return grad_x, {name: sums[p] if p in sums else torch.zeros_like(p) for name, p in wanted.items()}

    @torch.no_grad()
    def held(self, state: State) -> Hopfield:
        edges = [edge.held(pre) for edge, pre in zip(self.edges, state[:-1], strict=True)]
        if all(edge is before for edge, before in zip(edges, self.edges, strict=True)):
            return self
        return with_children(self, interactions=nn.ModuleList(edges))

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        ups = [edge.macs(below) for edge, below in zip(self.edges, self.layer_shapes(shape), strict=False)]
        return None if None in ups else 2 * sum(macs for macs in ups if macs is not None)  # each edge up and down


def per_sample(weights: Tensor, like: Tensor) -> Tensor:
    """`weights` of shape (B,), viewed so that they scale the samples of `like`."""
    return weights.view(-1, *[1] * (like.dim() - 1))


def _outside_inference(t: Tensor) -> Tensor:
    """A tensor that autograd may record; those made in inference mode may not."""
    return t.clone() if t.is_inference() else t
