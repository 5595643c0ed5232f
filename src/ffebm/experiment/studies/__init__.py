"""Studies: a question about hardware, the runs that answer it, and the answer."""

from ffebm.experiment.studies.axis import Axis, Level
from ffebm.experiment.studies.names import READY, study_names

__all__ = ["READY", "Axis", "Level", "study_names"]  # without what loads torch
__dir__ = __all__.copy
