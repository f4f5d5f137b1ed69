"""`make release`: the same commit gives the same bytes, of the commit's files alone, with a bill of what it installs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from tests.release.built import ROOT, build, copy_checkout, resolved, run

pytestmark = pytest.mark.system  # half a minute, for two releases
EPOCH = "1790000000"
WHO = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_AUTHOR_DATE": f"{EPOCH} +0000",
    "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b.c", "GIT_COMMITTER_DATE": f"{EPOCH} +0000",
}  # fmt: skip


def committed(place: Path) -> Path:
    """A repository of one commit with the checkout's files as they are now; the commit is the same everywhere."""
    copy_checkout(place)
    env = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull}
    run("git", "init", "--quiet", "--initial-branch", "main", cwd=place, env=env)
    run("git", "add", "--all", cwd=place, env=env)
    run("git", "commit", "--quiet", "--message", "All of it", cwd=place, env=env)
    return place


def make(repository: Path, out: Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """Call the script of a repository as `make release` does."""
    return subprocess.run(
        [sys.executable, "deploy/release.py", out],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
        umask=umask,
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with scratch in it that git ignores, by .gitignore or by its owner's own list."""
    place = committed(tmp_path_factory.mktemp("one") / "repository")
    for name in ("data/raw.csv", "runs/a/metrics.jsonl", "tasks/__pycache__/scratch.pyc", ".cache/scratch"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("scratch\n")
    (place / ".git/info/exclude").write_text("/password.txt\n")
    (place / "password.txt").write_text("scratch\n")
    return place


@pytest.fixture(scope="module")
def told(repository: Path) -> str:
    """What making a release prints."""
    done = make(repository, repository / "dist")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def released(repository: Path, told: str) -> Path:
    return repository / "dist"


@pytest.fixture(scope="module")
def sdist(released: Path) -> Path:
    return next(released.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(released: Path) -> Path:
    return next(released.glob("*.whl"))


@pytest.fixture(scope="module")
def bill(released: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(next(released.glob("*.cdx.json")).read_text())
    return loaded


def test_the_same_commit_gives_the_same_bytes(
    released: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Elsewhere, by somebody with another umask, from files with other times."""
    again = committed(tmp_path_factory.mktemp("two") / "elsewhere")
    for file in again.rglob("*.py"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    done = make(again, again / "dist", umask=0o077)
    assert done.returncode == 0, done.stderr
    assert digests(again / "dist") == digests(released)
    assert len(digests(released)) == 4


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_an_sdist_holds_the_files_of_the_commit_and_nothing_else(repository: Path, sdist: Path) -> None:
    files = set(filter(None, run("git", "ls-files", "-z", cwd=repository).stdout.split("\0")))
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
        times = {member.mtime for member in archive}
    assert names == files | {"COMMIT", "PKG-INFO"}
    assert times == {int(EPOCH)}


def test_a_wheel_of_the_checkout_is_that_of_the_sdist(
    repository: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    direct = build("wheel", repository, tmp_path)
    assert zipfile.ZipFile(direct).namelist() == zipfile.ZipFile(wheel).namelist()
    assert direct.read_bytes() == wheel.read_bytes()


def test_a_wheel_knows_its_commit_and_brings_its_licences(repository: Path, wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    commit = run("git", "rev-parse", "--short=12", "HEAD", cwd=repository).stdout
    assert archive.read("tarmac/COMMIT").decode() == commit
    inside = f"tarmac-{version('tarmac')}.dist-info/licenses"
    for name in ("LICENSE", "NOTICE"):
        assert archive.read(f"{inside}/{name}") == (ROOT / name).read_bytes()


def test_its_checksums_are_what_sha256sum_checks(released: Path) -> None:
    checked = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=released).stdout
    assert checked.count(": OK\n") == 3


def test_an_index_would_take_the_archives(sdist: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=sdist.parent)


def test_the_bill_of_materials_names_every_package_with_its_version(bill: dict[str, Any]) -> None:
    wanted = resolved(sorted(named_extras(bill) - {"base"}))
    assert {canonicalize_name(one["name"]): one["version"] for one in bill["components"]} == wanted
    base = {canonicalize_name(one["name"]) for one in bill["components"] if one["scope"] == "required"}
    assert base == set(resolved([]))
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("tarmac", version("tarmac"))
    known = {root["bom-ref"], *(one["bom-ref"] for one in bill["components"])}
    assert {ref for one in bill["dependencies"] for ref in (one["ref"], *one["dependsOn"])} <= known


def named_extras(bill: dict[str, Any]) -> set[str]:
    """The extras that its components name."""
    return {word for one in bill["components"] for word in one["properties"][0]["value"].split()}


def test_the_bill_of_materials_has_no_address_of_a_registry(bill: dict[str, Any]) -> None:
    purls = [one["purl"] for one in bill["components"]]
    assert [purl for purl in purls if not re.fullmatch(r"pkg:pypi/[a-z0-9.-]+@[^?#]+", purl)] == []
    assert re.findall(r"file://|pypi\.org|/simple/", json.dumps(bill)) == []


def test_what_is_not_committed_is_refused(repository: Path, tmp_path: Path) -> None:
    notes = repository / "notes.txt"
    notes.write_text("mine\n")
    try:
        done = make(repository, tmp_path / "dist")
    finally:
        notes.unlink()
    assert done.returncode == 1
    assert (
        done.stderr.startswith("✗ no release: commit these or take them away") and "notes.txt" in done.stderr
    )
    assert not (tmp_path / "dist").exists()


def test_the_tag_that_it_proposes_is_at_its_commit(repository: Path, told: str) -> None:
    tag = re.search(r"^  (git tag -a v\S+ -m '[^']*' \w+) &&", told, re.MULTILINE)
    assert tag is not None, told
    subprocess.run(tag[1], shell=True, cwd=repository, env={**os.environ, **WHO}, check=True)
    assert run("git", "describe", cwd=repository).stdout == f"v{version('tarmac')}\n"
