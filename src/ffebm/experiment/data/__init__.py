"""Data sets: read from their official files, held as tensors, augmented batch by batch."""

from ffebm.experiment.data.catalogue import NAMES, check, load
from ffebm.experiment.data.dataset import DataError, Dataset, Samples
from ffebm.experiment.data.digits import digits

__all__ = ["NAMES", "DataError", "Dataset", "Samples", "check", "digits", "load"]
