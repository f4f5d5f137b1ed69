"""A changed dataset is listed once: the check, the plan and the build look up no file and no address twice."""

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core import child
from tasks.core.errors import DataError
from tasks.core.folders import LocalStore
from tasks.core.lock import Lease
from tasks.core.schema import Config
from tasks.core.stores import ObjectStat
from tasks.dataset.building import freshness
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.building.forecast import forecast
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.sources.table import TableImages
from tests.dataset import raw
from tests.dataset.building.prepared import changed, parquet, pictures, published
from tests.web import counting_server

COUNT = 40


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file of a source is looked at."""
    counts: Counter[str] = Counter()
    honest = LocalStore.stat

    def counted(self: LocalStore, file: str) -> ObjectStat:
        counts[os.path.basename(file)] += 1
        return honest(self, file)

    monkeypatch.setattr(LocalStore, "stat", counted)
    return counts


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources' containers that are listed, in turn."""
    names: list[str] = []
    honest = TableImages.items

    def watched(self: TableImages, container: object) -> Iterator[object]:
        names.append(container.name)  # type: ignore[attr-defined]
        yield from honest(self, container)  # type: ignore[arg-type]

    monkeypatch.setattr(TableImages, "items", watched)
    return names


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = pictures(tmp_path, COUNT)
    published(made)
    (tmp_path / "raw" / "0007.png").write_bytes(raw.png(777))
    return made


def surveyed(config: Config) -> Path:
    """The folder of the listing that the check keeps for a build."""
    assert is_up_to_date(config, for_build=True) is None
    survey = freshness.kept_survey(config.dataset.output)
    assert survey is not None
    return survey


def images(asked: Counter[str]) -> set[int]:
    return {count for name, count in asked.items() if name.endswith(".png")}


def test_the_build_takes_over_what_the_check_has_listed(
    config: Config, asked: Counter[str], opened: list[str], tmp_path: Path
) -> None:
    survey = surveyed(config)
    result = build(config, survey=survey)
    assert result.shards_rewritten == 1
    assert opened == ["captions.csv"]
    assert images(asked) == {1} and len(asked) >= COUNT
    assert not survey.exists() and freshness.kept_survey(config.dataset.output) is None
    fresh = build(changed(config, output=tmp_path / "fresh"))
    assert raw.contents(fresh.version) == raw.contents(result.version)


def test_a_command_and_its_build_send_one_request_per_changed_address(tmp_path: Path) -> None:
    """As `tarmac build` does it: the check in the command's process, the build in a child."""
    raw.pictures(tmp_path / "web", COUNT)
    with counting_server(tmp_path / "web") as (address, requests):
        rows = [(f"{address}/{number:04d}.png", f"picture {number}", "x") for number in range(COUNT)]
        raw.write_table(tmp_path / "raw", rows)
        config = raw.config(tmp_path / "raw", tmp_path / "out")
        published(config)
        raw.write_table(tmp_path / "raw", [*rows[:-1], (rows[-1][0], "another caption", "x")])
        requests.clear()
        survey = surveyed(config)
        found = {"config": config.model_dump(mode="json"), "survey": str(survey)}
        assert child.call("tasks.dataset.building.builder:build", found)["shards_rewritten"] == 1
    assert requests == {f"GET /{COUNT - 1:04d}.png": 1}, "the others have been fetched before"


def test_no_file_of_the_version_is_hashed_once_the_source_has_changed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    honest = freshness.blake3_file
    monkeypatch.setattr(freshness, "blake3_file", lambda path: hashed.append(path.name) or honest(path))  # type: ignore[func-returns-value]
    assert is_up_to_date(config) is None
    assert hashed == []


@pytest.mark.parametrize("command", [build, forecast])
def test_alone_it_lists_once_too(
    command: object, config: Config, asked: Counter[str], opened: list[str]
) -> None:
    command(config)  # type: ignore[operator]
    assert opened == ["captions.csv"] and images(asked) == {1}


def test_containers_are_looked_at_once(tmp_path: Path, asked: Counter[str], opened: list[str]) -> None:
    config = parquet(tmp_path / "raw")
    build(config)
    assert sorted(opened) == sorted({*opened}) and len(opened) == 3
    assert asked["1.parquet"] == asked["2.parquet"] == 2, "before and after it is read"


def test_a_listing_is_kept_for_a_build_alone(config: Config) -> None:
    before = set(config.dataset.output.iterdir())
    assert is_up_to_date(config) is None
    assert set(config.dataset.output.iterdir()) == before
    assert freshness.kept_survey(config.dataset.output) is None


def test_a_full_disk_is_one_line(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = set(config.dataset.output.iterdir())
    monkeypatch.setattr(Catalogue, "add", full)
    with pytest.raises(DataError, match=f"the disk of {config.dataset.output} is full"):
        is_up_to_date(config)
    assert set(config.dataset.output.iterdir()) == before


def test_what_was_listed_for_another_config_is_not_taken_over(config: Config, tmp_path: Path) -> None:
    survey = surveyed(config)
    other = raw.config(tmp_path / "raw", tmp_path / "out", image={"encode": "jpg"})
    result = build(other, survey=survey)
    assert result.shards_rewritten == result.shards and result.accepted == COUNT


def test_what_a_killed_command_listed_is_removed(config: Config) -> None:
    left = surveyed(config)
    build(config)
    assert left.exists(), "it may be of a command that is about to build"
    os.utime(left, (0, 0))
    build(config)
    assert not left.exists()


def test_a_build_that_had_to_wait_lists_anew(config: Config, tmp_path: Path) -> None:
    survey = surveyed(config)
    other = Lease(config.dataset.output / "lease.json")
    other.acquire()

    def progress(done: int, total: int, note: str) -> None:
        if note.endswith("waiting"):
            (tmp_path / "raw" / "0008.png").write_bytes(raw.png(888))
            other.release()

    result = published(config, progress=progress, survey=survey)
    assert is_up_to_date(config) == result.version, "what changed while it waited is in it"
    assert not survey.exists()
