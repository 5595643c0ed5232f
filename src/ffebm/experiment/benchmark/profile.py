"""Where the time of a training step goes: by block, and by operation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ffebm.experiment.benchmark.meter import Task, fastest
from ffebm.model import FFEBM

__all__ = ["BlockTime", "by_block", "by_operation"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class BlockTime:
    """Seconds that one stage and the block behind it take."""

    block: str
    stage: float  # forward and backward
    free: float
    gradient: float  # nudged phases and contrast, recorded sweeps, or adjoint


def by_block(model: FFEBM, x: Tensor, rounds: int = 3) -> list[BlockTime]:
    """Each block on its own, with the input that it gets in the model and an error signal of ones.

    The last block is nudged like the others here; what its readout adds to every sweep is not seen.
    """
    with torch.no_grad():
        visits = list(model.walk(x))
    times: list[BlockTime] = []
    for _, stage, block, s, x, _ in visits:
        stage_task, block_task = (_both_ways(part, t.detach().requires_grad_()) for part, t in ((stage, s), (block, x)))
        best = fastest({"stage": stage_task, "free": lambda block=block, x=x: block.settle(x), "all": block_task}, rounds)
        times.append(BlockTime(block.label, best["stage"], best["free"], best["all"] - best["free"]))
    return times


def by_operation(step: Task, shown: int = 10) -> list[tuple[str, int, float]]:
    """The operations that take most of a step: name, calls, seconds of their own."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [(event.key, event.count, event.self_cpu_time_total / 1e6) for event in events[:shown]]


def _both_ways(module: torch.nn.Module, x: Tensor) -> Task:
    error = torch.ones_like(module(x))
    return lambda: module(x).backward(error)
