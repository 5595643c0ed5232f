"""Data of one's own: folders of pictures, arrays, and what a program hands over."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, SubsetRandomSampler, random_split
from typer.testing import CliRunner

import ffebm
from ffebm.experiment import Run, evaluate_run, read_preset, resume, train
from ffebm.experiment.command_line import app
from ffebm.experiment.data import DataError, Presence, check, find_given, given_dataset, load
from ffebm.experiment.data.folder import find_in, read_folder
from ffebm.experiment.data.own import Wishes
from ffebm.experiment.errors import Remark
from ffebm.experiment.pictures import fitted
from ffebm.experiment.run import RunError
from ffebm.experiment.settings import SettingsError
from images import CLASSES, TINY, arrays, picture, pictures, tensors


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

    @pytest.mark.parametrize("names", [("Train", "Test"), ("training", "testing"), ("TRAIN", "val"), ("train", "Validation")])
    def test_the_parts_may_be_called_otherwise(self, tmp_path: Path, names: tuple[str, str]) -> None:
        found = read_folder(pictures(tmp_path, dict(zip(names, (4, 2), strict=True))))
        assert (found.classes, len(found.train), len(found.test)) == (CLASSES, 12, 6)

    def test_test_images_are_preferred_to_those_for_validation_which_is_said(self, tmp_path: Path) -> None:
        found = find_in(pictures(tmp_path, {"train": 4, "val": 1, "test": 2}))
        assert found.dataset(Wishes()).test.y.bincount().tolist() == [2, 2, 2]
        (said,) = found.remarks
        assert said.endswith("3 pictures are passed over: 3 in val, where those in train and test are used.")
        shutil.rmtree(tmp_path / "test" / "cats")
        for name in ("dogs", "newts"):
            shutil.rmtree(tmp_path / "test" / name)
        assert read_folder(tmp_path).test.y.bincount().tolist() == [1, 1, 1], "an empty folder has no part to play"

    @pytest.mark.parametrize("parts", [["train", "Training"], ["train", "test", "testing"], ["train", "val", "valid"]])
    def test_two_folders_for_one_part_are_refused(self, tmp_path: Path, parts: list[str]) -> None:
        with pytest.raises(DataError, match=r"holds (\w+) and (\w+), which are called alike: keep the one that is meant"):
            read_folder(pictures(tmp_path, dict.fromkeys(parts, 1)))

    def test_a_class_that_is_called_like_a_part_is_refused(self, tmp_path: Path) -> None:
        root = pictures(tmp_path / "vehicles", {"": 2})
        (root / "cats").rename(root / "train")
        with pytest.raises(DataError, match="holds dogs, newts, and beside them a folder that is called like a part"):
            read_folder(root)
        for name in ("dogs", "newts", "train"):  # below train/ it is a name as any other
            (root / "all" / name).parent.mkdir(exist_ok=True)
            (root / name).rename(root / "all" / name)
        (root / "all").rename(root / "train")
        assert read_folder(root).classes == ("dogs", "newts", "train")
        only = pictures(tmp_path / "only", {"": 2, "test": 1})
        with pytest.raises(DataError, match="holds cats, dogs, newts, and beside them"):
            read_folder(only)

    def test_what_is_passed_over_is_said(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"train": 3, "extra": 1})
        for name in ("a.webp", "b.GIF", "c.webp"):
            (root / "train" / "cats" / name).write_bytes(b"")
        (root / "train" / "cows").mkdir()
        (root / "train" / "cows" / "1.tiff").write_bytes(b"")
        (root / "train" / "notes.txt").write_text("no picture")
        picture(0).save(root / "train" / "loose.png")
        passed, empty = find_in(root).remarks
        assert passed == (
            f"{root}: 8 pictures are passed over: 4 in formats other than PNG and JPEG (.gif, .tiff, .webp); 1 beside the "
            "folders of the classes; 3 in extra, where those in train are used."
        )
        assert empty == f"{root}: no PNG or JPEG file is in cows."
        with pytest.warns(Remark) as said:
            load("folder", root)
        assert [str(each.message) for each in said] == [passed, empty]
        assert "8 pictures are passed over" in check(root)["folder"].details

    def test_a_folder_of_other_formats_alone_is_explained(self, tmp_path: Path) -> None:
        (tmp_path / "cats").mkdir()
        (tmp_path / "cats" / "1.webp").write_bytes(b"")
        with pytest.raises(DataError, match=r"Here 1 picture is passed over: 1 in formats other than PNG and JPEG \(\.webp\)"):
            read_folder(tmp_path)

    def test_test_images_alone_can_be_checked_and_not_learnt(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"test": 2})
        with pytest.raises(DataError, match="no training images, only some for testing"):
            read_folder(root)
        found = check(root)["folder"]
        assert (found.state, found.counts) == (Presence.PARTIAL, (0, 6))

    def test_classes_that_were_never_learnt_and_a_single_class_are_refused(self, tmp_path: Path) -> None:
        root = pictures(tmp_path, {"train": 2, "test": 1})
        (root / "test" / "cows").mkdir()
        for number in range(3):
            picture(1).save(root / "test" / "cows" / f"{number}.png")
        with pytest.raises(DataError, match=r"no training image has: cows\.$"):
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
            ({"labels": np.arange(12) % 3 + 1, "classes": np.array(CLASSES)}, r"run from 1 to 3.*save `labels - 1`"),
            ({"labels": np.arange(12) % 5, "classes": np.array(CLASSES)}, r"It names 3, and labels run from 0 to 4\.$"),
            ({"labels": np.array([b"\xff", b"x"] * 6)}, "names of classes must be UTF-8"),
            ({"classes": np.array(["same"] * 3)}, "two classes are called same"),
            ({"classes": np.array(["a", "b", "c" * 101])}, "no class can be called c"),
            ({"images": np.zeros((12, 4, 4), np.uint16)}, "floats between 0 and 1, got uint16"),
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

    def test_labels_and_images_as_others_save_them(self, tmp_path: Path) -> None:
        """In a column, as bytes, and with the bytes of numbers the other way round."""
        some = arrays()
        np.savez(tmp_path / "usual.npz", **some)
        expected = read_folder(tmp_path / "usual.npz")
        np.savez(tmp_path / "column.npz", images=some["images"], labels=some["labels"][:, None])
        np.savez(tmp_path / "big.npz", images=(some["images"] / 255).astype(">f4"), labels=some["labels"].astype(">i8"))
        for name in ("column", "big"):
            found = read_folder(tmp_path / f"{name}.npz")
            assert torch.equal(found.train.x, expected.train.x)
            assert torch.equal(found.train.y, expected.train.y)
        np.savez(tmp_path / "bytes.npz", images=some["images"], labels=np.array([name.encode() for name in CLASSES] * 4))
        assert read_folder(tmp_path / "bytes.npz").classes == CLASSES
        np.savez(tmp_path / "named.npz", **some, classes=np.array(["é".encode(), b"b", b"c"]))
        assert read_folder(tmp_path / "named.npz").classes == ("é", "b", "c")

    def test_files_are_known_by_their_names_in_any_case(self, tmp_path: Path) -> None:
        for name, count in (("Training", 12), ("TEST", 3), ("val", 6)):
            np.savez(tmp_path / f"{name}.npz", **arrays(count))
        found = find_in(tmp_path)
        assert list(found.remarks) == [f"{tmp_path}: val.npz is passed over, as TEST.npz is there."]
        assert (len(found.dataset(Wishes()).train), len(found.dataset(Wishes()).test)) == (12, 3)

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


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return iter(tensors(6))


class TestHandedOver:
    @pytest.mark.parametrize("data", [tensors(30), (tensors(24), tensors(6)), Module()], ids=["one", "two", "Lightning's"])
    def test_data_sets_of_torch(self, data: object) -> None:
        found = given_dataset(data)
        assert found.classes == ("0", "1", "2")
        assert found.train.x.dtype == torch.uint8
        assert torch.equal(found.train.x[0], torch.from_numpy(arrays()["images"]).permute(0, 3, 1, 2)[0])

    @pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "CMYK", "1", "I;16"])
    def test_pictures_of_pillow_are_read_as_their_files_are(self, tmp_path: Path, mode: str) -> None:
        drawn = [picture(number) for number in range(12)]
        turned = [image.convert("L").convert("I").point(lambda value: value * 257).convert(mode) for image in drawn]
        made = turned if mode == "I;16" else [image.convert(mode) for image in drawn]
        if mode == "RGBA":
            for image in made:
                image.putalpha(128)
        for number, image in enumerate(made):
            (tmp_path / CLASSES[number % 3]).mkdir(exist_ok=True)
            image.save(tmp_path / CLASSES[number % 3] / f"{number:02}.{'jpg' if mode == 'CMYK' else 'png'}", quality=100)
        by_class = sorted(range(12), key=lambda number: (number % 3, number))
        expected = find_in(tmp_path).train
        found = find_given([(made[number], CLASSES[number % 3]) for number in by_class]).train
        assert expected is not None
        assert found is not None
        torch.testing.assert_close(found.x.float(), expected.x.float(), atol=9 if mode == "CMYK" else 0, rtol=0)

    def test_sizes_and_colours_are_brought_to_what_is_wished(self) -> None:
        """Each by itself, pictures and tensors."""
        sizes = ((20, False), (30, True), (8, False), (17, True))
        drawn = [(picture(number, *sizes[number % 4]), number % 2) for number in range(16)]
        wishes = Wishes(size=8, colours="grey")
        found = find_given(drawn, wishes).train
        assert found is not None
        assert all(torch.equal(x, fitted(image, (1, 8, 8))) for x, (image, _) in zip(found.x, drawn, strict=True))
        tensors = [(torch.from_numpy(np.array(image)), label) for image, label in drawn]
        tensors = [(x if x.dim() == 2 else x.permute(2, 0, 1), label) for x, label in tensors]
        assert given_dataset(tensors, wishes).shape == (1, 8, 8)
        with pytest.raises(DataError, match=r"sample 1 has the shape \(1, 30, 30\).*by data.size.*by data.colours"):
            given_dataset(drawn)
        wide = find_given([(torch.eye(4).repeat(1, 3), 0), (torch.ones(4, 12), 1)], Wishes(size=4)).train
        assert wide is not None
        assert torch.equal(wide.x[0, 0], torch.eye(4, dtype=torch.uint8) * 255), "the middle, not all of it pressed together"

    def test_a_broken_picture_is_named(self, tmp_path: Path) -> None:
        picture(0, 40).save(tmp_path / "x.png")
        (tmp_path / "x.png").write_bytes((tmp_path / "x.png").read_bytes()[:2000])
        with Image.open(tmp_path / "x.png") as broken, pytest.raises(DataError, match="sample 1: this picture cannot be read"):
            given_dataset([(picture(1, 40), 0), (broken, 1)])

    def test_a_part_of_a_data_set_has_the_names_of_the_whole(self) -> None:
        whole = tensors(30)
        whole.classes = list(CLASSES)  # as torchvision's
        parts = random_split(whole, [24, 6], torch.Generator().manual_seed(0))
        assert given_dataset(tuple(parts)).classes == CLASSES
        assert given_dataset(Subset(parts[0], range(20))).classes == CLASSES

    def test_labels_may_be_arrays_of_one_number(self) -> None:
        assert given_dataset([(torch.rand(4, 4), np.array([number % 2])) for number in range(8)]).classes == ("0", "1")

    def test_a_module_without_test_images_is_tested_on_those_for_validation(self) -> None:
        assert len(given_dataset(Module()).test) == 6

        class Tested(Module):
            def test_dataloader(self) -> list[DataLoader]:
                return [DataLoader(tensors(3))]

        assert len(given_dataset(Tested()).test) == 3

    def test_an_error_in_a_module_is_not_taken_for_a_missing_loader(self) -> None:
        class Broken(Module):
            def test_dataloader(self) -> DataLoader:
                raise ValueError("my own mistake")

        with pytest.raises(ValueError, match="my own mistake"):
            given_dataset(Broken())

    @pytest.mark.parametrize(
        ("loader", "words"),
        [
            (lambda: [DataLoader(tensors(6)), DataLoader(tensors(6))], "test_dataloader gives a list.*one DataLoader"),
            (lambda: {"a": DataLoader(tensors(6))}, "test_dataloader gives a dict"),
            (lambda: DataLoader(Stream()), "A Stream is a stream without a length.*list"),
            (lambda: DataLoader(tensors(6), sampler=SubsetRandomSampler([0, 1])), "draws its samples by a SubsetRandomSampler"),
            (lambda: DataLoader(tensors(6), sampler=RandomSampler(tensors(6), True)), "by a RandomSampler, and a run"),
            (lambda: DataLoader(tensors(6), sampler=RandomSampler(tensors(6), num_samples=2)), "by a RandomSampler"),
        ],
    )
    def test_loaders_that_a_run_cannot_follow_are_refused(self, loader: Callable[[], Any], words: str) -> None:
        class Odd(Module):
            def test_dataloader(self) -> Any:
                return loader()

        with pytest.raises(DataError, match=words):
            given_dataset(Odd())

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
            ((DataLoader(tensors(6)), DataLoader(tensors(6))), "A DataLoader gives batches.*hand over its `.dataset`"),
            ((pair for pair in [(0, 0)]), "A generator is a stream without a length"),
            ([(torch.zeros(4, 4, dtype=torch.uint16), 0)], "sample 0: .*got torch.uint16, .*65535 for images of 16 bits"),
            ([(torch.zeros(4, 4, dtype=torch.int64), 0)], "got torch.int64"),
            (Stream(), "A Stream is a stream without a length"),
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


@pytest.mark.parametrize("own", [False, True], ids=["digits", "one's own"])
def test_validation_images_come_from_those_for_training_and_take_the_place_of_test_images(tmp_path: Path, own: bool) -> None:
    if own:
        images, labels = torch.arange(40 * 3 * 16).reshape(40, 3, 4, 4) % 251, torch.arange(40) % 2
        np.savez(tmp_path / "train.npz", images=images.byte().numpy(), labels=labels.numpy())
        np.savez(tmp_path / "test.npz", images=images.byte().numpy() // 2, labels=labels.numpy())
    name, root = ("folder", tmp_path) if own else ("digits", None)
    whole, apart = load(name, root), load(name, root, Wishes(validation=0.25, test_seed=3))
    assert len(apart.train) + len(apart.test) == len(whole.train)
    assert len(apart.test) == pytest.approx(0.25 * len(whole.train), abs=len(whole.classes))
    rows = {(bytes(x.flatten().tolist()), int(y)) for x, y in zip(*whole.train, strict=True)}
    assert {
        (bytes(x.flatten().tolist()), int(y)) for part in (apart.train, apart.test) for x, y in zip(*part, strict=True)
    } == rows
    other = load(name, root, Wishes(validation=0.25, test_seed=4))
    assert not torch.equal(other.test.x, apart.test.x)
    assert apart.mean == whole.mean
