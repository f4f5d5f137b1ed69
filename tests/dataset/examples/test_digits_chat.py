import hashlib
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.core.config import load_config
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.examples import write_example
from tasks.dataset.verify.verifier import verify

CONFIG = Path(__file__).parents[3] / "configs" / "digits-chat.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("example") / "data" / "raw" / "digits-chat"
    assert write_example("digits-chat", path) == 600
    return path


def config_of(folder: Path, output: Path) -> Config:
    return load_config(CONFIG, [f"dataset.source.path={folder}", f"dataset.output={output}"])


def test_the_config_builds_it(folder: Path, tmp_path: Path) -> None:
    result = build(config_of(folder, tmp_path / "out"))
    assert (result.read, result.accepted, result.filtered, result.rejected) == (600, 588, 12, 0)
    assert verify(result.version, "full").findings == []
    samples = [pq.read_table(result.version / "samples" / f"{split}.parquet") for split in ("train", "val")]
    assert {table.num_rows > 30 for table in samples} == {True}
    images = Counter(number for table in samples for number in table["images"].to_pylist())
    assert set(images) == {0, 1, 2} and images[2] > 150


def test_it_is_the_same_each_time_and_written_once(folder: Path, tmp_path: Path) -> None:
    assert write_example("digits-chat", folder) == 0
    assert write_example("digits-chat", tmp_path / "again") == 600

    def digests(path: Path) -> dict[str, str]:
        files = (file for file in sorted(path.rglob("*")) if file.is_file())
        return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    assert digests(folder) == digests(tmp_path / "again")
