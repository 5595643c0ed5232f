"""What a model is made of, as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ffebm.block import EnergyBlock
from ffebm.energy import Certificate
from ffebm.relaxation import Relaxed
from ffebm.walk import Chain, walk

__all__ = ["Row", "Summary", "summarise"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Row:
    """One digital stage or analog block."""

    part: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]  # of its layers, without the batch
    parameters: int
    macs: int | None  # per sample: of a stage, or of one sweep of a block; None where they are not known
    certificate: Certificate | None = None  # of a block, where something is known
    limit: float | None = None  # on the contraction of a block
    settles: bool = False  # whether a block does, whatever its weights


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
        header = ("part", "kind", "layers", "parameters", "MACs per sample", "settles")
        shapes = ["  ".join("×".join(map(str, shape)) for shape in row.shapes) for row in self.rows]
        body = [
            (row.part, row.kind, layers, f"{row.parameters:,}", _macs(row.macs, row.kind), _promise(row))
            for row, layers in zip(self.rows, shapes, strict=True)
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
    reference = next(nn.ModuleList([*(part for pair in chain for part in pair), readout]).parameters(), torch.empty(0))
    output = torch.zeros(1, *input_shape, dtype=reference.dtype, device=reference.device)
    rows: list[Row] = []

    def start(block: EnergyBlock, x: Tensor) -> Relaxed:
        return Relaxed(block.system.start(x), x.new_zeros(1), torch.zeros(1))

    for number, _, block, _, x, (state, *_) in walk(chain, output, partial(_digital, rows, "stage"), start):
        shapes = tuple(tuple(s.shape[1:]) for s in state)
        entering = tuple(x.shape[1:])
        macs, promise = block.system.sweep_macs(entering), block.certify(entering)
        limit = None if block.limit is None else block.limit.max_contraction
        row = Row(f"block {number}", "analog", shapes, _parameters(block), macs, promise, limit, block.always_settles)
        rows.append(row)
        output = state[block.output_layer]
    _digital(rows, "readout", readout, output)
    return Summary(tuple(rows))


def _digital(rows: list[Row], kind: str, module: nn.Module, x: Tensor) -> Tensor:
    """Run a stage in evaluation mode, and count the multiply-accumulates of its convolutions and linear layers."""
    counts: list[int | None] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        own = getattr(layer, "macs", None)
        if own is not None:  # a layer that knows
            counts.append(own(tuple(inputs[0].shape[1:])))
        elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            counts.append(layer.weight[0].numel() * math.prod(output.shape[1:]))
        elif isinstance(layer, nn.Linear):
            counts.append(layer.weight.numel() * math.prod(output.shape[1:-1]))
        elif any(p.dim() > 1 for p in layer.parameters(recurse=False)):
            counts.append(None)  # a matrix in a layer that is not known here

    with ExitStack() as afterwards:
        for layer in module.modules():
            afterwards.enter_context(layer.register_forward_hook(count))
            afterwards.callback(setattr, layer, "training", layer.training)
        output = module.eval()(x)
    part = f"{kind} {len(rows) // 2 + 1}" if kind == "stage" else kind
    rows.append(Row(part, "digital", (tuple(output.shape[1:]),), _parameters(module), _total(counts)))
    return output


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum, or None if a part of it is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _promise(row: Row) -> str:
    """What the weights of a block promise, in a few words."""
    certificate = row.certificate
    if row.kind == "digital" or (certificate is not None and len(certificate.couplings) == 1):
        return ""  # no feedback, nothing to settle
    if certificate is None or not certificate.settles:
        return "not certain"
    where = "to one equilibrium" if certificate.unique else "while pooling keeps its positions"
    return f"by {certificate.contraction:.2f} a sweep, {where}"


def _macs(count: int | None, kind: str = "digital") -> str:
    if count is None:
        return "unknown"
    return f"{count:,} per sweep" if kind == "analog" else f"{count:,}"
