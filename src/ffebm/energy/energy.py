r"""What an energy $E(s, \theta, x)$ is: all that relaxations and estimators may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ffebm.activation import Activation, identity
from ffebm.checks import check_type, refuse_old_names
from ffebm.circuit import Circuit, Junction
from ffebm.derivative import differentiate
from ffebm.energy.certificate import Certificate
from ffebm.energy.graph import Edge
from ffebm.energy.layout import Layout
from ffebm.interaction import Shape
from ffebm.state import Colours, State
from ffebm.tracing import refuse_exporting

__all__ = ["Energy", "Session"]
__dir__ = __all__.copy


class Energy(nn.Module, ABC):
    r"""A scalar function of a layered state, one value per sample, whose minimum over the state is the block's output.

    $$E(s, \theta, x) = \sum_\ell c_\ell\, G_\ell(s_\ell) - \Phi(s, \theta, x)$$

    Your own energy needs only `forward`. Each layer then relaxes by $s_\ell \leftarrow \sigma_\ell(\partial_\ell \Phi)$ with
    the derivative taken by autograd. With `clamp(a)` or `identity(a)` that is (projected) gradient descent on $E$ with
    step $a$, whatever the form of $E$: choose $a$ below 2 over the largest curvature of $E$. Give `drive` in closed form when
    speed matters, `minimise` where a layer has another minimum, and a `session` that remembers from sweep to sweep.

    Samples must not interact: no batch-norm and no dropout inside an energy.

    Args:
        activations: one per layer of the state; the default is one layer, unclamped, descending with step 1.

    Paper: Eq. [def:energy-block-k-version-1], Eq. [app:def:primitive]
    """

    output_layer: int = -1  # that a block returns, and that errors enter
    always_settles: bool = False  # whether sweeps do, in one equilibrium, whatever the weights

    def __init_subclass__(cls) -> None:
        refuse_old_names(cls, held="latched")

    def __init__(self, activations: Sequence[Activation] = (identity(),)) -> None:
        super().__init__()
        self.activations: tuple[Activation, ...] = tuple(activations)
        if not self.activations:
            raise ValueError("An energy needs at least one layer, got no `activations`: give one activation per layer.")
        for activation in self.activations:
            check_type("activations", activation, Activation, "clamp(0.5)")

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

    def leading(self, shape: Sequence[int]) -> int:
        """How many dimensions of an input of this shape count samples: those before its first layer's own."""
        return 1

    def layer_weight(self, layer: int) -> float:
        r"""How much a layer counts, $c_\ell$: a force on it counts by so much less."""
        return 1.0

    def drive(self, state: State, x: Tensor, layer: int) -> Tensor:
        r"""The current $\partial_\ell \Phi / c_\ell$ into one layer (0-based): its minimum is the activation of it."""
        refuse_exporting(self, "drive")
        tracked = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            state = tuple(_outside_inference(s) for s in state)
            # A fresh alias is very important here: other layers may have been computed from this one in the same sweep, and
            # differentiating the original would follow that path too and give the total instead of the partial derivative.
            s = state[layer]
            s = s.view_as(s) if tracked and s.requires_grad else s.detach().requires_grad_()
            state = (*state[:layer], s, *state[layer + 1 :])
            energy = self._checked(state, _outside_inference(x)).sum() / self.layer_weight(layer)
            (current,) = torch.autograd.grad(self.activations[layer].potential(s).sum() - energy, s, create_graph=tracked)
        return current

    def minimise(self, layer: int, state: State, x: Tensor, force: Tensor | None = None, omega: float = 1.0) -> Tensor:
        r"""Where one layer comes to rest while the others stand still, under a force $f$: the minimum of $E + f \cdot s_\ell$.

        Args:
            omega: how far to go from where the layer is: 1 is all the way.
        """
        current = self.drive(state, x, layer)
        if force is not None:
            current = current - self.as_current(force, layer)
        return self.activations[layer].step(current, state[layer], omega)

    def as_current(self, force: Tensor, layer: int) -> Tensor:
        """A force on a layer, as a part of the current into it."""
        weight = self.layer_weight(layer)
        return force if weight == 1 else force / weight

    def colours(self) -> Colours:
        """Layers that may move together, because none of them acts on another of them; by default every second one."""
        layers = range(len(self.activations))
        return tuple(tuple(layers[start::2]) for start in range(min(2, len(layers))))

    def session(self, x: Tensor, start: State, *, fresh: bool = False) -> Energy | Session:
        """The energy, prepared for sweeps that no graph records; by default the energy itself.

        Args:
            x: the input.
            start: the state that the first sweep is going to get. Where a block settles in several phases, all of them begin
                there, and sweep in turn.
            fresh: whether that is `init_state`.
        """
        return self

    def contrast(self, high: State, low: State, x: Tensor) -> Tensor:
        r"""A value per sample, shape (B,), whose derivative to `x` and the parameters is that of $E(high) - E(low)$.

        Override it to subtract states before they are multiplied. The two are nearly equal, and in float32 the difference of
        products loses one to five more digits than products of differences (results/contrast_accuracy.md).
        """
        return self._checked(high, x) - self._checked(low, x)

    def contrast_gradient(self, high: State, low: State, x: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        r"""The derivative of $\sum_b w_b (E_b(high) - E_b(low))$ to `x` and, by name, to the parameters that want one."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return differentiate((weights * self.contrast(high, low, x)).sum(), x, self)

    def _checked(self, state: State, x: Tensor) -> Tensor:
        """`forward`, of which a wrong shape would go unnoticed: sums and products broadcast."""
        energies = self(state, x)
        if energies.shape != x.shape[:1]:
            raise ValueError(
                f"`forward` of {type(self).__name__} must return one energy per sample, shape ({x.shape[0]},), "
                f"got {tuple(energies.shape)}: sum over everything but the batch."
            )
        return energies

    def returning(self, other: Energy) -> Energy:
        """The same, but that currents back are those of `other`, one like it: two crossbars in place of one."""
        raise TypeError(
            f"{type(self).__name__} sends currents both ways through the same devices, which cannot differ then: give mismatch "
            '`crossbars="shared"`.'
        )

    def latched(self, state: State) -> Energy:
        """The energy with those choices fixed that it makes at `state`, as max-pooling does; itself, where it makes none.

        It has the same value and the same derivatives there, and around it is as smooth as the rest of it is.
        """
        return self

    def tangent(self, state: State) -> Energy:
        """The energy of small displacements from `state`, which count as an equilibrium: its layers are displacements.

        It is quadratic. Choices stay as they are at `state`, and units that are clamped there do not move.
        """
        raise TypeError(
            f"{type(self).__name__} has no tangent, which the response to a small signal needs: use another stencil, for "
            "example `Stencil.centered()`, or override `tangent`."
        )

    def response_gradient(
        self, state: State, moved: State, x: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`contrast_gradient` of two states on both sides of `state`, as far apart as `moved`; by default all weigh 1."""
        weights = x.new_ones(len(x)) if weights is None else weights
        pairs = [(s + step / 2, s - step / 2) for s, step in zip(state, moved, strict=True)]
        return self.contrast_gradient(tuple(high for high, _ in pairs), tuple(low for _, low in pairs), x, weights)

    def certified(self, shape: Sequence[int]) -> Certificate | None:
        """What is known without the gains of edges about how it settles, for inputs of this shape; None where nothing is."""
        return None

    def ties(self, shape: Sequence[int]) -> list[tuple[Edge, Shape]]:
        """The edges that a certificate asks for the gains of, each with the shape below it, for an input of this shape."""
        return []

    def certificate(self, gains: Sequence[float]) -> Certificate | None:
        """What edges of these gains promise about how it settles; None where nothing is known."""
        return None

    def holomorphic(self) -> Energy:
        """The energy of complex states."""
        raise TypeError(
            f"{type(self).__name__} has no complex version, which a stencil of complex nudges needs: take a `Hopfield` of "
            "smooth activations, override `holomorphic`, or use another stencil, for example `Stencil.centered()`."
        )

    def confine_(self) -> None:
        """Bring parameters back, in place, that a step took where they must not be; nothing where all are in place.

        A block asks for it before every forward pass. By default parameters may be anything.
        """

    def power(self, state: State, x: Tensor) -> Tensor:
        """What a circuit of this energy dissipates in a state, in watts, for every sample, shape (B,)."""
        raise TypeError(f"{type(self).__name__} describes no circuit, so it has no power: build the block of a `Resistive`.")

    def circuit(self, shape: Sequence[int], *, ideal: Junction = Junction(ideality=1e-4)) -> Circuit:
        """The electrical circuit that settles where the energy is least, for inputs of this shape.

        Args:
            ideal: the diode that stands in for ideal ones, which no simulator knows.
        """
        raise TypeError(
            f"A {type(self).__name__} has no electrical circuit: `Resistive` has one. Any other energy can be given one by "
            "overriding `circuit`, or a device of another kind by a `Driver`."
        )

    def layout(self, shape: Sequence[int]) -> Layout | None:
        """The matrices that crossbars hold for an input of this shape; None where they are not known."""
        ties = self.ties(shape)
        matrices = [edge.interaction.matrix(below) for edge, below in ties]
        if None in matrices or (not ties and len(self.activations) > 1):
            return None
        return Layout(tuple(matrix for matrix in matrices if matrix is not None), len(self.colours()))

    def sweep_macs(self, shape: tuple[int, ...]) -> int | None:
        """Multiply-accumulates of one sweep for one sample with an input of this shape, or None where not known."""
        return None

    def extra_repr(self) -> str:
        return f"activations=[{', '.join(map(repr, self.activations))}]"


class Session:
    """An energy while it relaxes: a subclass answers `minimise` from what it remembers, and leaves the rest to the energy."""

    def __init__(self, energy: Energy) -> None:
        self.energy = energy

    def __call__(self, state: State, x: Tensor) -> Tensor:
        return self.energy(state, x)

    def __getattr__(self, name: str) -> Any:
        if name == "energy":  # not yet there, while it is copied
            raise AttributeError(name)
        return getattr(self.energy, name)


def _outside_inference(t: Tensor) -> Tensor:
    """A tensor that autograd may record; those made in inference mode may not."""
    return t.clone() if t.is_inference() else t
