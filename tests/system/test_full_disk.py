"""A disk that fills while a dataset is built: it is said, nothing is lost, and room is all it takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tests.dataset import raw
from tests.disks import grow, small_disk
from tests.soak import kill_builds

pytestmark = pytest.mark.system


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "64k") as folder:
        yield folder


@pytest.mark.parametrize("kind", kill_builds.SOURCES)
def test_a_full_disk_stops_the_build_and_costs_nothing(kind: str, tmp_path: Path, disk: Path) -> None:
    write, configured = kill_builds.SOURCES[kind]
    write(tmp_path / "raw", 0)
    calm = build(configured(tmp_path / "raw", tmp_path / "calm"))
    config = configured(tmp_path / "raw", disk / "out")
    stops = 0
    kilobytes = 64
    while True:
        try:
            result = build(config)
            break
        except DataError as error:
            assert "is full; make room and run again" in str(error)
            assert versions.current(disk / "out") is None
            stops += 1
        kilobytes += 128
        grow(disk, f"{kilobytes}k")
    assert stops > 5, "it was full in the listing, in the conversion and in the assembly"
    assert raw.contents(result.version) == raw.contents(calm.version)
    assert sorted(path.name for path in (disk / "out").iterdir()) == ["versions"]


def test_the_version_before_is_not_touched(tmp_path: Path, disk: Path) -> None:
    write, configured = kill_builds.SOURCES["files"]
    write(tmp_path / "raw", 0)
    grow(disk, "4000k")
    config = configured(tmp_path / "raw", disk / "out")
    first = build(config)
    versions.publish(disk / "out", first.version, 3)
    before = raw.contents(first.version)
    (disk / "ballast").write_bytes(
        bytes(4_000_000 - sum(p.stat().st_size for p in disk.rglob("*")) - 200_000)
    )
    write(tmp_path / "raw", 1)
    with pytest.raises(DataError, match="is full"):
        build(config)
    assert versions.current(disk / "out") == first.version
    assert raw.contents(first.version) == before
    (disk / "ballast").unlink()
    grow(disk, "8000k")
    calm = build(configured(tmp_path / "raw", tmp_path / "calm"))
    assert raw.contents(build(config, accept_loss=True).version) == raw.contents(calm.version)
