"""A limit on the gain of an energy's edges: a block that has one settles by construction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ffebm.checks import brief
from ffebm.energy import Certificate, Energy
from ffebm.errors import block_name
from ffebm.interaction import Interaction, Shape

FIRST = 100  # iterations that find a gain from nothing; two a step keep it, and more where weights have changed much
STEADY = 1.001  # a gain whose square grows by less from one iteration to the next is found
# The gain of an edge with which blocks of three, four and six layers hand on as much at the start as blocks of two:
# tests/test_start.py and results/gain_limit.md.
ENOUGH = 2.25
MIXED = 0.1  # how much of a random vector goes into the one that is kept


class _Remembering(nn.Module):
    """A module with buffers whose shapes follow from inputs, which a model that was just built has not seen."""

    remembers: ClassVar[str]  # what their names begin with

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take what there is."""
        self._buffers = {}
        for key, value in state_dict.items():
            if key.startswith(prefix + self.remembers) and isinstance(value, Tensor):
                self.register_buffer(key.removeprefix(prefix), value.clone())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class EdgeGains(_Remembering):
    """The gains of an energy's edges, by a power iteration that is kept: one vector for every edge.

    Its vectors are part of a state dict. They begin as the same random numbers everywhere, so all processes have the same.
    """

    remembers = "vector_"

    def measure(self, energy: Energy, shape: Sequence[int], iterations: int = 1) -> list[float]:
        """The gain of every edge, for an input of this shape; raises where an edge does not tell.

        Args:
            iterations: how many more; at first there are enough to find it.
        """
        with torch.inference_mode(False), torch.no_grad():  # vectors outlive the pass that draws them
            ties = energy.ties(shape)
            if not ties:
                return []
            vectors = [self._vector(number, edge, below) for number, ((_, _, edge), below) in enumerate(ties)]
            least = max(iterations, FIRST if any(fresh for _, fresh in vectors) else 2)
            before: list[float] = []
            squares: list[float] = []
            for done in range(1, max(least, FIRST) + 1):
                norms = [self._turn(edge, vector) for ((_, _, edge), _), (vector, _) in zip(ties, vectors, strict=True)]
                if done < least - 1:
                    continue
                if any(norm.is_meta for norm in norms):
                    return [0.0] * len(norms)  # weights without numbers have none
                squares = torch.stack(norms).tolist()  # the only wait for the device
                if before and all(now <= STEADY * then for now, then in zip(squares, before, strict=True)):
                    break
                before = squares
            return [math.sqrt(square) for square in squares]

    def _turn(self, edge: Interaction, vector: Tensor) -> Tensor:
        """One more iteration; what it multiplies the vector by."""
        turned = edge.there_and_back(vector)
        if turned is None:
            raise TypeError(
                f"The gain of {edge} in {block_name()} is not known, so nothing can be promised of it: use `Dense` or "
                "`Convolution`, without soft pooling, or give the edge `there_and_back`."
            )
        square = turned.norm()
        # Weights of zero, or infinite ones, must not take the direction away that later ones are measured by.
        vector.copy_(torch.where((square > 0) & square.isfinite(), turned / square, vector))
        return square

    def _vector(self, number: int, edge: Interaction, below: Shape) -> tuple[Tensor, bool]:
        """The vector of an edge, and whether it is new."""
        name, like = f"vector_{number}", next(edge.parameters(), torch.empty(()))
        generator = torch.Generator("cpu").manual_seed(number)  # the same numbers on every device
        drawn = torch.randn(1, *below, generator=generator, device="cpu").to(like)
        drawn = drawn / drawn.norm()
        kept = self._buffers.get(name)
        fresh = kept is None or kept.shape[1:] != below
        if kept is not None and not fresh:
            # A little of all directions: what grows in one that the weights did not have before is to be seen.
            drawn = kept.to(like) + MIXED * drawn
            drawn = drawn / drawn.norm()
        vector = drawn.contiguous(memory_format=torch.channels_last if drawn.dim() == 4 else torch.contiguous_format)
        self.register_buffer(name, vector)
        return vector, fresh


