"""What an analog-to-digital conversion takes at best, by a fit of published converters."""

from __future__ import annotations

import math

from ffebm.checks import check_size

__all__ = ["converter_energy"]
__dir__ = __all__.copy

# Figures of merit in dB and their corrections: adc_data/model.yaml of the Accelergy ADC plug-in, fitted to B. Murmann's survey
# of published converters (github.com/Accelergy-Project/accelergy-adc-plug-in, MIT, at 6851cb8).
BY_RATE = (213.7806687348118, -2.8719030399529957)  # of the natural logarithm of the rate in samples a second
BY_BITS = (128.3068287398817, 3.2205115109775)
BY_NODE = (26.0496215686518, 1.8800369206815004)  # of the natural logarithm of the node in nm
BY_LOG_BITS = -2.8291256050594527
RESIDUAL = -1.4702022133784405
FINEST = 20  # bits, which the fit ends at


def converter_energy(bits: int, node: float, rate: float) -> float:
    r"""Joules of one conversion to so many bits, for a good converter of its kind.

    $$E = \frac{e^{26.05 + 1.880 \ln n - 2.829 \ln b - 1.470}}{2 \cdot 10^{(F - 6.02 b - 1.76) / 10}} \text{ pJ}, \qquad
    F = \min(213.78 - 2.872 \ln f,\; 128.31 + 3.2205\, b)$$

    The fit has its minimum near four bits. A finer converter can stand in for a coarser one, so fewer bits never cost more.

    Args:
        node: of the technology, n, in nanometres.
        rate: f, in conversions a second.
    """
    check_size("bits", bits)
    if bits > FINEST:
        raise ValueError(f"`bits` must be {FINEST} at most, got {bits}: no converter of the survey is finer.")
    return min(_fitted(more, node, rate) for more in range(bits, FINEST + 1))


def _fitted(bits: int, node: float, rate: float) -> float:
    merit = min(BY_RATE[0] + BY_RATE[1] * math.log(rate), BY_BITS[0] + BY_BITS[1] * bits)
    correction = BY_NODE[0] + BY_NODE[1] * math.log(node) + BY_LOG_BITS * math.log(bits) + RESIDUAL
    return 1e-12 * math.exp(correction) / (2 * 10 ** ((merit - 6.02 * bits - 1.76) / 10))
