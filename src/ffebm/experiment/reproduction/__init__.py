"""The paper's figures and tables, made again."""

from ffebm.experiment.reproduction.cell import Cell, Progress, Stage
from ffebm.experiment.reproduction.experiments import EXPERIMENTS, SCALES, Experiment, Scale
from ffebm.experiment.reproduction.launcher import Launcher, LocalProcesses, RayCluster
from ffebm.experiment.reproduction.queue import Queue
from ffebm.experiment.reproduction.store import Store

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Cell",
    "Experiment",
    "Launcher",
    "LocalProcesses",
    "Progress",
    "Queue",
    "RayCluster",
    "Scale",
    "Stage",
    "Store",
]
__dir__ = __all__.copy
