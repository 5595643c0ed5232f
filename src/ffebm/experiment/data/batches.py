"""The batches of a run: every epoch in its own order, cut alike for any number of processes, resumable anywhere."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset as TorchDataset

from ffebm.experiment.data.augmentation import Augmentation, seeded
from ffebm.experiment.data.dataset import Dataset, Samples

__all__ = ["Batch", "Batches", "Part"]
__dir__ = __all__.copy


class Batch(NamedTuple):
    """Normalised images with their labels: a part of what one step of the optimiser sees."""

    x: Tensor
    y: Tensor
    whole: int  # samples in all parts together


class Part(NamedTuple):
    """Which images of which epoch."""

    epoch: int
    indices: list[int]  # no tensor: workers would open a connection for each, and one killed meanwhile leaves a traceback
    whole: int


@dataclass(eq=False)
class Batches(TorchDataset[Batch]):
    """Batches without end, epoch after epoch; `len` of them make one, and one iteration goes to the end of its epoch.

    Order, crops and flips depend on the seed and the epoch alone. A batch is cut into parts, for the processes and for
    accumulation, and all batches of an epoch are of one size, give or take a sample: none is dropped, none is small.

    Args:
        size: samples in a batch, at most.
        parts: into how many parts every batch is cut.
        rank: of this process, among `ranks`; part p of a batch goes to process p mod ranks.
        augment: crop and flip; needs `padding`.
        seed: of the order; None keeps the order of the files.
    """

    dataset: Dataset
    samples: Samples
    size: int
    _: KW_ONLY
    seed: int | None = None
    padding: int = 0
    flip: bool = False
    parts: int = 1
    rank: int = 0
    ranks: int = 1
    workers: int = 0
    pin: bool = False
    taken: int = field(default=0, init=False)  # parts that this process was given, since the first epoch

    @property
    def batches(self) -> int:
        """In an epoch."""
        return -(-len(self.samples) // self.size)

    def __len__(self) -> int:
        """Parts in an epoch, for this process."""
        return self.batches * self.parts // self.ranks

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = divmod(self.taken, len(self))
        plan = list(self.plan(epoch))[start:]
        # Each item is a whole part already, so torch's loader has only to fetch: here, or in other processes.
        loader = DataLoader(
            self,
            sampler=plan,
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.pin,
            worker_init_fn=_leave_it_to_the_trainer,
        )
        for batch in loader:
            self.taken += 1
            yield batch

    def plan(self, epoch: int) -> Iterator[Part]:
        """The parts of an epoch that are for this process."""
        count = len(self.samples)
        order = torch.arange(count) if self.seed is None else torch.randperm(count, generator=seeded(self.seed, epoch, 0))
        for batch in order.tensor_split(self.batches):
            for number, indices in enumerate(batch.tensor_split(self.parts)):
                if number % self.ranks == self.rank:
                    yield Part(epoch, indices.tolist(), len(batch))

    def __getitem__(self, part: Part) -> Batch:
        indices = torch.tensor(part.indices, dtype=torch.long)
        x = self.samples.x[indices]
        if self.seed is not None and (self.padding or self.flip):
            drawn = Augmentation.draw(len(self.samples), self.padding, self.seed, part.epoch, flip=self.flip)
            x = drawn(x, indices)
        return Batch(self.dataset.normalise(x), self.samples.y[indices], part.whole)

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


def _leave_it_to_the_trainer(_worker: int) -> None:
    """Ctrl-C and SIGTERM reach a whole group of processes; the one that trains decides when its workers end.

    It says why it ends, too: a worker whose batch is being fetched at that moment has nothing to add.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    show = sys.excepthook
    sys.excepthook = lambda kind, error, trace: None if issubclass(kind, EOFError | OSError) else show(kind, error, trace)
