"""What cannot be repaired is set aside sample by sample, and taken back as soon as it is sound again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.core.files import read_json
from tasks.core.findings import Finding, Report
from tasks.dataset.repair import run as repair_module
from tasks.dataset.repair.run import repair
from tasks.dataset.version import quarantine
from tasks.dataset.version.quarantine import Quarantined
from tests.dataset import damage, raw
from tests.dataset.damage import Built


def listed(built: Built) -> Sequence[Quarantined]:
    return quarantine.read_quarantine(built.dataset / quarantine.NAME)


def damaged_without_source(built: Built) -> int:
    """A shard without a file, one with a bad sample, one that is cut; how many samples the first had."""
    source = Path(built.config.dataset.all_sources[0].path).parent
    shutil.move(source, source.with_name("away"))
    built.tar(0).unlink()
    damage.flip(built.tar(1), 600)
    damage.cut(built.tar(2))
    return int(read_json(built.version / "train/sizes.json")["000000.tar"])


def test_every_bad_sample_is_set_aside_and_no_other(built: Built) -> None:
    lost = damaged_without_source(built)
    assert not built.repair().ok and not listed(built), "nothing is set aside without the flag"
    done = built.repair(quarantines=True)
    assert done.ok and len(done.failed) == 3 and done.findings
    by_shard = [[one for one in listed(built) if one.shard.endswith(tar.name)] for tar in built.tars[:3]]
    assert len(by_shard[0]) == lost and {one.reason for one in by_shard[0]} == {"shard.missing"}
    assert len(by_shard[1]) == 1
    assert 0 < len(by_shard[2]) < 5
    assert (done.aside.added, done.aside.now) == (len(listed(built)), sum(map(len, by_shard)))
    assert {one.version for one in listed(built)} == {built.version.name}
    again = built.repair(quarantines=True)
    assert again.ok and (again.aside.added, again.aside.now) == (0, done.aside.now)
    assert not built.repair().ok, "without the flag, bad samples are reported each time"


def test_what_is_sound_again_is_taken_back(built: Built) -> None:
    damaged_without_source(built)
    aside = built.repair(quarantines=True).aside
    by_hand = Quarantined(built.version.name, "train", "train/000000.tar", "0001", "member.undecodable")
    other = Quarantined("0123456789ab", "train", "train/000000.tar", "0001", "shard.missing")
    quarantine.add(built.dataset, [by_hand, other])
    kept = [one for one in (by_hand, other) if one in listed(built)]
    source = Path(built.config.dataset.all_sources[0].path).parent
    shutil.move(source.with_name("away"), source)
    done = built.repair()
    assert done.ok and done.aside.released == aside.now
    assert list(listed(built)) == sorted(kept), "only samples that this level examined are taken back"
    assert done.aside.now == sum(one.version == built.version.name for one in kept)
    built.check(built.tars[:3], ("current", "versions", quarantine.NAME))


def test_a_level_takes_back_only_what_it_looks_for(built: Built) -> None:
    (key, *_) = (one["key"] for one in samples(built))
    entry = Quarantined(built.version.name, "train", "train/000000.tar", key, "member.undecodable")
    quarantine.add(built.dataset, [entry])
    assert built.repair().aside.released == 0
    assert built.repair(level="full").aside.released == 1
    assert not listed(built)


def samples(built: Built) -> list[dict[str, object]]:
    import pyarrow.parquet as pq

    return list(pq.read_table(built.version / "samples/train.parquet").to_pylist())


def test_samples_that_were_bad_in_the_source_are_set_aside(tmp_path: Path) -> None:
    """`image.check: header` accepts an image whose middle is torn."""
    raw.pictures(tmp_path / "raw", 12, side=64)
    damage.flip(tmp_path / "raw/0003.png")
    config = raw.config(tmp_path / "raw", tmp_path / "out", image={"check": "header"})
    built = damage.publish(config)
    damage.without_end(built.tar(0))
    assert built.repair().ok
    done = built.repair(level="full", quarantines=True)
    assert done.ok and [one.key for one in listed(built)] == ["0003"]
    assert "as they were built" in done.failed[0].reason
    assert not built.repair(level="full").ok


def test_tables_cannot_be_set_aside(built: Built) -> None:
    damaged_without_source(built)
    (built.version / "inputs.arrow").unlink()
    done = built.repair(quarantines=True)
    assert not done.ok and done.aside.added


def test_a_torn_quarantine_is_reported_after_the_repair(built: Built) -> None:
    damage.flip(built.tar(0))
    (built.dataset / quarantine.NAME).write_text('{"version": ')
    done = built.repair()
    assert not done.ok and [one.file for one in done.failed] == [quarantine.NAME]
    assert "line 1" in done.failed[0].reason
    built.check([built.tar(0)], ("current", "versions", quarantine.NAME))


def test_a_version_that_lies_alone_keeps_its_own_list(built: Built, tmp_path: Path) -> None:
    alone = shutil.copytree(built.version, tmp_path / "alone")
    shutil.rmtree(tmp_path / "raw")
    damage.flip(alone / "train/000001.tar", 600)
    assert repair(alone, quarantines=True).ok
    (line,) = (alone / quarantine.NAME).read_text().splitlines()
    assert json.loads(line)["shard"] == "train/000001.tar"


def test_a_fault_that_no_sample_explains_is_not_set_aside(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_finding(*_: object, **__: object) -> Report:
        where = {"split": "train", "shard": "train/000001.tar"}
        return Report([Finding("shard.count", "error", "build again", where)])

    monkeypatch.setattr(repair_module, "verify", one_finding)
    done = built.repair(quarantines=True)
    assert not done.ok and [one.file for one in done.failed] == ["train/000001.tar"]
