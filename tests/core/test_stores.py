"""Local folders and addresses: what is listed, what is opened, what people see of a secret."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from tasks.core.folders import LocalStore
from tasks.core.stores import (
    ABSENT,
    NotRegular,
    StoreUnreachable,
    address_key,
    is_environment_error,
    is_hidden,
    is_valid,
    redact,
    split_location,
)
from tests.core.conftest import TRAIN


def test_the_query_of_an_address_belongs_to_its_file() -> None:
    assert split_location("https://h/x/t.csv?at=a/b") == ("https://h/x", "t.csv?at=a/b")
    assert split_location("s3://b/x?/t.csv") == ("s3://b/x?", "t.csv")


def test_files_come_folder_by_folder_in_the_order_of_their_names(folder: Path) -> None:
    files = [file for file in LocalStore(str(folder)).files() if not is_hidden(file)]
    assert files == ["read.me", *TRAIN, "val/000000.tar"]


def test_linked_folders_are_followed_but_not_in_circles(folder: Path) -> None:
    (folder / "val" / "again").symlink_to(folder)
    (folder / "val" / "self").symlink_to(".")
    (folder / "broken").symlink_to("broken")
    files = [file for file in LocalStore(str(folder)).files() if not is_hidden(file)]
    assert files == ["broken", "read.me", *TRAIN, "val/000000.tar"]
    below = [file for file in LocalStore(str(folder / "val")).files() if not is_hidden(file)]
    assert below == ["000000.tar", "again/broken", "again/read.me", *(f"again/{file}" for file in TRAIN)]


def test_a_folder_is_listed_once_however_many_links_lead_to_it(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (folder / name).symlink_to(folder / "train")
        (folder / "val" / name).symlink_to(folder / "train")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (outside / "x").mkdir(parents=True)
    (outside / "x" / "y.tar").write_bytes(b"")
    (outside / "x" / "back").symlink_to(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "seen.tar").write_bytes(b"")
    (folder / "c").symlink_to(".cache")
    for name in (".d", "d", "e"):
        (folder / name).symlink_to(outside)
    files = [file for file in LocalStore(str(folder)).files() if not is_hidden(file)]
    assert files == ["read.me", "c/seen.tar", "d/x/y.tar", *TRAIN, "val/000000.tar"]


def test_very_deep_folders_are_listed(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 300)
    os.makedirs(tmp_path / deep)
    (tmp_path / deep / "x.tar").write_bytes(b"")
    assert list(LocalStore(str(tmp_path)).files()) == [f"{deep}/x.tar"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(LocalStore(str(tmp_path / "nowhere")).files())


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(str(tmp_path))
    for name in ("pipe", "."):
        with pytest.raises(NotRegular):
            store.open(name)
    assert store.stat("nowhere") == ABSENT


def test_what_the_system_says_of_itself_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/proc/self/environ")
    (tmp_path / "y").symlink_to("/proc")
    (tmp_path / "z").symlink_to(tmp_path / "data")
    (tmp_path / "data").write_bytes(b"data")
    store = LocalStore(str(tmp_path))
    for name in ("x", "y/self/environ", "/proc/self/cmdline"):
        with pytest.raises(NotRegular):
            store.read(name, 10)
        with pytest.raises(NotRegular):
            store.open(name)
    assert store.read("z", 10) == b"data"


def test_a_file_that_grows_while_it_is_read_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"x" * 100)
    before = os.stat(tmp_path / "x")
    monkeypatch.setattr(os, "fstat", lambda _: before)
    (tmp_path / "x").write_bytes(b"x" * 300_000)
    assert LocalStore(str(tmp_path)).read("x", 1 << 20) == b"x" * 300_000
    assert LocalStore(str(tmp_path)).read("x", 200) == b"x" * 201


SIGNED = "https://me:secret@h:8080/a/b.png?X-Amz-Signature=secret&X-Amz-Date=1"


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        (SIGNED, "https://h:8080/a/b.png"),
        ("http://[bad/x.png?secret", "http://[bad/x.png"),
        ("http://u:secret@[::1]:99999/x\n#secret", "http://[::1]:99999/x\n"),
        ("s3://b/x.png?secret", "s3://b/x.png"),
        ("http://", "http://"),
        ("/data/what?.csv", "/data/what?.csv"),
    ],
)
def test_what_is_shown_holds_no_secret_and_is_always_something(location: str, seen: str) -> None:
    assert redact(location) == seen


@pytest.mark.parametrize(
    "signed",
    [
        SIGNED.replace("secret", "other").replace("Date=1", "Date=2"),
        "https://h:8080/a/b.png?AWSAccessKeyId=A&Signature=s%2Fs&Expires=1",
        "https://h:8080/a/b.png?sv=2024&se=2025-01-01&sr=b&sp=r&skoid=1&sig=x%3D",
        "https://h:8080/a/b.png?ex=1&is=2&hm=3",
        "https://h:8080/a/b.png",
    ],
)
def test_an_address_that_is_signed_anew_names_the_same(signed: str) -> None:
    assert address_key(SIGNED) == address_key(signed) == "https://h:8080/a/b.png"


def test_a_query_that_says_which_file_it_is_still_does() -> None:
    names = {address_key(f"https://h/get?id={n}&token=secret") for n in range(3)}
    assert len(names) == 3 and not any("secret" in name or "id" in name for name in names)
    assert address_key("https://h/get?st=1") != address_key("https://h/get?st=2")
    assert address_key("s3://b/what?.png") == "s3://b/what?.png"


@pytest.mark.parametrize(
    "address",
    ["http://[bad/x", "http:///x", "s3:///x", "http://h:99999/x", "http://a b/x", "s3://a b/x", "https://"],
)
def test_an_address_without_a_host_or_bucket_is_none(address: str) -> None:
    assert not is_valid(address)


@pytest.mark.parametrize(
    "address",
    ["http://h", "https://u:p@h.x:80/y?z#w", "http://[::1]:1/x", "s3://b.c-d/x y", "http://münchen.de/"],
)
def test_an_address_with_one_is_one(address: str) -> None:
    assert is_valid(address)


@pytest.mark.parametrize(
    ("error", "is_environment"),
    [
        (PermissionError(errno.EACCES, "x"), True),
        (OSError(errno.EIO, "x"), True),
        (OSError(errno.ENOSPC, "x"), True),
        (StoreUnreachable(None, "the store does not answer", "s3://b"), True),
        (MemoryError(), True),
        (sqlite3.OperationalError("x"), True),
        (FileNotFoundError(errno.ENOENT, "Permission denied"), False),
        (StoreUnreachable(errno.ENOENT, "there is no such bucket", "s3://b"), False),
        (NotRegular("not a regular file"), False),
        (ValueError("Permission denied"), False),
    ],
)
def test_an_error_of_the_environment_is_no_fault_of_the_data(error: Exception, is_environment: bool) -> None:
    assert is_environment_error(error) == is_environment
    wrapper = ValueError("the sample could not be read")
    wrapper.__cause__ = error
    assert is_environment_error(wrapper) == is_environment
