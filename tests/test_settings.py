"""Settings: what is accepted, what is refused and how, presets, and the models they describe."""

from __future__ import annotations

import io
import os
import re
import runpy
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from rich.console import Console
from torch import nn

from ffebm import (
    BackpropThroughTime,
    ConvLayer,
    EquilibriumPropagation,
    FixedPoint,
    MaxPool,
    RecurrentBackprop,
    Unrolled,
    build,
)
from ffebm.checks import brief, brief_name
from ffebm.experiment import forecast
from ffebm.experiment.architectures import build_estimator, build_model
from ffebm.experiment.data import DataError, load
from ffebm.experiment.files import read_regular
from ffebm.experiment.preset import preset_names, read_preset, read_preset_or_file
from ffebm.experiment.settings import Gradient, Settings, SettingsError, documented, read_settings, settings_from
from ffebm.experiment.settings.duration import in_words
from ffebm.experiment.settings.sections import MOST_SWEEPS
from ffebm.experiment.training import preparing

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


SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28)}


def test_every_row_of_the_papers_tables_is_a_preset() -> None:
    others = ("digits", "digits-mixed", "digits-resistive", "mnist-drn-1h", "cifar10-residual", "cifar10-small")
    assert [name for name in preset_names() if name not in (*others, "folder")] == list(PRINTED)
    assert tuple(preset_names()[:6]) == others
    assert preset_names()[-1] == "folder"
    for name, (ep, implicit) in PRINTED.items():
        paper = read_preset(name).paper
        assert paper is not None
        assert (paper.ep.top1, paper.id.top1) == (ep, implicit)


@pytest.mark.parametrize("name", preset_names())
def test_presets_build_the_net_they_name(name: str) -> None:
    settings = read_preset(name, ["model.width=0.03125"])
    shape, classes = SHAPES.get(settings.data.name, (3, 32, 32)), 10
    model = build_model(settings, shape, classes)
    sizes = [len(block.energy.activations) for _, block in model.chain]
    if depth := re.search(r"-l(\d+)", name):
        assert sum(sizes) == int(depth[1])
    expected = int(size[1]) if (size := re.search(r"-bs(\d+)", name)) else 3 if name == "cifar10-residual" else 2
    assert set(sizes[:-1]) <= {expected}
    assert sizes[-1] <= expected
    x = torch.rand(2, *shape)
    model(x, torch.tensor([0, 1])).losses.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_files_of_earlier_versions_are_read_where_the_settings_that_have_gone_did_nothing() -> None:
    old = {"model": {"norm_gain": 1.0, "norm_eps": 1e-05, "bias_gain": 1.0, "readout_gain": 1, "slope": 0.5}}
    assert settings_from(old).model.slope == 0.5
    with pytest.raises(SettingsError, match=r"`readout_gain` .* earlier versions had it"):
        settings_from({"model": {"readout_gain": 4.0}})


def test_the_small_preset_has_the_settings_of_the_cifar10_benchmark() -> None:
    """Blocks of other sizes are trained by the paper's presets with overrides, which must come to this preset for two."""
    script = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "cifar10_small.py"))
    small = read_preset("cifar10-small")
    assert read_preset("cifar10-l12-bs2", script["RECIPE"]) == small.model_copy(
        update={"description": "CIFAR-10, 12 layers in blocks of 2", "paper": read_preset("cifar10-l12-bs2").paper}
    )
    for kind, _ in (*script["TWO"], *script["FIVE"], *script["CUT"], *script["LESS"]):
        preset, *overrides = kind.command
        assert read_preset(preset, overrides).trainer.epochs == kind.epochs


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


def test_clamped_outputs_and_batch_norm_are_where_settings_put_them() -> None:
    model = build_model(read_preset("cifar10-l12-bs2", ["model.width=0.03125"]), (3, 32, 32), 10)
    outputs = [block.energy.activations[-1].name for _, block in model.chain]
    assert [number for number, name in enumerate(outputs, 1) if name.startswith("clamp")] == [2, 4]
    model = build_model(read_preset("cifar10-l6-bs2", ["model.width=0.03125"]), (3, 32, 32), 10)
    norms = [any(isinstance(part, torch.nn.BatchNorm2d) for part in stage.modules()) for stage, _ in model.chain]
    assert norms == [True, False, False]


def clamped_outputs(settings: Settings) -> list[int]:
    """The numbers of the blocks whose output is clamped in the model that is built."""
    blocks = [block for _, block in build_model(settings, (3, 32, 32), 10).chain]
    return [number for number, block in enumerate(blocks, 1) if not block.energy.activations[-1].signed]


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_has_max_pooling_below_a_layer_that_may_be_negative(name: str) -> None:
    settings = read_preset(name, ["model.width=0.03125"])
    for _, block in build_model(settings, SHAPES.get(settings.data.name, (3, 32, 32)), 10).chain:
        energy = block.energy
        assert not any(edge.chooses and energy.activations[post].signed for _, post, edge in energy.graph)


