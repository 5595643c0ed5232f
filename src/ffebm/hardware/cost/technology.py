"""The constants that energy and time follow from, each with its source, and the choices of a design."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ffebm.checks import brief, check_choice, check_size
from ffebm.hardware.cost.quantity import Quantity
from ffebm.hardware.cost.survey import FINEST, converter_energy

__all__ = ["CONSTANTS", "Constant", "Design", "Technology"]
__dir__ = __all__.copy

CONSTANTS = {
    "adc_power": ("W", "a running analog-to-digital converter of `adc_bits`"),
    "adc_rate": ("S/s", "its conversions a second"),
    "adc_bits": ("", "its resolution; those of other bits follow the survey of published converters"),
    "dac_energy": ("J", "a digital-to-analog conversion of `dac_bits`; each further bit doubles it"),
    "dac_bits": ("", "its resolution"),
    "dac_time": ("s", "until a converted value stands at a row"),
    "array_rows": ("", "rows, and columns, of the array that the following constants are of"),
    "settle_power": ("W", "the cells of the whole array while currents flow"),
    "settle_time": ("s", "until currents have settled, once: one product of the array with a vector"),
    "product_power": ("W", "the whole array with converters and periphery, where each product is converted"),
    "write_power": ("W", "while its cells are written one row after the other, with periphery"),
    "write_time": ("s", "until all its cells are written so"),
    "outer_power": ("W", "while an outer product is written to all its cells at once, with periphery"),
    "outer_time": ("s", "of that"),
    "multiply_energy": ("J", "a digital multiplication"),
    "add_energy": ("J", "a digital addition to an accumulator"),
    "clock": ("Hz", "of the digital part: a multiply-accumulate, a cycle and a multiplier"),
    "memory_energy": ("J", "an access to on-chip memory of `memory_bits`"),
    "memory_bits": ("", "numbers side by side in that access, in bits"),
    "node_exponent": ("", "energies of one node go to another by the ratio of their sizes to this power"),
}

Settle = Literal["analog", "converted"]
Update = Literal["digital", "outer-product"]


@dataclass(frozen=True)
class Constant:
    """A number, and where it is from."""

    quantity: Quantity
    unit: str
    source: str
    node: float | None = None  # of the technology it was measured or designed in, in nanometres


@dataclass(frozen=True)
class Design:
    """What a designer chooses.

    Args:
        rows: of a crossbar tile.
        columns: of a crossbar tile.
        arrays_per_weight: a conductance has no sign, so a weight takes two.
        units_per_adc: that take turns at a converter.
        dac_bits: of every value that enters a block, where the model names none.
        adc_bits: of every unit that is read, where the model names none.
        digital_bits: of numbers in memory.
        multipliers: that work in parallel, in the digital part.
        settle: "analog" lets a block settle as a circuit, between conversions at its borders. "converted" makes each sweep
            of matrix products, each of which is converted, as today's in-memory computers do.
        update: "digital" computes the contrast digitally, sums it over the batch, and writes cells once a step.
            "outer-product" has each sample write to all cells at once, by pulses from both sides.
        at_once: whether each position of a convolution has a crossbar of its own. Otherwise they take turns at one.
    """

    rows: int = 128
    columns: int = 128
    arrays_per_weight: int = 2
    units_per_adc: int = 128
    dac_bits: int = 8
    adc_bits: int = 8
    digital_bits: int = 8
    multipliers: int = 256
    settle: Settle = "analog"
    update: Update = "digital"
    at_once: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "arrays_per_weight", "units_per_adc", "dac_bits", "adc_bits", "digital_bits"):
            check_size(name, getattr(self, name))
        check_size("multipliers", self.multipliers)
        check_choice("settle", self.settle, get_args(Settle))
        check_choice("update", self.update, get_args(Update))
        if not isinstance(self.at_once, bool):
            raise ValueError(f"`at_once` must be true or false, got {brief(self.at_once)}.")
        for name in ("dac_bits", "adc_bits"):
            if getattr(self, name) > FINEST:
                raise ValueError(f"`{name}` must be {FINEST} at most, got {getattr(self, name)}: no converter is finer.")


@dataclass(frozen=True)
class Technology:
    """A table of constants, the node that everything is brought to, and a design.

    Args:
        node: in nanometres.
        constants: all of `CONSTANTS`, by their names.
    """

    description: str
    node: float
    constants: Mapping[str, Constant]
    design: Design = field(default_factory=Design)

    def __post_init__(self) -> None:
        if missing := [name for name in CONSTANTS if name not in self.constants]:
            raise ValueError(f"A technology needs all constants; missing: {', '.join(missing)}.")
        if not (math.isfinite(self.node) and self.node > 0):
            raise ValueError(f"`node` must be positive, got {self.node}: it is a size in nanometres.")
        for name, (unit, _) in CONSTANTS.items():
            value = self._plain(name, unit)
            least = 0 if name == "node_exponent" else math.ulp(0.0)
            if not (math.isfinite(value) and value >= least):
                raise ValueError(f"`{name}` must be positive, got {value:g}.")

    def adc_energy(self, bits: int) -> float:
        """Joules of one conversion: the constant's own at its bits, and at others in the ratio that the survey says."""
        own = self.constants["adc_power"]
        node, rate = own.node or self.node, self._plain("adc_rate", "S/s")
        at_own = (self._quantity("adc_power") / self._quantity("adc_rate")).to("J")
        ratio = converter_energy(bits, node, rate) / converter_energy(round(self._plain("adc_bits", "")), node, rate)
        return at_own * ratio * self._scale("adc_power")

    def dac_energy(self, bits: int) -> float:
        """Joules of one conversion of so many bits."""
        return self._plain("dac_energy", "J") * 2.0 ** (bits - self._plain("dac_bits", "")) * self._scale("dac_energy")

    @property
    def settle_energy(self) -> float:
        """Joules of one cell while currents settle once."""
        return self._of_array("settle_power", "settle_time") / self.cells

    @property
    def product_energy(self) -> float:
        """Joules of one product of a whole array, conversions included."""
        return self._of_array("product_power", "settle_time")

    @property
    def write_energy(self) -> float:
        """Joules to write one cell."""
        return self._of_array("write_power", "write_time") / self.cells

    @property
    def outer_energy(self) -> float:
        """Joules of one cell while an outer product is written."""
        return self._of_array("outer_power", "outer_time") / self.cells

    @property
    def mac_energy(self) -> float:
        """Joules of one digital multiply-accumulate."""
        return sum(self._plain(name, "J") * self._scale(name) for name in ("multiply_energy", "add_energy"))

    @property
    def access_energy(self) -> float:
        """Joules to read or write one number of on-chip memory."""
        per_bit = self._plain("memory_energy", "J") / self._plain("memory_bits", "")
        return self.design.digital_bits * per_bit * self._scale("memory_energy")

    @property
    def cells(self) -> float:
        """Of the array that constants are of."""
        return self._plain("array_rows", "") ** 2

    def seconds(self, name: str) -> float:
        """A constant that is a time."""
        return self._plain(name, "s")

    def rate(self, name: str) -> float:
        """A constant that counts a second."""
        return self._plain(name, "S/s")

    def _of_array(self, power: str, time: str) -> float:
        return (self._quantity(power) * self._quantity(time)).to("J") * self._scale(power)

    def _quantity(self, name: str) -> Quantity:
        return self.constants[name].quantity

    def _plain(self, name: str, unit: str) -> float:
        quantity = self._quantity(name)
        try:
            return quantity.to(unit)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}.") from None

    def _scale(self, name: str) -> float:
        """From the node of a constant to that of the table."""
        node = self.constants[name].node
        return 1.0 if node is None else (self.node / node) ** self._plain("node_exponent", "")
