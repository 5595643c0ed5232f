"""One thread, and the same random numbers for every test whatever ran before it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # two OpenMP threads on a busy machine make tiny nets many times slower
settings.register_profile("ffebm", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("ffebm")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # again: a training run chooses for itself
