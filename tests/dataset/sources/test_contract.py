"""The contract of every source; a new one adds `tests/dataset/raw/<kind>.py` and meets the same demands."""

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.core.stores import ABSENT
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.modalities import MODALITIES, missing
from tasks.dataset.sources import SOURCES, RawSample, Source, of_files, open_sources
from tasks.dataset.tar.format import Members
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.rejects import Reject
from tests.dataset import raw

SAMPLES = 6
FORMS = {
    **{kind: (kind, "make") for kind in SOURCES},
    "captions in json": ("image_folder", "make_of_json"),
    "classes": ("image_folder", "make_of_classes"),
    "all captions of an image": ("table", "make_of_captions"),
    "images in Parquet": ("table", "make_of_bytes"),
    "images in Arrow": ("table", "make_of_saved"),
    "chat with paths": ("chat", "make_paths"),
    "chat in an array": ("chat", "make_array"),
}
"""Raw data of every kind of source, some of it in several forms, by the function that writes it."""


def made(form: str, folder: Path) -> Config:
    kind, make = FORMS[form]
    config: Config = getattr(importlib.import_module(f"tests.dataset.raw.{kind}"), make)(folder)
    assert [source.kind for source in config.dataset.all_sources] == [kind]
    return config


@pytest.fixture(params=sorted(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def config(form: str, tmp_path: Path) -> Config:
    return made(form, tmp_path / "raw")


@pytest.fixture
def source(config: Config) -> Source:
    return open_sources(config.dataset)[0]


def listed(source: Source) -> Iterator[RawSample]:
    for container in source.containers():
        yield from source.items(container)


def members_of(source: Source, item: RawSample) -> Members:
    return of_files(source).read(item.file, item.content) if item.members is None else item.members


def path_of(config: Config, item: RawSample) -> Path:
    source = config.dataset.all_sources[0]
    path = Path(getattr(source, "root", None) or source.path)
    return (path if path.is_dir() else path.parent) / item.file


def plain(item: RawSample) -> RawSample:
    members = None if item.members is None else {name: bytes(part) for name, part in item.members.items()}
    return item._replace(fields=dict(item.fields), members=members)


def test_lists_every_sample_in_the_same_order_each_time(config: Config, source: Source) -> None:
    items = [plain(item) for item in listed(source)]
    assert len(items) == SAMPLES
    assert len({item[1] for item in items}) == SAMPLES
    assert [plain(item) for item in listed(open_sources(config.dataset)[0])] == items
    columns = source.columns()
    assert all(set(item.fields) <= set(columns) for item in listed(source))


def test_says_what_would_change_when_a_sample_does(source: Source) -> None:
    for container in source.containers():
        for item in source.items(container):
            if source.is_sequential:
                assert item.members is not None and container.stat != ABSENT
            else:
                assert item.members is None and item.stat != ABSENT


def test_reads_what_its_modality_takes(config: Config, source: Source, tmp_path: Path) -> None:
    modality = MODALITIES[config.dataset.modality]
    for item in listed(source):
        taken = modality.take(members_of(source, item), config.dataset)
        assert not missing(modality.required, taken.members)
        assert set(taken.statistics) == set(modality.statistics)
        with ShardWriter(tmp_path / "x.tar") as writer:
            span = writer.add("key", taken.members)
        if not source.is_sequential:
            size = item.stat.size
            assert span.length <= of_files(source).stored_bytes(item.file, size, item.content)
        stored = {suffix: bytes(content) for suffix, content in taken.members.items()}
        assert modality.judge(stored) == []


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"\x80\x04K\x01.", b"PK\x03\x04torn", b"\x89PNG\r\n\x1a\n", b"\x1f\x8b\x08"]
)
def test_a_bad_file_is_a_reject_and_nothing_else(config: Config, source: Source, content: bytes) -> None:
    item = next(listed(source))
    path_of(config, item).write_bytes(content)
    if source.is_sequential:
        with suppress(DataError, UsageError):
            again = list(listed(open_sources(config.dataset)[0]))
            assert all(found.fault is not None for found in again if found.file == item.file)
        return
    with pytest.raises(Reject):
        MODALITIES[config.dataset.modality].take(
            of_files(source).read(item.file, item.content), config.dataset
        )
    assert of_files(source).stored_bytes(item.file, len(content), item.content) > 0


def test_a_pipe_is_rejected_and_not_waited_for(config: Config, source: Source) -> None:
    item = next(listed(source))
    if source.is_sequential:
        return
    path_of(config, item).unlink()
    os.mkfifo(path_of(config, item))
    ended = threading.Event()

    def attempt() -> None:
        assert of_files(source).stored_bytes(item.file, 0, item.content) > 0
        with pytest.raises(Reject, match="not a regular file"):
            of_files(source).read(item.file, item.content)
        ended.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert ended.wait(10)


@pytest.mark.parametrize("lose", [raw.vanish, raw.unmount])
def test_a_source_that_is_gone_from_one_machine_is_no_bad_sample(
    config: Config, source: Source, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    gone, other, *_ = listed(source)
    if source.is_sequential:
        return
    path_of(config, gone).unlink()
    with pytest.raises(Reject, match=r"member\.missing"):
        of_files(source).read(gone.file, gone.content)
    lose(tmp_path / "raw")
    with pytest.raises(DataError, match="not there any more"):
        of_files(open_sources(config.dataset)[0]).read(other.file, other.content)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_missing_source_names_the_key(config: Config, tmp_path: Path, is_file: bool) -> None:
    if is_file:  # where the folder should be
        (tmp_path / "nowhere").touch()
    block = config.dataset.model_dump(mode="json")
    block["source"]["path"] = block["source"]["path"].replace("raw", "nowhere")
    elsewhere = config.model_copy(update={"dataset": type(config.dataset).model_validate(block)})
    with pytest.raises(UsageError, match=r"dataset\.source\.path"):
        open_sources(elsewhere.dataset)[0].columns()


def test_is_built_verified_and_built_alike_anywhere(form: str, config: Config, tmp_path: Path) -> None:
    result = build(config)
    assert (result.read, result.accepted, result.rejected) == (SAMPLES, SAMPLES, 0)
    report = verify(result.version, "full")
    assert report.ok, report.findings
    os.symlink(f"versions/{result.version.name}", config.dataset.output / "current")
    assert is_up_to_date(config) == result.version
    elsewhere = made(form, tmp_path / "elsewhere" / "raw")
    output = tmp_path / "again"
    other = elsewhere.model_copy(update={"dataset": elsewhere.dataset.model_copy(update={"output": output})})
    assert raw.contents(build(other).version) == raw.contents(result.version)
