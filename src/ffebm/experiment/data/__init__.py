"""Data sets: read from their official files, held as tensors, augmented batch by batch."""

from ffebm.experiment.data.batches import Batch, Batches
from ffebm.experiment.data.catalogue import NAMES, check, condition_of, is_own_place, load, load_for
from ffebm.experiment.data.condition import Condition, Presence
from ffebm.experiment.data.dataset import Dataset, Description, Samples
from ffebm.experiment.data.digits import digits
from ffebm.experiment.data.given import find_given, given_dataset
from ffebm.experiment.data.own import Wishes
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
    "Wishes",
    "check",
    "condition_of",
    "default_folder",
    "digits",
    "find_given",
    "given_dataset",
    "is_own_place",
    "load",
    "load_for",
]
__dir__ = __all__.copy
