"""The paper's figures and tables, made again."""

from ffebm.experiment.reproduction.experiments import EXPERIMENTS, SCALES, Experiment, Scale
from ffebm.experiment.reproduction.table_cell import TableCell

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Scale", "TableCell"]
__dir__ = __all__.copy
