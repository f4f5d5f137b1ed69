"""What every source does; a new one joins RAW and meets the same demands."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.reasons import Reject
from tasks.dataset.samples import MODALITIES, missing
from tasks.dataset.sources import SOURCES, Item, Source, open_sources
from tasks.dataset.tar import ShardWriter
from tests.dataset import raw


def _table(folder: Path) -> Config:
    raw.table(folder, 6)
    return raw.config(folder, folder / "out")


def _npz(folder: Path) -> Config:
    raw.volumes(folder, 6)
    return raw.volume_config(folder, folder / "out")


RAW: dict[str, Callable[[Path], Config]] = {"table": _table, "npz": _npz}


@pytest.fixture(params=sorted(SOURCES))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    return RAW[request.param](tmp_path / "raw")


@pytest.fixture
def source(config: Config) -> Source:
    return open_sources(config.dataset)[0]


@pytest.fixture
def items(source: Source) -> list[Item]:
    return list(source.items())


def _files(source: Source, items: list[Item]) -> Iterator[Path]:
    for item in items:
        yield source.root / item.file


def test_lists_every_sample_in_the_same_order_each_time(source: Source, items: list[Item]) -> None:
    assert len(items) == 6
    assert len({item.original_key for item in items}) == 6
    assert list(source.items()) == items
    assert all(path.is_file() for path in _files(source, items))
    assert set(items[0].fields) <= set(source.columns())


def test_listing_opens_no_sample(source: Source, items: list[Item]) -> None:
    for path in _files(source, items):
        path.write_bytes(b"")
    assert list(source.items()) == items


def test_reads_what_its_modality_takes(
    config: Config, source: Source, items: list[Item], tmp_path: Path
) -> None:
    modality = MODALITIES[config.dataset.modality]
    for item in items:
        taken = modality.take(source.read(item.file, item.content), config.dataset.image)
        assert not missing(modality.required, taken.members)
        assert set(taken.statistics) == set(modality.statistics)
        with ShardWriter(tmp_path / "x.tar") as writer:
            span = writer.add("key", taken.members)
        size = (source.root / item.file).stat().st_size
        assert span.length <= source.stored_bytes(item.file, size, item.content)
        stored = {suffix: bytes(content) for suffix, content in taken.members.items()}
        assert modality.judge(stored) == []


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"\x80\x04K\x01.", b"PK\x03\x04torn", b"\x89PNG\r\n\x1a\n"]
)
def test_a_bad_file_is_a_reject_and_nothing_else(config: Config, source: Source, content: bytes) -> None:
    item = next(iter(source.items()))
    (source.root / item.file).write_bytes(content)
    with pytest.raises(Reject):
        MODALITIES[config.dataset.modality].take(source.read(item.file, item.content), config.dataset.image)
    assert source.stored_bytes(item.file, len(content), item.content) > 0


def test_an_absent_file_is_a_missing_member(source: Source, items: list[Item]) -> None:
    (source.root / items[0].file).unlink()
    with pytest.raises(Reject) as caught:
        source.read(items[0].file, items[0].content)
    assert caught.value.reason == "member.missing"


def test_a_missing_source_names_the_key(config: Config, tmp_path: Path) -> None:
    block = config.dataset.model_dump(mode="json")
    block["source"]["path"] = str(tmp_path / "nowhere" / "captions.csv")
    elsewhere = config.model_copy(update={"dataset": type(config.dataset).model_validate(block)})
    with pytest.raises(UsageError, match=r"dataset\.source\.path"):
        open_sources(elsewhere.dataset)[0].columns()
