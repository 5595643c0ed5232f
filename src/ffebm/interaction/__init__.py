r"""One edge $\theta_\ell$ of an energy: the current it sends up, its transpose, and its energy."""

from ffebm.interaction.convolution import Convolution, Convolution1d
from ffebm.interaction.dense import Dense
from ffebm.interaction.interaction import Contact, Interaction, Shape, check_edges
from ffebm.interaction.matrix import Matrix
from ffebm.interaction.two_way import TwoWay

__all__ = ["Contact", "Convolution", "Convolution1d", "Dense", "Interaction", "Matrix", "Shape", "TwoWay", "check_edges"]
__dir__ = __all__.copy
