"""What img2dataset's files beside a tar record of its samples."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.folders import LocalStore
from tasks.dataset.tar.siblings import stated_samples


@pytest.mark.parametrize("tar", ["00012.tar", "00012.tar.gz", "00012.tgz"])
def test_the_samples_that_were_written_are_those_that_succeeded(tmp_path: Path, tar: str) -> None:
    store = LocalStore(str(tmp_path))
    assert stated_samples(store, tar) is None
    statuses = ["success"] * 7 + ["failed_to_download"] * 2
    pq.write_table(pa.table({"status": statuses, "key": range(9)}), tmp_path / "00012.parquet")
    assert stated_samples(store, tar) == (7, "00012.parquet")
    (tmp_path / "00012_stats.json").write_text(json.dumps({"count": 9, "successes": 7}))
    assert stated_samples(store, tar) == (7, "00012_stats.json")
    (tmp_path / "00012_stats.json").write_text("{")
    (tmp_path / "00012.parquet").write_bytes(b"no table")
    assert stated_samples(store, tar) is None
