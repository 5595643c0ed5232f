"""Trained models that are taken away: loaded, saved, exported, traced."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils import prune

import ffebm
from ffebm import AveragePool, ConvLayer, DenseLayer, EnergyBlock, FixedPoint, Hopfield, Interaction, MaxPool, build, identity
from ffebm.energy import Energy
from ffebm.experiment import command_line
from ffebm.experiment.classifier import Classifier
from ffebm.experiment.data import Description, digits
from ffebm.experiment.errors import UserError
from ffebm.experiment.export import export
from ffebm.experiment.run import Run, RunError
from ffebm.experiment.training import resume
from ffebm.interaction import Dense
from ffebm.pooling import Pool, SoftPool
from test_command_line import TINY, call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line.notes, "width", 200)
        call("train", *TINY, "--output", folder)
    return folder


@pytest.fixture(scope="module")
def classifier(run: Path) -> Classifier:
    return ffebm.load(run)


class TestLoading:
    def test_a_loaded_model_does_what_evaluation_measured(self, run: Path, classifier: Classifier) -> None:
        data = digits()
        found = classifier.predict(data.test.x)
        right = sum(label == data.classes[y] for label, y in zip(found.labels, data.test.y.tolist(), strict=True))
        assert right / len(data.test) == pytest.approx(Run(run).metrics()[-1]["test_accuracy"], rel=1e-5)
        assert not classifier.training
        assert classifier.classes == data.classes
        assert classifier.settings == Run(run).settings()

    def test_called_as_a_module_it_gives_logits_with_gradients(self, classifier: Classifier) -> None:
        images = digits().test.x[:3]
        x = classifier.normalise(images).requires_grad_()
        logits = classifier(x)
        torch.testing.assert_close(logits.softmax(1), classifier.predict(images).probabilities)
        logits.sum().backward()
        assert x.grad is not None
        assert x.grad.abs().max() > 0

    def test_pictures_of_every_kind_are_the_same_picture(self, classifier: Classifier, tmp_path: Path) -> None:
        image = digits().test.x[5]  # (1, 8, 8)
        pillow = Image.fromarray(image[0].numpy())
        pillow.save(tmp_path / "a.png")
        expected = classifier.predict(image).probabilities
        kinds = [tmp_path / "a.png", str(tmp_path / "a.png"), pillow, image[0], image[0].numpy(), image[0].numpy()[..., None]]
        for kind in kinds:
            assert torch.equal(classifier.predict(kind).probabilities, expected), type(kind)
        together = classifier.predict(kinds)
        torch.testing.assert_close(together.probabilities, expected.expand(len(kinds), -1))
        assert together.top(2)[0][0] == (together.labels[0], pytest.approx(expected.max().item()))
        batch = np.stack([image[0].numpy()] * 2)
        assert len(classifier.predict(batch).labels) == 2

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (torch.zeros(1, 8, 8), r"must be bytes of shape \(1, 8, 8\), one or a batch of them, got torch\.float32"),
            (torch.zeros(3, 8, 9, dtype=torch.uint8), r"got torch\.uint8 of shape \(3, 8, 9\)"),
            (np.zeros((9, 9), np.uint8), r"of shape \(9, 9\).*Give paths or Pillow images to have them scaled"),
            ([], "the list of images is empty"),
            ([3], "got a int"),
            ("no such file.png", "There is no file"),
        ],
        ids=["floats", "colours", "size", "nothing", "a number", "no file"],
    )
    def test_what_is_no_picture_is_refused(self, classifier: Classifier, wrong: object, message: str) -> None:
        with pytest.raises(UserError, match=message):
            classifier.predict(wrong)

    def test_saved_and_loaded_again_it_is_the_same(self, classifier: Classifier, tmp_path: Path) -> None:
        classifier.save_pretrained(tmp_path / "mine")
        assert {path.name for path in (tmp_path / "mine").iterdir()} == {"settings.toml", "data.json", "weights.safetensors"}
        again = Classifier.from_pretrained(tmp_path / "mine")
        x = classifier.normalise(digits().test.x[:4])
        assert torch.equal(again(x), classifier(x))
        assert again.settings == classifier.settings

    def test_a_saved_model_is_replaced_only_where_that_is_wanted(
        self, run: Path, classifier: Classifier, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        classifier.save_pretrained(tmp_path / "empty")
        with pytest.raises(RunError, match=r"exists already\. Name another folder, or replace .*overwrite=True"):
            classifier.save_pretrained(tmp_path / "empty")
        other = Classifier(deepcopy(classifier.model), classifier.settings, classifier.description)
        torch.nn.init.zeros_(other.model.readout[-1].weight)
        other.save_pretrained(tmp_path / "empty", overwrite=True)
        assert not ffebm.load(tmp_path / "empty").model.readout[-1].weight.any()
        with pytest.raises(RunError, match="is no saved model, so it is not replaced"):
            classifier.save_pretrained(run, overwrite=True)

    def test_a_saved_model_is_no_run_to_go_on_with(self, classifier: Classifier, tmp_path: Path) -> None:
        classifier.save_pretrained(tmp_path / "mine")
        kept = (tmp_path / "mine" / "weights.safetensors").read_bytes()
        with pytest.raises(RunError, match=r"holds a saved model, not a run: there are weights, and neither checkpoints nor"):
            resume(Run.open(tmp_path / "mine"))
        assert (tmp_path / "mine" / "weights.safetensors").read_bytes() == kept
        assert not (tmp_path / "mine" / "environment.json").exists()

    @pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_precisions_predict_and_are_saved_in_single(
        self, classifier: Classifier, precision: torch.dtype, tmp_path: Path
    ) -> None:
        other, images = deepcopy(classifier).to(precision), digits().test.x[:8]
        assert other.normalise(images).dtype == precision
        expected = classifier.predict(images).probabilities
        torch.testing.assert_close(other.predict(images).probabilities, expected, atol=0.05, rtol=0)
        other.save_pretrained(tmp_path / "mine")
        again = ffebm.load(tmp_path / "mine")
        assert {p.dtype for p in again.parameters()} == {torch.float32}
        torch.testing.assert_close(again.predict(images).probabilities, expected, atol=0.05, rtol=0)
        assert next(other.parameters()).dtype == precision, "saving changes nothing"

    def test_a_folder_that_is_no_run_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="is no run folder"):
            ffebm.load(tmp_path)


def logits(kind: Callable[[], Pool] | None) -> nn.Module:
    """A small model in evaluation mode that returns logits alone."""
    torch.manual_seed(0)
    layers = [ConvLayer(3), ConvLayer(4, pool=kind and kind()), ConvLayer(4), DenseLayer(6)]
    model = build((3, 9, 10), layers, [3, 1], 5, relax=FixedPoint(5, omega=1.1)).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).logits

    return Logits().eval()


POOLS: dict[str, Callable[[], Pool] | None] = {
    "none": None,
    "max": MaxPool,
    "average": AveragePool,
    "soft": SoftPool,
    "overlapping": lambda: MaxPool(3, 2),
}
BATCH = {"x": {0: torch.export.Dim("batch")}}


@pytest.mark.parametrize("pool", POOLS)
def test_exported_and_traced_models_do_the_same(pool: str) -> None:
    net, x = logits(POOLS[pool]), torch.randn(5, 3, 9, 10)
    expected = net(x)
    with warnings.catch_warnings(action="ignore"):  # of torch's own parts
        program = torch.export.export(net, (x[:2],), dynamic_shapes=BATCH).module()
        trace = torch.jit.trace(net, x)
    torch.testing.assert_close(program(x), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trace(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["none", "max", "average"])
def test_the_older_exporter_of_onnx_does_the_same(pool: str, tmp_path: Path) -> None:
    net, x = logits(POOLS[pool]), torch.randn(5, 3, 9, 10)
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(net, (x[:2],), tmp_path / "m.onnx", dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), net(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
# torch's compiler uses parts of torch that are on their way out: one as it loads, one as it reads what was exported.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
def test_a_compiled_package_does_the_same(tmp_path: Path) -> None:
    net, x = logits(MaxPool), torch.randn(5, 3, 9, 10)
    with torch.no_grad():
        program = torch.export.export(net, (x[:2],), dynamic_shapes=BATCH)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2"))
        found = torch._inductor.aoti_load_package(package)(x)
    torch.testing.assert_close(found, net(x).detach(), rtol=1e-4, atol=1e-5)


def test_onnx_files_carry_what_it_takes_to_use_them(
    run: Path, classifier: Classifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = call("export", run, tmp_path / "model.onnx")
    assert "torchvision" not in caplog.text
    assert "differ from the model's by" in " ".join(shown.split())
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["classes"]) == list(classifier.classes)
    assert json.loads(known["input_shape"]) == list(classifier.input_shape)
    mean, std = (torch.tensor(json.loads(known[name])).view(-1, 1, 1) for name in ("mean", "std"))
    images = digits().test.x[:7]
    (found,) = session.run(None, {"images": ((images / 255 - mean) / std).numpy()})
    torch.testing.assert_close(torch.from_numpy(found).softmax(1), classifier.predict(images).probabilities)


def test_programs_carry_what_it_takes_to_use_them(classifier: Classifier, tmp_path: Path) -> None:
    exported = export(classifier, tmp_path / "model.pt2")
    assert exported.bytes == (tmp_path / "model.pt2").stat().st_size
    files = {"ffebm.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=files).module()
    assert json.loads(json.loads(files["ffebm.json"])["classes"]) == list(classifier.classes)
    x = classifier.normalise(digits().test.x[:7])
    torch.testing.assert_close(program(x), classifier(x).detach(), rtol=1e-4, atol=1e-5)


def test_files_of_other_kinds_are_refused(classifier: Classifier, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.onnx or \.pt2, got model\.pth"):
        export(classifier, tmp_path / "model.pth")


def test_a_file_that_does_not_do_what_the_model_does_is_not_written(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnergyBlock, "inference", lambda block, x: block.energy.init_state(x)[-1])
    with pytest.raises(UserError, match="does not do what the model does: its logits differ by"):
        export(classifier, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_command_says_what_to_install(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"needs onnxruntime, which is not installed: `pip install 'ffebm\[onnx\]'`"):
        export(classifier, tmp_path / "model.onnx")


def test_without_the_tool_the_library_says_what_to_install() -> None:
    code = "import sys; sys.modules['lightning'] = None; from ffebm.experiment import train"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "`ffebm.experiment.train` needs lightning" in found.stderr
    assert "pip install 'ffebm[cli]'" in found.stderr


def test_training_is_not_exported() -> None:
    net = logits(None).train()
    with pytest.raises(RuntimeError, match="exported while it is in training mode"):
        torch.export.export(net, (torch.randn(2, 3, 9, 10),))
    block = EnergyBlock(Hopfield([Dense(4, 3)]))
    with pytest.raises(RuntimeError, match="exported while it is in training mode"):
        torch.export.export(block, (torch.rand(2, 4),))


def exported(net: nn.Module, *inputs: Any) -> list[Callable[..., Any]]:
    """A module as `torch.export` and `torch.jit.trace` keep it."""
    with warnings.catch_warnings(action="ignore"), torch.no_grad():  # of torch's own parts
        return [torch.export.export(net, inputs).module(), torch.jit.trace(net, inputs, check_trace=False)]


def refused(net: nn.Module, *inputs: Any, match: str) -> None:
    for write in (torch.export.export, torch.jit.trace):
        with warnings.catch_warnings(action="ignore"), pytest.raises((RuntimeError, TypeError), match=match):
            write(net, inputs)


class TestWhatIsKept:
    """What a file holds is what the block does now, or there is no file."""

    def test_weights_that_a_limit_has_not_seen_are_refused(self) -> None:
        net, x = logits(None), torch.randn(4, 3, 9, 10)
        net.model = build((3, 9, 10), [ConvLayer(4)] * 2 + [DenseLayer(8)] * 2, 2, 3, max_contraction=0.5)
        optimiser = torch.optim.SGD(net.parameters(), 5.0)
        net.model(x, torch.arange(4) % 3).losses.mean().backward()
        optimiser.step()
        net.eval()
        words = r"weights of block 1 of 2 have changed since it was last called.*call the model once"
        refused(net, x, match=words)
        expected = net(x)
        with warnings.catch_warnings(action="ignore"):
            strict = torch.export.export(net, (x,), strict=True).module()
        for program in (*exported(net, x), strict):
            torch.testing.assert_close(program(x), expected, rtol=1e-5, atol=1e-5)
        refused(deepcopy(net), x, match=words)  # nobody knows what was done to a copy
        net.load_state_dict(net.state_dict())
        refused(net, x, match=words)

    def test_pruned_weights_are_those_of_now(self) -> None:
        net, x = logits(None), torch.randn(4, 3, 9, 10)
        for stage, block in net.model.chain:
            prune.l1_unstructured(stage.connection, "weight", 0.5)
            prune.l1_unstructured(block.energy.edges[0], "weight", 0.5) if block.energy.edges else None
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.mul_(2 if name.endswith("_orig") else 1)
        programs = exported(net, x)
        held = net.model.blocks[0].energy.edges[0].weight
        assert type(held) is Tensor, "nothing of an exporter is left in the model"
        for program in programs:
            torch.testing.assert_close(program(x), net(x), rtol=1e-5, atol=1e-5)

    def test_a_start_is_where_a_file_begins(self) -> None:
        block = EnergyBlock(Hopfield([Dense(6, 5), Dense(5, 4)]), FixedPoint(1), unsettled="ignore").eval()
        x = torch.rand(3, 6)
        one, other = (tuple(torch.rand(3, units) for units in (6, 5, 4)) for _ in range(2))
        assert (block(x, one) - block(x, other)).abs().max() > 1e-3
        for program in exported(block, x, one):
            torch.testing.assert_close(program(x, other), block(x, other))
        torch.testing.assert_close(block.inference(x, one), block(x, one))

    def test_several_dimensions_of_samples_are_kept(self) -> None:
        block, x = EnergyBlock(Hopfield([Dense(6, 4)])).eval(), torch.rand(2, 3, 6)
        for program in exported(block, x):
            torch.testing.assert_close(program(x), block(x))
        torch.testing.assert_close(block.inference(x), block(x))

    def test_the_older_exporter_keeps_several_dimensions_of_samples(self, tmp_path: Path) -> None:
        block, x = EnergyBlock(Hopfield([Dense(6, 4)])).eval(), torch.rand(2, 3, 6)
        with warnings.catch_warnings(action="ignore"):
            axes = {"x": {0: "batch"}}
            torch.onnx.export(
                nn.Sequential(block), (x,), tmp_path / "m.onnx", dynamo=False, input_names=["x"], dynamic_axes=axes
            )
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
        for more in (x, torch.rand(5, 3, 6)):
            (found,) = session.run(None, {"x": more.numpy()})
            torch.testing.assert_close(torch.from_numpy(found), block(more).detach())

    def test_derivatives_that_autograd_takes_are_refused(self) -> None:
        class Quadratic(Energy):
            def __init__(self) -> None:
                super().__init__([identity(0.5)])
                self.weight = nn.Parameter(torch.eye(6))

            def forward(self, state: tuple[Tensor, ...], x: Tensor) -> Tensor:
                return (state[0] @ self.weight).square().sum(1) / 2 - (state[0] * x).sum(1)

        class OneToOne(Interaction):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(6))

            def up(self, pre: Tensor) -> Tensor:
                return self.gain * pre

            def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
                return shape

        x = torch.rand(2, 6)
        words = r"cannot be exported or traced: its `{0}` is a derivative.*Give {1} a `{0}` in closed form"
        refused(EnergyBlock(Quadratic()).eval(), x, match=words.format("drive", "Quadratic"))
        refused(EnergyBlock(Hopfield([OneToOne()])).eval(), x, match=words.format("down", "OneToOne"))


def test_descriptions_are_part_of_a_classifier() -> None:
    described = Description("mine", (3, 9, 10), ("a", "b", "c", "d", "e"), (0.5,) * 3, (0.2,) * 3)
    net = logits(None).model
    classifier = Classifier(net, None, described)
    assert classifier.predict(torch.zeros(3, 9, 10, dtype=torch.uint8)).labels[0] in described.classes
    assert issubclass(Hopfield, Energy)
