"""Pictures as people have them: turned, and in other proportions than the images of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from ffebm.experiment.pictures import fitted, look, read_image
from images import picture

TURNS = {  # what a camera notes, and what turns an upright picture into the pixels that it writes
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def numbered(height: int, width: int) -> Image.Image:
    """Grey, every pixel different from its neighbours."""
    return Image.fromarray((np.arange(height * width) * 7 % 251).reshape(height, width).astype(np.uint8))


@pytest.mark.parametrize(("of", "wanted"), [((6, 10), (6, 10)), ((12, 20), (6, 10)), ((12, 40), (6, 10)), ((30, 20), (6, 10))])
def test_pictures_keep_their_proportions(of: tuple[int, int], wanted: tuple[int, int]) -> None:
    """By hand: the middle part of the same proportions, averaged in boxes."""
    image, (height, width) = numbered(*of), wanted
    factor = min(of[0] // height, of[1] // width)
    upper, left = (of[0] - factor * height) // 2, (of[1] - factor * width) // 2
    part = torch.from_numpy(np.array(image))[upper : upper + factor * height, left : left + factor * width].double()
    boxes = part.reshape(height, factor, width, factor).mean((1, 3))
    found = fitted(image, (1, height, width))
    assert found.shape == (1, height, width)
    torch.testing.assert_close(found[0].double(), boxes, atol=1.01, rtol=0)  # Pillow rounds twice


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (7, 5)])
def test_the_smallest_pictures_fill_any_size(size: tuple[int, int]) -> None:
    assert fitted(Image.new("RGB", size, "red"), (3, 4, 9)).tolist() == [[[value] * 9] * 4 for value in (255, 0, 0)]


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_turned_pictures_are_read_upright(tmp_path: Path, orientation: int, kind: str) -> None:
    upright = picture(0, 16).crop((0, 0, 16, 12))
    notes = Image.Exif()
    notes[ExifTags.Base.Orientation] = orientation
    path = tmp_path / f"turned.{kind}"
    upright.transpose(TURNS[orientation]).save(
        path, exif=notes, **({"quality": 100, "subsampling": 0} if kind == "jpg" else {})
    )
    expected, found = fitted(upright, (3, 12, 16)), read_image(path, (3, 12, 16))
    torch.testing.assert_close(found.float(), expected.float(), atol=8 if kind == "jpg" else 0, rtol=0)
    assert look(path) == ((16, 12), False)


def test_damaged_notes_of_a_camera_do_not_keep_a_picture_from_being_read(tmp_path: Path) -> None:
    picture(0).save(tmp_path / "x.png", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff nothing of the kind")
    assert torch.equal(read_image(tmp_path / "x.png", (3, 12, 12)), fitted(picture(0), (3, 12, 12)))
    assert look(tmp_path / "x.png") == ((12, 12), False)
