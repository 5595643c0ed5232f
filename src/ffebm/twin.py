"""Twins: modules that hold other tensors, or other parts, in place of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from ffebm.pruning import pruned_names, renew_pruned
from ffebm.tracing import exporting, transforming

__all__ = ["Names", "holding", "holdings", "renewed", "twin", "with_children", "with_tensors"]
__dir__ = __all__.copy

M = TypeVar("M", bound=nn.Module)
Names = tuple[tuple[str, ...], ...]  # every name by which a module holds each of its tensors


def holdings(module: nn.Module) -> tuple[Names, tuple[Tensor, ...]]:
    """The distinct parameters and buffers that a module holds, with all of their names."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    kinds = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    for name, tensor in chain(*kinds):
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return tuple(tuple(names) for _, names in found.values()), tuple(tensor for tensor, _ in found.values())


def twin(module: M, names: Names, tensors: Sequence[Tensor], needed: Sequence[bool]) -> M:
    """A module of the same kind that holds these tensors, as leaves without history; the original is not touched.

    Backward passes must see what their forward pass saw, also when `functional_call` had put it there for one call; and
    differentiating saved tensors directly would follow the graph that they came from.
    """
    leaves = {
        name: leaf
        for aliases, tensor, need in zip(names, tensors, needed, strict=True)
        for leaf in [tensor.detach().requires_grad_(need)]
        for name in aliases
    }
    copy = _copied(module, leaves)
    with torch.enable_grad():
        for part in copy.modules():
            renew_pruned(part)
    return copy


def holding(module: M, tensors: Mapping[str, Tensor]) -> M:
    """A module of the same kind that holds these tensors by name, with their history; the original is not touched."""
    copy = _copied(module, tensors)
    for part in copy.modules():
        renew_pruned(part)
    return copy


def _copied(module: M, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> M:
    """A module of the same kind, down to the last of its parts, with these tensors by name and its own for the others."""
    copies: dict[int, nn.Module] = {}
    for prefix, part in module.named_modules():
        copies[id(part)] = other = part.__class__.__new__(part.__class__)
        other.__dict__ = dict(part.__dict__)
        for kind in ("_parameters", "_buffers"):
            own: dict[str, Tensor | None] = part.__dict__[kind]
            other.__dict__[kind] = {name: tensors.get(f"{prefix}.{name}".lstrip("."), t) for name, t in own.items()}
    for other in copies.values():
        other._modules = {name: None if child is None else copies[id(child)] for name, child in other._modules.items()}
    return cast(M, copies[id(module)])


def renewed(module: M) -> M:
    """The module with what pruning masks computed anew: in place, or in a copy where a transform or an exporter looks on."""
    if not any(pruned_names(part) for part in module.modules()):
        return module
    other = _copied(module) if transforming() or exporting() else module
    for part in other.modules():
        renew_pruned(part)
    return other


def with_children(module: M, **children: nn.Module) -> M:
    """The same module with the same parameters, but for some of its children."""
    other = module.__class__.__new__(module.__class__)  # copying would refuse parametrised ones
    other.__dict__ = dict(module.__dict__)
    other._modules = {**module._modules, **children}
    return other


def with_tensors(module: M, **tensors: Tensor | None) -> M:
    """The same module with the same children, but for some tensors; name all that may be parametrised, which is left out."""
    kind = cast(type[M], type_before_parametrizations(module))
    other = kind.__new__(kind)
    other.__dict__ = {name: value for name, value in module.__dict__.items() if name not in tensors}  # pruned ones are there
    other._parameters = {**module._parameters, **tensors}  # pyright: ignore[reportAttributeAccessIssue]
    return other
