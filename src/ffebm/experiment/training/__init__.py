"""Training by Lightning, from settings to a folder of results."""

from ffebm.experiment.training.checkpoints import Stopped
from ffebm.experiment.training.fitting import resume, train
from ffebm.experiment.training.learner import HealthError, Learner

__all__ = ["HealthError", "Learner", "Stopped", "resume", "train"]
__dir__ = __all__.copy