def test_outputs_above_max_pooling_are_clamped_as_build_would_and_a_list_is_exact() -> None:
    printed = ["model.width=0.03125", "model.pooled=[3, 5, 9]"]  # layers 3 and 9 are outputs of blocks, layer 5 is not
    settings = read_preset("cifar10-l12-bs3", printed)
    assert settings.model.clamped_outputs == "max-pooled"
    assert settings.model.clamped == clamped_outputs(settings) == [1, 3]
    layers = [ConvLayer(4, pool=MaxPool() if number in (3, 5, 9) else None) for number in range(1, 13)]
    chosen = [not block.energy.activations[-1].signed for _, block in build((3, 32, 32), layers, 3, 10).chain]
    assert chosen == [True, False, True, False]
    for more, expected in (("model.pooling=average", []), ("model.clamped_outputs=[]", []), ("model.clamped_outputs=[2]", [2])):
        assert clamped_outputs(read_preset("cifar10-l12-bs3", [*printed, more])) == expected
    opening = read_preset("cifar10-l12-bs3", ["model.split=1", "model.width=0.03125"])  # all pooling is digital then
    assert clamped_outputs(opening) == []


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


def test_plain_sweeps_are_those_of_the_paper() -> None:
    (_, block), *_ = build_model(read_preset("cifar10-l12-bs2", ["model.width=0.0625"]), (3, 32, 32), 10).chain
    assert block.relax == FixedPoint(20, tolerance=3e-3, omega=1.1)
    overrides = ["model.width=0.0625", "sweeps=plain"]
    (_, block), *_ = build_model(read_preset("cifar10-l12-bs2", overrides), (3, 32, 32), 10).chain
    assert block.relax == FixedPoint(20)
    assert block.estimator == EquilibriumPropagation(FixedPoint(5, order="output-first"), beta=0.2)


def test_saved_settings_are_read_back_unchanged(tmp_path: Path) -> None:
    for name in preset_names():
        settings = read_preset(
            name, ["data.root=/some/where", "optimiser.clip=1", "model.split=[1, 3]"] if name == "digits" else []
        )
        settings.save(tmp_path / "settings.toml")
        assert read_settings(tmp_path / "settings.toml") == settings


def test_none_is_saved_and_read_back_where_the_default_is_a_number(tmp_path: Path) -> None:
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
    assert max(len(line) for line in documented().splitlines()) <= 80
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
        ("model.norm_gain=1", "Unknown key `norm_gain` .*: earlier versions had it. .*model.start"),
        ("trainer.lr=1", r"Unknown key `lr` in \[trainer\]"),
        ("model.width=-1", "`model.width` of the command line: input should be greater than 0, got -1"),
        ("model.width=nan", "`model.width`.*finite"),
        ("gradient.kind=ip", "'ep', 'id', 'recurrent-backprop', 'bptt' or 'bp', got 'ip'"),
        ("model.split=5", r": a block size \(`split`\) must lie between 1 and the number of layers, 4; got 5\.$"),
        ("model.split=0", "between 1 and the number of layers, 4; got 0"),
        ("model.split=[4, 0]", r": the sizes in the split \[4, 0\] must be positive"),
        ("relaxation.order=odd", "'odd-even', 'even-odd', .*, 'upward', 'downward' or 'synchronous', got 'odd'"),
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
        ("model.width=1e308", "between 1e-30 and 1e.30 in size, as 32-bit floats hold it, got 1e.308"),
        ("model.width=1e6", "`width` makes the largest layer 3.2e.07 channels or units, and 10,000,000 are the most"),
        ("optimiser.learning_rate=1e308", "as 32-bit floats hold it"),
        ("optimiser.weight_decay=1e300", "as 32-bit floats hold it"),
        ("model.variance=1e-320", "as 32-bit floats hold it"),
        ("model.width=1" + "0" * 400, "got a whole number of about 401 digits"),
        ("trainer.threads=2147483648", "less than or equal to 4096"),
        ("data.workers=1000000000", "less than or equal to 1024"),
        ("data.crop_padding=1025", "less than or equal to 1024"),
        ("trainer.epochs=1" + "0" * 20, "a whole number may be 2,147,483,647 at most, got 1" + "0" * 20),
        ("model.dense=[9" + "9" * 30 + "]", "2,147,483,647 at most"),
        (
            "relaxation.steps=1" + "0" * 20,
            "100,000 sweeps are the most: at a millisecond a sweep, so many take 3 billion years",
        ),
        ("gradient.steps=1" + "0" * 4000, "as long as there has been a universe"),
        ("trainer.epochs=1" + "0" * 5000, "a number in it has thousands of digits"),
        ("model.channels=" + "[" * 2000 + "]" * 2000, "its brackets are nested too deep"),
        ("model.channels={" + "a." * 5000 + "a=1}", "more than 50 dots"),
        ("model.channels=[" + "1, " * 1001 + "]", "1,001 layers are asked for, and 1,000 are the most"),
        ("data.root=~nosuchuser/x", "there is no home folder ~nosuchuser; name the folder in full"),
        ("data.root=a\udcff", r"`data.root=a\\udcff` cannot be used: it cannot be written as UTF-8"),
        ("seed=1\nsweeps = 2", "`seed` of the command line: input should be a valid integer"),
        (
            "optimiser.momentum=0.5",
            "`optimiser.momentum` has no effect here: Adam has its own; take optimiser.kind=sgd, or leave",
        ),
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


