"""Peak memory against the number of sweeps, by counting the bytes of every tensor alive."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from ffebm import (
    Convolution,
    EnergyBlock,
    EquilibriumPropagation,
    FixedPoint,
    GradientEstimator,
    Hopfield,
    RecurrentBackprop,
    Unrolled,
)
from ffebm.experiment.benchmark import STEADY, Net, inference_memory
from ffebm.experiment.benchmark.meter import PeakMemory
from ffebm.experiment.benchmark.speed import memory


def peak(estimator: GradientEstimator, free: int) -> int:
    torch.manual_seed(0)
    block = EnergyBlock(Hopfield([Convolution(8, 8, padding=1)] * 2), FixedPoint(free), estimator)
    x = torch.randn(4, 8, 12, 12, requires_grad=True)
    with PeakMemory() as memory:
        block(x).sum().backward()
    return memory.peak


def test_the_counter_counts() -> None:
    with PeakMemory() as memory:
        a = torch.ones(1000)
        b = a + 1
        del a
        c = b * 2
        d = c.view(10, 100)
        del b, c, d
    assert 8000 <= memory.peak < 12000


@pytest.mark.parametrize("kind", [EquilibriumPropagation, RecurrentBackprop])
def test_constant_in_the_number_of_sweeps(kind: type[EquilibriumPropagation | RecurrentBackprop]) -> None:
    few, many = peak(kind(FixedPoint(5)), free=10), peak(kind(FixedPoint(40)), free=80)
    assert many <= 1.01 * few


def test_recorded_sweeps_cost_memory() -> None:
    few, many = peak(Unrolled(FixedPoint(5)), free=10), peak(Unrolled(FixedPoint(40)), free=10)
    assert many > 4 * few


def test_training_by_ep_needs_little_more_than_inference() -> None:
    """With stages that are run twice: one and a half times the inference's memory with the gradients."""
    net = Net("conv12", 0.125, 128)
    (ep,) = STEADY.methods("steady", ["ep"])
    assert memory(net, ep, recompute=True) <= 1.5 * inference_memory(net)
    assert memory(net, ep) > memory(net, ep, recompute=True)


def test_what_tensors_free_is_kept_for_the_next_ones() -> None:
    """Pages that a process gets back from the system are counted as faults: none are, once freed memory is kept."""
    code = (
        "import resource, torch\n"
        "from ffebm.experiment.allocator import keep_freed_memory\n"
        "def faults(times=5):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(times):\n"
        "        torch.zeros(1 << 24)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "first = faults()\n"
        "keep_freed_memory()\n"
        "faults(50)\n"  # until there is room for them
        "print(first, faults())\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    first, kept = map(int, told.split())
    if platform.libc_ver()[0] == "glibc":
        assert kept < first / 10
