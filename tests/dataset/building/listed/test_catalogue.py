"""The samples of a build on disk, and what is read again after a kill."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError
from tasks.core.schema.dataset import ShardRules
from tasks.dataset.building import listing
from tasks.dataset.building.builder import build
from tasks.dataset.building.listed.catalogue import NAME, Catalogue, Listed, ListedSample, RejectedSample
from tasks.dataset.building.listed.spill import FOLDER, PARTS, read_spilled
from tasks.dataset.keys import shard_hash
from tasks.dataset.sources.table import TableImages
from tests.dataset import raw
from tests.dataset.building.prepared import COUNT, changed, parquet, planned

RULES = ShardRules(samples=100)


def entry(number: int, key: str, split: str = "train", **changes: Any) -> Listed:
    facts = {"original_key": key, "place": f"t:{number}", "file": key, "content": "", "group": None}
    facts |= changes
    return Listed(ListedSample(number, key, source=0, size=1, stamp="1", **facts), split, shard_hash(key), 1)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    made = Catalogue(tmp_path / NAME)
    yield made
    made.close()


def test_samples_come_back_as_they_were_in_the_order_of_the_shards(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    odd = {"original_key": "gr\udcfcn", "place": "t\udcff:1", "content": "\udc80 永", "group": "\udcaa"}
    samples = [entry(n, f"key {n}") for n in range(50)] + [entry(50, "odd", **odd)]
    catalogue.add(samples)
    catalogue.plan(RULES, "rules", ["source"], {0: "; see there"})
    found = list(catalogue.entries(1, 1000))
    assert found == [one.entry for one in sorted(samples, key=lambda one: (one.shard_hash, one.entry.key))]
    catalogue.close()
    with closing(Catalogue(tmp_path / NAME, reads_only=True)) as again:
        assert list(again.entries(1, 100)) == found
        assert list(again.entries(7, 9)) == found[6:8]


def test_the_first_of_a_key_stays_wherever_the_others_would_go(catalogue: Catalogue) -> None:
    catalogue.add([entry(4, "a", "val"), entry(1, "a", "train"), entry(2, "b"), entry(9, "a", "train")])
    catalogue.plan(RULES, "rules", ["source"], {0: "; see there"})
    assert {shard.split for shard in catalogue.shards()} == {"train"}
    kept = sorted((1, 2), key=lambda n: shard_hash("a" if n == 1 else "b"))
    assert [one.number for one in catalogue.entries(1, 10)] == kept
    assert [(one.number, one.reason, one.detail) for one in catalogue.rejects()] == [
        (4, "key.duplicate", "t:1 has this key; see there"),
        (9, "key.duplicate", "t:1 has this key; see there"),
    ]
    assert (catalogue.read, catalogue.accepted, catalogue.rejected_in_listing) == (4, 2, 2)


def test_samples_change_their_group_without_a_search_through_all(catalogue: Catalogue) -> None:
    """A search would read all pages for each of them, which takes a minute here."""
    with catalogue.transaction():
        catalogue.add(entry(n, f"key {n % 30_000}") for n in range(50_000))
    began = time.perf_counter()
    with catalogue.transaction():
        catalogue.regroup((n, "together", "val") for n in range(0, 40_000, 2))
    assert time.perf_counter() - began < 10
    groups = [one.group for one in catalogue.every_listed()]
    assert groups == ["together" if n < 40_000 and n % 2 == 0 else None for n in range(50_000)]
    catalogue.plan(RULES, "rules", ["source"], {0: "; see there"})
    assert sum(shard.samples for shard in catalogue.shards() if shard.split == "val") == 15_000


def test_a_reject_of_the_conversion_is_counted_once(catalogue: Catalogue) -> None:
    catalogue.add([entry(0, "a"), entry(1, "b")])
    catalogue.plan(RULES, "rules", ["source"], {0: "; see there"})
    for _ in range(2):
        rejected = RejectedSample(1, "b", "b", "image.empty", "0 bytes", "t:1", "b")
        catalogue.reject([rejected], in_conversion=True)
    assert (catalogue.read, catalogue.accepted) == (2, 2)
    assert (catalogue.rejected_in_listing, catalogue.left_out_in_conversion) == (0, 1)
    assert [catalogue.find(key) for key in "abc"] == [(None, None, None), None, None]


def test_members_out_of_containers_wait_on_disk(tmp_path: Path) -> None:
    config = parquet(tmp_path / "raw")
    (tmp_path / "staging").mkdir()
    catalogue = planned(config, tmp_path / "staging")
    found = list(catalogue.entries(1, COUNT + 1))
    assert len(found) == catalogue.accepted == COUNT
    for one in found:
        members = read_spilled(tmp_path / "staging" / FOLDER, one)
        assert members["image"] == raw.png(int(one.key))
        assert members["txt"] == f"picture {int(one.key)}".encode()
    assert 1 < len(list((tmp_path / "staging" / FOLDER).iterdir())) <= PARTS


def test_a_killed_listing_reads_no_container_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = parquet(tmp_path / "raw")
    config = changed(made, shard=made.dataset.shard.model_copy(update={"order": "source"}))
    monkeypatch.setattr(listing, "COMMIT_BYTES", 0)
    opened: list[str] = []
    items = TableImages.items

    def watched(self: TableImages, container: Any) -> Any:
        opened.append(container.name)
        if len(opened) == 3:
            yield from list(items(self, container))[:5]  # spilled, and never recorded
            raise KeyboardInterrupt
        yield from items(self, container)

    monkeypatch.setattr(TableImages, "items", watched)
    with pytest.raises(KeyboardInterrupt):
        build(config)
    result = build(config)
    assert [name.rpartition("/")[2] for name in opened] == [f"{part}.parquet" for part in (0, 1, 2, 2)]
    assert result.accepted == COUNT
    calm = build(changed(config, output=tmp_path / "calm"))
    assert raw.contents(calm.version) == raw.contents(result.version)


def test_a_container_that_changed_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parquet(tmp_path / "raw")
    monkeypatch.setattr(listing, "COMMIT_BYTES", 0)
    items = TableImages.items

    def interrupted(self: TableImages, container: Any) -> Any:
        if container.name.endswith("2.parquet"):
            raise KeyboardInterrupt
        yield from items(self, container)

    monkeypatch.setattr(TableImages, "items", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(config)
    monkeypatch.setattr(TableImages, "items", items)
    rows = {"key": ["other"], "image": [raw.png(999)], "caption": ["another"]}
    pq.write_table(pa.table(rows), tmp_path / "raw" / "0.parquet")
    assert build(config).accepted == 2 * COUNT // 3 + 1


def test_sources_that_hold_nothing_are_named(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 0)
    with pytest.raises(DataError, match=r"dataset\.source\.path: .*captions\.csv: holds no samples"):
        build(raw.config(tmp_path / "raw", tmp_path / "out"))
