"""Settings: what is accepted, what is refused and how, presets, and the models they describe."""

from __future__ import annotations

import re
import runpy
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ffebm import BackpropThroughTime, EquilibriumPropagation, FixedPoint, RecurrentBackprop, Unrolled
from ffebm.experiment.architectures import build_estimator, build_model
from ffebm.experiment.preset import preset_names, read_preset, read_preset_or_file
from ffebm.experiment.settings import Gradient, Settings, SettingsError, documented, read_settings, settings_from

# Top-1 accuracy by EP and ID, as printed: Table [table:split], Table [tab:scaling].
PRINTED = {
    "cifar10-l6-bs6": (88.8, 87.3),
    "cifar10-l6-bs3": (89.5, 89.2),
    "cifar10-l6-bs2": (90.1, 90.0),
    "cifar10-l12-bs4": (91.6, 91.6),
    "cifar10-l12-bs3": (92.2, 92.2),
    "cifar10-l12-bs2": (91.7, 91.8),
    "cifar100-l12": (69.3, 69.2),
    "cifar100-l15": (71.2, 71.1),
    "imagenet32-l12": (44.7, 44.7),
    "imagenet32-l15": (46.0, 45.5),
}


def test_every_row_of_the_papers_tables_is_a_preset() -> None:
    assert [name for name in preset_names() if name not in ("digits", "cifar10-small")] == list(PRINTED)
    for name, (ep, implicit) in PRINTED.items():
        paper = read_preset(name).paper
        assert paper is not None
        assert (paper.ep.top1, paper.id.top1) == (ep, implicit)


@pytest.mark.parametrize("name", preset_names())
def test_presets_build_the_net_they_name(name: str) -> None:
    settings = read_preset(name, ["model.width=0.03125"])
    shape, classes = ((1, 8, 8), 10) if name == "digits" else ((3, 32, 32), 10)
    model = build_model(settings, shape, classes)
    sizes = [len(block.energy.activations) for _, block in model.chain]
    if depth := re.search(r"-l(\d+)", name):
        assert sum(sizes) == int(depth[1])
    expected = int(size[1]) if (size := re.search(r"-bs(\d+)", name)) else 2
    assert set(sizes[:-1]) <= {expected}
    assert sizes[-1] <= expected
    x = torch.rand(2, *shape)
    model(x, torch.tensor([0, 1])).losses.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_small_preset_is_what_was_measured() -> None:
    """`make cifar10` trains cifar10-l12-bs2 with overrides, which this preset spares."""
    script = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "cifar10_small.py"))
    name, *overrides = script["SETTINGS"]
    measured = read_preset(name, [o for o in overrides if not o.startswith("trainer.threads")])
    small = read_preset("cifar10-small")
    assert small == measured.model_copy(update={"description": small.description, "paper": None})


def test_presets_follow_the_paper_where_rows_differ() -> None:
    """Table [tab:architectures], Table [tab:hyperparameters], appendix A.6."""
    deep = read_preset("cifar10-l12-bs2")
    assert deep.model.channels == [128] * 4 + [256] * 4 + [512] * 4
    assert (deep.model.slope, deep.model.clamped_outputs, deep.model.pooled) == (1.0, [2, 4], [3, 5, 9])
    assert (deep.relaxation.steps, deep.gradient.steps, deep.gradient.beta, deep.model.variance) == (20, 5, 0.2, 5.9e-5)
    shallow = read_preset("cifar10-l6-bs3")
    assert (shallow.model.batch_norm, shallow.model.clamped_outputs, shallow.model.dense) == ("first", "all", [256])
    assert (shallow.relaxation.steps, shallow.gradient.steps, shallow.optimiser.learning_rate) == (60, 20, 1e-4)
    deepest = read_preset("imagenet32-l15")
    assert (deepest.model.slope, deepest.model.variance, deepest.trainer.epochs, deepest.trainer.batch) == (0.5, 1e-5, 100, 256)
    for name in PRINTED:
        settings = read_preset(name)
        assert (settings.data.crop_padding, settings.data.flip, settings.optimiser.weight_decay) == (4, True, 3e-4)


def test_clamped_outputs_and_batch_norm_go_where_they_are_said_to() -> None:
    model = build_model(read_preset("cifar10-l12-bs2", ["model.width=0.03125"]), (3, 32, 32), 10)
    outputs = [block.energy.activations[-1].name for _, block in model.chain]
    assert [number for number, name in enumerate(outputs, 1) if name.startswith("clamp")] == [2, 4]
    model = build_model(read_preset("cifar10-l6-bs2", ["model.width=0.03125"]), (3, 32, 32), 10)
    norms = [any(isinstance(part, torch.nn.BatchNorm2d) for part in stage.modules()) for stage, _ in model.chain]
    assert norms == [True, False, False]


