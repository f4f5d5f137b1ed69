from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

from tasks.core.errors import DataError
from tasks.dataset.building.builder import build
from tasks.dataset.preview.faults import FAULT_CODES
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.manifest import SplitSummary
from tasks.dataset.version.quarantine import NAME, Quarantined
from tasks.dataset.version.tables import read_table
from tests.dataset import damage

V, W = "0" * 12, "1" * 12


def entry(key: str, version: str = V, reason: str = "member.checksum", shard: int = 0) -> Quarantined:
    return Quarantined(version, "train", f"train/{shard:06d}.tar", key, reason)


def test_nothing_there_is_an_empty_quarantine(tmp_path: Path) -> None:
    assert quarantine.read_quarantine(tmp_path / NAME) == []


def test_only_what_is_new_is_added_and_the_file_is_sorted(tmp_path: Path) -> None:
    assert quarantine.add(tmp_path, [entry("b"), entry("a"), entry("a", W)]) == 3
    content = (tmp_path / NAME).read_bytes()
    assert quarantine.add(tmp_path, [entry("a", reason="shard.missing")]) == 0, (
        "it is there, whatever the reason"
    )
    assert (tmp_path / NAME).read_bytes() == content
    both = [entry("a", shard=1), entry("b", reason="shard.missing")]
    assert quarantine.add(tmp_path, both) == 1, "the same key in another shard"
    assert quarantine.read_quarantine(tmp_path / NAME) == [
        entry("a"),
        entry("b"),
        entry("a", shard=1),
        entry("a", W),
    ]
    assert [path.name for path in tmp_path.iterdir()] == [NAME], "no lease is left"


def test_remove_takes_out_the_sample_whatever_the_reason(tmp_path: Path) -> None:
    quarantine.add(tmp_path, [entry("a"), entry("b"), entry("a", W)])
    assert quarantine.remove(tmp_path, [entry("a", reason="x"), entry("c")]) == 1
    assert quarantine.read_quarantine(tmp_path / NAME) == [entry("b"), entry("a", W)]


def _add_many(folder: Path, name: str) -> None:
    for number in range(10):
        quarantine.add(folder, [entry(f"{name}{number}")])


