"""Parquet as others write it: times of any zone, texts that are not said to be texts, and files that were cut."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError
from tasks.dataset.building.builder import build
from tasks.dataset.building.forecast import forecast
from tasks.dataset.sources.tabular import open_table
from tests.dataset.raw import table as tables


def fields(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row.fields for row in open_table(path, "dataset.source.path", **options).rows]


@pytest.mark.parametrize("zone", ["GMT+3", "US/Pacific-New", "Europe/Berlin"])
def test_times_of_a_zone_are_in_utc_whether_the_zone_is_known_or_not(tmp_path: Path, zone: str) -> None:
    whole = pa.array([3_600_000_000, None], pa.int64())
    times = whole.cast(pa.timestamp("us", zone))
    columns = {
        "us": times,
        "ns": pa.array([1, None], pa.int64()).cast(pa.timestamp("ns", zone)),
        "nested": pa.StructArray.from_arrays([whole.cast(pa.timestamp("us", "GMT+3"))], ["time"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    first, second = fields(tmp_path / "t.parquet", wanted=())
    assert first["us"] == datetime.datetime(1970, 1, 1, 1)
    assert first["ns"] == "1970-01-01 00:00:00.000000001"
    assert first["nested"] is None
    assert (second["us"], second["ns"]) == (None, None)
    row = next(open_table(tmp_path / "t.parquet", "dataset.source.path", wanted=["nested"]).rows)
    assert row.fault == "column nested holds no valid value"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_columns_of_bytes_that_are_used_are_texts(tmp_path: Path, kind: Any) -> None:
    texts = pa.array([b"gr\xc3\xbcn", b"gr\xfcn", None], kind)
    columns = {
        "image": pa.array([b"\xff1", b"\xff2", b"\xff3"], kind),
        "caption": texts,
        "group": texts.dictionary_encode() if kind == pa.binary() else texts,
        "mask": texts,
        "nested": pa.StructArray.from_arrays([texts], ["bytes"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", use_dictionary=["group"])
    wanted = ["image", "caption", "group", "nested"]
    table = open_table(tmp_path / "t.parquet", "dataset.source.path", wanted, "image")
    assert table.binary == {"image", "mask", "nested"}
    assert [row.fields for row in table.rows] == [
        {"image": b"\xff1", "caption": "grün", "group": "grün"},
        {"image": b"\xff2", "caption": "gr\udcfcn", "group": "gr\udcfcn"},
        {"image": b"\xff3", "caption": None, "group": None},
    ]


@pytest.mark.parametrize("left", [0, 3, 400, -1])
def test_a_file_that_was_cut_ends_plan_and_build_with_what_to_do(left: int, tmp_path: Path) -> None:
    """Also where a plan reads only the files before it."""
    tables.make_of_bytes(tmp_path / "raw")
    torn = tmp_path / "raw/1.parquet"
    os.truncate(torn, left if left >= 0 else torn.stat().st_size - 1)
    why = r"raw/1\.parquet is no Parquet file, or was cut: the mark of its end is missing; copy it again$"
    for act in (forecast, build):
        with pytest.raises(DataError, match=why):
            act(tables.config(tmp_path / "raw", tmp_path / "out"))


def test_a_file_with_a_broken_footer_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but no more \3\0\0\0PAR1")
    with pytest.raises(DataError, match=r"t\.parquet is no Parquet file: "):
        open_table(tmp_path / "t.parquet", "dataset.source.path")
