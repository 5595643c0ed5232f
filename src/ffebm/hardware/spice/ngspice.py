"""ngspice, the circuit simulator: found, run, and read."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ffebm.checks import brief_name
from ffebm.circuit import Circuit
from ffebm.errors import DeviceError, DeviceTimeoutError, UnsettledError
from ffebm.hardware.spice.netlist import netlist

__all__ = ["Voltages", "find_ngspice", "solve"]
__dir__ = __all__.copy

Voltages = list[list[float]]  # at every node of every layer, in their order, of every sample
Values = Sequence[dict[str, float]]  # of the sources that change, by name, for every sample


def find_ngspice() -> str:
    """The path of the program."""
    found = shutil.which("ngspice")
    if found is None:
        raise DeviceError(
            "ngspice is not installed, or not on PATH: it is a program of its own. On Debian and Ubuntu `apt install ngspice`, "
            "on macOS `brew install ngspice`, for others see https://ngspice.sourceforge.io."
        )
    return found


def solve(
    circuit: Circuit,
    values: Values = ({},),
    *,
    timeout: float | None = 60.0,
    started: Callable[[subprocess.Popen[bytes]], object] = lambda _: None,
) -> Voltages:
    """The operating point of a circuit for every sample, all in one process.

    Args:
        values: of the sources that change, for every sample; the others stay as they are in the circuit.
        timeout: seconds for all of them; None is without end.
        started: sees the process while it runs, and may kill it.
    """
    program = find_ngspice()
    nodes = [name for layer in circuit.layers for name in layer]
    with tempfile.TemporaryDirectory(prefix="ffebm-ngspice-") as folder:
        text = netlist(circuit, analysis=_analysis(circuit.sources, values, nodes))
        Path(folder, "circuit.cir").write_text(text, encoding="utf-8")
        command = [program, "-n", "-b", "circuit.cir"]  # -n: no start-up file of the person's own
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT) as process:
            started(process)
            try:
                said, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise DeviceTimeoutError(
                    f"ngspice has not solved {len(values)} operating points within {timeout:g} s: give it more time, or fewer."
                ) from None
            finally:
                process.kill()
        result = Path(folder, "voltages.raw")
        points = _read(result.read_bytes(), nodes) if result.exists() else []
    if process.returncode < 0:
        raise DeviceError(f"ngspice was ended by signal {-process.returncode}.")
    if len(points) != len(values):
        raise UnsettledError(_why(said.decode(errors="replace"), circuit, len(points)))
    return points


def _analysis(sources: dict[str, float], values: Values, nodes: Sequence[str]) -> list[str]:
    """One operating point after the other, of which only what changes is said."""
    lines = [".control", "set filetype=binary", "set appendwrite"]
    now = dict(sources)
    for sample in values:
        lines += [f"alter {name} = {value!r}" for name, value in sample.items() if now[name] != value]
        now |= sample
        lines += ["op", "write voltages.raw " + " ".join(f"v({name})" for name in nodes), "destroy all"]
    return [*lines, "quit 0", ".endc"]


def _read(content: bytes, nodes: Sequence[str]) -> Voltages:
    """The points of a raw file of ngspice: each has a head in text that names its numbers, in double precision."""
    points: Voltages = []
    begin, mark = 0, b"Binary:\n"
    while (end := content.find(mark, begin)) >= 0:
        head = content[begin:end].decode(errors="replace")
        names = re.findall(r"^\t\d+\tv\((\S+)\)\tvoltage", head, re.MULTILINE)  # a scale may come besides those asked for
        numbers = struct.Struct(f"={len(names)}d")
        begin = end + len(mark) + numbers.size
        if begin > len(content):  # it was killed while it wrote
            break
        volts = dict(zip(names, numbers.unpack_from(content, end + len(mark)), strict=True))
        points.append([volts[name] for name in nodes])
    return points


def _why(said: str, circuit: Circuit, solved: int) -> str:
    lines = [line.strip() for line in said.splitlines()]
    complaints = [line for line in lines if any(word in line.lower() for word in ("error", "singular", "converge", "aborted"))]
    told = f" It says: {brief_name(complaints[0], 200)}." if complaints else ""
    advice = (
        "Nearly ideal diodes are the hardest: take an ideality of 0.01 or more. A node that nothing but a diode holds has no "
        "voltage of its own: see whether all conductances into a unit are zero."
    )
    return (
        f"ngspice found no operating point of {brief_name(circuit.title, 120)} after {solved} that it did find.{told} {advice}"
    )
