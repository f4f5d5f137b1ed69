"""NOTICE names every package that pip installs with each extra, and every file under a licence with conditions."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from deploy.notice import CARRIED, CONDITIONS, UnknownLicence, extras_by_package, licence, parts
from tests.release.built import ROOT, resolved, run

NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
EXTRAS = distribution("tarmac").metadata.get_all("Provides-Extra") or []
TITLES = {
    r"GNU GENERAL PUBLIC LICENSE\s+Version": "GPL",
    r"GNU (LESSER|LIBRARY) GENERAL PUBLIC LICENSE\s+Version": "LGPL",
    r"Mozilla Public License,? [Vv](ersion|\.) ?2\.0": "MPL",
}
"""How the text of a licence begins, and how its SPDX identifier does."""
LIBRARIES = re.compile(
    r"/(lib(gomp|gfortran|quadmath|x265|heif|de265|tcc|cudart|nvjpeg|cupti)|ptxas|\w+\.pem$)"
)
"""Files that wheels are known to carry, by whatever package."""
LICENCE_FILE = re.compile(r"(?i)(licen[cs]e|copying|notice)[^/]*(?<!\.py)(?<!\.pyc)$")
ALSO_QUOTED = {"grpcio-status": ["MPL"]}
"""Packages with the text of a licence under which they have nothing: this one has a copy of grpcio's file."""


@pytest.fixture(scope="module")
def listed() -> dict[str, set[str]]:
    """The packages of NOTICE's second part, each with the extras in its brackets."""
    text = re.sub(r"\s+", " ", NOTICE.partition("ALL PACKAGES")[2])
    groups = re.findall(r"((?:[a-z0-9][a-z0-9-]*, )*[a-z0-9][a-z0-9-]*) \(([a-z, ]+)\)", text)
    return {name: set(extras.split(", ")) for names, extras in groups for name in names.split(", ")}


def test_it_is_that_of_the_installed_packages() -> None:
    run(sys.executable, "deploy/notice.py", "--check", cwd=ROOT)


def test_it_names_all_that_an_installer_would_take(listed: dict[str, set[str]]) -> None:
    """uv resolves pyproject.toml; the script walks the installed metadata."""
    assert set(listed) == set(resolved(EXTRAS))
    assert {name for name, extras in listed.items() if "base" in extras} == set(resolved([]))


@pytest.mark.proof
@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"all"}))
def test_its_brackets_hold_what_each_extra_takes(extra: str, listed: dict[str, set[str]]) -> None:
    assert {name for name, extras in listed.items() if extras & {"base", extra}} == set(resolved([extra]))


def test_every_licence_with_conditions_is_explained() -> None:
    first, _, _ = NOTICE.partition("ALL PACKAGES")
    for condition, meaning in CONDITIONS.items():
        assert f"\n{condition}\n  {meaning.split('.')[0][:60]}" in first
    for name in extras_by_package():
        for condition in set(parts(licence(name))) & set(CONDITIONS):
            explained = first.partition(f"\n{condition}\n")[2].partition("\n\n")[0]
            assert name in re.split(r"[\s,;]+", explained), f"{name} is not below {condition}"


def test_no_wheel_carries_a_file_under_a_licence_that_is_not_named() -> None:
    unnamed = []
    for name in extras_by_package():
        if name.startswith(("nvidia-", "cuda-")):  # all of it is under NVIDIA's agreements
            continue
        carried = CARRIED.get(name, {})
        licences = [*parts(licence(name)), *carried.values(), *ALSO_QUOTED.get(name, [])]
        files = [f"/{file}" for file in distribution(name).files or []]
        unnamed += [f"{name} has no {part}" for part in carried if not any(part in file for file in files)]
        for file in files:
            if LIBRARIES.search(file) and name != "certifi" and not any(part in file for part in carried):
                unnamed.append(f"{name}{file}")
            if LICENCE_FILE.search(file):
                text = Path(str(distribution(name).locate_file(file[1:]))).read_text(errors="replace")
                quoted = [begins for title, begins in TITLES.items() if re.search(title, text)]
                unnamed += [
                    f"{name}{file} is the text of the {begins}"
                    for begins in quoted
                    if not any(one.startswith(begins) for one in licences)
                ]
    assert unnamed == []


def test_a_licence_that_nobody_has_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "odd-1.0.dist-info"
    package.mkdir()
    package.joinpath("METADATA").write_text(
        "Metadata-Version: 2.4\nName: odd\nVersion: 1.0\nLicense-Expression: MIT AND SSPL-1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownLicence, match=r"odd: its metadata give \['MIT AND SSPL-1.0'\]"):
        licence("odd")
