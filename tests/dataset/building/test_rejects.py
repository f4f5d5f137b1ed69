import errno
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, TarmacError
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.building.conversion import convert
from tasks.dataset.building.conversion.tally import BuildTally
from tasks.dataset.building.forecast import forecast
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tests.dataset import raw
from tests.dataset.building.prepared import pictures, published

FAULTS: list[tuple[str, bytes | None, str, str]] = [
    ("missing.png", None, "a missing image", "member.missing"),
    ("empty.png", raw.png(2), "  ", "caption.empty"),
    ("html.png", b"<!doctype html><html>404</html>", "a web page", "image.not_an_image"),
    ("0003.png", raw.png(3), "a duplicate key", "key.duplicate"),
    ("torn.png", raw.png(1, 40)[:500], "a truncated image", "image.undecodable"),
    ("latin.png", raw.png(2), "gr\udcfcn", "caption.encoding"),  # the byte FC, which is no UTF-8
    ("nothing.png", b"", "0 bytes", "image.empty"),
]
"""File, content, caption and reject reason of a bad sample of each kind."""


def bad_table(folder: Path) -> dict[str, str]:
    """40 sound samples and one of each fault; returns the reason by the fault's file."""
    rows = raw.pictures(folder, 40)
    raw.write_table(folder, [*rows, *((name, caption, "x") for name, _, caption, _ in FAULTS)])
    for name, content, _, _ in FAULTS:
        if content is not None:
            (folder / name).write_bytes(content)
    return {name: reason for name, _, _, reason in FAULTS}


def test_each_bad_input_is_accounted_for(tmp_path: Path) -> None:
    expected = bad_table(tmp_path / "raw")
    result = build(raw.config(tmp_path / "raw", tmp_path / "out", workers=2, reject_budget=0.2))
    rows = pq.read_table(result.version / "rejects.parquet").to_pylist()
    assert {row["file"]: row["reason"] for row in rows} == expected
    assert [row["source"] for row in rows] == [f"captions.csv:{line}" for line in range(42, 49)]
    assert all(row["detail"] and str(tmp_path) not in row["detail"] for row in rows)
    assert result.rejects == dict.fromkeys(sorted(expected.values()), 1)
    assert (result.read, result.accepted, result.filtered, result.rejected) == (47, 40, 0, 7)
    assert verify(result.version, "full").findings == []


def test_a_pickle_in_an_npz_is_accounted_for(tmp_path: Path) -> None:
    raw.volumes(tmp_path / "ct", 8)
    np.savez(tmp_path / "ct" / "p0_scan_0.npz", arr_0=np.array([{"a": 1}], dtype=object))
    config = raw.volume_config(tmp_path / "ct", tmp_path / "out", reject_budget=0.2)
    result = build(config)
    rows = pq.read_table(result.version / "rejects.parquet").to_pylist()
    assert [(row["file"], row["reason"]) for row in rows] == [("p0_scan_0.npz", "volume.pickle")]
    assert (result.read, result.accepted) == (8, 7)


