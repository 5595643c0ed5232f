"""What a computation costs: time, operations, memory; and what the machine could do at best."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

__all__ = ["PeakMemory", "Task", "fastest", "matrix_product", "operations", "peak_memory"]
__dir__ = __all__.copy

Task = Callable[[], object]

SPAN = 0.5  # seconds of a turn, at most, that a short task is repeated for


def fastest(tasks: Mapping[str, Task], rounds: int) -> dict[str, float]:
    """The shortest time of each task in seconds, over rounds in which all take turns: slow spells hit all alike.

    In its turn a short task is repeated until it has taken as long as the longest, or `SPAN`. Otherwise it alone would get the
    quietest moments of a busy machine to itself, and others would look slower beside it than they are.
    """
    once = {name: _timed(task, 1) for name, task in tasks.items()}  # warms up
    span = min(SPAN, max(once.values()))
    times = {name: math.ceil(span / seconds) for name, seconds in once.items()}
    best = dict.fromkeys(tasks, math.inf)
    for _ in range(rounds):
        for name, task in tasks.items():
            best[name] = min(best[name], _timed(task, times[name]))
    return best


def _timed(task: Task, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        task()
    _wait()
    return (time.perf_counter() - begin) / times


def matrix_product(size: int = 1024) -> tuple[Task, float]:
    """The product of two square matrices, whose speed counts as the machine's peak, and its operations in GFLOP."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, c = (torch.randn(size, size, device=device) for _ in range(3))
    return lambda: torch.mm(a, b, out=c), 2 * size**3 / 1e9


def operations(task: Task) -> float:
    """The multiplications and additions of convolutions and matrix products, in GFLOP."""
    with _Operations() as counted:
        task()
    return counted.total / 1e9


def peak_memory(task: Task) -> int:
    """The bytes of all tensors alive at the worst moment, without those that were there before."""
    with PeakMemory() as memory:
        task()
    return memory.peak


class _Operations(TorchDispatchMode):
    """Torch's own counts, added up by hand: its counter cannot look into gradients that are taken inside of others."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


class PeakMemory(TorchDispatchMode):
    """Adds up the storage of every tensor that an operation returns, and takes it off when the storage dies."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), there_before=True)
        result = func(*args, **(kwargs or {}))
        self._note(result, there_before=False)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result

    def _note(self, tensors: Any, *, there_before: bool) -> None:
        """What an operation is given, and none has returned, was there before."""
        for leaf in tree_leaves(tensors):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.sizes:
                    self.sizes[storage._cdata] = 0 if there_before else storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
