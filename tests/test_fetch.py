"""Downloads, from a server on this machine: checked, resumed, and in place only when whole."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from ffebm.experiment.data import DataError, load
from ffebm.experiment.data.fetch import SOURCES, File, Source, fetch
from test_data import write_cifar10, write_imagenet32, write_mnist


class Handler(BaseHTTPRequestHandler):
    """Serves `files`, from any byte on; breaks off once after `limit` bytes."""

    files: ClassVar[dict[str, bytes]] = {}
    limit: ClassVar[int | None] = None
    ranges: ClassVar[bool] = True
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        self.asked.append(self.headers.get("Range", ""))
        if content is None:
            self.send_error(404)
            return
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if self.ranges and self.headers["Range"] else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        part = content[start:]
        if Handler.limit is not None:
            part, Handler.limit = part[: Handler.limit], None
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.files, Handler.limit, Handler.ranges, Handler.asked = {}, None, True, []
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()
    thread.join()


def tar_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return buffer.getvalue()


def offer(server: str, name: str, content: bytes, md5: str | None = None) -> File:
    Handler.files[f"/{name}"] = content
    return File(f"{server}/{name}", md5 or hashlib.md5(content).hexdigest())


@pytest.fixture
def cifar(server: str, tmp_path: Path) -> Source:
    archive = tar_of(write_cifar10(tmp_path / "made"))
    return Source((offer(server, "cifar-10-python.tar.gz", archive),), "cifar-10-batches-py")


def test_a_data_set_arrives_whole(cifar: Source, tmp_path: Path) -> None:
    root = tmp_path / "data"
    assert fetch("cifar10", root, source=cifar) == root / "cifar-10-batches-py"
    assert len(load("cifar10", root).train) == 100
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-py"]
    fetch("cifar10", root, source=cifar)  # is there already
    assert len(Handler.asked) == 1


def test_a_download_that_broke_off_goes_on(cifar: Source, tmp_path: Path) -> None:
    Handler.limit = 1000
    with pytest.raises(DataError, match=r"broke off.*What came is kept"):
        fetch("cifar10", tmp_path / "data", source=cifar)
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()
    fetch("cifar10", tmp_path / "data", source=cifar)
    assert Handler.asked == ["", "bytes=1000-"]
    assert len(load("cifar10", tmp_path / "data").test) == 20


def test_a_server_that_cannot_resume_sends_all_again(cifar: Source, tmp_path: Path) -> None:
    Handler.limit, Handler.ranges = 1000, False
    with pytest.raises(DataError, match="broke off"):
        fetch("cifar10", tmp_path / "data", source=cifar)
    fetch("cifar10", tmp_path / "data", source=cifar)
    assert len(load("cifar10", tmp_path / "data").test) == 20


def test_a_part_file_that_is_complete_is_used(cifar: Source, tmp_path: Path) -> None:
    folder = tmp_path / "data" / ".cifar-10-batches-py.download"
    folder.mkdir(parents=True)
    (folder / "cifar-10-python.tar.gz.part").write_bytes(Handler.files["/cifar-10-python.tar.gz"])
    fetch("cifar10", tmp_path / "data", source=cifar)
    assert len(load("cifar10", tmp_path / "data").test) == 20


@pytest.mark.parametrize("kind", ["other", "pipe", "link"])
def test_what_somebody_else_put_into_the_download_folder_is_not_trusted(cifar: Source, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "data" / ".cifar-10-batches-py.download"
    folder.mkdir(parents=True)
    planted, precious = folder / "cifar-10-python.tar.gz", tmp_path / "precious"
    precious.write_bytes(b"mine")
    if kind == "other":
        planted.write_bytes(tar_of(write_imagenet32(tmp_path / "forged") or tmp_path / "forged"))
    elif kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.with_name(planted.name + ".part").symlink_to(precious)
    fetch("cifar10", tmp_path / "data", source=cifar)
    assert len(load("cifar10", tmp_path / "data").train) == 100
    assert precious.read_bytes() == b"mine"


def test_a_wrong_checksum_puts_nothing_in_place(server: str, tmp_path: Path) -> None:
    archive = tar_of(write_cifar10(tmp_path / "made"))
    source = Source((offer(server, "cifar-10-python.tar.gz", archive, md5="0" * 32),), "cifar-10-batches-py")
    with pytest.raises(DataError, match="MD5 sum"):
        fetch("cifar10", tmp_path / "data", source=source)
    assert not list((tmp_path / "data").rglob("*.gz*"))
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()


def test_an_archive_that_is_not_the_data_set_is_not_put_in_place(server: str, tmp_path: Path) -> None:
    made = write_cifar10(tmp_path / "made")
    (made / "data_batch_3").write_bytes(b"nothing")
    source = Source((offer(server, "cifar-10-python.tar.gz", tar_of(made)),), "cifar-10-batches-py")
    with pytest.raises(DataError, match=r"What came is not cifar10: .*data_batch_3"):
        fetch("cifar10", tmp_path / "data", source=source)
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
def test_archives_that_cannot_be_unpacked_are_removed(server: str, tmp_path: Path, name: str) -> None:
    source = Source((offer(server, name, b"no archive"),), "cifar-10-batches-py")
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch("cifar10", tmp_path / "data", source=source)
    assert not list((tmp_path / "data").rglob(name))


def test_a_full_disk_while_unpacking_keeps_the_download(cifar: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ffebm.experiment.data.archives._open", lambda _: Full())
        with pytest.raises(OSError, match="No space left"):
            fetch("cifar10", tmp_path / "data", source=cifar)
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()
    fetch("cifar10", tmp_path / "data", source=cifar)
    assert len(Handler.asked) == 1


def test_a_damaged_archive_without_checksum_is_removed(server: str, tmp_path: Path) -> None:
    archive = bytearray(tar_of(write_cifar10(tmp_path / "made")))
    archive[2000:2064] = bytes(64)
    offer(server, "x.tar.gz", bytes(archive))
    source = Source((File(f"{server}/x.tar.gz"),), "cifar-10-batches-py")
    with pytest.raises(DataError, match=r"cannot be unpacked|What came is not"):
        fetch("cifar10", tmp_path / "data", source=source)
    assert not list((tmp_path / "data").rglob("x.tar.gz"))


def test_no_archive_writes_outside_its_folder(server: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("../../escaped")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    source = Source((offer(server, "x.tar.gz", buffer.getvalue()),), "cifar-10-batches-py")
    with pytest.raises(DataError, match="missing"):
        fetch("cifar10", tmp_path / "deep" / "data", source=source)
    assert not list(tmp_path.rglob("escaped"))


def test_idx_files_and_zip_archives_are_fetched(server: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "made", suffix=".gz")
    files = tuple(offer(server, path.name, path.read_bytes()) for path in sorted((tmp_path / "made" / "mnist").iterdir()))
    fetch("mnist", tmp_path / "data", source=Source(files, "mnist"))
    assert len(load("mnist", tmp_path / "data").train) == 20
    write_imagenet32(tmp_path / "made")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for path in (tmp_path / "made" / "imagenet32").iterdir():
            packed.write(path, f"some/folder/{path.name}")
    source = Source((File(offer(server, "x.zip", buffer.getvalue()).url),), "imagenet32")
    shown = Console(file=io.StringIO(), width=300)
    fetch("imagenet32", tmp_path / "data", shown, source)
    assert "No checksum is known for x.zip" in shown.file.getvalue()
    assert len(load("imagenet32", tmp_path / "data").train) == 100


def test_a_server_that_sends_more_than_the_file_has_is_cut_off(server: str, tmp_path: Path) -> None:
    url = offer(server, "x.zip", bytes(1000)).url
    with pytest.raises(DataError, match="sends more than the 999 bytes"):
        fetch("imagenet32", tmp_path / "data", source=Source((File(url, size=999),), "imagenet32"))


def test_addresses_that_do_not_answer_are_reported(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="404"):
        fetch("mnist", tmp_path, source=Source((File(f"{server}/nowhere.gz"),), "mnist"))
    with pytest.raises(DataError, match="broke off"):
        fetch("mnist", tmp_path, source=Source((File("http://127.0.0.1:9/nothing.gz"),), "mnist"))
    with pytest.raises(DataError, match="Unknown data set `mnits`"):
        fetch("mnits", tmp_path)


def test_a_damaged_data_set_in_place_is_not_overwritten(cifar: Source, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "mine").write_text("keep me")
    with pytest.raises(DataError, match="Fetching needs it removed first"):
        fetch("cifar10", tmp_path / "data", source=cifar)
    assert (folder / "mine").read_text() == "keep me"


def test_official_sources_cover_every_data_set_but_the_digits_and_ones_own() -> None:
    from ffebm.experiment.data import NAMES

    assert {"digits", "folder", "given", *SOURCES} == set(NAMES)
    assert all(file.url.startswith("http") for source in SOURCES.values() for file in source.files)