def test_above_the_budget_the_old_version_stays(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.pictures(folder, 40)
    first = published(raw.config(folder, output))
    expected = bad_table(folder)
    with pytest.raises(DataError) as caught:
        build(raw.config(folder, output, workers=2, reject_budget=0.1))
    message = str(caught.value)
    assert "dataset.reject_budget (10.0%)" in message
    rejects = pq.read_table(output / "staging" / "rejects.parquet").to_pylist()
    found = {row["reason"] for row in rejects}
    assert len(rejects) >= 5 and found <= set(expected.values())
    assert all(f"1 {reason}" in message for reason in found)
    assert versions.current(output) == first.version
    assert [path.name for path in (output / "versions").iterdir()] == [first.version.name]
    assert verify(output, "full").ok


def test_the_work_of_a_failed_build_is_not_lost(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    bad_table(folder)
    with pytest.raises(DataError):
        build(raw.config(folder, output, reject_budget=0.05))
    staged = {path.name: path.stat().st_ino for path in (output / "staging").glob("*.tar")}
    result = build(raw.config(folder, output, reject_budget=0.5))
    kept = {path.stat().st_ino for path in result.version.glob("*/*.tar")}
    assert staged and set(staged.values()) <= kept
    assert not (output / "staging").exists()


def test_a_build_stops_as_soon_as_it_must_fail(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    rows = [(f"{number}.png", "absent", "") for number in range(400)]
    raw.write_table(folder, rows)
    with pytest.raises(DataError, match=r"member\.missing"):
        build(raw.config(folder, output, workers=2, reject_budget=0.05))
    assert 0 < len(list((output / "staging").glob("*.arrow"))) < 20


def test_a_stopped_build_reports_how_many_samples_it_has_looked_at(tmp_path: Path) -> None:
    """All of 80 samples are bad; the build stops at the first shards, which do not hold all of them."""
    raw.write_table(tmp_path / "raw", [(f"{number}.png", "absent", "") for number in range(80)])
    config = raw.config(tmp_path / "raw", tmp_path / "out", shard={"samples": 8}, splits={})
    with pytest.raises(DataError) as caught:
        build(config)
    found = re.match(
        r"at least (\d+) of the (\d+) samples looked at are rejected \(100\.0%\), and "
        r"dataset\.reject_budget \(5\.0%\) allows 4 of the 80 read;",
        str(caught.value),
    )
    assert found is not None and found[1] == found[2] and 5 <= int(found[1]) < 80


def test_rejects_of_the_listing_are_a_share_of_all_that_it_has_read() -> None:
    """Although none of the others is converted yet."""
    tally = BuildTally(read=25, share=0.05, total=22, rejects=Counter({"chat.turns": 3}))
    assert tally.explanation == (
        "at least 3 of 25 read are rejected (12.0%), more than dataset.reject_budget (5.0%)"
    )


def test_a_tar_that_lost_an_unknown_number_of_samples_counts_as_a_tar(tmp_path: Path) -> None:
    """One of four tars is cut within its first sample: one reject by count, but it may have held thousands."""
    (tmp_path / "raw").mkdir()
    for part in range(4):
        with ShardWriter(tmp_path / f"raw/{part}.tar") as writer:
            for number in range(100 * part, 100 * part + 40):
                writer.add(f"{number:04d}", {"png": raw.png(number), "txt": b"a picture"})
            writer.finish()
    os.truncate(tmp_path / "raw/2.tar", 700)
    source = {"kind": "shards", "path": str(tmp_path / "raw")}
    strict = raw.config(tmp_path / "raw", tmp_path / "out", source=source, reject_budget=0.2)
    with pytest.raises(DataError, match=r"1 of 4 tars or tables are cut short.*it is unknown how many"):
        build(strict)
    assert "1 of 4 tars or tables are cut short" in (forecast(strict).stops or ""), (
        "the build has left what it found"
    )
    result = build(raw.config(tmp_path / "raw", tmp_path / "out", source=source, reject_budget=0.25))
    assert (result.accepted, result.rejected) == (120, 1)
    os.truncate(tmp_path / "raw/0.tar", 700)
    fresh = raw.config(tmp_path / "raw", tmp_path / "other", source=source, reject_budget=0.2)
    stops = forecast(fresh).stops or ""
    assert "1 of 4 tars or tables are cut short" in stops, "a plan reads no more than the first samples"


def test_private_data_shows_in_no_message(tmp_path: Path) -> None:
    bad_table(tmp_path / "raw")
    with pytest.raises(DataError) as caught:
        build(raw.config(tmp_path / "raw", tmp_path / "out", reject_budget=0, private=True))
    assert "captions.csv:" not in str(caught.value)
    assert "key.duplicate" in str(caught.value)


def test_a_mended_reject_rewrites_one_shard(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    bad_table(folder)
    config = raw.config(folder, output, reject_budget=0.5)
    published(config)
    (folder / "missing.png").write_bytes(raw.png(5))
    mended = build(config)
    assert mended.shards_rewritten == 1
    assert "member.missing" not in mended.rejects
    fresh = build(raw.config(folder, tmp_path / "fresh", reject_budget=0.5))
    assert raw.contents(mended.version) == raw.contents(fresh.version)


def test_a_shard_of_rejects_only_takes_no_number(tmp_path: Path) -> None:
    config = pictures(tmp_path, 60, shard={"samples": 1}, reject_budget=0.9, splits={})
    for number in range(0, 60, 2):
        (tmp_path / "raw" / f"{number:04d}.png").write_bytes(b"no image")
    result = build(config)
    names = sorted(path.name for path in (result.version / "train").glob("*.tar"))
    assert names == [f"{number:06d}.tar" for number in range(30)]
    assert verify(result.version, "full").ok


def _failing(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let opening this file fail with the error; the build then stays in this process."""
    honest = os.open

    def opened(path: Any, *arguments: Any, **keys: Any) -> int:
        if str(path).endswith(name):
            raise error
        return honest(path, *arguments, **keys)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(convert, "map_groups", lambda function, items, engine, **keys: map(function, items))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_a_read_error_is_tried_again_by_the_next_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    config = pictures(tmp_path, 40, reject_budget=0.5)
    with monkeypatch.context() as patch:
        _failing(patch, "0007.png", OSError(number, os.strerror(number)))
        first = published(config)
        assert dict(first.rejects) == {"source.unreadable": 1}
        assert is_up_to_date(config) is None
        again = build(config)
        assert again.version == first.version, "it is still so"
    second = published(config)
    assert (second.rejected, second.shards_rewritten) == (0, 1)
    assert is_up_to_date(config) == second.version


def test_a_read_error_of_a_build_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pictures(tmp_path, 40, reject_budget=0)
    with monkeypatch.context() as patch:
        _failing(patch, "0007.png", OSError(errno.EIO, "Input/output error"))
        with pytest.raises(DataError, match=r"source\.unreadable"):
            build(config)
    assert build(config).accepted == 40


def test_torn_rows_do_not_keep_a_version_from_being_up_to_date(tmp_path: Path) -> None:
    config = pictures(tmp_path, 40, reject_budget=0.5)
    with (tmp_path / "raw" / "captions.csv").open("a") as file:
        file.write("a.png,one,two,three\n")
    result = published(config)
    assert dict(result.rejects) == {"source.unreadable": 1}
    assert is_up_to_date(config) == result.version


def test_a_lack_of_memory_ends_the_build_and_rejects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pictures(tmp_path, 40, reject_budget=0.5)
    with monkeypatch.context() as patch:
        _failing(patch, "0007.png", MemoryError())
        with pytest.raises(TarmacError, match=r"captions.csv:9: there is not enough memory"):
            build(config)
    assert build(config).accepted == 40
