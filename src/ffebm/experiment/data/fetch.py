"""Downloads from official addresses: resumed where they broke off, checked, and put in place whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ffebm.checks import brief_name
from ffebm.experiment.data.archives import ArchiveError, unpack
from ffebm.experiment.data.catalogue import ENTRIES
from ffebm.experiment.data.idx import FILES
from ffebm.experiment.errors import DataError

__all__ = ["File", "Source", "fetch"]
__dir__ = __all__.copy

CHUNK = 1 << 18
TIMEOUT = 60
FOREIGN = "It is not the official one any more: fetch it by hand, and look at what it is."


@dataclass(frozen=True)
class File:
    """A file at an official address. The MD5 sums are those that torchvision, too, holds these files against."""

    url: str
    md5: str | None = None
    size: int | None = None  # in bytes

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and the folder that its archives hold."""

    files: tuple[File, ...]
    folder: str  # in which it ends up, below the data folder
    unpacked: int = 1 << 30  # bytes of its files, at most, all together
    remark: str = ""


def _idx(address: str, *known: tuple[str, int]) -> tuple[File, ...]:
    return tuple(File(f"{address}/{name}.gz", md5, size) for name, (md5, size) in zip(FILES, known, strict=True))


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        (File("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),),
        "cifar-10-batches-py",
        187_000_000,
    ),
    "cifar100": Source(
        (File("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),),
        "cifar-100-python",
        187_000_000,
    ),
    "mnist": Source(
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",  # LeCun's own page asks that downloads go elsewhere
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
        "mnist",
        12_000_000,
    ),
    "fashion-mnist": Source(
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        "fashion-mnist",
        31_000_000,
    ),
    "imagenet32": Source(
        (
            # No sum of these two is public; TensorFlow's data sets know those of other archives of the same images.
            File("https://image-net.org/data/downsample/Imagenet32_train.zip"),
            File("https://image-net.org/data/downsample/Imagenet32_val.zip"),
        ),
        "imagenet32",
        4_200_000_000,  # 1,331,167 images of 3,072 bytes with their labels
        "ImageNet is for non-commercial research; its terms are at https://image-net.org/download.",
    ),
}


def fetch(name: str, root: Path, console: Console | None = None, source: Source | None = None) -> Path:
    """Download a data set into a folder below `root`, and return that. What is there already, whole, is left alone.

    Everything happens in a hidden folder beside it; only when all files are there, have the right checksum and can be
    read as the data set, that folder takes its final name.
    """
    console = console or Console(stderr=True, quiet=True)
    if source is None and name not in SOURCES:
        raise DataError(
            f"Unknown data set `{brief_name(name)}`; there are {', '.join(SOURCES)}. The digits come with the package."
        )
    source = source or SOURCES[name]
    read = ENTRIES[name].read
    target = root / source.folder
    if target.exists():
        try:
            read(target)
        except DataError as error:
            raise DataError(f"{target} is there, but damaged: {error} Fetching needs it removed first.") from None
        console.print(f"{name} is there already, and whole.", highlight=False)
        return target
    if source.remark:
        console.print(source.remark, highlight=False)
    if unchecked := [file.name for file in source.files if file.md5 is None]:
        console.print(
            f"No checksum is known for {' and '.join(unchecked)}: only that {name} can be read from it is checked.",
            highlight=False,
        )
    downloads = root / f".{source.folder}.download"
    downloads.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        _download(file, downloads / file.name, console, file.size or source.unpacked)
    with (
        console.status(f"Unpacking and checking {name} …"),
        tempfile.TemporaryDirectory(dir=root, prefix=".unpacked-") as scratch,
    ):
        unpacked = Path(scratch) / source.folder
        unpacked.mkdir()
        for file in source.files:
            _place(downloads / file.name, unpacked, source.unpacked)
        try:
            read(unpacked)
        except DataError as error:
            shutil.rmtree(downloads)
            raise DataError(f"What came is not {name}: {error} The downloads were removed.") from None
        os.replace(unpacked, target)
    shutil.rmtree(downloads)
    return target


def _download(file: File, path: Path, console: Console, limit: int) -> None:
    """Into `path`.part, going on from what is there; renamed when the checksum is right."""
    if path.is_file() and (file.md5 is None or file.md5 == _md5(path)):  # else somebody has changed it since
        return
    part = path.with_name(path.name + ".part")
    for place in (path, part):
        if os.path.lexists(place) and (place == path or not place.is_file() or place.is_symlink()):
            place.unlink()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        _stream(file, part, progress, limit)
    if file.md5 is not None and (found := _md5(part)) != file.md5:
        part.unlink()
        raise DataError(
            f"{file.url} gave a file with the MD5 sum {found}, not {file.md5}: it was damaged on the way, or has changed. "
            "It was removed; fetch it again."
        )
    os.replace(part, path)


def _stream(file: File, part: Path, progress: Progress, limit: int) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"User-Agent": "ffebm"} | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = answer.status == 206  # else the server sends all of it again
            start = have if resumed else 0
            length = answer.headers.get("Content-Length") or ""
            total = start + int(length) if length.isdecimal() and len(length) < 20 else None
            task = progress.add_task(file.name, total=total, completed=start)
            with part.open("ab" if resumed else "wb") as sink:
                while chunk := answer.read(CHUNK):
                    if sink.tell() + len(chunk) > limit:
                        raise DataError(f"{file.url} sends more than the {limit:,} bytes that it should have. {FOREIGN}")
                    sink.write(chunk)
                    progress.update(task, advance=len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send: the file is whole, or not the one that was begun
            return
        raise DataError(f"{file.url} answers {error.code} {error.reason}. Try again later, or fetch it by hand.") from None
    except (OSError, HTTPException) as error:
        raise DataError(_broken(file, error)) from None
    size = part.stat().st_size
    if total is not None and size != total:
        raise DataError(_broken(file, f"{size:,} of {total:,} bytes came"))


def _broken(file: File, reason: object) -> str:
    return f"The download of {file.url} broke off: {reason}. What came is kept; run the command again to go on from there."


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _place(download: Path, folder: Path, limit: int) -> None:
    """Put what was downloaded into a folder, unpacked if it is an archive of files."""
    if not download.name.endswith((".tar.gz", ".zip")):
        shutil.copy(download, folder / download.name)
        return
    try:
        unpack(download, folder, limit)
    except ArchiveError as error:
        download.unlink()
        raise DataError(f"{download.name} cannot be unpacked: {error}. It was removed; fetch it again.") from None
