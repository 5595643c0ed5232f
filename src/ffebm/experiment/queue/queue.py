"""A queue of runs: finished ones are kept, begun ones go on, failed ones are reported, and the rest are carried out."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ffebm.experiment.clock import clock
from ffebm.experiment.errors import UserError
from ffebm.experiment.lock import locked
from ffebm.experiment.queue.cell import Cell, Progress, Stage
from ffebm.experiment.queue.launcher import Launcher
from ffebm.experiment.queue.store import Store

__all__ = ["Queue"]
__dir__ = __all__.copy

GLANCE = 2.0  # seconds between looks at the folders


class Queue:
    """Runs that belong together, in one folder.

    Args:
        data: the folder of the data sets, for all of them.
        store: where finished runs are kept; those that it holds already need not be run.
        checked: whether to measure how blocks and gradient stand at the end of each.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        launcher: Launcher,
        data: Path | None = None,
        *,
        store: Store | None = None,
        checked: bool = False,
    ) -> None:
        self.cells = cells
        self.folder = folder
        self.launcher = launcher
        self.data = data
        self.store = store
        self.checked = checked
        self.failures: dict[str, str] = {}  # by the name of a cell: what it said last
        self._running: set[str] = set()
        self._waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def run(self, console: Console) -> bool:
        """Carry all out; returns whether that was so, or an interruption came first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for cell in self.cells:
            cell.check(self.folder)
        if self.store is not None:
            self.store.bring(self.cells, self.folder)
        progress = self.progress()
        self.failures |= {cell.name: damage for cell in self.cells if (damage := cell.damage(self.folder))}
        done = [cell for cell in self.cells if progress[cell.name].stage is Stage.FINISHED and not self._unchecked(cell)]
        for cell in done:
            self._keep(cell)
        todo = [cell for cell in self.cells if cell not in done and cell.name not in self.failures]
        for cell in sorted(todo, key=lambda cell: progress[cell.name].stage is Stage.WAITING):  # those that are begun first
            self._waiting.put(cell)
        workers = min(self.launcher.slots, len(todo))
        if not workers:
            return True
        with self._locked(), ThreadPoolExecutor(workers) as pool, _on_interruption(self._stop):
            futures = [pool.submit(self._work, slot, console) for slot in range(workers)]
            try:
                with Live(self.table(), console=console, auto_refresh=False, transient=True) as live:
                    while not all(future.done() for future in futures):
                        if console.is_terminal:
                            live.update(self.table(), refresh=True)
                        _wait(futures, GLANCE)
            except BaseException:
                self._stop()  # or the pool would go on unseen
                raise
            for future in futures:
                future.result()
        return not self._stopping.is_set()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep a second queue out of the folder, where the system has such locks."""
        with locked(self.folder / "queue.lock") as ours:
            if not ours:
                raise UserError(f"Another queue of runs works in {self.folder}: let it finish, or stop it first.")
            yield

    def progress(self) -> dict[str, Progress]:
        return {cell.name: cell.progress(self.folder) for cell in self.cells}

    def _work(self, slot: int, console: Console) -> None:
        """Carry out one run after the other, until none is left."""
        while not self._stopping.is_set():
            try:
                cell = self._waiting.get_nowait()
            except queue.Empty:
                return
            log = self.folder / f"{cell.name}.log"
            self._running.add(cell.name)
            if not console.is_terminal:
                console.print(f"{cell.name}: begun", highlight=False)
            said_before = log.stat().st_size if log.exists() else 0
            try:
                words = self._carry_out(cell, log, slot, said_before)
            except Exception as error:  # one run's trouble, whatever it is, is not the others'
                words = f"Error: {type(error).__name__}: {error}"
            self._running.discard(cell.name)
            found = cell.progress(self.folder)
            if found.stage is Stage.FINISHED and not self._unchecked(cell):
                console.print(f"{cell.name}: {100 * (found.accuracy or 0):.2f} % after {clock(found.seconds)}", highlight=False)
            elif not self._stopping.is_set():
                self.failures[cell.name] = words
                console.print(f"[red]{cell.name} failed:[/] {escape(f'{words} ({log} has all that it said)')}", highlight=False)

    def _carry_out(self, cell: Cell, log: Path, slot: int, said_before: int) -> str:
        """Train it, measure how it stands at the end, and keep it, as far as that is still to be done; its last words."""
        code = 0
        if cell.progress(self.folder).stage is not Stage.FINISHED:
            code = self.launcher(cell.arguments(self.folder, self.data, self.launcher.threads), log, slot)
        if cell.progress(self.folder).stage is Stage.FINISHED:
            if self._unchecked(cell) and not self._stopping.is_set():
                code = self.launcher(cell.check_arguments(self.folder, self.data), log, slot)
            self._keep(cell)
        return _last_words(log, said_before, code) if log.exists() else ""

    def _unchecked(self, cell: Cell) -> bool:
        return self.checked and cell.lacks_check(self.folder)

    def _keep(self, cell: Cell) -> None:
        if self.store is not None:
            self.store.keep(cell, self.folder)

    def _stop(self) -> None:
        self._stopping.set()
        self.launcher.stop()

    def table(self) -> Table:
        """All runs, how far each has come, and how long it will take."""
        found = self.progress()
        left = self.remaining(found)
        done = sum(p.stage is Stage.FINISHED for p in found.values())
        title = f"{done} of {len(found)} runs are finished"
        if left:
            title += f", about {clock(max(sum(left.values()) / min(self.launcher.slots, len(left)), *left.values(), 0))} left"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
        for name in ("run", "state", "done", "epoch", "test accuracy", "time", "left"):
            table.add_column(name, justify="left" if name in ("run", "state") else "right", no_wrap=True)
        # Those that run or failed first: a long table may be cut off at the end of the screen.
        for cell in sorted(self.cells, key=lambda cell: cell.name not in self._running and cell.name not in self.failures):
            p = found[cell.name]
            state = "failed" if cell.name in self.failures else "running" if cell.name in self._running else p.stage.value
            colour = {"failed": "red", "running": "cyan", "finished": "green"}.get(state, "dim")
            table.add_row(
                cell.name,
                f"[{colour}]{state}[/]",
                f"{100 * p.share:.0f} %",
                f"{p.epoch}/{cell.settings.trainer.epochs}",
                "" if p.accuracy is None else f"{100 * p.accuracy:.2f} %",
                clock(p.seconds) if p.seconds else "",
                clock(left[cell.name]) if cell.name in left else "",
            )
        return table

    def remaining(self, found: Mapping[str, Progress]) -> dict[str, float]:
        """Seconds that each unfinished run still takes, from the pace of its epochs, or else from that of the others."""
        epochs = {cell.name: cell.settings.trainer.epochs for cell in self.cells}
        whole = {name: p.seconds * epochs[name] / p.epoch for name, p in found.items() if p.epoch}
        if not whole:
            return {}
        usual = sum(whole.values()) / len(whole)
        unfinished = [name for name, p in found.items() if p.stage is not Stage.FINISHED and name not in self.failures]
        return {name: whole.get(name, usual) * (1 - found[name].share) for name in unfinished}


def _last_words(log: Path, begin: int, code: int) -> str:
    """The error that a run ended with, or the last line that it said, from byte `begin` of its log on."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error")]
    words = (errors or lines or [""])[-1]
    return words if errors else f"{words} (exit code {code})".strip()


def _wait(futures: Sequence[Future[None]], seconds: float) -> None:
    """Until all are done, or so long. A signal's handler runs in between: waiting for a lock would hold it up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(future.done() for future in futures):
        time.sleep(0.1)


@contextmanager
def _on_interruption(stop: Callable[[], None]) -> Iterator[None]:
    """Have a signal to end call `stop`, and let things end by themselves."""
    signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda *_: stop()) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