def test_messages_on_mistakes_in_a_file_name_the_file(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        (["optimiser.momentum=0.5", "optimiser.kind=sgd"], []),
        (["gradient.quality=0.9", "sweeps=calibrated"], []),
        (["gradient.quality=0.9", "sweeps=settle"], ["gradient.quality"]),
        (["relaxation.tolerance=1e-3", "gradient.omega=1.2", "sweeps=plain"], ["relaxation.tolerance", "gradient.omega"]),
        (["relaxation.omega=1.2", "gradient.tolerance=1e-3", "sweeps=plain"], ["relaxation.omega", "gradient.tolerance"]),
        (["relaxation.omega=1.2", "gradient.tolerance=1e-3", "sweeps=settle"], []),
        (["gradient.tolerance=1e-3", "sweeps=calibrated"], ["gradient.tolerance"]),
        (["gradient.steps=3", "gradient.kind=bptt"], ["gradient.steps"]),
        (["gradient.beta=0.1", "gradient.variant=positive", "gradient.kind=id"], []),  # as in tables, whose columns are kinds
    ],
)
def test_a_setting_that_does_nothing_is_refused(overrides: list[str], idle: list[str]) -> None:
    if not idle:
        read_preset("digits", overrides)
        return
    with pytest.raises(SettingsError) as caught:
        read_preset("digits", overrides)
    assert re.findall(r"^`([\w.]+)` has no effect", str(caught.value), re.MULTILINE) == idle


def test_files_may_list_settings_that_do_nothing() -> None:
    read = settings_from({"sweeps": "plain", "gradient": {"quality": 0.9, "kind": "bptt"}, "optimiser": {"momentum": 0.5}})
    assert (read.gradient.quality, read.optimiser.momentum) == (0.9, 0.5)


def test_only_files_of_a_reasonable_size_are_read(tmp_path: Path) -> None:
    pipe, folder, large = tmp_path / "pipe.toml", tmp_path / "folder.toml", tmp_path / "large.toml"
    os.mkfifo(pipe)
    folder.mkdir()
    large.write_bytes(b"#" * 1_000_001)
    for path, reason in (
        (pipe, "a pipe"),
        (folder, "a folder"),
        (Path("/dev/zero"), "a device"),
        (large, "larger than 1,000,000"),
    ):
        with pytest.raises(SettingsError, match=f"is not a readable TOML file: .*{reason}"):
            read_preset_or_file(str(path))
    large.write_bytes(b"seed = 3")
    assert read_regular(large, 8) == b"seed = 3"
    with pytest.raises(ValueError, match="larger than 7 bytes"):
        read_regular(large, 7)
    with pytest.raises(OSError, match="not a file"):
        read_regular(folder, 7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed = 1" + "0" * 5000, "a number in it has thousands of digits"),
        ("seed = " + "[" * 2000, "its brackets are nested too deep"),
        ("a." * 100_000 + "a = 1", "more than 50 dots"),
        ("seed = 1 " + "x" * 10_000, "Expected newline"),
    ],
)
def test_pathological_toml_gives_a_short_message(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=reason) as caught:
        read_settings(path)
    assert len(str(caught.value)) < 400


