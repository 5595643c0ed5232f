"""Weights that pruning computes: `torch.nn.utils.prune` renews them by a hook on `forward`, which sweeps do not call."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.prune import BasePruningMethod

__all__ = ["renew_pruned"]
__dir__ = __all__.copy


def renew_pruned(module: nn.Module) -> list[str]:
    """Compute the weights of a pruned module again from what is trained and what is masked; their names."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, BasePruningMethod)]
    for hook in hooks:
        hook(module, ())
    return [hook._tensor_name for hook in hooks]
