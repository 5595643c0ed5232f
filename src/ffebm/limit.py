"""A limit on the gain of an energy's edges: a block that has one settles by construction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from ffebm.checks import brief
from ffebm.energy import Certificate, Energy
from ffebm.errors import block_name
from ffebm.interaction import Interaction, Shape
from ffebm.twin import holdings, twin

__all__ = ["EdgeGains", "Limit", "feedback_within", "in_single", "shares"]
__dir__ = __all__.copy

FIRST = 100  # iterations at most that find a gain from nothing; one a step keeps it
STEADY = 1.0001  # a gain whose square grows by less from one iteration to the next is found
LANCZOS = 8  # steps of an iteration: with six, a direction that overtakes another has gone unseen for ten steps
# Iterations come from below. With Adam at 4e-3 and no warmup, what they find is up to 3 % short in the first twenty steps.
SHORT = 0.96
# The gain of an edge with which blocks of every size learn as fast as nets without a limit: results/gain_limit.md, and
# results/cifar10_small.md for blocks of two.
ENOUGH = 2.25
MARKS = 3  # numbers that tell whether a parameter has changed
MIXED = 0.03  # how much of a random vector goes into the one that is kept


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
    """The gains of an energy's edges, by Lanczos iterations that are kept: one vector for every edge.

    Its vectors are part of a state dict. They begin as the same random numbers everywhere, so all processes have the same.
    """

    remembers = "vector_"

    def __init__(self) -> None:
        super().__init__()
        self._directions: dict[tuple[int, Shape], Tensor] = {}

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
            if any(vector.is_meta for vector, _ in vectors):  # weights without numbers have no gain
                return [0.0 * len(_turned(edge, vector)) for ((_, _, edge), _), (vector, _) in zip(ties, vectors, strict=True)]
            known = not any(fresh for _, fresh in vectors)
            before: list[float] = []
            squares: list[float] = []
            for done in range(1, FIRST + iterations):
                norms = [self._turn(edge, vector) for ((_, _, edge), _), (vector, _) in zip(ties, vectors, strict=True)]
                squares = torch.stack(norms).tolist()  # the only wait for the device
                steady = bool(before) and all(now <= STEADY * then for now, then in zip(squares, before, strict=True))
                if done >= iterations and (known or steady):
                    break
                before = squares
            return [math.sqrt(square) for square in squares]

    def _turn(self, edge: Interaction, vector: Tensor) -> Tensor:
        """A few more Lanczos steps from the vector, which becomes the best of what they see; its square gain."""
        basis = vector.new_zeros(LANCZOS, vector.numel())
        images = torch.empty_like(basis)
        basis[0] = _rows(vector)[0]
        smallest, negligible = torch.finfo(vector.dtype).tiny, torch.finfo(vector.dtype).eps ** 0.5
        for number in range(LANCZOS):
            images[number] = image = _rows(_turned(edge, _tensor(basis[number : number + 1], vector)))[0]
            if number + 1 < LANCZOS:
                known = basis[: number + 1]
                rest = torch.addmv(image, known.T, known @ image, alpha=-1)
                length = torch.linalg.vector_norm(rest)
                # Where nothing new is left, what rounding leaves is not orthogonal.
                new = length > negligible * torch.linalg.vector_norm(image)
                torch.mul(rest, new / length.clamp(min=smallest), out=basis[number + 1])
        products = basis @ images.T
        sound = products.isfinite().all()
        squares, directions = torch.linalg.eigh(torch.where(sound, (products + products.T) / 2, 0.0))
        best = directions[:, -1:].T @ basis
        # Weights of zero, or infinite ones, must not take the direction away that later ones are measured by.
        vector.copy_(torch.where((squares[-1] > 0) & sound, _tensor(best / best.norm(), vector), vector))
        return torch.where(sound, squares[-1], torch.inf)

    def _drawn(self, number: int, below: Shape) -> Tensor:
        """A random direction: the same numbers on every device and at every step."""
        if (known := self._directions.get((number, below))) is None:
            generator = torch.Generator("cpu").manual_seed(number)
            known = self._directions[number, below] = torch.randn(1, *below, generator=generator, device="cpu")
        return known

    def _vector(self, number: int, edge: Interaction, below: Shape) -> tuple[Tensor, bool]:
        """The vector of an edge, and whether it is new."""
        name, like = f"vector_{number}", next(edge.parameters(), torch.empty(()))
        if like.is_meta:
            self.register_buffer(name, like.new_empty(1, *below))
            return like.new_empty(1, *below), True
        drawn = self._drawn(number, below).to(like)
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


def _turned(edge: Interaction, vector: Tensor) -> Tensor:
    """The vector through the edge and back; raises where the edge does not tell."""
    turned = edge.there_and_back(vector)
    if turned is None:
        raise TypeError(
            f"The gain of {edge} in {block_name()} is not known, so nothing can be promised of it: use `Dense` or "
            "`Convolution`, without soft pooling, or give the edge `there_and_back`."
        )
    return turned


def _rows(tensor: Tensor) -> Tensor:
    """A sample a row, its numbers as they lie in memory: other orders would be copies."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).flatten(1)


def _tensor(rows: Tensor, like: Tensor) -> Tensor:
    """What `_rows` made rows of."""
    if like.dim() != 4:
        return rows.view(len(rows), *like.shape[1:])
    _, channels, height, width = like.shape
    return rows.view(len(rows), height, width, channels).permute(0, 3, 1, 2)


