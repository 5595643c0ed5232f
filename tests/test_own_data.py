"""Data of one's own: folders of pictures, arrays, and what a program hands over."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import ffebm
from ffebm.experiment import Run, evaluate_run, read_preset, resume, train
from ffebm.experiment.command_line import app
from ffebm.experiment.data import DataError, given_dataset
from ffebm.experiment.data.folder import read_folder
from ffebm.experiment.data.own import Wishes
from ffebm.experiment.run import RunError
from ffebm.experiment.settings import SettingsError

CLASSES = ("cats", "dogs", "newts")
TINY = ["model.channels=[4, 4]", "model.pooled=[]", "model.split=2", "trainer.epochs=1", "trainer.batch=8", "trainer.threads=1"]


def picture(number: int, side: int = 12, grey: bool = False) -> Image.Image:
    generator = np.random.default_rng(number)
    array = generator.integers(0, 80, (side, side, 3), dtype=np.uint8)
    array[..., number % 3] += 120
    image = Image.fromarray(array)
    return image.convert("L") if grey else image


def pictures(root: Path, parts: dict[str, int], *, side: int = 12, grey: bool = False, suffix: str = "png") -> Path:
    """So many pictures of every class below every part; "" is the folder itself."""
    for part, count in parts.items():
        for label, name in enumerate(CLASSES):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(3 * number + label, side, grey).save(folder / f"{number}.{suffix}")
    return root


def arrays(count: int = 12) -> dict[str, np.ndarray]:
    labels = np.arange(count) % 3
    images = np.stack([np.asarray(picture(number)) for number in range(count)])
    return {"images": images, "labels": labels}


class TestPictures:
    def test_train_and_test_folders(self, tmp_path: Path) -> None:
        found = read_folder(pictures(tmp_path, {"train": 4, "test": 2}))
        assert (found.classes, found.shape) == (CLASSES, (3, 12, 12))
        assert found.train.y.bincount().tolist() == [4, 4, 4]
        assert found.test.y.bincount().tolist() == [2, 2, 2]
        expected = torch.from_numpy(np.array(picture(0))).permute(2, 0, 1)
        assert torch.equal(found.train.x[0], expected)

    def test_mean_and_deviation_are_those_of_the_training_images(self, tmp_path: Path) -> None:
        found = read_folder(pictures(tmp_path, {"train": 4, "test": 2}))
        x = found.normalise(found.train.x).double()
        torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-4, rtol=0)
        torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-4, rtol=0)

    def test_a_part_of_every_class_is_set_apart_by_a_seed(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"": 10})
        one, same, other = (read_folder(root, Wishes(test_part=0.3, test_seed=seed)) for seed in (0, 0, 1))
        assert one.test.y.bincount().tolist() == [3, 3, 3]
        assert one.train.y.bincount().tolist() == [7, 7, 7]
        assert torch.equal(one.test.x, same.test.x)
        assert not torch.equal(one.test.x, other.test.x)
        everything = torch.cat([one.train.x, one.test.x]).flatten(1)
        assert len(everything.unique(dim=0)) == 30, "none is lost, none is in both"

    def test_grey_pictures_have_one_channel_unless_asked_otherwise(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"": 3}, grey=True)
        assert read_folder(root).shape == (1, 12, 12)
        assert read_folder(root, Wishes(colours="colour")).shape == (3, 12, 12)
        picture(0).save(root / "cats" / "colour.png")
        assert read_folder(root).shape == (3, 12, 12)
        assert read_folder(root, Wishes(colours="grey")).shape == (1, 12, 12)

    def test_pictures_of_different_sizes_are_brought_to_one(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"": 3}, suffix="JPEG")
        Image.new("RGB", (40, 20), "red").save(root / "dogs" / "wide.jpg")
        assert read_folder(root).shape == (3, 32, 32)
        assert read_folder(root, Wishes(size=16)).shape == (3, 16, 16)

    def test_damaged_pictures_are_named(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"": 3})
        for number in range(7):
            (root / "dogs" / f"bad{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n no more")
        with pytest.raises(DataError, match=r"(?s)7 of 16 pictures cannot be read.*bad0\.png.*… and 2 more"):
            read_folder(root)

    @pytest.mark.parametrize("folders", [[], ["cats"], ["train/cats", "test/cats"]])
    def test_what_is_no_data_set_is_refused(self, tmp_path: Path, folders: list[str]) -> None:
        for name in folders:
            (tmp_path / name).mkdir(parents=True)
        with pytest.raises(DataError, match=r"neither \.npz files nor pictures"):
            read_folder(tmp_path)

    def test_an_empty_folder_of_test_images_is_none(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"train": 4})
        (root / "test" / "cats").mkdir(parents=True)
        assert len(read_folder(root).test) == 3

    def test_classes_that_were_never_learnt_and_a_single_class_are_refused(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"train": 2, "test": 1})
        (root / "test" / "cows").mkdir()
        picture(1).save(root / "test" / "cows" / "1.png")
        with pytest.raises(DataError, match="no training image has: cows"):
            read_folder(root)
        alone = tmp_path / "alone" / "cats"
        alone.mkdir(parents=True)
        picture(1).save(alone / "1.png")
        with pytest.raises(DataError, match="1 class found"):
            read_folder(tmp_path / "alone")


class TestArrays:
    def test_images_and_labels(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "mine.npz", **arrays(30))
        found = read_folder(tmp_path)
        assert (found.classes, found.shape) == (("0", "1", "2"), (3, 12, 12))
        assert (len(found.train), len(found.test)) == (24, 6)
        assert torch.equal(read_folder(tmp_path / "mine.npz").train.x, found.train.x)

    def test_names_of_classes_compressed_files_and_test_images(self, tmp_path: Path) -> None:
        some = arrays(12)
        np.savez_compressed(
            tmp_path / "a.npz",
            **some,
            test_images=some["images"][:3],
            test_labels=some["labels"][:3],
            classes=np.array(CLASSES),
        )
        found = read_folder(tmp_path)
        assert found.classes == CLASSES
        assert torch.equal(found.test.x, found.train.x[:3])

    def test_labels_that_are_names_and_files_for_training_and_testing(self, tmp_path: Path) -> None:
        some = arrays(12)
        named = {**some, "labels": np.array(CLASSES)[some["labels"]]}
        np.savez(tmp_path / "train.npz", **named)
        np.savez(tmp_path / "test.npz", images=some["images"][:2], labels=named["labels"][:2])
        found = read_folder(tmp_path)
        assert (found.classes, len(found.train), len(found.test)) == (CLASSES, 12, 2)

    def test_channels_first_or_last_grey_and_floats(self, tmp_path: Path) -> None:
        some = arrays(12)
        first, labels = some["images"].transpose(0, 3, 1, 2), some["labels"]
        for number, images in enumerate((some["images"], first, first / np.float32(255), first.astype(np.float64) / 255)):
            np.savez(tmp_path / f"{number}.npz", images=images, labels=labels)
        shapes = [read_folder(tmp_path / f"{number}.npz") for number in range(4)]
        assert all(torch.equal(found.train.x, shapes[0].train.x) for found in shapes)
        np.savez(tmp_path / "grey.npz", images=first[:, 0], labels=labels)
        assert read_folder(tmp_path / "grey.npz", Wishes(size=6)).shape == (1, 6, 6)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"labels": np.arange(5)}, "12 images need as many labels"),
            ({"labels": np.ones(12)}, "numbers or names, got float64"),
            ({"images": np.zeros((12, 7))}, "cannot be learnt"),
            ({"images": np.full((12, 4, 4), 3.5)}, "numbers between 0 and 1.*from 3.5 to 3.5"),
            ({"images": np.zeros((12, 4, 4), np.complex64)}, "floats between 0 and 1, got complex64"),
            ({"images": np.array([object()] * 12)}, "Python objects, which could run code"),
            ({"classes": np.array(["one"])}, "must name, in order"),
        ],
    )
    def test_wrong_arrays_are_explained(self, tmp_path: Path, change: dict[str, np.ndarray], words: str) -> None:
        np.savez(tmp_path / "mine.npz", allow_pickle=True, **{**arrays(), **change})
        with pytest.raises(DataError, match=words):
            read_folder(tmp_path)

    def test_what_a_header_announces_is_not_believed(self, tmp_path: Path) -> None:
        content = io.BytesIO()
        np.lib.format.write_array_header_1_0(content, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 32, 32)})
        with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
            archive.writestr("images.npy", content.getvalue() + b"few")
        with pytest.raises(DataError, match=r"images.npy announces 1024000000000 bytes and holds 3"):
            read_folder(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"PK", b"no archive at all"])
    def test_damaged_files_are_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "mine.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"mine\.npz is not a sound"):
            read_folder(tmp_path)

    def test_several_files_need_names(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            np.savez(tmp_path / f"{name}.npz", **arrays())
        with pytest.raises(DataError, match=r"name them train\.npz and test\.npz"):
            read_folder(tmp_path)


class Module(pl.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.sets = [tensors(12), tensors(6)]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.sets[0], batch_size=4)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.sets[1], batch_size=4)


def tensors(count: int) -> TensorDataset:
    some = arrays(count)
    images = torch.from_numpy(some["images"]).permute(0, 3, 1, 2).float() / 255
    return TensorDataset(images, torch.from_numpy(some["labels"]))


class TestHandedOver:
    @pytest.mark.parametrize("data", [tensors(30), (tensors(24), tensors(6)), Module()], ids=["one", "two", "Lightning's"])
    def test_data_sets_of_torch(self, data: object) -> None:
        found = given_dataset(data)
        assert found.classes == ("0", "1", "2")
        assert found.train.x.dtype == torch.uint8
        assert torch.equal(found.train.x[0], torch.from_numpy(arrays()["images"]).permute(0, 3, 1, 2)[0])

    def test_pictures_with_names_for_labels(self) -> None:
        found = given_dataset([(picture(number, grey=True), CLASSES[number % 3]) for number in range(15)])
        assert (found.classes, found.shape) == (CLASSES, (1, 12, 12))

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (3, "A int is no data"),
            ([1, 2, 3], "sample 0 is a int, not a pair"),
            ([(torch.rand(3, 4, 4), 0), (torch.rand(3, 5, 5), 1)], r"sample 1 has the shape \(3, 5, 5\)"),
            ([(torch.randn(3, 4, 4), 0)], "sample 0: images must be bytes"),
            ([(torch.rand(4), 0)], "cannot be learnt"),
            ([(torch.rand(4, 4), 0.5)], "a whole number or a name, got float"),
            ((tensors(6), []), "no samples in the test data"),
        ],
    )
    def test_what_cannot_be_learnt_is_explained(self, data: object, words: str) -> None:
        with pytest.raises(DataError, match=words):
            given_dataset(data)

    def test_one_call_trains_on_it_and_what_follows_takes_it_too(self, tmp_path: Path) -> None:
        data = (tensors(24), tensors(6))
        settings = read_preset("folder", TINY)
        learner = train(settings, Run(tmp_path / "run"), quiet=True, data=data)
        assert learner.run.folder == tmp_path / "run"
        model = ffebm.load(tmp_path / "run")
        assert model.classes == ("0", "1", "2")
        assert len(model.predict(learner.dataset.test.x).labels) == 6
        assert evaluate_run(learner.run, data=data).images == 6
        with pytest.raises(DataError, match="a program handed over"):
            evaluate_run(learner.run)
        with pytest.raises(DataError, match="a program handed over"):
            resume(learner.run)
        resume(learner.run, quiet=True, data=data)
        with pytest.raises(RunError, match="The data is not what"):
            resume(learner.run, quiet=True, data=(tensors(18), tensors(6)))


class TestAtTheTerminal:
    def run(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def test_train_evaluate_and_check(self, tmp_path: Path) -> None:
        root = pictures(tmp_path / "data", {"train": 8, "test": 2})
        shown = self.run("data", "check", str(root))
        assert "24 training and 6 test images" in shown
        self.run("train", "folder", "--data", str(root), "--output", str(tmp_path / "run"), "--quiet", *TINY)
        assert Run.open(tmp_path / "run").description().classes == CLASSES
        assert "cats" in self.run("evaluate", str(tmp_path / "run"))
        fewer = tmp_path / "fewer"
        for name in CLASSES[1:]:
            (fewer / "train" / name).mkdir(parents=True)
            (fewer / "test" / name).mkdir(parents=True)
            for part in ("train", "test"):
                picture(CLASSES.index(name), side=30).save(fewer / part / name / "1.png")
        self.run("evaluate", str(tmp_path / "run"), "--data", str(fewer))
        found = evaluate_run(Run.open(tmp_path / "run"), fewer)
        assert sum(found.confusion[0]) == 0, "nothing is of the first class"
        assert found.images == 2

    def test_a_folder_must_be_named(self) -> None:
        result = CliRunner().invoke(app, ["train", "folder"])
        assert result.exit_code != 0
        assert "Where are your images?" in str(result.exception) + result.output

    def test_what_official_sets_do_not_take_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="data of your own"):
            read_preset("cifar10-small", ["data.size=16"])
