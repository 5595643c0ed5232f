"""Reports: what runs have come to, on one page."""

from ffebm.experiment.report.microscope import Microscope, look, look_if_possible
from ffebm.experiment.report.writing import compose, write_report

__all__ = ["Microscope", "compose", "look", "look_if_possible", "write_report"]
__dir__ = __all__.copy
