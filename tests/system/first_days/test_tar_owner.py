"""The owner of tars: WebDataset shards that each count their samples from zero, of which one changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dataset.raw import png, shards
from tests.system.first_days.person import Person

pytestmark = pytest.mark.system


def write(folder: Path, tar: int, numbers: range, changed: int | None = None) -> Path:
    """Write a tar whose samples `changed` describes anew."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{tar:05d}.tar"
    members = []
    for n in numbers:
        text = f"{'another ' if n == changed else ''}picture {n} of tar {tar}"
        members += [(f"{n:06d}.jpg", png(100 * tar + n, 24, "JPEG")), (f"{n:06d}.txt", text.encode())]
    path.write_bytes(shards.tar_bytes(members))
    return path


def version_in(shown: str) -> str:
    (version,) = re.findall(r"✓ version (\w+)", shown)
    return str(version)


@pytest.mark.proof
def test_tars_that_count_from_zero_are_traced_and_compared(person: Person) -> None:
    raw = person.folder / "raw"
    for tar in range(3):
        write(raw, tar, range(16))
    found = person.types("init", "raw")
    assert "path      raw: 3 tars, 48 samples; members jpg 100 %, txt 100 %" in found
    assert "key       place: tars count their samples anew, so that keys come again" in found
    assert "reads 3 containers in order" in person.types("plan", "configs/raw.yaml")
    without = person.types("plan", "configs/raw.yaml", "--set", "dataset.source.key=null", expecting=1)
    assert (
        "the build would stop: 4 of the 20 samples tried are rejected, and dataset.reject_budget (5.0%)"
        in without
    )
    assert "begin with the same key '000000'" in without and "key: place keeps them apart" in without
    built = person.types("build", "configs/raw.yaml")
    assert "48 read = 48 accepted" in built
    before = version_in(built)
    for name in ("00002_000005", "00002/000005", "00002.tar:000005"):  # key, original, and place
        traced = person.types("trace", name, "data/raw")
        assert "  source     00002.tar:000005\n  original   00002/000005\n" in traced
        assert "  text       picture 5 of tar 2\n" in traced

    write(raw, 2, range(1, 17), changed=5)
    planned = person.types("plan", "configs/raw.yaml")
    assert "1 of 3 containers are new or changed (00002.tar)" in planned
    built = person.types("build", "configs/raw.yaml")
    after = version_in(built)
    assert f"✓ version {after} (was {before}: 1 sample gained, 1 lost, 1 replaced)" in built
    assert f"since {before}: 1 sample gained, 1 lost, 1 replaced" in person.types("versions", "data/raw")
    assert person.types("versions", "data/raw", "diff", before) == (
        f"{before} → {after}: 1 sample gained, 1 lost, 1 replaced\n"
        "  gained    00002/000016\n  lost      00002/000000\n  replaced  00002/000005\n"
    )

    torn = write(raw, 0, range(16))
    torn.write_bytes(torn.read_bytes()[:30_000])
    lost = "00000.tar:000010: the tar ends within a member at byte 30,000; how many samples it has lost is unknown"
    planned = person.types("plan", "configs/raw.yaml", expecting=1)
    assert "1 of 3 containers are new or changed (00000.tar)" in planned
    assert f"1 of 20 samples tried: source.unreadable   {lost}" in planned
    stops = (
        "1 of 3 tars or tables are cut short, and it is unknown how many samples are lost with them; that is"
    )
    assert f"the build would stop: {stops} more than dataset.reject_budget (5.0%) of these\n" in planned
