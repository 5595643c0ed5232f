"""The folder of a run: what it was asked, where it happened, what came out, and from where it goes on."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffebm.checks import brief
from ffebm.experiment.data import Description
from ffebm.experiment.errors import Remark, RunError, UserError
from ffebm.experiment.files import read_regular, write_atomically
from ffebm.experiment.lock import locked
from ffebm.experiment.packing import SUFFIX, unpacked
from ffebm.experiment.places import SETTINGS, check_is_run
from ffebm.experiment.sealed import SealError, UnsealedError, seal, unseal
from ffebm.experiment.settings import Settings, read_settings

__all__ = ["COLUMNS", "LARGEST", "Run", "check_row", "read_checkpoint", "remake_command", "resume_command", "step_of"]
__dir__ = __all__.copy

PATIENCE = 8.0  # seconds that a lock is waited for: helpers of a killed process hold it a little longer
LARGEST = 1 << 22  # bytes of a file of texts in a run folder: twenty thousand epochs are less
COLUMNS = ("epoch", "step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_top5", "residual", "seconds")
KINDS = (torch.float32, torch.int64)  # of weights, and of what batch-norms count
OTHER_FLOATS = (torch.float64, torch.float16)
SHARES = ("train_accuracy", "test_accuracy", "test_top5")


@dataclass(frozen=True)
class Run:
    """Names of the files in a run folder, and how they are read and written.

    Args:
        trust: whether code may be run that its settings name: the folder may be anybody's.
    """

    folder: Path
    trust: bool = field(default=False, compare=False, kw_only=True)

    @classmethod
    def create(cls, folder: Path | None, name: str) -> Run:
        """A new folder: the one asked for, which must be empty, or one of its own below `runs`."""
        if folder is not None:
            run = cls(folder)
            if folder.exists() and (not folder.is_dir() or run.holds_something):
                raise run._taken()
            folder.mkdir(parents=True, exist_ok=True)
            return run
        stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        for candidate in (stem, *(stem.with_name(f"{stem.name}-{i}") for i in range(2, 100))):
            with suppress(FileExistsError):
                candidate.mkdir(parents=True)
                return cls(candidate)
        raise RunError(f"There are too many runs called {stem} already; name a folder with --output.")

    @classmethod
    def open(cls, folder: Path, *, trust: bool = False) -> Run:
        """The folder of an earlier run."""
        check_is_run(folder)
        return cls(folder, trust=trust)

    @property
    def holds_something(self) -> bool:
        """More than what every process that was here leaves behind."""
        return any(path != self.lock_file and path.suffix != ".part" for path in self.folder.iterdir())

    def _taken(self) -> RunError:
        return RunError(
            f"{self.folder} exists already: a new run would overwrite it. Name another folder, or go on with that run by "
            f"`{resume_command(self)}`."
        )

    @property
    def is_saved_model(self) -> bool:
        """Whether it holds a model that was taken away, and nothing of how it was trained."""
        trained = (self.folder / "metrics.csv", self.folder / "environment.json", self.checkpoint_folder)
        return self.weights_file.is_file() and not any(path.exists() for path in trained)

    def damage(self) -> str:
        """Why its settings or its metrics cannot be read; nothing, where they can."""
        try:
            self.settings()
            self.metrics()
        except UserError as error:
            return str(error)
        return ""

    @contextmanager
    def locked(self, *, new: bool = False) -> Iterator[None]:
        """Keep a second process from training into the same folder, where the system has such locks.

        Args:
            new: refuse a folder that another process has begun a run in since it was found empty.
        """
        if not new and not self.folder.is_dir():
            raise RunError(f"{self.folder} is not there any more: it was removed by somebody else.")
        with locked(self.lock_file, PATIENCE) as ours:
            if not ours:
                raise RunError(f"{self.folder} is being trained by another process: stop that one first.")
            if new and self.holds_something:
                raise self._taken()
            yield

    def check_there(self) -> None:
        """Writing into a folder that was deleted would bring a part of it back."""
        if not self.settings_file.is_file():
            raise RunError(f"{self.folder} was deleted, or emptied, while it was trained into: there is nowhere to go on.")

    def tidy(self) -> None:
        """Remove what a killed process had begun to write."""
        for folder in (self.folder, self.checkpoint_folder):
            for path in folder.glob(".*.part"):
                path.unlink(missing_ok=True)

    def discard_if_empty(self) -> None:
        """Undo `create` when nothing came of it."""
        with suppress(OSError), locked(self.lock_file) as ours:
            if ours and not self.holds_something:  # else another process has begun here
                self.lock_file.unlink()
                self.folder.rmdir()

    @property
    def lock_file(self) -> Path:
        return self.folder / ".lock"

    @property
    def settings_file(self) -> Path:
        return self.folder / SETTINGS

    @property
    def weights_file(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def gradient_file(self) -> Path:
        """How close the first gradient was to the one at equilibrium."""
        return self.folder / "gradient.json"

    @property
    def final_file(self) -> Path:
        """How its blocks and its gradient stand at the end."""
        return self.folder / "final.json"

    @property
    def checkpoint_folder(self) -> Path:
        return self.folder / "checkpoints"

    def checkpoint_file(self, step: int) -> Path:
        return self.checkpoint_folder / f"step-{step:08d}{SUFFIX}"

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        found = self.checkpoint_folder.glob(f"step-*{SUFFIX}")
        return sorted((path for path in found if re.fullmatch(r"step-\d{8,12}", path.stem)), key=step_of, reverse=True)

    def settings(self) -> Settings:
        settings = read_settings(self.settings_file)
        return settings if self.trust else settings.from_elsewhere()

    def save_description(self, description: Description) -> None:
        """So that the weights can be used where the data is not."""
        write_atomically(self.folder / "data.json", json.dumps(asdict(description), indent=1).encode())

    @property
    def described(self) -> bool:
        """Whether training has begun, and left a description of its data."""
        return (self.folder / "data.json").exists()

    def description(self) -> Description:
        path = self.folder / "data.json"
        try:
            content = json.loads(read_regular(path, LARGEST))
            shape, classes, mean, std = (tuple(content[key]) for key in ("shape", "classes", "mean", "std"))
            found = Description(str(content["name"]), shape, classes, mean, std, content.get("fingerprint", ""))
            _check_description(found)
            return found
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = brief(error) if isinstance(error, KeyError) else error
            raise RunError(f"{path}, which names the classes, cannot be read: {reason}.") from None

    def environments(self) -> list[dict[str, Any]]:
        """The places and times at which this run was started or resumed."""
        path = self.folder / "environment.json"
        try:
            found = json.loads(read_regular(path, LARGEST))
            if not isinstance(found, list) or not all(isinstance(place, dict) for place in found):
                raise ValueError("it should be a list of objects")
            return found
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path}, which says where this run was made, cannot be read: {error}. Remove or mend it.") from None

    def save_environment(self, environment: Mapping[str, Any]) -> None:
        """Add where and when this run was started or resumed. A log that cannot be read is laid aside: no reason to stop."""
        path = self.folder / "environment.json"
        try:
            before = self.environments()
        except RunError:
            path.replace(path.with_name("environment.damaged"))
            before = []
        write_atomically(path, json.dumps([*before, environment], indent=2).encode())

    def save_metrics(self, rows: Sequence[Mapping[str, float]]) -> None:
        """One row an epoch."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: int(v) if float(v).is_integer() else f"{v:.6g}" for key, v in row.items()} for row in rows)
        write_atomically(self.folder / "metrics.csv", text.getvalue().encode())

    def metrics(self) -> list[dict[str, float]]:
        """The rows that `save_metrics` wrote; none, where there are none yet."""
        path = self.folder / "metrics.csv"
        try:
            lines = io.StringIO(read_regular(path, LARGEST).decode("utf-8"), newline="")
            rows: list[dict[str, float]] = []
            for found in csv.DictReader(lines, strict=True):
                rows.append({key: float(value) for key, value in found.items()})
                check_row(rows[-1], len(rows))
            return rows
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise RunError(f"{path} is damaged: {error}. Checkpoints hold these numbers as well.") from None

    def save_weights(self, model: nn.Module) -> None:
        write_atomically(self.weights_file, seal(model.state_dict()))

    def check_fit(self, weights: Mapping[str, Tensor], source: Path, model: nn.Module) -> None:
        """Refuse weights that are not those of a model like this one; it may be on the meta device."""
        kinds = [
            {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
            for tensors in (weights, model.state_dict())
        ]
        for name in sorted(kinds[0].keys() | kinds[1].keys()):
            found, wanted = (kind.get(name, "missing") for kind in kinds)
            if found != wanted:
                reason = f"{brief(name)} is {found}, and should be {wanted}"
                raise RunError(f"{source} does not fit the model in {self.settings_file}: {reason}.")

    def weights(self) -> tuple[dict[str, Tensor], Path]:
        """Those of the last finished epoch, or of the newest sound checkpoint: finite numbers; and the file they are from."""
        if self.weights_file.is_file():
            source = self.weights_file
            try:
                weights = unseal(source)[0]
            except UnsealedError as old:
                warnings.warn(
                    f"{source} is of an earlier version, without a checksum: damage would go unnoticed.", Remark, stacklevel=2
                )
                weights = old.tensors
            except SealError as error:
                raise RunError(f"{source} is damaged: {error}. Move it away to use a checkpoint instead.") from None
        else:
            source, checkpoint, reports = self.newest_checkpoint()
            if source is None:
                if reports:
                    raise RunError(f"{reports[0]} There is none before it; make the run again by `{remake_command(self)}`.")
                raise RunError(f"{self.folder} holds no weights yet: go on with it by `{resume_command(self)}`.")
            weights = {
                name.removeprefix("model."): tensor
                for name, tensor in checkpoint["state_dict"].items()
                if name.startswith("model.")
            }
        # What was trained in double precision, or is kept in half, is used in single; what overflows then is refused.
        weights = {name: tensor.float() if tensor.dtype in OTHER_FLOATS else tensor for name, tensor in weights.items()}
        for name, tensor in weights.items():
            if tensor.dtype not in KINDS or (tensor.is_floating_point() and not bool(tensor.isfinite().all())):
                raise RunError(f"{source} holds something else than finite numbers, in {brief(name)}: it is of no use.")
        return weights, source

    def newest_checkpoint(
        self, check: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> tuple[Path | None, dict[str, Any], list[str]]:
        """The newest checkpoint that is sound, what it holds, and a sentence on every newer one that is not.

        Args:
            check: raises a `RunError` for content that cannot be used.
        """
        reports: list[str] = []
        for path in self.checkpoints():
            try:
                content = read_checkpoint(path)
            except RunError as error:
                reports.append(str(error))
                continue
            try:
                check(content)
            except RunError as error:
                reports.append(f"{path} cannot be used: {error}")
                continue
            return path, content, reports
        old = [] if reports else sorted(self.checkpoint_folder.glob("step-*.ckpt"))
        if old:
            reports.append(f"{old[-1]} was written by an earlier version, in a format that this one does not read.")
        return None, {}, reports


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint holds: tensors, numbers and texts. There is nothing in such a file that could be run."""
    try:
        content = unpacked(path)
    except SealError as error:
        raise RunError(f"{path} is not a sound checkpoint: {error}.") from None
    tensors = content.get("state_dict")
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise RunError(f"{path} is not a checkpoint of a training run: it holds no weights.")
    return content


def check_row(row: Mapping[str, float], epoch: int) -> None:
    """Refuse what no epoch comes to; losses and residuals of a run that fails may be anything."""
    if row.get("epoch") != epoch or not all(column in row for column in COLUMNS):
        raise ValueError(f"row {epoch} is not that of epoch {epoch}, or lacks a column")
    shares, amounts = ([row[column] for column in columns] for columns in (SHARES, ("step", "seconds")))
    if not all(0 <= share <= 1 for share in shares) or not all(0 <= amount < 1e18 for amount in amounts):
        raise ValueError(f"row {epoch} has accuracies, steps or times that cannot be")


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written, by its name."""
    return int(checkpoint.stem.partition("-")[2])


def _check_description(found: Description) -> None:
    """Refuse what no data set is: files are edited, and bits flip."""
    channels = found.shape[0] if found.shape else 0
    sized = len(found.shape) == 3 and channels in (1, 3) and all(type(size) is int and 0 < size <= 1024 for size in found.shape)
    names = all(isinstance(name, str) and 0 < len(name) <= 100 and name.isprintable() for name in found.classes)
    if not sized or not names or len(set(found.classes)) != len(found.classes) or not 0 < len(found.classes) <= 100_000:
        raise ValueError("the shape of images or the names of classes are wrong")
    if not isinstance(found.fingerprint, str) or not re.fullmatch(r"(?:[0-9a-f]{64})?", found.fingerprint):
        raise ValueError("the fingerprint of the images is none")
    statistics = (found.mean, found.std)
    if not all(len(each) == channels and all(type(n) is float and math.isfinite(n) for n in each) for each in statistics):
        raise ValueError("mean and deviation must be a number for each channel")
    if min(found.std) < 1e-6 or max(map(abs, (*found.mean, *found.std))) > 1e6:
        raise ValueError("mean and deviation are of bytes over 255")


def remake_command(run: Run) -> str:
    return f"ffebm train {shlex.quote(str(run.settings_file))}"


def resume_command(run: Run) -> str:
    return f"ffebm train --resume {shlex.quote(str(run.folder))}"
