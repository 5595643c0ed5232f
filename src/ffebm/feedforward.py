"""The digital stage of the paper: convolution, pooling, batch-norm."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn

from ffebm.interaction import Interaction, Shape
from ffebm.twin import renewed

__all__ = ["Feedforward"]
__dir__ = __all__.copy


class Feedforward(nn.Module):
    r"""$F(s) = \mathrm{BN}(\mathcal P(\omega \star s))$: a connection like those inside a block, used one way only.

    Args:
        connection: the convolution with its pooling, or the dense connection.
        norm: what follows it.

    Paper: section 4.1 [subsec:exp-setup]
    """

    def __init__(self, connection: Interaction, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.connection = connection
        self.norm = nn.Identity() if norm is None else norm

    def forward(self, s: Tensor) -> Tensor:
        self.connection.check_hooks("the connection of a stage")
        return self.norm(renewed(self.connection).up(s))

    @torch.no_grad()
    def scale_to(self, s: Tensor, size: float) -> None:
        """Scale weights so that what comes out for these samples has this root mean square about 0; biases become 0.

        Nothing happens to a connection of somebody's own that does not say how it is scaled.
        """
        bias = getattr(self.connection, "bias", None)
        if bias is not None:
            bias.zero_()
        weight = getattr(self.norm, "weight", None)
        out = self.connection.up(s)
        found = out.square().mean().sqrt().item() if weight is None else out.std().item()
        with suppress(NotImplementedError):
            self.connection.scale_((size if weight is None else 1.0) / max(found, torch.finfo(s.dtype).tiny))
        if weight is not None:
            weight.fill_(size)

    def macs(self, shape: Shape) -> int | None:
        """Multiply-accumulates for one sample whose shape is this."""
        return self.connection.macs(shape)
