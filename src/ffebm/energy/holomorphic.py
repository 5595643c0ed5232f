"""Energies of complex states, for nudges of complex strength."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ffebm.energy.energy import Energy
from ffebm.errors import block_name
from ffebm.interaction import Interaction
from ffebm.state import in_complex_numbers
from ffebm.twin import holdings, twin

__all__ = ["complex_version"]
__dir__ = __all__.copy

E = TypeVar("E", bound=Energy)


def complex_version(energy: E, edges: Sequence[Interaction]) -> E:
    """The same energy with its parameters as complex numbers; raises where something in it has a kink."""
    kinks = [repr(activation) for activation in energy.activations if not activation.holomorphic]
    kinks += [str(edge) for edge in edges if not edge.holomorphic]
    if kinks:
        raise ValueError(
            f"{kinks[0]} of {block_name()} is no holomorphic function, and a nudge of complex strength needs one: a clamp or "
            "a maximum has a kink. Use sigmoid(), tanh() or identity() and average pooling. Where states are straight lines "
            "between kinks, `Stencil.one_sided()` is exact already."
        )
    names, tensors = holdings(energy)
    other = twin(energy, names, [in_complex_numbers(tensor) for tensor in tensors], [False] * len(tensors))
    other.activations = tuple(replace(a, low=-math.inf, high=math.inf) for a in energy.activations)  # a box has no inside here
    return other
