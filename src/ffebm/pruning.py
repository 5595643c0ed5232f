"""Weights that pruning computes: `torch.nn.utils.prune` renews them by a hook on `forward`, which sweeps do not call."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.prune import BasePruningMethod

__all__ = ["pruned_names", "renew_pruned"]
__dir__ = __all__.copy


def pruned_names(module: nn.Module) -> list[str]:
    """The names of the weights that pruning masks, of the module itself."""
    return [hook._tensor_name for hook in _hooks(module)]


def renew_pruned(module: nn.Module) -> None:
    """Compute the weights of a pruned module again, from what is trained and what is masked."""
    for hook in _hooks(module):
        hook(module, ())


def _hooks(module: nn.Module) -> list[BasePruningMethod]:
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, BasePruningMethod)]