class Limit(_Remembering):
    r"""Keeps the contraction of sweeps at or below a bound: every edge's gain below its share of it.

    All edges get the same share in the norm of the certificate, $\sqrt\rho / (2 \cos(\pi / (L + 1)))$ in a chain of L layers.
    An edge above it is scaled down, in place, before the first forward pass after its weights have changed.

    Args:
        max_contraction: ρ, the contraction of plain sweeps.
    """

    remembers = "seen"

    def __init__(self, max_contraction: float) -> None:
        super().__init__()
        if not (isinstance(max_contraction, int | float) and 0 < max_contraction < 1):
            raise ValueError(
                f"`max_contraction` must lie between 0 and 1, got {brief(max_contraction)}: by so much sweeps approach the "
                "equilibrium at least. Use 0.5, less to settle faster, and None for no limit."
            )
        self.max_contraction = float(max_contraction)
        self.gains = EdgeGains()
        self.certificate: Certificate | None = None  # of the weights as they were kept last
        self._shares: list[float] = []

    @torch.no_grad()
    def keep(self, energy: Energy, shape: Sequence[int]) -> None:
        """Bring weights back that have grown too large since the last time; nothing where they have not changed."""
        seen, marks = self._buffers.get("seen"), _fingerprint(energy)
        if seen is not None and not marks.is_meta and seen.dtype == marks.dtype and torch.equal(seen.to(marks.device), marks):
            return
        ties = energy.ties(shape)
        self._shares = self._shares or shares(energy, len(ties), self.max_contraction)
        gains = self.gains.measure(energy, shape)
        scaled: dict[Interaction, float] = {}  # one may serve several edges
        for (edge, _), gain, share in zip(ties, gains, self._shares, strict=True):
            already = scaled.get(edge.interaction, 1.0)
            if gain * already > share:
                edge.interaction.scale_(share / (gain * already))
                scaled[edge.interaction] = share / gain
        self.certificate = energy.certificate([min(pair) for pair in zip(gains, self._shares, strict=True)])
        # Part of a state dict: a run that goes on must not measure again what the pass before its checkpoint did.
        self.register_buffer("seen", _fingerprint(energy))

    def extra_repr(self) -> str:
        return f"max_contraction={self.max_contraction:g}"


def _fingerprint(energy: Energy) -> Tensor:
    """What tells weights from those before: versions do not, of which fused optimisers and `.data` leave no trace."""
    with torch.inference_mode(False), torch.no_grad():
        marks = [mark for p in energy.parameters() for mark in (p.sum(), p.norm(), p.flatten()[:1].sum())]
        return torch.stack(marks) if marks else torch.empty(0)


def feedback_within(max_contraction: float | None, layers: int, enough: float = ENOUGH) -> float:
    r"""The feedback ε that a block of so many layers needs for its edges to pass on enough within a limit.

    A limit of ρ leaves every edge of a chain of L layers a gain of $\sqrt{\rho / \varepsilon} / (2 \cos(\pi / (L + 1)))$ at
    most. So ε is what makes that `enough`, and 1 where it is more already.
    """
    if max_contraction is None or layers < 3:
        return 1.0
    gain = math.sqrt(max_contraction) / (2 * math.cos(math.pi / (layers + 1)))
    return min(1.0, (gain / enough) ** 2)


def shares(energy: Energy, edges: int, contraction: float) -> list[float]:
    """The largest gain that every edge may have for sweeps to contract so."""

    def certified(gains: Sequence[float]) -> Certificate:
        found = energy.certificate(gains)
        if found is None:
            raise TypeError(
                f"Nothing can be promised of {type(energy).__name__} in {block_name()}: `max_contraction` needs a `Hopfield` "
                "of activations whose largest slope is known, or an energy with a `certificate`."
            )
        return found

    alone = [certified([float(number == edge) for number in range(edges)]).gain for edge in range(edges)]
    low, high = 0.0, 1.0  # times the gain with which an edge alone would just not settle
    for _ in range(50):
        middle = (low + high) / 2
        fits = certified([middle / gain for gain in alone]).contraction <= contraction
        low, high = (middle, high) if fits else (low, middle)
    return [low / gain for gain in alone]
