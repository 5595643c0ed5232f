"""An edge whose currents back go another way than those up."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from ffebm.derivative import wanted
from ffebm.interaction.interaction import Contact, Ends, Interaction, Shape

__all__ = ["TwoWay"]
__dir__ = __all__.copy


@final
class TwoWay(Interaction):
    """Two edges of one kind, such as two crossbars that should hold the same weights: one for currents up, one for those back.

    Where the two differ there is no energy. The contrast is that of the edge up.
    """

    def __init__(self, there: Interaction, back: Interaction) -> None:
        super().__init__()
        self.there = there
        self.back = back
        self.chooses, self.units = there.chooses, there.units

    def up(self, pre: Tensor) -> Tensor:
        return self.there.up(pre)

    def down(self, pre: Tensor, post: Tensor) -> Tensor:
        return self.back.down(pre, post)

    def out_shape(self, shape: Shape) -> Shape:
        return self.there.out_shape(shape)

    def contact(self, pre: Tensor) -> Contact:
        return _Contacts(self, pre)

    def contrast_gradient(self, high: Ends, low: Ends, weights: Tensor) -> dict[str, Tensor]:
        found = self.there.contrast_gradient(high, low, weights)
        zeros = {name: torch.zeros_like(p) for name, p in wanted(self).items()}  # a bias that both have is there once
        return zeros | {f"there.{name}": gradient for name, gradient in found.items()}

    def latched(self, pre: Tensor) -> TwoWay:
        there, back = self.there.latched(pre), self.back.latched(pre)
        return self if there is self.there and back is self.back else TwoWay(there, back)

    def macs(self, shape: Shape) -> int | None:
        return self.there.macs(shape)


class _Contacts(Contact):
    """Both edges where they meet one state."""

    def __init__(self, edge: TwoWay, pre: Tensor) -> None:
        super().__init__(edge, pre, fresh=True)
        self._there, self._back = edge.there.contact(pre), edge.back.contact(pre)

    def up(self) -> Tensor:
        return self._there.up()

    def down(self, post: Tensor) -> Tensor:
        return self._back.down(post)
