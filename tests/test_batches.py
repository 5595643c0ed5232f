"""Batches: the same for any number of processes, parts and workers, resumable anywhere, and none dropped."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, strategies as st

from ffebm.experiment.data import Batches, Dataset, Samples


def dataset(train: int, test: int = 7) -> Dataset:
    """Images of a single value, their own number, so that each can be told apart."""

    def samples(count: int) -> Samples:
        return Samples(
            torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone(), torch.arange(count)
        )

    return Dataset("made", samples(train), samples(test), tuple(map(str, range(train))), (0.0,), (1 / 255,))


def batches(count: int, size: int, **more: object) -> Batches:
    data = dataset(count)
    return Batches(data, data.train, size, **{"seed": 0, **more})


@given(st.integers(1, 100), st.integers(1, 40), st.integers(1, 3), st.integers(1, 3))
def test_parts_add_up_to_batches_and_batches_to_the_data_set(count: int, size: int, ranks: int, accumulate: int) -> None:
    parts = ranks * accumulate
    whole = [batch.y for batch in batches(count, size)]
    assert sorted(torch.cat(whole).tolist()) == list(range(count))
    lengths = {len(y) for y in whole}
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    shares = [list(batches(count, size, parts=parts, rank=rank, ranks=ranks).plan(0)) for rank in range(ranks)]
    for number, y in enumerate(whole):
        own = [share[number * accumulate : (number + 1) * accumulate] for share in shares]
        together = [
            torch.tensor(part.indices, dtype=torch.long)
            for i in range(accumulate)
            for part in (processes[i] for processes in own)
        ]
        assert torch.equal(torch.cat(together), y)
        assert all(part.whole == len(y) for part in own[0])


def test_an_epoch_has_its_own_order_and_the_seed_decides_it() -> None:
    stream = batches(50, 10)
    first, second = (torch.cat([batch.y for batch in stream]) for _ in range(2))
    assert not torch.equal(first, second)
    again = torch.cat([batch.y for batch in batches(50, 10)])
    other = torch.cat([batch.y for batch in batches(50, 10, seed=1)])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("taken", [0, 3, 5, 7])
def test_batches_resume_where_their_state_was_saved(taken: int) -> None:
    def items(stream: Batches, count: int) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        while len(found) < count:
            found += [batch.x for batch in islice(stream, count - len(found))]
        return found

    settings = {"padding": 1, "flip": True}
    expected = items(batches(50, 10, **settings), 12)
    stream = batches(50, 10, **settings)
    items(stream, taken)
    resumed = batches(50, 10, **settings)
    resumed.load_state_dict(stream.state_dict())
    for a, b in zip(expected[taken:], items(resumed, 12 - taken), strict=True):
        assert torch.equal(a, b)


def test_workers_do_not_change_batches() -> None:
    alone = list(batches(30, 8, padding=1, flip=True))
    helped = list(batches(30, 8, padding=1, flip=True, workers=2))
    for a, b in zip(alone, helped, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)


def test_a_test_set_comes_in_order_and_whole() -> None:
    data = dataset(3, 7)
    found = list(Batches(data, data.test, 3, padding=2, flip=True))
    assert torch.cat([batch.y for batch in found]).tolist() == list(range(7))
    assert torch.cat([batch.x for batch in found])[:, 0, 0, 0].tolist() == pytest.approx(list(range(7)))


def test_flips_can_be_had_without_crops_and_crops_without_flips() -> None:
    data = dataset(40)
    data.train.x[:, :, :, 0] = 99  # a left edge
    flipped = torch.cat([batch.x for batch in Batches(data, data.train, 40, seed=0, flip=True)])[:, 0]
    left, right = (flipped[:, :, 0].round() == 99).all(1), (flipped[:, :, 3].round() == 99).all(1)
    assert (left ^ right).all()
    assert left.any()
    assert right.any()
    kept = torch.cat([batch.x for batch in Batches(data, data.train, 40, seed=0)])[:, 0]
    assert (kept[:, :, 0].round() == 99).all()
