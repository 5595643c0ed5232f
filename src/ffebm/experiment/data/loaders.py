"""The data sets behind the loaders of a Lightning data module, which itself says how they are brought."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from ffebm.checks import brief_name
from ffebm.experiment.errors import DataError

__all__ = ["of_module"]
__dir__ = __all__.copy


def of_module(module: Any) -> tuple[Any, Any]:
    """What it trains on, and what it tests on: validates on, where it has no test images; None, where it has neither."""
    module.prepare_data()
    module.setup("fit")
    train = _behind(module.train_dataloader(), "train_dataloader")
    if train is None:
        raise DataError("The data module's train_dataloader gives nothing to train on.")
    module.setup("test")
    for name in ("test_dataloader", "val_dataloader"):
        found = _behind(_loader(module, name), name)
        if found is not None:
            return train, found
    return train, None


def _loader(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)()
    except Exception as error:
        # What Lightning raises where a module has none: of `lightning` or of `pytorch_lightning`, whichever it is.
        if type(error).__name__ == "MisconfigurationException" and f"`{name}` must be implemented" in str(error):
            return None
        raise


def _behind(loader: Any, name: str) -> Any:
    """The data set of a loader that takes each of its samples once."""
    if type(loader) in (list, tuple) and len(loader) <= 1:
        loader = loader[0] if loader else None
    if loader is None:
        return None
    if not hasattr(loader, "dataset"):
        raise DataError(
            f"The data module's {name} gives a {brief_name(type(loader).__name__)}, and a run learns one data set: give one "
            "DataLoader, for example of a torch.utils.data.ConcatDataset."
        )
    data, sampler, batches = loader.dataset, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if isinstance(data, IterableDataset):
        return data  # a stream, which is refused where others are
    odd = [each for each, plain in ((sampler, _is_plain(sampler, len(data))), (batches, _cuts(batches))) if not plain]
    if odd:
        raise DataError(
            f"The data module's {name} draws its samples by a {brief_name(type(odd[0]).__name__)}, and a run by itself, each "
            "once an epoch. Give the loader a data set that holds what is to be drawn, for example a torch.utils.data.Subset."
        )
    return data


def _is_plain(sampler: Any, count: int) -> bool:
    """Whether it takes each sample once, in some order."""
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == count
    return sampler is None or isinstance(sampler, SequentialSampler)


def _cuts(batches: Any) -> bool:
    """Whether it only cuts the samples into batches."""
    return batches is None or type(batches) is BatchSampler
