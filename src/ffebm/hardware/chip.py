"""One piece of hardware under one block, and a system as it shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ffebm.errors import block_name
from ffebm.hardware.converter import Converter, Range
from ffebm.hardware.devices import Cells
from ffebm.hardware.draws import Draws
from ffebm.nudge import Nudge
from ffebm.relaxation import Relaxed
from ffebm.state import Deltas, State
from ffebm.substrate import Chip, Readout
from ffebm.system import Phase, System, SystemWrapper
from ffebm.twin import holding, with_children

if TYPE_CHECKING:
    from ffebm.hardware.hardware import Hardware

__all__ = ["AnalogChip", "Disturbed"]
__dir__ = __all__.copy

FORGET = 1e-3  # of a learned range at every step, so that one outlier does not widen it for ever


class AnalogChip(Chip):
    """The piece of hardware that one block runs on; its buffers are what learned ranges have seen.

    Args:
        layers: that are read, where the number is known; else ranges are made when they are first needed.
    """

    seen_at_input: Tensor  # (1, 2): lowest and highest
    seen_in_layers: Tensor  # (layers, 2)

    def __init__(self, hardware: Hardware, layers: int | None = None) -> None:
        super().__init__()
        self.substrate = self.hardware = hardware
        self._watcher: Callable[[Readout], object] | None = None
        self.restless = any(device.restless for device in hardware.devices)
        self.register_buffer("seen_at_input", torch.zeros(1, 2))
        self.register_buffer("seen_in_layers", torch.zeros(layers or 0, 2))

    def enter(self, x: Tensor) -> Tensor:
        converter = self.hardware.dac
        if converter is None:
            return x
        self.seen_at_input = seen = self._looked(self.seen_at_input, [x], converter)
        return converter.convert(x, converter.span(*seen[0].to(x)), self._draws(), "input")

    def over(self, system: System) -> Disturbed:
        draws = self._draws()
        written = self._written(system, draws, "") if any(device.writes for device in self.hardware.devices) else system
        if any(device.splits for device in self.hardware.devices):
            written = written.returning(self._written(system, draws, "back"))
        return Disturbed(written, self, draws)

    def watch(self, watcher: Callable[[Readout], object] | None) -> None:
        self._watcher = watcher

    def report(self, start: State, states: Sequence[State]) -> None:
        """Tell them of these readings."""
        if self._watcher is None:
            return
        converter, spans = self.hardware.adc, self.spans(start)
        ended = moved = total = 0
        for layer, (begun, span) in enumerate(zip(start, spans, strict=True)):
            readings = torch.stack([begun, *(state[layer] for state in states)])
            step = None if converter is None else converter.step(span)
            least = 0.0 if step is None else 0.5 * step
            moved += int((readings.amax(0) - readings.amin(0) > least).sum())
            total += begun.numel()
            if converter is not None and span is not None:
                ended += int((~converter.inside(readings[1:], span)).sum())
        self._watcher(Readout(ended / (total * len(states)), 1 - moved / total))

    def look(self, state: State) -> None:
        """Widen learned ranges to a free reading."""
        converter = self.hardware.adc
        if converter is not None:
            self.seen_in_layers = self._looked(self.seen_in_layers, state, converter)

    def spans(self, state: State) -> list[Range | None]:
        """The range of every layer's converters."""
        converter = self.hardware.adc
        if converter is None:
            return [None] * len(state)
        seen = self.seen_in_layers
        if converter.learns and not bool(seen.any()):  # never trained: what there is now
            seen = _extremes(state)
        seen = seen if len(seen) == len(state) else torch.zeros(len(state), 2)
        return [converter.span(*ends.to(s)) for ends, s in zip(seen, state, strict=True)]

    @torch.no_grad()
    def _looked(self, seen: Tensor, values: Sequence[Tensor], converter: Converter) -> Tensor:
        """What has been seen, with this; unchanged in evaluation, where nothing has been seen before either."""
        if not converter.learns or not (self.training or not bool(seen.any())):
            return seen
        now = _extremes(values).to(seen)
        if len(seen) != len(now):
            return now
        seen = seen * (1 - FORGET)
        return torch.stack([torch.minimum(seen[:, 0], now[:, 0]), torch.maximum(seen[:, 1], now[:, 1])], 1)

    def _draws(self) -> Draws:
        return Draws(self.hardware.seed, block_name(), training=self.training)

    def _written(self, system: System, draws: Draws, side: str) -> System:
        """The system with the weights that its devices hold."""
        tensors: dict[str, Tensor] = {}
        done: dict[int, Tensor] = {}
        for name, weight in system.named_parameters(remove_duplicate=False):
            if weight.dim() > 1:
                if id(weight) not in done:
                    done[id(weight)] = _Straight.apply(weight, self._held(weight.detach(), draws, name, side))
                tensors[name] = done[id(weight)]
        return holding(system, tensors)

    @torch.no_grad()
    def _held(self, weight: Tensor, draws: Draws, name: str, side: str) -> Tensor:
        largest = weight.abs().amax()
        if not bool(largest > 0):
            return weight.clone()
        cells = Cells.of(weight, largest)
        for device in self.hardware.devices:
            cells = device.written(cells, draws, name + side)
        return cells.weight(largest, pairs=self.hardware.pairs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take ranges of as many layers as there are."""
        seen = state_dict.get(f"{prefix}seen_in_layers")
        if isinstance(seen, Tensor) and len(self.seen_in_layers) == 0:
            self.seen_in_layers = seen.clone()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return repr(self.hardware)


class Disturbed(SystemWrapper):
    """A system on a chip, for one pass: phases settle on its devices, and its converters read where they end."""

    def __init__(self, system: System, chip: AnalogChip, draws: Draws) -> None:
        super().__init__(system)
        self._chip = (chip,)  # not a part: what it learns is the block's
        self.draws = draws
        self.kind = f"{system.kind} on hardware"

    @property
    def chip(self) -> AnalogChip:
        return self._chip[0]

    @torch.no_grad()
    def settle(self, x: Tensor, phases: Sequence[Phase], **how: Any) -> list[Relaxed]:
        hardware = self.chip.hardware
        relax = how.get("relax") or self.system.own_way
        if relax is not None:
            for device in hardware.devices:
                relax = device.shortened(relax)
            how["relax"] = relax
        disturbed = [self._disturbed(phase) for phase in phases]
        if any(device.ages for device in hardware.devices):
            numbers = _numbered(phases)
            found = [self._aged(number).settle(x, [phase], **how)[0] for number, phase in zip(numbers, disturbed, strict=True)]
        else:
            found = self.system.settle(x, disturbed, **how)
        read = [self._read(reading, free=phase.nudge is None) for reading, phase in zip(found, phases, strict=True)]
        start = how.get("start")
        if start is not None:
            self.chip.report(start, [reading.state for reading in read])
        return read

    def tangent(self, state: State) -> NoReturn:
        raise TypeError(
            f"{block_name()} runs on hardware, which has no tangent: its converters see no nudge that is infinitely small. Use "
            '`EquilibriumPropagation(variant="centered")`, as `build` does by default with `hardware`.'
        )

    def holomorphic(self) -> NoReturn:
        raise TypeError(f"{block_name()} runs on hardware, and settles under real nudges only: use `Stencil.centered()`.")

    def latched(self, state: State) -> Disturbed:
        return with_children(self, system=self.system.latched(state))

    def arriving(self, state: State, deltas: Deltas) -> Deltas:
        """A reading at the end of its range would be no other if what is behind it were: errors go no further there."""
        converter = self.chip.hardware.adc
        if converter is None:
            return deltas
        spans = self.chip.spans(state)
        inside = [None if span is None else converter.inside(s, span) for s, span in zip(state, spans, strict=True)]
        return tuple(d if d is None or i is None else d * i for d, i in zip(deltas, inside, strict=True))

    def _disturbed(self, phase: Phase) -> Phase:
        devices = [device for device in self.chip.hardware.devices if device.disturbs]
        if not devices:
            return phase

        def current(like: Tensor, layer: int) -> Tensor:
            return self.system.layer_weight(layer) * torch.stack([d.current(like, self.draws) for d in devices]).sum(0)

        return Phase(_Noisy(phase.tilt, current), 1.0)

    def _aged(self, number: int) -> System:
        weights: dict[str, Tensor] = {}
        for name, weight in self.system.named_parameters(remove_duplicate=False):
            if weight.dim() > 1:
                weights[name] = weight.detach()
                for device in self.chip.hardware.devices:
                    weights[name] = device.aged(weights[name], number, self.draws, name)
        return holding(self.system, weights)

    def _read(self, reading: Relaxed, *, free: bool) -> Relaxed:
        chip, converter = self.chip, self.chip.hardware.adc
        if converter is None:
            return reading
        if free:
            chip.look(reading.state)
        spans = chip.spans(reading.state)
        wanted = range(len(reading.state))
        if chip.hardware.read == "output":
            wanted = [self.output_layer % len(reading.state)]
        state = [
            converter.convert(s, span, self.draws, f"layer {layer}") if layer in wanted else s
            for layer, (s, span) in enumerate(zip(reading.state, spans, strict=True))
        ]
        return reading._replace(state=tuple(state))


@dataclass(frozen=True)
class _Noisy(Nudge):
    """A nudge, if there is one, and noise at every sweep."""

    nudge: Nudge | None
    noise: Any  # (state of a layer, its number) -> a force on it

    def force(self, state: State, layer: int) -> Tensor:
        noise = self.noise(state[layer], layer)
        force = None if self.nudge is None else self.nudge.force(state, layer)
        return noise if force is None else noise + force


class _Straight(torch.autograd.Function):
    """What devices hold in place of a weight, whose gradient is handed on to it as it is."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, held: Tensor) -> Tensor:  # noqa: ARG004
        return held

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


def _numbered(phases: Sequence[Phase]) -> list[int]:
    """0 for free phases, and 1, 2, … for nudged ones."""
    numbers: list[int] = []
    for phase in phases:
        numbers.append(0 if phase.nudge is None else max(numbers, default=0) + 1)
    return numbers


def _extremes(values: Sequence[Tensor]) -> Tensor:
    """The lowest and the highest of each, (layers, 2)."""
    return torch.stack([torch.stack([s.amin(), s.amax()]) for s in values]).detach()
