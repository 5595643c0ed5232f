"""Blocks that are devices: what settles is a chip, a simulator or another process, and torch sees its readings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ffebm.checks import check_size, check_type
from ffebm.derivative import Gradients
from ffebm.energy import Energy
from ffebm.hardware.physical.bench import Bench
from ffebm.hardware.physical.driver import Currents, Driver
from ffebm.hardware.physical.parameters import parameters_of
from ffebm.relaxation import PhasesObserver, Relaxation, Relaxed
from ffebm.state import State
from ffebm.system import FREE, Phase, System

__all__ = ["Physical"]
__dir__ = __all__.copy


class Physical(System):
    r"""A device in place of a block: it settles, and what is read trains it by equilibrium propagation.

    Its parameters are those of the energy that describes it. The device is programmed with them whenever they have changed, and
    the energy makes gradients of its readings. A nudge by an error δ at layer ℓ is a constant current $-\beta \delta / c_\ell$.
    Where a nudge follows the state, as the elastic one of a last block, its current is that at the state where it begins.

    Args:
        driver: works the device; `block.system.driver = …` gives another one.
        energy: describes the device, and holds the parameters.
        timeout: seconds that a group of rows may take, programming included.
        retries: how often a group is asked for again, of a device that was reset, before its failure becomes an error.
    """

    def __init__(self, driver: Driver, energy: Energy, *, timeout: float = 60.0, retries: int = 2) -> None:
        super().__init__()
        check_type("driver", driver, Driver, "NgspiceDriver(energy)")
        check_type("energy", energy, Energy, "Resistive([Conductance(8, 3)])")
        check_size("retries", retries, 0)
        if not 0 < timeout < float("inf"):
            raise ValueError(f"`timeout` must be positive and finite, got {timeout}: a device that hangs says nothing.")
        self.energy = energy
        self.output_layer = energy.output_layer
        self.faintest = min(1.0, *(1 / energy.layer_weight(layer) for layer in range(len(energy.activations))))
        self.kind = f"Physical {type(energy).__name__}"
        self.timeout = timeout
        self.retries = retries
        self._bench = Bench(driver)  # one for all copies of the block

    @property
    def driver(self) -> Driver:
        return self._bench.driver

    @driver.setter
    def driver(self, driver: Driver) -> None:
        check_type("driver", driver, Driver, "NgspiceDriver(energy)")
        self._bench.driver = driver

    @torch.no_grad()
    def settle(
        self,
        x: Tensor,
        phases: Sequence[Phase],
        *,
        start: State | None = None,
        relax: Relaxation | None = None,
        observer: PhasesObserver | None = None,
    ) -> list[Relaxed]:
        if observer is not None:
            raise TypeError(
                "A device cannot be watched on its way: read it at the end of a phase, or watch a simulation of it."
            )
        if start is None and any(phase.nudge is not None for phase in phases):
            (free,) = self.settle(x, [FREE])
            start = free.state
        shapes = [tuple(s.shape[1:]) for s in self.energy.init_state(x[:1])]
        rows = torch.cat([x.detach()] * len(phases)).double()
        currents = self._currents(phases, start, shapes, rows)
        state = self._bench.ask(parameters_of(self.energy), rows, currents, shapes, self.timeout, self.retries)
        layers = zip(*(s.to(x).split(len(x)) for s in state), strict=True)
        at_rest, once = x.new_zeros(len(x)), torch.ones(len(x), dtype=torch.long, device=x.device)
        return [Relaxed(tuple(layer), at_rest, once) for layer in layers]

    def layer_weight(self, layer: int) -> float:
        return self.energy.layer_weight(layer)

    def confine_(self) -> None:
        self.energy.confine_()

    def contrast(self, high: State, low: State, x: Tensor, weights: Tensor) -> Gradients:
        return Gradients(*self.energy.contrast_gradient(high, low, x, weights)).renamed("", "energy.")

    def _currents(
        self, phases: Sequence[Phase], start: State | None, shapes: Sequence[tuple[int, ...]], rows: Tensor
    ) -> Currents:
        """Into every layer, phase after phase."""
        found: list[Tensor | None] = []
        for layer, shape in enumerate(shapes):
            forces = [None if start is None or phase.tilt is None else phase.tilt.force(start, layer) for phase in phases]
            if all(force is None for force in forces):
                found.append(None)
                continue
            none = rows.new_zeros(len(rows) // len(phases), *shape)
            pushed = [none if force is None else -self.energy.as_current(force.double(), layer) for force in forces]
            found.append(torch.cat(pushed))
        return found

    def extra_repr(self) -> str:
        return f"driver={self.driver!r}, timeout={self.timeout:g}, retries={self.retries}"
