"""A trained model as a file that runs without ffebm: ONNX, or a program of torch.export."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ffebm.experiment.classifier import Classifier
from ffebm.experiment.errors import UserError
from ffebm.experiment.files import write_atomically

__all__ = ["Exported", "Written", "export"]
__dir__ = __all__.copy

CHECKED = 4  # images that the file must see as the model does
CLOSE = 1e-3  # by how much logits may differ, in units of the largest: both round, and a file makes a fixed number of sweeps
INPUT, OUTPUT = "images", "logits"
METADATA = "ffebm.json"  # in a program of torch.export
REGISTRATION = "torch.onnx._internal.exporter._registration"  # the logger of the table of operators


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    bytes: int
    difference: float  # of its logits from the model's, the largest
    metadata: dict[str, str]


def export(classifier: Classifier, path: Path) -> Exported:
    """Write a classifier to a file, by the ending of its name, and hold it against the classifier.

    Its input are images as `normalise` makes them, as many as one likes; its output are logits. What it takes to use it is in
    its metadata: the shape of an image, mean and deviation of its channels, and the names of classes.
    """
    writers = {".onnx": _onnx, ".pt2": _program}
    if path.suffix not in writers:
        raise UserError(f"The file must end in {' or '.join(writers)}, got {path.name}: the ending says what to write.")
    on = next((block.label for _, block in classifier.model.chain if block.hardware is not None), None)
    if on is not None:
        raise UserError(
            f"{on.capitalize()} runs on hardware, whose draws and converters no file can hold. From Python the ideal model is "
            "exported: `classifier.model.put_on(None)` first."
        )
    described = classifier.description
    metadata = {
        "data": described.name,
        "input_shape": json.dumps(list(described.shape)),
        "mean": json.dumps(list(described.mean)),
        "std": json.dumps(list(described.std)),
        "classes": json.dumps(list(described.classes)),
        "normalisation": "(bytes / 255 - mean) / std, by channel",
    }
    generator = torch.Generator().manual_seed(0)
    x = classifier.normalise(torch.randint(256, (CHECKED, *described.shape), dtype=torch.uint8, generator=generator))
    with torch.no_grad():
        expected = classifier(x)
        plain = _contiguous(deepcopy(classifier).eval())
        plain(x)  # which a limit asks of a copy: it has not seen its weights
    content, run = writers[path.suffix](_contiguous(plain), x[:2], metadata)  # what a limit remembers lies as images do
    found = run(x)
    difference = (found - expected).abs().max().item()
    if not difference <= CLOSE * max(1.0, expected.abs().max().item()):
        raise UserError(
            f"What would be written to {path} does not do what the model does: its logits differ by up to {difference:.2g}. "
            "Relaxations that stop within a tolerance make `relaxation.steps` sweeps in a file: see whether those settle."
        )
    write_atomically(path, content)
    return Exported(path, len(content), difference, metadata)


def _contiguous(classifier: Classifier) -> Classifier:
    return classifier.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]


Written = tuple[bytes, Callable[[Tensor], Tensor]]  # the file, and how it is run


def _onnx(classifier: Classifier, x: Tensor, metadata: Mapping[str, str]) -> Written:
    onnx, runtime = _needed("onnx"), _needed("onnxruntime")
    _needed("onnxscript")
    # Of parts of torch that are on their way out, and of operators of torchvision's, which no model here has.
    with warnings.catch_warnings(action="ignore"), _without(REGISTRATION, "torchvision is not installed"):
        program = torch.onnx.export(
            classifier,
            (x,),
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, dict(metadata))
    content = proto.SerializeToString()

    def run(x: Tensor) -> Tensor:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (logits,) = session.run([OUTPUT], {INPUT: x.numpy()})
        return torch.from_numpy(logits)

    return content, run


@contextmanager
def _without(logger: str, words: str) -> Iterator[None]:
    """Have a logger leave out what begins with these words."""

    def others(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(words)

    logging.getLogger(logger).addFilter(others)
    try:
        yield
    finally:
        logging.getLogger(logger).removeFilter(others)


def _program(classifier: Classifier, x: Tensor, metadata: Mapping[str, str]) -> Written:
    with torch.no_grad():
        program = torch.export.export(classifier, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={METADATA: json.dumps(dict(metadata))})
    return file.getvalue(), torch.export.load(io.BytesIO(file.getvalue())).module()


def _needed(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UserError(
            f"Writing ONNX needs {name}, which is not installed: `pip install 'ffebm[onnx]'`. A .pt2 file needs torch alone."
        ) from None
