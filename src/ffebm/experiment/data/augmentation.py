"""Random crops and flips, for a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Augmentation", "seeded"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Augmentation:
    """Which crop and flip every image of a data set gets in one epoch.

    Drawn for all images at once from the seed and the epoch, so that an image is augmented alike whatever the batch, the
    process or the moment of a resumption in which it comes.
    """

    shifts: Tensor  # (N, 2): rows and columns, 0 to 2 · padding
    flips: Tensor  # (N,)
    padding: int

    @classmethod
    @lru_cache(maxsize=1)  # for the batches of an epoch
    def draw(cls, images: int, padding: int, seed: int, epoch: int, *, flip: bool = True) -> Augmentation:
        generator = seeded(seed, epoch, 1)
        shifts = torch.randint(2 * padding + 1, (images, 2), generator=generator)
        return cls(shifts, torch.rand(images, generator=generator) < 0.5 * flip, padding)

    def __call__(self, x: Tensor, indices: Tensor) -> Tensor:
        """Crop and flip the images `x`, which are number `indices` of the data set. Edges are padded with their own value."""
        _, channels, height, width = x.shape
        padded = F.pad(x.float(), [self.padding] * 4, mode="replicate").to(x.dtype)
        shifts = self.shifts[indices].to(x.device)
        rows = shifts[:, 0:1] + torch.arange(height, device=x.device)  # (B, H)
        columns = shifts[:, 1:2] + torch.arange(width, device=x.device)  # (B, W)
        columns = torch.where(self.flips[indices].to(x.device).unsqueeze(1), columns.flip(1), columns)
        sample = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
        return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def seeded(*numbers: int) -> torch.Generator:
    """A generator for this combination of numbers, and no other."""
    state = 0
    for number in numbers:
        state = (state * 1_000_003 + number + 1) % (2**63 - 1)
    return torch.Generator().manual_seed(state)
