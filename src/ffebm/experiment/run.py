"""The folder of a run: what it was asked, where it happened, what came out, and from where it goes on."""

from __future__ import annotations

import csv
import io
import json
import shlex
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ffebm.experiment.data import Description
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import write_atomically
from ffebm.experiment.settings import Settings, read_settings

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Row = Mapping[str, float]
PATIENCE = 8.0  # seconds that a lock is waited for: helpers of a killed process hold it a little longer


class RunError(UserError):
    """A run folder that cannot be used as asked."""


@dataclass(frozen=True)
class Run:
    """Names of the files in a run folder, and how they are read and written."""

    folder: Path

    @classmethod
    def create(cls, folder: Path | None, name: str) -> Run:
        """A new folder: the one asked for, which must be empty, or one of its own below `runs`."""
        if folder is None:
            stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
            candidates = [stem, *(stem.with_name(f"{stem.name}-{i}") for i in range(2, 100))]
        else:
            if folder.exists() and (not folder.is_dir() or any(path.suffix != ".part" for path in folder.iterdir())):
                raise RunError(
                    f"{folder} exists already: a new run would overwrite it. Name another folder, or go on with that run by "
                    f"`ffebm train --resume {shlex.quote(str(folder))}`."
                )
            folder.mkdir(parents=True, exist_ok=True)
            return cls(folder)
        for candidate in candidates:
            try:
                candidate.mkdir(parents=True)
            except FileExistsError:
                continue
            return cls(candidate)
        raise RunError(f"There are too many runs called {stem} already; name a folder with --output.")

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The folder of an earlier run."""
        run = cls(folder)
        if not run.settings_file.is_file():
            raise RunError(
                f"{folder} is no run folder: it has no {run.settings_file.name}. "
                "Name a folder that `ffebm train` has made, for example one below runs/."
            )
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from training into the same folder, where the system has such locks."""
        with self.settings_file.open("rb") as file:
            deadline = time.monotonic() + PATIENCE
            while fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() < deadline:
                        time.sleep(0.1)
                        continue
                    raise RunError(f"{self.folder} is being trained by another process: stop that one first.") from None
                except OSError:  # some network file systems have no locks
                    pass
                break
            yield

    def tidy(self) -> None:
        """Remove what a killed process had begun to write."""
        for folder in (self.folder, self.checkpoint_folder):
            for path in folder.glob(".*.part"):
                path.unlink(missing_ok=True)

    def discard_if_empty(self) -> None:
        """Undo `create` when nothing came of it."""
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    @property
    def settings_file(self) -> Path:
        return self.folder / "settings.toml"

    @property
    def weights_file(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def checkpoint_folder(self) -> Path:
        return self.folder / "checkpoints"

    def checkpoint_file(self, step: int) -> Path:
        return self.checkpoint_folder / f"step-{step:08d}.ckpt"

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted(self.checkpoint_folder.glob("step-*.ckpt"), reverse=True)

    def settings(self) -> Settings:
        return read_settings(self.settings_file)

    def save_description(self, description: Description) -> None:
        """So that the weights can be used where the data is not."""
        write_atomically(self.folder / "data.json", json.dumps(asdict(description), indent=1).encode())

    def description(self) -> Description:
        path = self.folder / "data.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            shape, classes, mean, std = (tuple(content[key]) for key in ("shape", "classes", "mean", "std"))
            return Description(str(content["name"]), shape, classes, mean, std)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path}, which names the classes, cannot be read: {error}.") from None

    def environments(self) -> list[dict[str, Any]]:
        """The places and times at which this run was started or resumed."""
        try:
            return json.loads((self.folder / "environment.json").read_text())
        except (OSError, ValueError):  # absent or damaged: this is a log, and no reason to stop
            return []

    def save_environment(self, environment: Mapping[str, Any]) -> None:
        """Add where and when this run was started or resumed."""
        content = json.dumps([*self.environments(), environment], indent=2)
        write_atomically(self.folder / "environment.json", content.encode())

    def save_metrics(self, rows: Sequence[Row]) -> None:
        """One row an epoch."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: int(v) if float(v).is_integer() else f"{v:.6g}" for key, v in row.items()} for row in rows)
        write_atomically(self.folder / "metrics.csv", text.getvalue().encode())

    def metrics(self) -> list[dict[str, float]]:
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        with path.open(newline="") as file:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]

    def save_weights(self, model: nn.Module) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_atomically(self.weights_file, save(tensors))

    def load_weights(self, model: nn.Module) -> str:
        """Give the model the weights of the last finished epoch, or of the newest sound checkpoint; says which."""
        if self.weights_file.is_file():
            try:
                weights, source = load_file(self.weights_file), self.weights_file
            except (SafetensorError, OSError) as error:
                raise RunError(f"{self.weights_file} is damaged: {error}. Remove it to use a checkpoint instead.") from None
        else:
            source, checkpoint = self.newest_checkpoint()[:2]
            if source is None:
                raise RunError(f"{self.folder} holds no weights yet: go on with it by `{resume_command(self)}`.")
            weights = {name.removeprefix("model."): tensor for name, tensor in checkpoint["state_dict"].items()}
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise RunError(f"{source} does not fit the model in {self.settings_file}: {error}") from None
        return source.name

    def newest_checkpoint(self) -> tuple[Path | None, dict[str, Any], list[str]]:
        """The newest checkpoint that is sound, what it holds, and a sentence on every newer one that is not."""
        reports: list[str] = []
        for path in self.checkpoints():
            try:
                return path, read_checkpoint(path), reports
            except RunError as error:
                reports.append(str(error))
        return None, {}, reports


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint holds: tensors, numbers and texts. Anything else in it is refused, and nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()  # compares checksums, which torch.load does not
        if broken is not None:
            raise RunError(f"{path} is damaged: the checksum of {broken} is wrong.")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except RunError:
        raise
    except Exception as error:  # what torch.load raises on foreign content has no common type
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"{path} is not a sound checkpoint ({reason}); nothing in it was run.") from None
    if not isinstance(content, dict) or not {"state_dict", "optimizer_states", "loops", "global_step"} <= content.keys():
        raise RunError(f"{path} is not a checkpoint of a training run.")
    tensors = content["state_dict"]
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise RunError(f"{path} holds no weights where a checkpoint has them.")
    return content


def remake_command(run: Run) -> str:
    return f"ffebm train {shlex.quote(str(run.settings_file))}"


def resume_command(run: Run) -> str:
    return f"ffebm train --resume {shlex.quote(str(run.folder))}"
