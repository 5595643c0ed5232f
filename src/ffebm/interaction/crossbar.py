r"""What a crossbar of conductances is: an edge that also loads the nodes at its ends."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ffebm.interaction.interaction import Interaction, Shape
from ffebm.interaction.pair import Pair
from ffebm.state import per_sample

__all__ = ["Crossbar", "Resistors", "weighted"]
__dir__ = __all__.copy


class Resistors(NamedTuple):
    """The resistors of a crossbar, one after the other: between which nodes each lies, and which conductance it has.

    Nodes are counted through their layer, flattened. Where the crossbar is doubled, those below come first as they are and
    then inverted, so there are twice as many as the layer has.
    """

    below: Tensor
    above: Tensor
    weight: Tensor  # its place in the flattened weight: those of a convolution share theirs


class Crossbar(Interaction):
    r"""Resistors between the nodes of two layers, with conductances $g_{ij} \ge 0$ and bias currents $b_j$ into the upper one.

    $$E(v, w) = \tfrac12 \sum_{ij} g_{ij} (v_i - w_j)^2 - b \cdot w
    = U(v, w) + \tfrac12 \sum_i v_i^2 \sum_j g_{ij} + \tfrac12 \sum_j w_j^2 \sum_i g_{ij}$$

    What the crossbar sends up, `up`, is the current into nodes at zero volts. $U = -w \cdot \mathrm{up}(v)$ is what it has in
    common with every other edge; the sums of conductances, its loads, come besides.

    Args:
        doubled: every node below is there twice, as it is and inverted, $(v, -v)$: so a conductance of either sign is a pair.
    """

    linear = True
    doubled: bool
    weight: Tensor  # the second dimension is that of the layer below
    bias: Tensor | None

    @abstractmethod
    def load_above(self, shape: Shape) -> Tensor:
        """The conductance that each node above sees, for a layer below of this shape."""

    @abstractmethod
    def load_below(self, shape: Shape) -> Tensor:
        """The conductance that each node of the layer below, of this shape, sees."""

    @abstractmethod
    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        """The current into the nodes below while those are at zero volts; of `pre` it takes the shape alone."""

    def with_down(self, current: Tensor, pre: Tensor, post: Tensor, factor: float) -> Tensor:
        """A current with so many times the one down, in a tensor of its own."""
        return torch.add(current, self.down(pre, post), alpha=factor)

    @abstractmethod
    def energy_gradient(self, pre: Tensor, moved: Tensor | None, post: Pair, weights: Tensor | None) -> dict[str, Tensor]:
        r"""The derivative of the weighted sum of the change of $E$ between two states, for parameters that want one.

        Args:
            pre: the mean of the layer below in the two states.
            moved: by how much it differs; None where it is held.
            post: mean and difference of the layer above.
            weights: of the samples; by default 1.
        """

    @abstractmethod
    def resistors(self, shape: Shape) -> Resistors:
        """All of its resistors, for a layer below of this shape."""

    @abstractmethod
    def with_weight(self, weight: Tensor) -> Self:
        """The same crossbar with other conductances, and without bias currents."""

    def without_bias(self) -> Self:
        return self.with_weight(self.weight)

    def there_and_back(self, pre: Tensor) -> Tensor:
        return self.down(pre, self.without_bias().up(pre))

    def scale_(self, factor: float) -> None:
        self._scale_weight_(factor)

    def conductances(self, shape: Shape) -> Tensor:
        """The conductance of each of its `resistors`."""
        return self.weight.detach().flatten()[self.resistors(shape).weight]

    def _signed(self) -> Tensor:
        """The conductances that the layer below is multiplied by: with doubled nodes, those of a pair against each other."""
        if not self.doubled:
            return self.weight
        direct, inverted = self.weight.chunk(2, 1)
        return direct - inverted

    def _total(self) -> Tensor:
        """The conductances that load the layer below: with doubled nodes, those of a pair together."""
        if not self.doubled:
            return self.weight
        direct, inverted = self.weight.chunk(2, 1)
        return direct + inverted

    def _set_conductances_(self, fan_in: int) -> None:
        r"""Start at random: half of the conductances at zero, the others below $1 / \sqrt n$, and no bias currents."""
        with torch.no_grad():
            bound = fan_in**-0.5
            self.weight.uniform_(-bound, bound).clamp_(min=0)
            if self.bias is not None:
                self.bias.zero_()


def weighted(weights: Tensor | None, tensor: Tensor) -> Tensor:
    """Every sample times its weight."""
    return tensor if weights is None else per_sample(weights, tensor) * tensor