def test_two_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    both = [context.Process(target=_add_many, args=(tmp_path, name)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert len(quarantine.read_quarantine(tmp_path / NAME)) == 20


@pytest.mark.parametrize(
    "line",
    ['{"version": "0', "[]", "3", "null", '{"version": "0"}', f'{{"version": "{V}", "split": "a", "shard": "b", '
     '"key": 3, "reason": "c"}', '{"other": "d"}', "\udcff"],
)  # fmt: skip
def test_a_torn_line_is_named_with_its_file(tmp_path: Path, line: str) -> None:
    quarantine.add(tmp_path, [entry("a")])
    with (tmp_path / NAME).open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(DataError, match=rf"{NAME}(, line 2: is no entry|: cannot be read)"):
        quarantine.read_quarantine(tmp_path / NAME)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"quarantine.jsonl: cannot be written"):
        quarantine.add(tmp_path / "file", [entry("a")])


@pytest.fixture
def version(digits_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the digits' version in a dataset of its own."""
    source = versions.resolve(digits_dataset)
    copy = tmp_path / "dataset" / "versions" / source.name
    shutil.copytree(source, copy)
    return copy


def entries_of(version: Path, split: str, rows: list[int]) -> list[Quarantined]:
    table = read_table(version / "samples" / f"{split}.parquet")
    keys, shards = table.column("key").to_pylist(), table.column("shard").to_pylist()
    return [
        Quarantined(version.name, split, f"{split}/{shards[row]:06d}.tar", keys[row], "x") for row in rows
    ]


def test_rows_are_those_of_the_split_and_the_version(version: Path) -> None:
    mine = entries_of(version, "train", [700, 3, 256])
    others = [*entries_of(version, "val", [1]), entry("nobody", W)]
    found = quarantine.rows(version, "train", [*mine, mine[0], *others])
    assert found.dtype == np.int64 and found.tolist() == [3, 256, 700]
    assert quarantine.rows(version, "val", [*mine, *others]).tolist() == [1]
    assert quarantine.rows(version, "train", others).tolist() == []


def test_a_version_is_known_by_its_content_wherever_it_lies(version: Path) -> None:
    [mine] = entries_of(version, "train", [5])
    elsewhere = version.parents[2] / "copy"
    assert quarantine.home(version) == version.parents[1]
    shutil.move(version, elsewhere)
    assert quarantine.home(elsewhere) == elsewhere
    assert quarantine.rows(elsewhere, "train", [mine]).tolist() == [5]


def test_an_entry_that_names_no_sample_is_an_error(version: Path) -> None:
    [mine] = entries_of(version, "train", [5])
    wrong_shard = Quarantined(mine.version, "train", "train/000001.tar", mine.key, "x")
    with pytest.raises(DataError, match=rf"{NAME}: .* no sample '{mine.key}' in train/000001.tar; delete"):
        quarantine.rows(version, "train", [mine, wrong_shard])


def test_a_torn_table_of_samples_is_an_error(version: Path) -> None:
    entries = entries_of(version, "train", [5])
    path = version / "samples" / "train.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train.parquet: cannot be read .*tarmac verify"):
        quarantine.rows(version, "train", entries)


SPLITS = {
    name: SplitSummary(shards=1, samples=samples, bytes=1) for name, samples in (("train", 1539), ("val", 9))
}


def test_what_is_left_out_is_counted_by_split() -> None:
    train = [entry(f"k{number}", shard=number % 2) for number in range(161)]
    val = Quarantined(V, "val", "val/000000.tar", "k0", "x")
    assert quarantine.by_split([val, *train, entry("k0", reason="y")]) == {"train": 161, "val": 1}
    assert (
        quarantine.left_out_text(SPLITS, train) == "161 of 1,539 train samples are left out: quarantine.jsonl"
    )
    both = "161 of 1,539 train samples and 1 of 9 val samples are left out: quarantine.jsonl"
    assert quarantine.left_out_text(SPLITS, [val, *train]) == both
    assert quarantine.left_out_text(SPLITS, [val]) == "1 of 9 val samples is left out: quarantine.jsonl"
    assert quarantine.left_out_text({}, [val]) == "1 val sample is left out: quarantine.jsonl"
    assert quarantine.left_out_text(SPLITS, []) == ""


def test_the_notice_counts_this_version_alone(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(version.parents[2])
    [mine] = entries_of(version, "train", [3])
    left = "train samples is left out: quarantine.jsonl; tarmac repair dataset takes back what is sound"
    notice = quarantine.notice(version, [mine, entry("a", W)])
    assert notice is not None and notice.startswith("1 of 1,5") and notice.endswith(left)
    assert quarantine.notice(version, [entry("a", W)]) is None


def mixed(version: str) -> list[Quarantined]:
    """Entries about two shards, with reasons that their bytes show and one that they do not, and about another version."""
    return [
        entry("a", version, "shard.missing"),
        entry("b", version, "member.checksum"),
        entry("c", version, "member.undecodable"),
        entry("d", version, "member.checksum", shard=1),
        entry("a", W, "shard.missing"),
    ]


def test_a_build_that_writes_a_shard_again_releases_what_was_bad_in_it(tmp_path: Path) -> None:
    built = damage.pictures(tmp_path)
    listed = mixed(built.version.name)
    quarantine.add(built.dataset, listed)
    (built.version / "train/000000.tar").unlink()
    again = build(built.config)
    assert (again.version, again.shards_rewritten, again.released) == (built.version, 1, 2)
    assert quarantine.read_quarantine(built.dataset / NAME) == sorted(listed[2:])


def test_a_build_that_writes_nothing_releases_nothing(tmp_path: Path) -> None:
    built = damage.pictures(tmp_path)
    quarantine.add(built.dataset, mixed(built.version.name))
    assert build(built.config).released == 0 and build(built.config, rehash=True).released == 0
    assert len(quarantine.read_quarantine(built.dataset / NAME)) == 5


def test_every_reason_that_a_sample_may_have_is_looked_for_at_some_level() -> None:
    """An entry with any other reason would never leave the quarantine."""
    of_samples = set(FAULT_CODES) - {"shard.extra"}  # which holds no sample of the dataset
    assert quarantine.REASONS["full"] == of_samples
