"""ngspice as a device: every sample and phase is the operating point of a circuit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import final

import torch
from torch import Tensor

from ffebm.checks import check_size, check_type
from ffebm.circuit import Circuit, Junction
from ffebm.energy import Energy
from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.hardware.physical.parameters import load_parameters
from ffebm.hardware.spice.ngspice import Values, Voltages, find_ngspice, solve
from ffebm.state import State

__all__ = ["NgspiceDriver"]
__dir__ = __all__.copy


@final
class NgspiceDriver(Driver):
    """Solves the circuit of an energy by ngspice, which has to be installed.

    Args:
        energy: one that has a circuit, such as `Resistive`; copied.
        ideal: the diode that stands in for ideal ones, which no simulator knows.
        processes: how many run at once; rows are dealt out to them.
    """

    rows: int | None = None

    def __init__(self, energy: Energy, *, ideal: Junction = Junction(ideality=1e-4), processes: int = 1) -> None:
        check_type("energy", energy, Energy, "Resistive([Conductance(8, 3)])")
        check_type("ideal", ideal, Junction, "Junction(ideality=1e-4)")
        check_size("processes", processes)
        find_ngspice()
        self.energy = deepcopy(energy).double()
        self.ideal = ideal
        self.processes = processes
        self._circuit: Circuit | None = None  # with these parameters, for an input of this shape
        self._x = torch.empty(0)
        self._currents: Currents = ()
        self._volts: Voltages = []
        self._running: set[subprocess.Popen[bytes]] = set()

    def program(self, parameters: Mapping[str, Tensor]) -> None:
        load_parameters(self.energy, parameters)
        self._circuit = None

    def set_input(self, x: Tensor) -> None:
        if self._circuit is None or x.shape[1:] != self._x.shape[1:]:
            self._circuit = self.energy.circuit(tuple(x.shape[1:]), ideal=self.ideal)
        self._x = x

    def apply_nudge(self, currents: Currents) -> None:
        self._currents = currents

    def settle(self) -> None:
        circuit = self._circuit
        assert circuit is not None, "an input comes first"
        inputs = self._x.flatten(1).tolist()
        pushed = [None if current is None else current.flatten(1).tolist() for current in self._currents]
        values = [
            circuit.values(x, [None if current is None else current[row] for current in pushed]) for row, x in enumerate(inputs)
        ]
        size = -(-len(values) // self.processes)
        portions = [values[begin : begin + size] for begin in range(0, len(values), size)]
        if len(portions) == 1:
            self._volts = self._solved(circuit, values)
            return
        with ThreadPoolExecutor(len(portions)) as pool:
            found = pool.map(lambda portion: self._solved(circuit, portion), portions)
            self._volts = [row for portion in found for row in portion]

    def _solved(self, circuit: Circuit, values: Values) -> Voltages:
        started: list[subprocess.Popen[bytes]] = []
        try:
            return solve(
                circuit, values, timeout=None, started=lambda process: (started.append(process), self._running.add(process))
            )
        finally:
            self._running.difference_update(started)

    def read(self) -> State:
        circuit = self._circuit
        assert circuit is not None
        volts = torch.tensor(self._volts, dtype=torch.float64) / circuit.volts
        layers = volts.split([len(layer) for layer in circuit.layers], 1)
        shapes = [s.shape[1:] for s in self.energy.init_state(self._x[:1])]
        return tuple(layer.view(-1, *shape) for layer, shape in zip(layers, shapes, strict=True))

    def reset(self) -> None:
        for process in tuple(self._running):
            process.kill()

    def close(self) -> None:
        self.reset()

    def __repr__(self) -> str:
        return f"NgspiceDriver({type(self.energy).__name__})"