def test_width_keeps_the_gain_of_the_initial_weights() -> None:
    """The gain of a convolution is that of its fan-in times the variance of its weights."""
    gains = []
    for width in (0.5, 0.125):
        torch.manual_seed(0)
        model = build_model(read_preset("cifar10-l12-bs2", [f"model.width={width}"]), (3, 32, 32), 10)
        weight = model.chain[-1][1].energy.get_parameter("interactions.0.weight")
        gains.append(weight[0].numel() * weight.var().item())
    assert gains[0] == pytest.approx(gains[1], rel=0.05)


def test_every_estimator_can_be_chosen() -> None:
    kinds = {"ep": EquilibriumPropagation, "id": Unrolled, "recurrent-backprop": RecurrentBackprop, "bptt": BackpropThroughTime}
    for kind, estimator in kinds.items():
        built = build_estimator(Gradient(kind=kind, steps=7, tolerance=0.01))
        assert type(built) is estimator
        if kind != "bptt":
            assert built.relax.steps == 7
            assert built.relax.tolerance == 0.01
    ep = build_estimator(Gradient(beta=0.3, variant="positive", scale="paper", order="synchronous"))
    relax = FixedPoint(10, order="synchronous", omega=1.1)
    assert ep == EquilibriumPropagation(relax, beta=0.3, variant="positive", scale="paper")


def test_the_papers_plain_sweeps_are_one_setting_away() -> None:
    (_, block), *_ = build_model(read_preset("cifar10-l12-bs2", ["model.width=0.0625"]), (3, 32, 32), 10).chain
    assert block.relax == FixedPoint(20, tolerance=3e-3, omega=1.1)
    overrides = ["model.width=0.0625", "sweeps=plain"]
    (_, block), *_ = build_model(read_preset("cifar10-l12-bs2", overrides), (3, 32, 32), 10).chain
    assert block.relax == FixedPoint(20)
    assert block.estimator == EquilibriumPropagation(FixedPoint(5, order="output-first"), beta=0.2)


def test_batch_norms_have_the_gain_and_the_epsilon_that_are_asked_for() -> None:
    model = build_model(read_preset("digits", ["model.norm_gain=0.5", "model.norm_eps=1e-9"]), (1, 8, 8), 10)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 2
    assert all((norm.weight == 0.5).all() and norm.eps == 1e-9 for norm in norms)


def test_the_readout_starts_at_the_gain_that_is_asked_for() -> None:
    torch.manual_seed(0)
    plain = build_model(read_preset("digits"), (1, 8, 8), 10).readout
    torch.manual_seed(0)
    louder = build_model(read_preset("digits", ["model.readout_gain=4"]), (1, 8, 8), 10).readout
    assert torch.equal(4 * plain[1].weight, louder[1].weight)
    assert torch.equal(plain[1].bias, louder[1].bias)


def test_biases_in_blocks_start_at_the_gain_that_is_asked_for() -> None:
    def parameters(gain: float) -> dict[str, Tensor]:
        torch.manual_seed(0)
        return dict(build_model(read_preset("digits", [f"model.bias_gain={gain}"]), (1, 8, 8), 10).named_parameters())

    plain, faint = parameters(1.0), parameters(0.25)
    biases = {name for name in plain if name.startswith("blocks") and name.endswith("bias")}
    assert biases
    assert all(torch.equal(faint[name], (0.25 if name in biases else 1) * plain[name]) for name in plain)


def test_settings_survive_being_saved(tmp_path: Path) -> None:
    for name in preset_names():
        settings = read_preset(
            name, ["data.root=/some/where", "optimiser.clip=1", "model.split=[1, 3]"] if name == "digits" else []
        )
        settings.save(tmp_path / "settings.toml")
        assert read_settings(tmp_path / "settings.toml") == settings


def test_nothing_survives_being_saved_where_the_default_is_something(tmp_path: Path) -> None:
    settings = read_preset("digits", ["relaxation.tolerance=none"])
    assert settings.relaxation.tolerance is None
    settings.save(tmp_path / "settings.toml")
    assert read_settings(tmp_path / "settings.toml") == settings


