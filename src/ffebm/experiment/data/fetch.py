"""Downloads from official addresses: resumed where they broke off, checked, and put in place whole."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ffebm.experiment.data.catalogue import ENTRIES
from ffebm.experiment.data.dataset import DataError

CHUNK = 1 << 18
TIMEOUT = 60


@dataclass(frozen=True)
class File:
    """A file at an official address. The MD5 sums are those that torchvision, too, holds these files against."""

    url: str
    md5: str | None = None  # ImageNet publishes none: its archives carry checksums of their own, and are read before use

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and the folder that its archives hold."""

    files: tuple[File, ...]
    folder: str  # in which it ends up, below the data folder
    remark: str = ""


def _idx(address: str, *sums: str) -> tuple[File, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(File(f"{address}/{name}-ubyte.gz", md5) for name, md5 in zip(names, sums, strict=True))


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        (File("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
        "cifar-10-batches-py",
    ),
    "cifar100": Source(
        (File("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        "cifar-100-python",
    ),
    "mnist": Source(
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",  # LeCun's own page asks that downloads go elsewhere
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "mnist",
    ),
    "fashion-mnist": Source(
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "fashion-mnist",
    ),
    "imagenet32": Source(
        (
            File("https://image-net.org/data/downsample/Imagenet32_train.zip"),
            File("https://image-net.org/data/downsample/Imagenet32_val.zip"),
        ),
        "imagenet32",
        "ImageNet is for non-commercial research; its terms are at https://image-net.org/download.",
    ),
}


def fetch(name: str, root: Path, console: Console | None = None, source: Source | None = None) -> Path:
    """Download a data set into a folder below `root`, and return that. What is there already, whole, is left alone.

    Everything happens in a hidden folder beside it; only when all files are there, have the right checksum and can be
    read as the data set, that folder takes its final name.
    """
    console = console or Console(stderr=True, quiet=True)
    if source is None:
        if name not in SOURCES:
            raise DataError(f"Unknown data set `{name}`; there are {', '.join(SOURCES)}. The digits come with the package.")
        source = SOURCES[name]
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
    downloads = root / f".{source.folder}.download"
    downloads.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        _download(file, downloads / file.name, console)
    with (
        console.status(f"Unpacking and checking {name} …"),
        tempfile.TemporaryDirectory(dir=root, prefix=".unpacked-") as scratch,
    ):
        unpacked = Path(scratch) / source.folder
        unpacked.mkdir()
        for file in source.files:
            _unpack(downloads / file.name, unpacked)
        try:
            read(unpacked)
        except DataError as error:
            shutil.rmtree(downloads)
            raise DataError(f"What came is not {name}: {error} The downloads were removed.") from None
        os.replace(unpacked, target)
    shutil.rmtree(downloads)
    return target


def _download(file: File, path: Path, console: Console) -> None:
    """Into `path`.part, going on from what is there; renamed when the checksum is right."""
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        _stream(file, part, progress)
    found = _md5(part)
    if file.md5 is not None and found != file.md5:
        part.unlink()
        raise DataError(
            f"{file.url} gave a file with the MD5 sum {found}, not {file.md5}: it was damaged on the way, or has changed. "
            "It was removed; fetch it again."
        )
    os.replace(part, path)


def _stream(file: File, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"User-Agent": "ffebm"} | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = answer.status == 206  # else the server sends all of it again
            start = have if resumed else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else start + int(length)
            task = progress.add_task(file.name, total=total, completed=start)
            with part.open("ab" if resumed else "wb") as sink:
                while chunk := answer.read(CHUNK):
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


def _unpack(archive: Path, folder: Path) -> None:
    """Put the files of an archive into a folder, whatever folders they were in; nothing can land elsewhere."""
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as tar:
                for member in tar:
                    source = tar.extractfile(member) if member.isfile() else None
                    if source is not None:
                        with source, (folder / Path(member.name).name).open("wb") as sink:
                            shutil.copyfileobj(source, sink)
        elif archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                for item in packed.infolist():
                    if not item.is_dir():
                        with packed.open(item) as source, (folder / Path(item.filename).name).open("wb") as sink:
                            shutil.copyfileobj(source, sink)
        else:
            shutil.copy(archive, folder / archive.name)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise DataError(f"{archive.name} cannot be unpacked: {error}. It was removed; fetch it again.") from None
