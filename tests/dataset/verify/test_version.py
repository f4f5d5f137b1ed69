import errno
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from tasks.core.errors import UsageError
from tasks.core.findings import Finding
from tasks.dataset.verify import examination, tars
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tasks.dataset.version.index import read_index
from tests.dataset import tampering
from tests.dataset.handmade import MEMBERS as GOOD
from tests.dataset.handmade import Members, write_shard
from tests.dataset.tampering import flip, record

SHARD = "train/000001.tar"


@pytest.fixture
def version(dataset: Path) -> Path:
    """The version in its dataset."""
    return versions.resolve(dataset)


def codes(path: Path, level: Any = "default") -> set[str]:
    return {finding.code for finding in verify(path, level).findings}


def find(path: Path, code: str, level: Any = "default") -> Finding:
    found = [finding for finding in verify(path, level).findings if finding.code == code]
    assert len(found) == 1, f"{code} should be reported once, not {len(found)} times"
    return found[0]


@pytest.mark.parametrize("level", ["quick", "default", "full"])
def test_a_sound_dataset_has_no_findings(sound: Path, level: Any) -> None:
    for path in (sound, sound / "current", versions.resolve(sound)):
        report = verify(path, level)
        assert report.ok and report.findings == []
    assert (report.not_seen == []) is (level == "full")


def test_a_flipped_byte_names_shard_and_sample(version: Path) -> None:
    entry = [row for row in read_index(version, "train") if row["shard"] == 1][3]
    key = (
        pq.read_table(version / "samples" / "train.parquet")
        .filter(pa.compute.field("shard") == 1)["key"][3]
        .as_py()
    )
    flip(version / SHARD, int(entry["offset"] + 600))
    assert codes(version, "quick") == set(), "quick reads no content"
    assert codes(version) == {"shard.checksum", "member.checksum"}
    assert find(version, "member.checksum").where == {"split": "train", "shard": SHARD, "key": key}
    assert json.loads(json.dumps(verify(version).to_json()))["ok"] is False


def test_a_missing_and_an_extra_shard(version: Path) -> None:
    os.rename(version / SHARD, version / "train" / "000099.tar")
    report = verify(version, "quick")
    assert [(finding.code, finding.where["shard"]) for finding in report.findings] == [
        ("shard.missing", SHARD),
        ("shard.extra", "train/000099.tar"),
    ]
    assert codes(version, "full") == {"shard.missing", "shard.extra"}


def test_swapped_shards_name_each_other(version: Path) -> None:
    other = version / "train" / "000002.tar"
    aside = version / "aside"
    os.rename(version / SHARD, aside)
    os.rename(other, version / SHARD)
    os.rename(aside, other)
    found = [finding for finding in verify(version).findings if finding.code == "shard.checksum"]
    assert {finding.where["shard"]: finding.evidence.get("problem") for finding in found} == {
        SHARD: "holds the content of train/000002.tar",
        "train/000002.tar": f"holds the content of {SHARD}",
    }


def test_a_table_of_other_shards_accuses_no_shard(version: Path) -> None:
    table = pq.read_table(version / "shards.parquet")
    pq.write_table(table.slice(0, table.num_rows - 1), version / "shards.parquet")
    for level in ("quick", "default"):
        finding = find(version, "manifest.invalid", level)
        assert finding.where == {"file": "shards.parquet"} and codes(version, level) == {"manifest.invalid"}
    proof = {one["code"]: one["evidence"] for one in verify(version).ruled_out}["shard.checksum"]
    assert "have the BLAKE3 that they were built with" in proof
    flip(version / SHARD, 700)
    assert codes(version) == {"manifest.invalid", "member.checksum"}


def test_the_fault_is_that_of_the_file_which_was_changed(version: Path) -> None:
    path = version / "train" / "sizes.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "000000.tar": 1}))
    assert find(version, "manifest.invalid", "quick").where["file"] == "train/sizes.json"


def test_an_index_with_a_wrong_checksum(version: Path) -> None:
    path = version / "index" / "train.npy"
    index = np.load(path)
    index["crc32c"][7] ^= 1
    np.save(path, index)
    assert codes(version, "quick") == codes(version) == {"index.mismatch"}
    (version / "build.json").unlink()
    assert codes(version, "quick") == {"manifest.invalid"}, "only the content shows it"
    key = pq.read_table(version / "samples" / "train.parquet")["key"][7].as_py()
    assert find(version, "index.mismatch").where["key"] == key
    for data in (b"", b"garbage", path.read_bytes()[:200]):
        path.write_bytes(data)
        assert codes(version, "quick") == {"manifest.invalid", "index.mismatch"}


def forge(version: Path, samples: list[tuple[str, Members]]) -> None:
    """Replace the dataset by one shard of these samples, with tables that agree with it."""
    for path in [*version.glob("*/*.tar"), *version.glob("*/val*"), version / "val/sizes.json"]:
        path.unlink()
    write_shard(version / "train" / "000000.tar", samples)
    tampering.forge(version)


