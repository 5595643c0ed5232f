"""The numbers that a device is programmed with: all parameters and buffers of the energy that describes it, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ffebm.checks import brief

__all__ = ["load_parameters", "parameters_of"]
__dir__ = __all__.copy


def parameters_of(energy: nn.Module) -> dict[str, Tensor]:
    """In double precision, as all that goes to a device and comes from it."""
    found = {name: tensor.detach() for name, tensor in (*energy.named_parameters(), *energy.named_buffers())}
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in found.items()}


@torch.no_grad()
def load_parameters(energy: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Copy them into an energy of the same kind."""
    own = {name: tensor.detach() for name, tensor in (*energy.named_parameters(), *energy.named_buffers())}
    for name in sorted(own.keys() | parameters.keys()):
        shapes = [tuple(tensors[name].shape) if name in tensors else "nothing" for tensors in (parameters, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"The device is another one than the block is described by: for {brief(name)} it is programmed with "
                f"{shapes[0]}, and has {shapes[1]}. Give both the same energy."
            )
    for name, tensor in own.items():
        tensor.copy_(parameters[name])
