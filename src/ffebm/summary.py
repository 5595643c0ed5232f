"""What a model is made of, as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ffebm.block import EnergyBlock
from ffebm.relaxation import Relaxed
from ffebm.walk import Chain, walk


@dataclass(frozen=True)
class Row:
    """One digital stage or analog block."""

    part: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]  # of its layers, without the batch
    parameters: int
    macs: int | None  # per sample: of a stage, or of one sweep of a block; None where they are not known


@dataclass(frozen=True)
class Summary:
    """A table of a model's parts; `print` it."""

    rows: tuple[Row, ...]

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def digital_macs(self) -> int | None:
        """Multiply-accumulates of all stages and the readout, for one sample."""
        return _total(row.macs for row in self.rows if row.kind == "digital")

    @property
    def analog_macs(self) -> int | None:
        """Multiply-accumulates of one sweep of every block, for one sample."""
        return _total(row.macs for row in self.rows if row.kind == "analog")

    def __str__(self) -> str:
        header = ("part", "kind", "layers", "parameters", "MACs per sample")
        body = [
            (row.part, row.kind, "  ".join(map(_shape, row.shapes)), f"{row.parameters:,}", _macs(row.macs, row.kind))
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in (header, *body)
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        digital, analog = _macs(self.digital_macs), _macs(self.analog_macs, "analog")
        return "\n".join([*lines, "", f"{self.parameters:,} parameters; MACs: digital {digital}, analog {analog}"])


@torch.no_grad()
def summarise(chain: Chain, readout: nn.Module, input_shape: tuple[int, ...]) -> Summary:
    """Push one empty sample through the stages, in evaluation mode, without relaxing anything."""
    parts = nn.ModuleList([*(part for pair in chain for part in pair), readout])
    reference = next(parts.parameters(), torch.empty(0))
    x = torch.zeros(1, *input_shape, dtype=reference.dtype, device=reference.device)
    rows: list[Row] = []
    with _evaluation(parts), _counting(*(stage for stage, _ in chain), readout) as counts:
        for visit in walk(chain, x, _unsettled):
            number, stage, block, _, x, (state, *_) = visit
            rows.append(_digital(f"stage {number}", stage, x, counts))
            shapes = tuple(tuple(s.shape[1:]) for s in state)
            rows.append(Row(f"block {number}", "analog", shapes, _parameters(block), block.sweep_macs(tuple(x.shape[1:]))))
            x = visit.output
        rows.append(_digital("readout", readout, readout(x), counts))
    return Summary(tuple(rows))


def _unsettled(block: EnergyBlock, x: Tensor) -> Relaxed:
    """Where a block would start."""
    state = tuple(x.new_zeros(1, *shape) for shape in block.layer_shapes(x))
    return Relaxed(state, x.new_zeros(1), torch.zeros(1))


def _digital(part: str, module: nn.Module, output: Tensor, counts: Counts) -> Row:
    return Row(part, "digital", (tuple(output.shape[1:]),), _parameters(module), _total(counts[module]))


Counts = dict[nn.Module, list[int | None]]  # multiply-accumulates by the part that made them; None where they are not known


@contextmanager
def _counting(*parts: nn.Module) -> Iterator[Counts]:
    """Count what the layers of these parts multiply, as long as it lasts."""
    counts: Counts = {part: [] for part in parts}
    hooks = [
        layer.register_forward_hook(lambda *call, part=part: counts[part].extend(_count(*call)))
        for part in counts
        for layer in part.modules()
    ]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def _count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> list[int | None]:
    """The multiply-accumulates of one layer, if it makes any itself."""
    own = getattr(layer, "macs", None)  # a layer that knows
    if own is not None:
        return [own(tuple(inputs[0].shape[1:]))]
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return [layer.weight[0].numel() * math.prod(output.shape[1:])]
    if isinstance(layer, nn.Linear):
        return [layer.weight.numel() * math.prod(output.shape[1:-1])]
    return [None] if any(p.dim() > 1 for p in layer.parameters(recurse=False)) else []  # a matrix not known here


@contextmanager
def _evaluation(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; every part then goes back to its own."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum, or None if a part of it is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _macs(count: int | None, kind: str = "digital") -> str:
    if count is None:
        return "unknown"
    return f"{count:,} per sweep" if kind == "analog" else f"{count:,}"