class Limit(_Remembering):
    r"""Keeps the contraction of sweeps at or below a bound: every edge's gain below its share of it.

    All edges get the same share in the norm of the certificate, $\sqrt\rho / (2 \cos(\pi / (L + 1)))$ in a chain of L layers.
    An edge above it is scaled down, in place, before the first forward pass after its weights have changed, and a little below
    its share, because gains are measured a little short.

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
        self._shares: tuple[float, list[float]] | None = None  # of every edge, with the limit that they are for
        self._kept: list[tuple[ReferenceType[Tensor], int]] = []  # the tensors that were kept last, and their versions then

    @torch.no_grad()
    def keep(self, energy: Energy, shape: Sequence[int]) -> None:
        """Bring weights back that have grown too large since the last time; nothing where they have not changed."""
        tensors = [*energy.parameters(), *energy.buffers()]  # what gains depend on: masks of a pruning, too
        if any(is_fake(t) for t in tensors):  # and so is every number that could be had of them
            return
        if any(t.is_meta for t in tensors):
            shares(energy, len(self.gains.measure(energy, shape)), self.max_contraction)  # refuses what has none
            self.register_buffer("seen", torch.empty(MARKS * len(tensors) + len(shape), device="meta"))
            return
        seen, marks = self._buffers.get("seen"), _fingerprint(tensors, shape)
        same = seen is not None and seen.dtype == marks.dtype and torch.equal(seen.to(marks.device), marks)
        self._kept = [(ref(t), _version(t)) for t in tensors]
        if same and self.certificate is not None:
            return
        ties = energy.ties(shape)
        if self._shares is None or self._shares[0] != self.max_contraction:
            self._shares = self.max_contraction, shares(energy, len(ties), self.max_contraction)
        _, most = self._shares
        # Those of a state dict were kept within the limit already: what is measured for a certificate alone leaves no trace.
        gains = (deepcopy(self.gains) if same else self.gains).measure(in_single(energy), shape)
        scaled: dict[Interaction, float] = {}  # one may serve several edges
        for (edge, _), gain, share in zip(ties, gains, most, strict=True):
            already = scaled.get(edge.interaction, 1.0)
            if not same and gain * already > SHORT * share:
                scaled[edge.interaction] = already * SHORT * share / (gain * already)
                edge.interaction.scale_(SHORT * share / (gain * already))
        self.certificate = energy.certificate([min(gain / SHORT, share) for gain, share in zip(gains, most, strict=True)])
        # Part of a state dict: a run that goes on must not measure again what the pass before its checkpoint did.
        self.register_buffer("seen", _fingerprint(tensors, shape) if scaled else marks)
        self._kept = [(ref(t), _version(t)) for t in tensors]

    def check_kept(self, where: str) -> None:
        """Refuse to have weights exported that may have grown too large since the last pass: an exporter changes none.

        It does not even show them, but for their shapes. So this asks those that were kept for their versions.
        """
        if self._changed():
            raise RuntimeError(
                f"The weights of {where} have changed since it was last called, and may be beyond its limit: call the model "
                "once, as it is, before it is exported or traced."
            )

    def _changed(self) -> bool:
        """Whether weights have, since they were kept, as far as their versions tell."""
        tensors = [(reference(), version) for reference, version in self._kept]
        return not tensors or any(tensor is None or _version(tensor) != version for tensor, version in tensors)

    # Asked once by a strict export, as `torch.compiler.assume_constant_result` has it, which loads a compiler for that.
    setattr(_changed, "_dynamo_marked_constant", True)  # noqa: B010

    def forget(self) -> None:
        """Measure again at the next pass, as after a step."""
        self._buffers.pop("seen", None)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.certificate = None  # of other weights

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": []}  # a copy has other tensors, and references are not pickled

    def extra_repr(self) -> str:
        return f"max_contraction={self.max_contraction:g}"


def _version(tensor: Tensor) -> int:
    """How often it was changed in place, as far as anybody knows."""
    return 0 if tensor.is_inference() else tensor._version


def in_single(energy: Energy) -> Energy:
    """The energy, in single precision where its own is less: gains come from eigenvalues, which halves do not have."""
    if not any(p.dtype in (torch.float16, torch.bfloat16) for p in energy.parameters()):
        return energy
    names, tensors = holdings(energy)
    wider = [t.float() if t.is_floating_point() else t for t in tensors]
    return twin(energy, names, wider, [False] * len(wider))


def _fingerprint(tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """What tells weights from those before: versions do not, of which fused optimisers and `.data` leave no trace.

    Gains depend on the size of images as well.
    """
    with torch.inference_mode(False), torch.no_grad():
        marks = [mark for p in tensors for mark in (p.sum(), p.norm(), p.flatten()[:1].sum())]
        sizes = torch.tensor(shape, dtype=torch.float32)
        return torch.cat([torch.stack(marks), sizes.to(marks[0])]) if marks else sizes


def feedback_within(max_contraction: float | None, layers: int, enough: float = ENOUGH, faintest: float = 0.0) -> float:
    r"""The feedback ε that a block of so many layers needs for its edges to pass on enough within a limit.

    A limit of ρ leaves every edge of a chain of L layers a gain of $\sqrt{\rho / \varepsilon} / (2 \cos(\pi / (L + 1)))$ at
    most. So ε is what makes that `enough`, and 1 where it is more already.

    Args:
        faintest: how much less than the last layer the first one may move by a nudge, for rounding not to hide it.
    """
    if max_contraction is None or layers < 2:
        return 1.0
    gain = math.sqrt(max_contraction) / (2 * math.cos(math.pi / (layers + 1)))
    return min(1.0, max((gain / enough) ** 2, faintest ** (1 / (layers - 1))))


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
