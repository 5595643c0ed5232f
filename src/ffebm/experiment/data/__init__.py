"""Data sets: read from their official files, held as tensors, augmented batch by batch."""

from ffebm.experiment.data.batches import Batch, Batches
from ffebm.experiment.data.catalogue import NAMES, check, condition_of, load, load_for
from ffebm.experiment.data.condition import Condition, Presence
from ffebm.experiment.data.dataset import Dataset, Description, Samples
from ffebm.experiment.data.digits import digits
from ffebm.experiment.data.given import given_dataset
from ffebm.experiment.errors import DataError
from ffebm.experiment.settings.paths import folder_in_environment as default_folder

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
    "given_dataset",
    "load",
    "load_for",
]
