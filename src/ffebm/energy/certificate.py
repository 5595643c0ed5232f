"""Certificates: what the gains of a network's edges promise about how it settles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from ffebm.state import Colours

__all__ = ["Certificate"]
__dir__ = __all__.copy

MOST_SWEEPS = 100_000  # a promise beyond is worth nothing


@dataclass(frozen=True)
class Certificate:
    r"""How fast a network settles at least, whatever its input.

    Let $e_\ell$ be how far layer ℓ is from where it will rest, in the norm $\sqrt{c_\ell / a_\ell}\, \lVert \cdot \rVert$ with
    $a_\ell$ the steepest slope of its activation. When a layer moves, its neighbours pass on at most

    $$e_m \leftarrow \sum_\ell M_{\ell m}\, e_\ell, \qquad
    M_{\ell m} = M_{m \ell} = \sqrt{a_\ell\, a_m\, c_m / c_\ell}\; \lVert W_{\ell m} \rVert \quad (\ell < m)$$

    so a whole sweep is a matrix of numbers that are not negative. Clamps only help. If the largest eigenvalue λ of $M$ is below
    1, sweeps settle; in a chain, odd/even sweeps bring every layer nearer by $\lambda^2$ at least.

    Args:
        couplings: $M$, a row for every layer.
        colours: the layers that move together.
        convex: whether edges are linear but for their biases. Then λ < 1 makes the energy strictly convex, and the equilibrium
            unique. Max-pooling settles as fast only while its positions stay, and may have many equilibria.
        scales: $\sqrt{c_\ell / a_\ell}$ of every layer; by default 1.
        least: the same of its unit where it is least, where units differ and `scales` are of those where it is most.
        rows: the row of every layer, where a row stands for several layers without an edge between them; by default its own.
    """

    couplings: tuple[tuple[float, ...], ...]
    colours: Colours
    convex: bool = True
    scales: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()

    @property
    def gain(self) -> float:
        """λ, the largest eigenvalue of the couplings."""
        return torch.linalg.eigvalsh(self._matrix).abs().max().item()

    @property
    def contraction(self) -> float:
        """By how much a plain sweep, colour by colour, brings the network nearer to its equilibrium in the long run."""
        return torch.linalg.eigvals(self.sweep_bound()).abs().max().item()

    @property
    def settles(self) -> bool:
        """Whether sweeps are certain to settle, while pooling keeps its positions."""
        return self.gain < 1

    @property
    def unique(self) -> bool:
        """Whether there is one equilibrium, whatever the start."""
        return self.settles and self.convex

    @property
    def omega(self) -> float:
        r"""The over-relaxation $2 / (1 + \sqrt{1 - \rho})$, the best in the long run for a contraction of ρ."""
        return 2 / (1 + math.sqrt(1 - min(self.contraction, 0.99)))

    def sweeps(self, tolerance: float, omega: float = 1.0, order: Colours | None = None) -> int:
        """So many sweeps bring the network nearer to its equilibrium by this factor at least.

        Args:
            omega: of the sweeps. The promise for more than 1 is a weak one: over-relaxation is faster as a rule, not always.
            order: the layers that move together, in turn; by default colour by colour.
        """
        if not 0 < tolerance < 1:
            raise ValueError(
                f"`tolerance` must lie between 0 and 1, got {tolerance}: it is a part of the distance at the start."
            )
        bound = self.sweep_bound(omega, order)
        if torch.linalg.eigvals(bound).abs().max() >= 1:
            raise ValueError(
                f"Nothing can be promised of sweeps with omega={omega:g}: gains of {self.gain:.2f} are too large. "
                "Give the block a `max_contraction`, or take omega=1."
            )
        power = bound
        for sweeps in count(1):
            if torch.linalg.matrix_norm(power, 2) <= tolerance:
                return sweeps
            if sweeps == MOST_SWEEPS:
                raise ValueError(
                    f"More than {MOST_SWEEPS} sweeps would be needed for {tolerance:g}: gains of {self.gain:.6f} are too "
                    "large. Give the block a `max_contraction`."
                )
            power = bound @ power
        raise AssertionError("counting ends")

    def distances(self, moves: Sequence[float]) -> list[float]:
        r"""How far every layer was from its rest at most, where a plain sweep, colour by colour, moves the layers by so much.

        The sweep leaves $e' \le T e$ of the distances $e$, and $e \le e' + m$. So $e \le (1 - T)^{-1} m$.

        Args:
            moves: the Euclidean norm of each layer's change.
        """
        if not self.settles:
            return [math.inf] * len(moves)
        most = self.scales or [1.0] * len(moves)
        bound, rows = self.sweep_bound(), self.rows or range(len(moves))
        moved = torch.zeros(len(bound), dtype=torch.float64, device="cpu")
        for row, scale, move in zip(rows, most, moves, strict=True):
            moved[row] = math.hypot(moved[row].item(), scale * move)
        eye = torch.eye(len(bound), dtype=torch.float64, device="cpu")
        apart = torch.linalg.solve(eye - bound, moved).tolist()
        return [apart[row] / scale for row, scale in zip(rows, self.least or most, strict=True)]

    def sweep_bound(self, omega: float = 1.0, order: Colours | None = None) -> Tensor:
        """The matrix that takes distances of all layers to at most those after a sweep."""
        eye = torch.eye(len(self.couplings), dtype=torch.float64, device="cpu")
        bound = eye
        for colour in self.colours if order is None else order:
            moved = abs(1 - omega) * eye + omega * self._matrix
            whole = part = set(colour)
            if order is not None and self.rows:
                part = {self.rows[layer] for layer in colour}
                whole = {row for row in part if all(layer in colour for layer, its in enumerate(self.rows) if its == row)}
            moves, wholly = (torch.tensor([row in rows for row in range(len(eye))], device="cpu") for rows in (part, whole))
            # Of a row that moves in part: what moves is as near as it gets, and what does not is no farther than all was.
            stays = torch.where((moves & ~wholly).unsqueeze(1), eye, 0.0)
            bound = (torch.where(moves.unsqueeze(1), moved, eye) + stays) @ bound
        return bound

    @property
    def _matrix(self) -> Tensor:
        return torch.tensor(self.couplings, dtype=torch.float64, device="cpu")  # whatever the default
