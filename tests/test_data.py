"""Data files: read when they are right, refused with a reason when they are not, and never executed."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ffebm.experiment.data import Condition, DataError, Presence, check, load
from ffebm.experiment.data.augmentation import Augmentation
from ffebm.experiment.data.catalogue import ENTRIES

RNG = np.random.default_rng(0)


def images(count: int, pixels: int = 3072) -> np.ndarray:
    return RNG.integers(0, 256, (count, pixels), np.uint8)


def write_pickle(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(root: Path, count: int = 20) -> Path:
    folder = root / "cifar-10-batches-py"
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        write_pickle(folder / name, {b"data": images(count), b"labels": [i % 10 for i in range(count)]})
    write_pickle(folder / "batches.meta", {b"label_names": [f"class {i}".encode() for i in range(10)]})
    return folder


def write_cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        write_pickle(folder / name, {b"data": images(100), b"fine_labels": list(range(100)), b"coarse_labels": [0] * 100})
    write_pickle(folder / "meta", {b"fine_label_names": [str(i).encode() for i in range(100)]})


def write_imagenet32(root: Path) -> None:
    for name in [f"train_data_batch_{i}" for i in range(1, 11)] + ["val_data"]:
        content = {"data": images(10), "labels": [1, 1000, *range(2, 10)], "mean": np.zeros(3072)}
        write_pickle(root / "imagenet32" / name, content)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(root: Path, folder: str = "mnist", suffix: str = "") -> None:
    for part in ("train", "t10k"):
        write_idx(root / folder / f"{part}-images-idx3-ubyte{suffix}", images(20, 784).reshape(20, 28, 28))
        write_idx(root / folder / f"{part}-labels-idx1-ubyte{suffix}", (np.arange(20) % 10).astype(np.uint8))


WRITERS: dict[str, Callable[[Path], object]] = {
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "imagenet32": write_imagenet32,
    "mnist": write_mnist,
    "fashion-mnist": lambda root: write_mnist(root, "fashion-mnist", ".gz"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_reads_the_official_layout(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    data = load(name, tmp_path)
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.dtype == torch.int64
    assert data.train.x.shape[1:] == data.shape
    assert len(data.train) == len(data.train.y)
    assert data.train.y.max() < len(data.classes)
    found = check(tmp_path)[name]
    assert (found.state, found.counts) == (Presence.PARTIAL, (len(data.train), len(data.test)))
    counts = f"{len(data.train):,} training and {len(data.test):,} test images in {tmp_path / found.folder}"
    assert found.details.startswith(f"{counts}; the official set has ")


def test_a_data_set_of_the_official_size_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cifar10(tmp_path)
    monkeypatch.setitem(ENTRIES, "cifar10", replace(ENTRIES["cifar10"], train=100, test=20))
    found = check(tmp_path)["cifar10"]
    assert found == Condition(Presence.COMPLETE, folder=folder, counts=(100, 20))
    assert found.details == f"100 training and 20 test images in {folder}"


def test_imagenet_labels_count_from_one(tmp_path: Path) -> None:
    write_imagenet32(tmp_path)
    assert load("imagenet32", tmp_path).test.y[:3].tolist() == [0, 999, 1]


def test_digits_are_bundled() -> None:
    data = load("digits")
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    normal = data.normalise(data.train.x)
    assert normal.mean().abs() < 0.01
    assert normal.std().item() == pytest.approx(1, abs=0.01)


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    monkeypatch.setenv("FFEBM_DATA", str(tmp_path))
    assert len(load("cifar10").train) == 100
    monkeypatch.delenv("FFEBM_DATA")
    with pytest.raises(DataError, match=r"--data DIR or the environment variable FFEBM_DATA"):
        load("cifar10")


def test_commands_in_a_pickle_are_refused_and_not_executed(tmp_path: Path) -> None:
    folder, trace = write_cifar10(tmp_path), tmp_path / "was here"

    class Command:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch '{trace}'",)

    write_pickle(folder / "data_batch_3", {b"data": Command(), b"labels": []})
    with pytest.raises(DataError, match=r"data_batch_3 .*refers to (posix|nt)\.system.* not executed"):
        load("cifar10", tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize("call", [(eval, ("1",)), (__import__, ("os",)), (getattr, (1, "real")), (np.load, ("x",))])
def test_any_call_in_a_pickle_is_refused(call: tuple[object, tuple[object, ...]], tmp_path: Path) -> None:
    class Call:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return call

    write_pickle(write_cifar10(tmp_path) / "test_batch", Call())
    with pytest.raises(DataError, match="which no data file needs"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"data": images(4).astype(np.float32), b"labels": [0] * 4}, "must be an array of uint8, got an array of float32"),
        ({b"data": images(4, 3000), b"labels": [0] * 4}, "not a whole number of"),
        ({b"data": images(4), b"labels": [0] * 3}, "4 images need as many whole-number labels"),
        ({b"data": images(4), b"labels": [0, 1, 2, 10]}, "labels run from 0 to 10, but there are 10 classes"),
        ({b"data": images(4), b"labels": [0, 1, -2, 3]}, "labels run from -2"),
        ({b"data": images(4), b"labels": np.full(4, 0.5)}, "whole-number labels"),
        ({b"data": images(4), b"labels": [b"0", 1, 2, 3]}, "whole-number labels"),
        ({b"data": images(4), b"labels": [0.5] * 4}, "instruction 0x47 at byte"),
        ({b"data": images(0), b"labels": []}, "data_batch_2"),
        ({b"data": [1, 2, 3], b"labels": [0]}, "got list"),
        ({b"labels": [0] * 4}, "lacks data"),
        ([1, 2, 3], "holds list where a dictionary was expected"),
    ],
)
def test_refuses_a_cifar_batch_with_wrong_content(content: object, message: str, tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "data_batch_2"
    write_pickle(path, content)
    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", tmp_path)
    assert "data_batch_2" in str(caught.value)
    found = check(tmp_path)["cifar10"]
    assert (found.state, found.details, found.folder) == (Presence.DAMAGED, str(caught.value), path.parent)


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
def test_refuses_a_truncated_batch(keep: int, tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "data_batch_5"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"data_batch_5 is not a readable data file"):
        load("cifar10", tmp_path)


def test_refuses_a_batch_of_random_bytes(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "test_batch"
    for seed in range(30):
        path.write_bytes(np.random.default_rng(seed).bytes(200))
        with pytest.raises(DataError):
            load("cifar10", tmp_path)


def test_a_folder_or_a_pipe_in_place_of_a_batch_is_refused(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    for make in (Path.mkdir, os.mkfifo):
        path = folder / "data_batch_4"
        path.unlink() if path.is_file() else path.rmdir()
        make(path)
        with pytest.raises(DataError, match="data_batch_4 is not a readable data file"):
            load("cifar10", tmp_path)


def test_refuses_an_empty_or_absent_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no cifar-10-batches-py\. `ffebm data fetch cifar10 --data"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load("cifar10", tmp_path / "nowhere")
    assert {found.state for found in check(tmp_path).values()} == {Presence.ABSENT}
    assert check(tmp_path)["cifar10"].details == "no cifar-10-batches-py here"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-5], "announces 15680 bytes and holds 15675"),
        (lambda b: b"\1" + b[1:], "does not start like an idx file"),
        (lambda b: b[:6], "ends within its header"),
        (lambda _: b"", "does not start like an idx file"),
        (lambda _: b"\0\0\x08\x03" + b"\0\0\0\0" + b"\xff" * 8, "no data set has that"),
    ],
)
def test_refuses_damaged_idx_files(damage: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        load("mnist", tmp_path)


def test_refuses_damaged_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path, suffix=".gz")
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be unpacked"):
        load("mnist", tmp_path)


def test_unknown_data_set_names_are_refused() -> None:
    with pytest.raises(ValueError, match="Unknown data set 'cifar'; choose one of 'digits', 'cifar10'"):
        load("cifar")


class TestAugmentation:
    def test_images_are_crops_of_the_edge_padded_image_some_of_them_flipped(self) -> None:
        x = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8)
        augmentation = Augmentation.draw(30, padding=2, seed=0, epoch=0)
        found = augmentation(x, torch.arange(30))
        for i in range(30):
            padded = torch.nn.functional.pad(x[i : i + 1].float(), [2] * 4, mode="replicate").byte()[0]
            row, column = augmentation.shifts[i].tolist()
            crop = padded[:, row : row + 8, column : column + 8]
            assert torch.equal(found[i], crop.flip(2) if augmentation.flips[i] else crop)

    def test_does_not_depend_on_the_batch(self) -> None:
        x = torch.randint(0, 256, (10, 1, 6, 6), dtype=torch.uint8)
        augmentation = Augmentation.draw(10, 4, seed=1, epoch=2)
        whole = augmentation(x, torch.arange(10))
        order = torch.tensor([7, 2, 9])
        assert torch.equal(augmentation(x[order], order), whole[order])

    def test_changes_with_epoch_and_seed_only(self) -> None:
        draws = [Augmentation.draw(100, 4, seed, epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
        assert torch.equal(draws[0].shifts, draws[1].shifts)
        assert not torch.equal(draws[0].shifts, draws[2].shifts)
        assert not torch.equal(draws[0].shifts, draws[3].shifts)
        assert 0.3 < draws[0].flips.float().mean() < 0.7
        assert draws[0].shifts.min() == 0
        assert draws[0].shifts.max() == 8
