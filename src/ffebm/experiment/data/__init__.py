"""Data sets: read from their official files, held as tensors, augmented batch by batch."""

from ffebm.experiment.data.batches import Batch, Batches
from ffebm.experiment.data.catalogue import NAMES, check, condition_of, default_folder, load
from ffebm.experiment.data.condition import Condition, Presence
from ffebm.experiment.data.dataset import DataError, Dataset, Description, Samples
from ffebm.experiment.data.digits import digits

__all__ = [
    "NAMES",
    "Batch",
    "Batches",
    "Condition",
    "DataError",
    "Dataset",
    "Description",
    "Presence",
    "Samples",
    "check",
    "condition_of",
    "default_folder",
    "digits",
    "load",
]
