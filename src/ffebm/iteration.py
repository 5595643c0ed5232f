"""Where `Relaxed` was before: code that imports it from here goes on."""

from ffebm.relaxation.stopping import Relaxed

__all__ = ["Relaxed"]
__dir__ = __all__.copy