@pytest.fixture
def loose(version: Path, tmp_path: Path) -> Path:
    """A version outside of any dataset, whose name shows nothing of its content."""
    return version.rename(tmp_path / "loose")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([("a", GOOD), ("b", {"png": GOOD["png"]})], {"sample.missing_member"}),
        ([("a", GOOD), ("b", {**GOOD, "png": b""})], {"member.empty"}),
        ([("a", GOOD), ("b", GOOD), ("a", GOOD)], {"sample.duplicate_key"}),
        ([("a", GOOD), ("b", {"png": GOOD["png"]}), ("a", {"txt": b"x"})],
         {"sample.duplicate_key", "sample.missing_member"}),
        ([("a", GOOD), ("b", {**GOOD, "png": b"<html>"})], {"member.undecodable"}),
        ([("a", GOOD), ("../b", GOOD)], {"member.unsafe"}),
    ],
)  # fmt: skip
def test_full_finds_what_is_wrong_with_sealed_samples(loose: Path, samples: Any, expected: set[str]) -> None:
    forge(loose, samples)
    assert codes(loose, "full") == expected
    assert codes(loose) == set(), "what has its seal is what was built"


@pytest.mark.parametrize(("level", "cores"), [("default", 4), ("full", 2)])
def test_workers_find_the_same(
    version: Path, monkeypatch: pytest.MonkeyPatch, level: Any, cores: int
) -> None:
    flip(version / SHARD, 700)
    monkeypatch.setattr(examination, "available_cores", lambda: 1)
    alone = verify(version, level)
    monkeypatch.setattr(examination, "available_cores", lambda: cores)
    monkeypatch.setattr(examination, "WORTH_PROCESSES_BYTES", dict.fromkeys(("default", "full"), 0))
    monkeypatch.setattr(examination, "WORTH_SHARING_BYTES", 0)
    assert verify(version, level) == alone
    assert not alone.ok


@pytest.mark.parametrize(
    ("sizes", "cores", "shared"),
    [
        ([100] * 5, 2, {4}),  # the other core would have nothing left while one reads the fifth
        ([100] * 20, 16, {16, 17, 18, 19}),
        ([100] * 4, 2, set()),
        ([40, 300, 40], 2, {1}),  # alone it is more than what a core has to read
        ([100], 2, {0}),
        ([100] * 5, 1, set()),
        ([5], 2, set()),  # not worth the threads
        ([], 2, set()),
    ],
)
def test_cores_share_the_files_that_would_leave_some_idle(
    sizes: list[int], cores: int, shared: set[int]
) -> None:
    named = {f"{number}.tar": size << 20 for number, size in enumerate(sizes)}
    assert examination.shared_by_cores(named, cores) == {f"{number}.tar" for number in shared}


@pytest.mark.parametrize("size", [0, 1, tars.AT_ONCE, 2 * tars.AT_ONCE, 3 * tars.AT_ONCE + 7])
def test_several_threads_take_the_digest_of_every_byte_in_order(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "0.tar").write_bytes(content)
    assert tars.blake3_of(str(tmp_path), "0.tar", 2) == blake3(content).hexdigest()


def test_a_disk_that_fails_while_several_threads_read_is_an_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.RawIOBase):
        blocks = 3

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.blocks -= 1
            if not self.blocks:
                raise OSError(errno.EIO, "Input/output error")
            return len(buffer)

    monkeypatch.setattr(tars, "open_file", lambda folder, name: Failing())
    found = tars.attempt(tars.blake3_of, str(tmp_path), "0.tar", 2)
    assert isinstance(found, OSError) and found.errno == errno.EIO


def test_a_path_that_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        verify(tmp_path / "nowhere")


def test_the_fast_paths_import_little(sound: Path) -> None:
    script = "import sys; import {}; print([name for name in {!r} if name in sys.modules])"
    heavy = {
        "tasks.dataset.building.builder": ["torch", "prefect", "wandb", "sklearn"],
        "tasks.dataset.building.freshness": ["torch", "PIL", "pyarrow"],
    }
    for module, names in heavy.items():
        command = [sys.executable, "-c", script.format(module, names)]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_an_unknown_modality_is_a_finding_where_its_rules_are_needed(loose: Path) -> None:
    forge(loose, [("a", GOOD)])
    manifest = replace(versions.read_manifest(loose), modality="video_text")
    (loose / "manifest.json").write_bytes(manifest.to_bytes())
    record(loose)
    finding = find(loose, "manifest.invalid", "full")
    assert "video_text" in finding.evidence["problem"] and "update Tarmac" in finding.remedy


def test_without_a_manifest_members_are_decoded_by_their_names(loose: Path) -> None:
    forge(loose, [(f"{number}", GOOD) for number in range(20)] + [("bad", {**GOOD, "png": b"<html>"})])
    (loose / "manifest.json").unlink()
    assert codes(loose, "full") == {"manifest.invalid", "member.undecodable"}
    assert verify(loose, "full").not_seen == []


@pytest.mark.parametrize(
    ("level", "cores", "how"),
    [("default", 3, "dataset.verify.examination.map_in_threads"), ("full", 3, "core.engines.local.map_here")],
)
def test_workers_keep_to_the_containers_quota(
    version: Path, monkeypatch: pytest.MonkeyPatch, level: Any, cores: int, how: str
) -> None:
    counts = []

    def count(function: Any, tasks: list[Any], workers: int, **_: bool) -> Any:
        counts.append(workers)
        return map(function, tasks)

    monkeypatch.setattr(examination, "WORTH_PROCESSES_BYTES", dict.fromkeys(("default", "full"), 0))
    monkeypatch.setattr(f"tasks.{how}", count)
    monkeypatch.setattr(examination, "available_cores", lambda: cores)
    assert verify(version, level).ok
    assert counts == [cores]
