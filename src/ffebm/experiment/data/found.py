"""What a reader has found of somebody's own images, before it is known what they are for."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ffebm.experiment.data.dataset import Dataset, Description, Samples
from ffebm.experiment.data.own import Wishes, check_classes, numbered, set_apart, statistics, validating
from ffebm.experiment.errors import DataError, Remark
from ffebm.experiment.processes import process_rank

__all__ = ["Found", "Labelled", "remark"]
__dir__ = __all__.copy


class Labelled(NamedTuple):
    """Images, (N, C, H, W), with the labels that somebody gave them: numbers or names."""

    x: Tensor  # uint8
    labels: Sequence[object]


@dataclass(frozen=True)
class Found:
    """Images of one's own, in size and colours as they are wanted, for training, for testing, or both.

    Args:
        name: of the data set.
        where: what errors call it.
        names: of the classes, where labels number them from 0.
        remarks: what somebody should know of how they were read.
    """

    name: str
    where: str
    train: Labelled | None
    test: Labelled | None
    names: Sequence[str] = ()
    remarks: Sequence[str] = ()

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same images with the same classes, wherever they lie."""
        found = hashlib.sha256()
        for part in (self.train, self.test):
            if part is not None:
                found.update(memoryview(part.x.contiguous().numpy()))  # pyright: ignore[reportArgumentType]
            found.update(json.dumps(None if part is None else [list(part.x.shape), self._called(part.labels)]).encode())
        return found.hexdigest()

    def dataset(self, wishes: Wishes) -> Dataset:
        """What can be learnt, measured; without test images, a part of every class is set apart for testing."""
        if self.train is None:
            raise DataError(
                f"{self.where} holds no training images, only some for testing: a model can be evaluated on them, and none "
                "trained. Put those to learn beside them, below train/ or in train.npz."
            )
        y, labels = numbered(self.train.labels)
        classes, train = tuple(self._called(labels)), Samples(self.train.x, y)
        if self.test is None:
            check_classes(classes, (), self.where)
            train, test = set_apart(train, len(classes), wishes.test_part, wishes.test_seed)
        else:
            tested = self._called(self.test.labels)
            check_classes(classes, tested, self.where)
            test = Samples(self.test.x, _numbers(tested, classes))
        if train.x.shape[1:] != test.x.shape[1:]:
            sizes = f"{tuple(train.x.shape[1:])} and {tuple(test.x.shape[1:])}"
            raise DataError(f"Training and test images differ in shape, {sizes}: give data.size, and data.colours.")
        if not len(train) or not len(test):
            raise DataError(f"There are {len(train)} training and {len(test)} test images: both are needed.")
        mean, std = statistics(train.x)
        return validating(Dataset(self.name, train, test, classes, mean, std, self.fingerprint), wishes)

    def for_model(self, known: Description, wishes: Wishes, *, own: bool = False) -> Dataset:
        """The images to test a model on: of those that it learnt, what was set apart; of others, all that are not for training.

        Args:
            own: whether this lies where the model's own data lay. It is that even if images came or went.
        """
        same = self.fingerprint == known.fingerprint
        if self.train is not None and (own or same):
            if known.fingerprint and self.test is None and not same:
                remark(
                    f"{self.where} holds other images than when the model was trained: some that are set apart for testing now "
                    "may have been learnt."
                )
            return self.dataset(wishes).described_as(known)
        part = self.test if self.test is not None else self.train
        assert part is not None
        called = self._called(part.labels)
        known.check_knows(part.x.shape[1:], called)
        samples = Samples(part.x, _numbers(called, known.classes))
        # Nobody trains on others' images: whoever wants some of the training images to look at gets these.
        return Dataset(self.name, samples, samples, known.classes, known.mean, known.std, self.fingerprint)

    def _called(self, labels: Sequence[object]) -> list[str]:
        """The names of classes."""
        return [self.names[int(str(label))] if self.names else str(label) for label in labels]


def remark(words: str) -> None:
    """Say it once, however many processes read the data."""
    if process_rank() == 0:
        warnings.warn(words, Remark, stacklevel=3)


def _numbers(names: Sequence[str], classes: Sequence[str]) -> Tensor:
    number = {name: index for index, name in enumerate(classes)}
    return torch.tensor([number[name] for name in names], dtype=torch.long)