def test_the_explained_settings_are_a_file_of_all_defaults() -> None:
    assert settings_from(tomllib.loads(documented())) == Settings()
    assert "learning_rate" in documented("optimiser")
    assert "epochs" not in documented("optimiser")
    assert documented("learning_rate").count("learning_rate =") == 2
    assert documented("model.split").splitlines()[1] == "[model]"
    assert max(len(line) for line in documented().splitlines()) <= 128
    assert documented("nothing") == ""


def test_overrides_take_toml_values_text_and_none() -> None:
    settings = read_preset(
        "cifar10-l12-bs2", ["model.width=0.125", "gradient.kind=id", 'data.name="cifar100"', "model.variance=none"]
    )
    assert settings.model.width == 0.125
    assert settings.gradient.kind == "id"
    assert settings.data.name == "cifar100"
    assert settings.model.variance is None
    assert read_preset_or_file(None, ["seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("relaxation.step=5", r"Unknown key `step` in \[relaxation\] of the command line; did you mean `steps`\?"),
        ("modle.width=1", "Unknown key `modle` of the command line; did you mean `model`?".replace("?", r"\?")),
        ("width=0.5", r"did you mean `model.width`\?"),
        ("trainer.lr=1", r"Unknown key `lr` in \[trainer\]"),
        ("model.width=-1", "`model.width` of the command line: input should be greater than 0, got -1"),
        ("model.width=nan", "`model.width`.*finite"),
        ("gradient.kind=ip", "'ep', 'id', 'recurrent-backprop' or 'bptt', got 'ip'"),
        ("model.split=5", "blocks of 5 layers are asked for, but there are 4"),
        ("model.split=[1, 2]", "adds up to 3 layers, but there are 4"),
        ("model.channels=[]", "at least one layer"),
        ("model.channels=[8, 0]", "at least 1"),
        ("model.pooled=[9]", "`pooled` names layer 9, but 4 are convolutional"),
        ("model.clamped_outputs=[3]", "blocks go from 1 to 2"),
        ("trainer.keep=1", "greater than or equal to 2"),
        ("trainer.accumulate=100", "cannot be cut into 100 parts"),
        ("seed.x=1", "`seed` of the command line: input should be a valid integer"),
        ("seed", "write key=value"),
        ("4,", "a list must be quoted"),
        ("optimiser.lr=1", "did you mean `learning_rate`"),
        ("batch_size=3", "did you mean `trainer.batch`"),
        ("gradient.T=5", r"Unknown key `T` in \[gradient\] of the command line; there are `kind`"),
        ("trainer.epochs=true", "`trainer.epochs` of the command line: input should be a valid integer, got True"),
        ("model=5", "`model` of the command line: this is a section, not a value"),
        ("model.split=two", "`model.split` of the command line: input should be a whole number or a list of whole numbers"),
        ("model.channels=4,4", r"`model.channels` .* a list of whole numbers such as \[2, 2\], got '4,4'"),
    ],
)
def test_impossible_settings_say_what_is_wrong(override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_preset("digits", [override])


def test_each_mistake_is_told_once_and_where_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[model]\nsplit = 9\n[trainer]\nkeep = 0\n")
    with pytest.raises(SettingsError) as caught:
        read_settings(path, ["model.clamped_outputs=some"])
    first, second = str(caught.value).splitlines()
    assert first.startswith("`model.clamped_outputs` of the command line")
    assert second.startswith("`trainer.keep` of my.toml")
    assert read_settings(path, ["model.split=2", "trainer.keep=2"]).trainer.keep == 2  # a mistake that was mended


def test_files_with_mistakes_name_themselves(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[relaxation]\nnuge_steps = 3\n")
    with pytest.raises(SettingsError, match=r"Unknown key `nuge_steps` in \[relaxation\] of my.toml; did you mean `steps`"):
        read_settings(path)
    path.write_text("[relaxation\n")
    with pytest.raises(SettingsError, match="not a readable TOML file"):
        read_settings(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not a readable TOML file"):
        read_settings(path)
    with pytest.raises(SettingsError, match="no file"):
        read_preset_or_file(str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match="did you mean `cifar10-l12-bs2`"):
        read_preset_or_file("cifar10-l12-b2")


@given(st.text(max_size=30))
def test_no_override_crashes(text: str) -> None:
    """Whatever is typed gives settings or a sentence."""
    with suppress(SettingsError):
        assert read_preset("digits", [f"model.width={text}"]).model.width > 0