def test_dots_in_a_comment_do_not_count_as_keys(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(f"# {'.' * 1000}\nseed = 3\n")
    assert read_settings(path).seed == 3


def test_of_many_mistakes_the_first_are_explained() -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from({f"key{number}": 1 for number in range(1000)})
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 990 more."
    with pytest.raises(SettingsError, match=r"`model\.channels`") as caught:
        settings_from({"model": {"channels": [f"a{number}" for number in range(1000)]}})
    assert len(str(caught.value).splitlines()) == 1  # one key, however often


def test_no_suggestions_are_searched_for_long_names_or_beyond_the_first_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing takes the longer, the longer they are."""
    import difflib

    compared: list[str] = []

    def note(word: str, _known: list[str], **_: float) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", note)
    with pytest.raises(SettingsError, match="Unknown key") as caught:
        settings_from({"x" * 1_000_000: 1, "short": 2, **{f"k{number}": 1 for number in range(1000)}})
    assert len(str(caught.value)) < 5000
    assert set(compared) == {"short", *(f"k{number}" for number in range(8))}
    with pytest.raises(SettingsError, match="Unknown preset `xxx"):
        read_preset("x" * 1_000_000)
    assert "x" * 1_000_000 not in compared


@pytest.mark.parametrize("value", [None, True, 1.5, "text", [1, "a"], {"a": (1, 2)}, b"bytes", Path("a")])
def test_short_values_are_quoted_whole(value: object) -> None:
    assert brief(value) == repr(value)


class Awkward:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 10**6, "\udcff" * 100, "\x1b[31m" * 100, "a\nb" * 100, b"\xff" * 1000, "'" * 300, "\\" * 300, Path("x" * 1000)),
        *(
            10**20,
            -(10**5000),
            [10**5000],
            list(range(10**6)),
            {"x" * 10**5: "y" * 10**5},
            nn.Linear(2, 3),
            Awkward(),
            ["x" * 99] * 9,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_quoted_on_one_line(value: object) -> None:
    for width in (20, 80):
        shown = brief(value, width)
        assert len(shown) <= width
        assert shown.isprintable()
    if isinstance(value, str):
        assert brief_name(value).isprintable()
        assert len(brief_name(value)) <= 80


def test_values_that_hold_themselves_are_quoted() -> None:
    nested: list[object] = []
    nested.append(nested)
    assert "…" in brief(nested)


def test_durations_are_put_into_words() -> None:
    assert [in_words(seconds) for seconds in (0.2, 1, 59, 3600, 86_400 * 3, 31_557_600, 10**15)] == [
        *("1 second", "1 second", "59 seconds", "1 hour", "3 days", "1 year", "32 million years")
    ]


def test_a_data_folder_is_refused_for_the_bundled_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a folder means what lies in it."""
    with pytest.raises(
        DataError, match=r"The digits come with scikit-learn: nothing would be read from .*cifar10-small --data"
    ):
        load("digits", tmp_path)
    monkeypatch.setenv("FFEBM_DATA", str(tmp_path))  # which is for all data sets
    assert load("digits").shape == (1, 8, 8)


def test_a_model_beyond_the_memory_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"The model has 25,805,\d{3},\d{3},\d{3} parameters\. .* GB, .* this machine has"):
        preparing.prepare(read_preset("digits", ["model.width=40000"]))
    settings = read_preset("digits", ["trainer.accelerator=cpu"])
    parameters = sum(p.numel() for p in preparing.prepare(settings).model.parameters())
    monkeypatch.setattr(forecast, "_physical_memory", lambda: 16 * parameters)  # weights, gradient, two moments
    preparing.prepare(settings)
    monkeypatch.setattr(forecast, "_physical_memory", lambda: 16 * parameters - 1)
    with pytest.raises(SettingsError, match=r"take a smaller model\.width"):
        preparing.prepare(settings)
    preparing.prepare(read_preset("digits", ["trainer.accelerator=cpu", "optimiser.kind=sgd", "optimiser.momentum=0"]))


def test_steps_that_take_minutes_are_announced() -> None:
    def shown(*overrides: str) -> str:
        console = Console(file=io.StringIO(), width=400)
        preparing.prepare(read_preset("digits", ["trainer.accelerator=cpu", *overrides]), console)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]

    assert shown() == ""
    assert "A single step may take about 3 minutes" in shown(f"relaxation.steps={MOST_SWEEPS}")  # 32 × 590 k × 100 k / 1e10


def test_building_a_model_twice_leaves_its_weights_as_they_were() -> None:
    """Its shapes are looked at first: that takes no random numbers."""
    settings = read_preset("digits", ["model.start=none"])  # which would scale them
    prepared = preparing.prepare(settings).model
    torch.manual_seed(settings.seed)
    built = build_model(settings, (1, 8, 8), 10)
    assert all(torch.equal(a, b) for a, b in zip(prepared.parameters(), built.parameters(), strict=True))


@given(st.text(max_size=30))
def test_any_override_gives_settings_or_a_settings_error(text: str) -> None:
    """Whatever is typed gives settings or a sentence."""
    with suppress(SettingsError):
        assert read_preset("digits", [f"model.width={text}"]).model.width > 0
