"""Random numbers of a chip: those of its making, which stay, and those of every reading, which do not."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["Draws"]
__dir__ = __all__.copy


class Draws:
    """Generators of one chip, for one pass.

    In training, fresh numbers begin at a draw from torch's generator, so `torch.manual_seed` repeats them; a run seeds it
    before every step, and goes on to the same bits. In evaluation they begin at the chip's own seed: tests repeat.

    Args:
        seed: of the hardware.
        name: of the chip; chips of different names are different pieces.
    """

    def __init__(self, seed: int, name: str, *, training: bool) -> None:
        self.seed = seed
        self.name = name
        self.training = training
        self._fresh: torch.Generator | None = None

    def pattern(self, device: torch.device, *what: object) -> torch.Generator:
        """Numbers that were drawn when the chip was made: the same at every call."""
        text = "|".join(map(str, (self.seed, self.name, *what)))
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        return torch.Generator(device).manual_seed(number)

    def fresh(self, device: torch.device) -> torch.Generator:
        """Numbers that nobody has seen yet."""
        if self._fresh is None:
            if self.training:
                self._fresh = torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
            else:
                self._fresh = self.pattern(device, "evaluation")
        return self._fresh

    def normal(self, like: Tensor) -> Tensor:
        """Fresh normal numbers."""
        return torch.randn(like.shape, generator=self.fresh(like.device), dtype=like.dtype, device=like.device)

    def uniform(self, like: Tensor) -> Tensor:
        """Fresh numbers between 0 and 1."""
        return torch.rand(like.shape, generator=self.fresh(like.device), dtype=like.dtype, device=like.device)

    def made(self, like: Tensor, *what: object) -> Tensor:
        """Normal numbers of its making."""
        generator = self.pattern(like.device, *what)
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)

    def made_uniform(self, like: Tensor, *what: object) -> Tensor:
        """Numbers between 0 and 1 of its making."""
        generator = self.pattern(like.device, *what)
        return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
