"""Checkpoints: written whole or not at all, the newest kept, and one before a run is stopped by a signal."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ffebm.checks import brief_name
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import write_atomically
from ffebm.experiment.packing import packed
from ffebm.experiment.run import Run, RunError, read_checkpoint, step_of

__all__ = ["AtomicCheckpointIO", "Checkpoints", "Stopped"]
__dir__ = __all__.copy

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOGETHER = 1.0  # seconds within which two signals are one: `timeout` sends it to the process and to its group


class Stopped(UserError):  # noqa: N818 - not an error, but an end
    """A signal ended training; a checkpoint was written before, unless it was the second."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__(f"Stopped by {signal.Signals(number).name} {when}.")
        self.exit_code = 128 + number


class AtomicCheckpointIO(CheckpointIO):
    """How Lightning writes and reads checkpoint files."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        try:
            write_atomically(Path(path), packed(checkpoint))
        except OSError as error:
            raise RunError(f"The checkpoint {path} cannot be written: {error}. Mend that, then resume the run.") from None
        except TypeError as error:
            if keepers := [name for name, state in _remembered(checkpoint) if not _can_be_kept(state)]:
                raise RunError(
                    f"{brief_name(keepers[0])} remembers what no checkpoint can hold. {error} Let its `state_dict` return "
                    "those alone, in dictionaries, lists and tuples."
                ) from error
            raise

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class Checkpoints(Checkpoint):
    """Saves every so many steps, at the end of every epoch, and when a signal asks to stop.

    As a `Checkpoint`, Lightning calls it after all others at the end of an epoch, when the metrics of that are complete.
    """

    def __init__(self, run: Run, every: int, keep: int) -> None:
        self.run = run
        self.every = every
        self.keep = keep
        self._signal = 0
        self._noted = 0.0
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Later than Lightning's own, which would stop in the middle of what they please.
        with suppress(ValueError):  # not in the main thread, where signals are not ours to handle
            self._handlers = {number: signal.signal(number, self._note) for number in SIGNALS}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # The last batch of an epoch is not yet all of it: testing and the row of metrics follow.
        halfway = (batch_idx + 1) % trainer.accumulate_grad_batches
        if halfway or trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        wanted = self._asked_to_stop(trainer)
        if wanted or trainer.global_step % self.every == 0:
            self._save(trainer)
        if wanted:
            raise Stopped(wanted, f"after step {trainer.global_step}; nothing is lost")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer)
        wanted = self._asked_to_stop(trainer)
        if wanted and trainer.current_epoch + 1 < (trainer.max_epochs or 0):
            raise Stopped(wanted, f"after step {trainer.global_step}; nothing is lost")

    def _asked_to_stop(self, trainer: Trainer) -> int:
        """The signal that this or any other process was sent, or 0: all stop at the same step."""
        if trainer.world_size == 1:
            return self._signal
        asked = torch.tensor(self._signal, device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(asked, reduce_op="max"))

    def _save(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self.run.check_there()
        trainer.save_checkpoint(self.run.checkpoint_file(trainer.global_step))
        if trainer.is_global_zero:
            # Those of later steps are not of this run: were they counted, its own would be thrown away for them.
            own = [path for path in self.run.checkpoints() if step_of(path) <= trainer.global_step]
            for path in own[self.keep :]:
                path.unlink(missing_ok=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal. A second one ends the process at once, unless it comes along with the first."""
        now = time.monotonic()
        if self._signal and now - self._noted > TOGETHER:
            raise Stopped(number, "at once; the steps since the last checkpoint are lost")
        if not self._signal:
            self._signal, self._noted = number, now

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def _remembered(checkpoint: dict[str, Any]) -> list[tuple[str, Any]]:
    """What may be of somebody's own making, by the name of who remembers it."""
    callbacks = [(f"The callback {name}", state) for name, state in checkpoint.get("callbacks", {}).items()]
    return [*callbacks, ("The optimiser", checkpoint.get("optimizer_states", []))]


def _can_be_kept(state: Any) -> bool:
    try:
        packed({"state": state})
    except TypeError:
        return False
    return True
