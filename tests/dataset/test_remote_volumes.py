"""The same volumes, with their tables, out of a bucket."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.schema import Config
from tasks.dataset.sources import open_sources
from tests import s3
from tests.dataset.raw import nifti


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3.moto_server(tmp_path_factory.mktemp("moto") / "log") as port:
        yield port


def with_metadata(config: Config, path: str) -> Config:
    """The config with a table of metadata, over another folder."""
    source = config.dataset.source
    block = source.model_dump() | {"path": path, "metadata": nifti.METADATA}  # type: ignore[union-attr]
    changed = type(source).model_validate(block)  # type: ignore[union-attr, arg-type]
    return config.model_copy(update={"dataset": config.dataset.model_copy(update={"source": changed})})


@pytest.mark.parametrize("kind", ["npz", "nifti"])
def test_a_bucket_gives_the_same_samples(
    kind: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = importlib.import_module(f"tests.dataset.raw.{kind}").make(tmp_path)
    nifti.tables(tmp_path, [f"p{number // 2}_scan_{number % 2}" for number in range(6)])
    with s3.reached_through(port, monkeypatch):
        s3.put(tmp_path, f"scans-{kind}")
        here, there = (
            open_sources(with_metadata(config, path).dataset)[0]
            for path in (str(tmp_path), f"s3://scans-{kind}")
        )
        pairs = zip(*(list(source.items(next(source.containers()))) for source in (here, there)), strict=True)
        for mine, its in pairs:
            assert mine == its
            assert there.stat(its.file).size == here.stat(mine.file).size
            assert there.stored_bytes(its.file, 1, its.content) == here.stored_bytes(
                mine.file, 1, mine.content
            )
            left, right = here.read(mine.file, mine.content), there.read(its.file, its.content)
            assert {name: bytes(part) for name, part in left.items()} == {
                name: bytes(part) for name, part in right.items()
            }
