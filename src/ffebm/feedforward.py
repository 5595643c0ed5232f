"""The digital stage of the paper: convolution, pooling, batch-norm."""

from __future__ import annotations

from torch import Tensor, nn

from ffebm.interaction import Interaction, Shape


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
        return self.norm(self.connection.up(s))

    def macs(self, shape: Shape) -> int | None:
        """Multiply-accumulates for one sample whose shape is this."""
        return self.connection.macs(shape)
