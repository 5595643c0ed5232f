"""Many runs of one folder: which there are, how far each has come, and where they are carried out."""

from ffebm.experiment.queue.cell import Cell, Progress, Stage
from ffebm.experiment.queue.launcher import Launcher, LocalProcesses, RayCluster
from ffebm.experiment.queue.queue import Queue
from ffebm.experiment.queue.store import Store

__all__ = ["Cell", "Launcher", "LocalProcesses", "Progress", "Queue", "RayCluster", "Stage", "Store"]
__dir__ = __all__.copy
