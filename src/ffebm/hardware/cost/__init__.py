"""What inference and training take on analog hardware: crossbars, conversions, settling, digital work, energy and time."""

from ffebm.hardware.cost.bill import KINDS, PHASES, Bill, Line
from ffebm.hardware.cost.estimate import Estimate, estimate
from ffebm.hardware.cost.quantity import Quantity
from ffebm.hardware.cost.survey import converter_energy
from ffebm.hardware.cost.technology import CONSTANTS, Constant, Design, Technology
from ffebm.hardware.cost.workload import AnalogPart, DigitalPart, Workload, workload

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
