"""What inference and training take on analog hardware: crossbars, conversions, settling, digital work, energy and time."""

from ffebm.cost.bill import KINDS, PHASES, Bill, Line
from ffebm.cost.estimate import Estimate, estimate
from ffebm.cost.quantity import Quantity
from ffebm.cost.survey import converter_energy
from ffebm.cost.technology import CONSTANTS, Constant, Design, Technology
from ffebm.cost.workload import AnalogPart, DigitalPart, Workload, workload

__all__ = [
    "CONSTANTS",
    "KINDS",
    "PHASES",
    "AnalogPart",
    "Bill",
    "Constant",
    "Design",
    "DigitalPart",
    "Estimate",
    "Line",
    "Quantity",
    "Technology",
    "Workload",
    "converter_energy",
    "estimate",
    "workload",
]
__dir__ = __all__.copy
