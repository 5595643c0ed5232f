"""Where the time of a training step goes: by block, and by operation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ffebm.block import EnergyBlock
from ffebm.experiment.benchmark.meter import Task, fastest
from ffebm.model import FFEBM


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
    times: list[BlockTime] = []
    for stage, block in model.chain:
        s = x.detach().requires_grad_()
        with torch.no_grad():
            x = stage(s)
            relaxed = block.relax(block.energy, x)
        tasks = {"stage": _both_ways(stage, s), "free": _relaxation(block, x), "all": _both_ways(block, x.requires_grad_())}
        best = fastest(tasks, rounds)
        times.append(BlockTime(block.energy.label, best["stage"], best["free"], best["all"] - best["free"]))
        x = relaxed.state[-1]
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


def _relaxation(block: EnergyBlock, x: Tensor) -> Task:
    @torch.no_grad()
    def relax() -> object:
        return block.relax(block.energy, x)

    return relax
