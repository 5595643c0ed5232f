r"""One edge $\theta_\ell$ of an energy: the current it sends up, its transpose, and its energy."""

from ffebm.interaction.conductance import Conductance
from ffebm.interaction.conv_conductance import ConvConductance
from ffebm.interaction.convolution import Convolution, Convolution1d
from ffebm.interaction.crossbar import Crossbar, Resistors
from ffebm.interaction.dense import Dense
from ffebm.interaction.interaction import Contact, Interaction, Shape, check_edges
from ffebm.interaction.matrix import Matrix
from ffebm.interaction.two_way import TwoWay

__all__ = [
    "Conductance",
    "Contact",
    "ConvConductance",
    "Convolution",
    "Convolution1d",
    "Crossbar",
    "Dense",
    "Interaction",
    "Matrix",
    "Resistors",
    "Shape",
    "TwoWay",
    "check_edges",
]
__dir__ = __all__.copy
