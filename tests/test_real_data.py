"""Real CIFAR, where there is some: `FFEBM_DATA=~/data make test-data`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ffebm.experiment import command_line
from ffebm.experiment.data import Presence, check, load
from ffebm.experiment.run import Run

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def root() -> Path:
    if not os.environ.get("FFEBM_DATA"):
        pytest.fail("Name the folder of the data sets: FFEBM_DATA=~/data make test-data")
    return Path(os.environ["FFEBM_DATA"])


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_real_data_is_complete_and_has_the_papers_statistics(root: Path, name: str, classes: int) -> None:
    """Table [tab:data_normalization]. The paper normalises CIFAR-100 by the statistics of CIFAR-10, which are close."""
    assert check(root)[name].state is Presence.COMPLETE
    data = load(name, root)
    assert torch.bincount(data.train.y).tolist() == [50_000 // classes] * classes
    assert torch.bincount(data.test.y).tolist() == [10_000 // classes] * classes
    pixels = data.train.x.double().div(255).transpose(0, 1).flatten(1)
    tolerance = 1e-3 if name == "cifar10" else 0.03
    assert pixels.mean(1).tolist() == pytest.approx(data.mean, abs=tolerance)
    assert pixels.std(1).tolist() == pytest.approx(data.std, abs=tolerance)


def test_an_epoch_of_a_tiny_net_learns(root: Path, tmp_path: Path) -> None:
    small = ["model.width=0.0625", "relaxation.steps=8", "gradient.steps=4", "trainer.epochs=1", "optimiser.learning_rate=1e-3"]
    arguments = ["train", "cifar10-l12-bs2", *small, "--data", str(root), "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(command_line.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert Run(tmp_path / "run").metrics()[0]["test_accuracy"] > 0.3
