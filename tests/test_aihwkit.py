"""The same settings in aihwkit-lightning, the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ffebm import Converter, Dense, EnergyBlock, FixedPoint, Hardware, Hopfield, Levels, ProgrammingNoise, identity
from ffebm.hardware.draws import Draws

pytest.importorskip("aihwkit_lightning")

from aihwkit_lightning.nn import AnalogLinear
from aihwkit_lightning.simulator.configs import TorchInferenceRPUConfig, WeightNoiseInjectionType, WeightQuantizationType

INPUT_RANGE, OUTPUT_BOUND = 1.5, 3.0


def tile(**changes: object) -> AnalogLinear:
    """A product of 12 rows and 7 columns; `changes` are of parts of its settings, as part__name."""
    config = TorchInferenceRPUConfig()
    config.pre_post.input_range.enable = True
    config.pre_post.input_range.init_value = INPUT_RANGE
    config.pre_post.input_range.init_from_data = 0
    config.forward.out_bound = OUTPUT_BOUND
    for name, value in changes.items():
        part, _, key = name.partition("__")
        setattr(getattr(config, part), key, value)
    torch.manual_seed(3)
    return AnalogLinear(12, 7, bias=False, rpu_config=config)


def block(layer: AnalogLinear, hardware: Hardware, feedback: float = 1e-12) -> EnergyBlock:
    """The same product: feedback that rounding hides makes a two-layer net one, of its input and one matrix."""
    energy = Hopfield([Dense(12, 7, bias=False)], identity(1.0), feedback=feedback)
    with torch.no_grad():
        energy.edges[0].weight.copy_(layer.weight)
    return EnergyBlock(energy, FixedPoint(4), hardware=hardware)


def largest(layer: AnalogLinear) -> float:
    return layer.weight.abs().max().item()


def inputs() -> Tensor:
    x = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    assert bool((x.abs() > INPUT_RANGE).any()), "some saturate"
    return x


def converters(layer: AnalogLinear, dac: int | None, adc: int | None, noise: float = 0.0) -> Hardware:
    ends = INPUT_RANGE * OUTPUT_BOUND * largest(layer)
    return Hardware(Converter(dac, INPUT_RANGE), Converter(adc, ends, noise * INPUT_RANGE * largest(layer)), read="output")


@pytest.mark.parametrize(("dac", "adc"), [(None, None), (8, None), (None, 6), (8, 9), (4, 4)])
def test_converters_of_as_many_bits_give_the_same_numbers(dac: int | None, adc: int | None) -> None:
    steps = {key: 2**bits - 2 for key, bits in (("forward__inp_res", dac), ("forward__out_res", adc)) if bits}
    layer = tile(**steps).eval()
    found = block(layer, converters(layer, dac, adc))(inputs())
    torch.testing.assert_close(found, layer(inputs()), rtol=0, atol=2e-6)


def test_the_error_at_the_input_is_the_same() -> None:
    layer = tile(forward__inp_res=2**6 - 2).eval()
    ours = block(layer, converters(layer, 6, None), feedback=1e-5).double()
    found = []
    for module, x in ((layer, inputs()), (ours, inputs().double())):
        x.requires_grad_()
        module(x).sum().backward()
        found.append(x.grad.double())
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)
    assert bool((found[0] == 0).any()), "where the input is out of range, nothing comes back"


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_weights_of_as_many_levels_give_the_same_numbers(bits: int) -> None:
    layer = tile(
        modifier__quantization_type=WeightQuantizationType.DISCRETIZE, modifier__res=2**bits - 2, forward__out_bound=0.0
    ).eval()
    found = block(layer, Hardware(Converter(range=INPUT_RANGE), devices=[Levels(2 ** (bits - 1))]))(inputs())
    torch.testing.assert_close(found, layer(inputs()), rtol=0, atol=2e-6)


def test_noise_of_weights_and_outputs_is_the_same_for_the_same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draws, "normal", lambda _, like: torch.randn_like(like))
    layer = tile(
        modifier__noise_type=WeightNoiseInjectionType.ADD_NORMAL,
        modifier__std_dev=0.05,
        forward__out_noise=0.04,
        forward__inp_res=2**8 - 2,
        forward__out_res=2**8 - 2,
    )
    hardware = converters(layer, 8, 8, noise=0.04)
    noisy = block(layer, Hardware(hardware.dac, hardware.adc, [ProgrammingNoise(0.05)], "output"))
    found = []
    for module in (layer.train(), noisy.train()):
        torch.manual_seed(11)
        found.append(module(inputs()))
    torch.testing.assert_close(*found, rtol=0, atol=3e-6)
