"""Plain backprop, `gradient.kind=bp`: the net of the same layers without feedback, and what training makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from ffebm import FFEBM
from ffebm.experiment.architectures import build_model
from ffebm.experiment.preset import read_preset
from ffebm.experiment.run import Run
from ffebm.experiment.settings import SettingsError
from ffebm.experiment.training import train
from ffebm.experiment.training.preparing import prepare

SMALL = ["model.width=0.0625", "gradient.kind=bp", "model.start=none"]


def by_hand(model: FFEBM, s: Tensor, slope: float, clamped: list[int]) -> Tensor:
    """The logits, layer by layer, in the words of torch."""

    def connected(connection: torch.nn.Module, s: Tensor) -> Tensor:
        weight, bias = connection.weight, connection.bias
        if weight.dim() == 2:
            return F.linear(s.flatten(1), weight, bias)  # pyright: ignore[reportArgumentType]
        s = F.conv2d(s, weight, bias, padding=1)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return s if connection.pool is None else F.max_pool2d(s, 2)

    for number, (stage, block) in enumerate(model.chain, 1):
        norm = stage.norm
        v = connected(stage.connection, s)
        if isinstance(norm, torch.nn.BatchNorm2d):
            v = F.batch_norm(v, None, None, norm.weight, norm.bias, training=True)
        edges = block.energy.edges  # pyright: ignore[reportAttributeAccessIssue]
        for edge in edges:
            v = connected(edge, (slope * v).clamp(0, 1))
        s = (slope * v).clamp(0, 1) if number in clamped else v
    linear = model.readout[-1]  # pyright: ignore[reportIndexIssue]
    return F.linear(s.flatten(1), linear.weight, linear.bias)


@pytest.mark.parametrize("preset", ["cifar10-l6-bs2", "cifar10-l6-bs3", "cifar10-l6-bs6"])
def test_it_is_backprop_through_the_feedforward_net_of_the_same_layers(preset: str) -> None:
    settings = read_preset(preset, SMALL)
    torch.manual_seed(0)
    model = build_model(settings, (3, 32, 32), 10).double()
    x, y = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.arange(4)
    output = model(x, y)
    assert output.losses is not None
    found = torch.autograd.grad(output.losses.sum(), [*model.parameters()])
    logits = by_hand(model, x, settings.model.slope, settings.model.clamped)
    expected = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), [*model.parameters()])
    torch.testing.assert_close(output.logits, logits, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_what_is_said_of_phases_and_limits_has_no_effect() -> None:
    one, other = (
        build_model(read_preset("cifar10-l6-bs3", [*SMALL, *more]), (3, 32, 32), 10)
        for more in ([], ["model.max_contraction=0.5", "relaxation.steps=7", "sweeps=plain"])
    )
    assert [(b.limit, b.relax, b.estimator) for _, b in one.chain] == [(b.limit, b.relax, b.estimator) for _, b in other.chain]


@pytest.mark.parametrize("part", ["model", "estimator"])
def test_parts_of_ones_own_that_would_bring_another_gradient_are_refused(part: str) -> None:
    with pytest.raises(SettingsError, match=f"parts.{part}` has no effect here: plain backprop"):
        read_preset("digits", ["gradient.kind=bp", f"parts.{part}=mine:made"])


@pytest.mark.parametrize("split", [2, 4])
def test_it_starts_from_the_weights_that_others_start_from(split: int) -> None:
    changes = [f"model.split={split}", "model.max_contraction=0.3", "model.start=0.5", "trainer.threads=1"]
    by_ep, plain = (
        dict(prepare(read_preset("digits", [*changes, f"gradient.kind={kind}"])).model.named_parameters())
        for kind in ("ep", "bp")
    )
    assert by_ep.keys() == plain.keys()
    for name, weight in by_ep.items():
        assert torch.equal(plain[name], weight), name


def test_it_trains_without_a_word_of_equilibria(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["gradient.kind=bp", "model.max_contraction=none", "trainer.epochs=2", "trainer.threads=1"]
    learner = train(read_preset("digits", changes), Run(tmp_path / "run"), Console(width=200))
    assert learner.history[-1]["test_accuracy"] > 0.9
    assert "equilibrium" not in capsys.readouterr().out
