"""How fast gradients are, how good, and what they need."""

from ffebm.experiment.benchmark.profile import by_block, by_operation
from ffebm.experiment.benchmark.speed import PLAIN, Measurement, inference_memory, measure
from ffebm.experiment.benchmark.subjects import NETS, PAPER, STEADY, Method, Net, Schedule, fixed

__all__ = [
    "NETS",
    "PAPER",
    "PLAIN",
    "STEADY",
    "Measurement",
    "Method",
    "Net",
    "Schedule",
    "by_block",
    "by_operation",
    "fixed",
    "inference_memory",
    "measure",
]
__dir__ = __all__.copy
