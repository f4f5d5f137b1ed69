"""The files beside the tars: every changed bit is found, nonsense is never fatal, and each file is reported once."""

import json
import os
import random
import resource
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.findings import Finding
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.index import INDEX
from tests.dataset.tampering import flip

FILES = ("manifest.json", "shards.parquet", "rejects.parquet", "inputs.arrow", "index/train.npy", "samples/val.parquet", "val/sizes.json", "build.json")  # fmt: skip
FLIPS = 16
NONSENSE = 10


def found(path: Path, level: Any = "quick") -> list[Finding]:
    return list(verify(path, level).findings)


def files(findings: list[Finding]) -> list[str]:
    return [str(finding.where.get("file")) for finding in findings]


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_seen_at_every_level(version: Path, name: str) -> None:
    size = (version / name).stat().st_size
    rng = random.Random(name)
    for number in range(FLIPS):
        offset, bit = rng.randrange(size), rng.randrange(8)
        flip(version / name, offset, bit)
        findings = found(version, "quick" if number % 8 else "default")
        assert files(findings) == [name], f"bit {bit} of byte {offset}"
        assert findings[0].code == ("index.mismatch" if name.startswith("index") else "manifest.invalid")
        flip(version / name, offset, bit)
    assert found(version) == []


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_nonsense_is_a_finding_and_never_fatal(version: Path, name: str, has_checksums: bool) -> None:
    rng = random.Random(name)
    whole = (version / name).read_bytes()
    record_of_all = (version / "build.json").read_bytes()
    for number in range(NONSENSE):
        data = bytearray(whole)
        match number % 5:
            case 0:
                data = bytearray(rng.randbytes(rng.randrange(3000)))
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                for _ in range(20):
                    data[-1 - int(rng.random() ** 3 * min(len(data) - 1, 2000))] ^= 1 << rng.randrange(8)
            case 3:
                start = rng.randrange(len(data))
                data[start : start + 60] = rng.randbytes(60)
            case 4:
                data += rng.randbytes(9)
        (version / name).write_bytes(data)
        if not has_checksums and name != "build.json":
            (version / "build.json").unlink()
        findings = found(version, "default" if number % 4 == 0 else "quick")
        assert Counter(files(findings)).most_common(1)[0][1] == 1
        assert {"build.json"} != set(files(findings)) or not has_checksums or name == "build.json"
        json.dumps(verify(version, "quick").to_json())
        (version / name).write_bytes(whole)
        (version / "build.json").write_bytes(record_of_all)


def rows_of(count: int) -> bytes:
    """An index whose header claims so many rows."""
    described = str({"descr": np.lib.format.dtype_to_descr(INDEX), "fortran_order": False, "shape": (count,)})
    header = described.encode().ljust(246) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("index/train.npy", rows_of(1 << 60) + bytes(4096)),
        ("index/train.npy", rows_of(-1) + bytes(4096)),
        ("index/train.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFF0) + bytes(99)),
        ("manifest.json", b"[" * 1_000_000),
        ("build.json", b"[" * 1_000_000),
        ("build.json", b'{"files": {"../../../etc/passwd": {"bytes": 1, "blake3": "' + b"0" * 64 + b'"}}}'),
        ("build.json", b'{"files": {"manifest.json": {"bytes": true, "blake3": null}}}'),
        ("build.json", b'{"files": []}'),
        ("build.json", b'"\\ud800"'),
        ("val/sizes.json", b'{"\\ud800": 1}'),
        ("val/sizes.json", b'{"000000.tar": 1' + b"0" * 5000 + b"}"),
    ],
)
def test_absurd_sizes_take_no_memory(version: Path, name: str, data: bytes) -> None:
    (version / name).write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for level in ("quick", "default"):
        assert name in files(found(version, level))
        assert json.dumps(verify(version, level).to_json()).encode()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_pipe_is_not_waited_for(version: Path) -> None:
    for name in ("manifest.json", "shards.parquet", "index/val.npy", "samples/val.parquet", "build.json"):
        (version / name).unlink()
        os.mkfifo(version / name)
    assert {"manifest.json", "shards.parquet", "build.json"} <= set(files(found(version, "default")))


def test_without_any_table_the_index_still_shows_which_sample_is_bad(version: Path) -> None:
    key = pq.read_table(version / "samples" / "train.parquet")["key"][3].as_py()
    entry = np.load(version / "index" / "train.npy")[3]
    for name in ("manifest.json", "shards.parquet", "build.json"):
        (version / name).unlink()
    assert {finding.code for finding in found(version, "default")} == {"manifest.invalid"}
    flip(version / "train" / "000000.tar", int(entry["offset"]) + 600)
    assert [f.where["key"] for f in found(version, "default") if f.code == "member.checksum"] == [key]
    (version / "val" / "000000.tar").write_bytes(bytes(10_240))
    wrong = {f.code for f in found(version, "default") if f.where.get("shard") == "val/000000.tar"}
    assert wrong & {"shard.count", "shard.truncated"}
    last = max((version / "train").glob("*.tar"))
    last.unlink()
    for level in ("quick", "default"):
        assert [f.where["shard"] for f in found(version, level) if f.code == "shard.missing"] == [
            f"train/{last.name}"
        ]


def test_without_seals_files_that_contradict_each_other_are_reported(version: Path) -> None:
    path = version / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["samples"] += 1
    path.write_text(json.dumps(manifest))
    assert files(found(version)) == ["manifest.json"], "its seal is wrong"
    (version / "build.json").unlink()
    assert set(files(found(version, "default"))) == {"build.json", "shards.parquet"}, (
        "they contradict each other"
    )


INDEX_CHANGES: list[Callable[[np.ndarray], Any]] = [
    lambda index: index["offset"].__setitem__(5, 0),
    lambda index: index["length"].__setitem__(2, 1024),
    lambda index: index["shard"].__setitem__(3, 7),
    lambda index: index["length"].__setitem__(4, (1 << 64) - 512),
    lambda index: index["crc32c"].__setitem__(4, 0),
]


@pytest.mark.parametrize("change", INDEX_CHANGES)
def test_without_its_seal_an_index_is_compared_with_the_tars(
    version: Path, change: Callable[[np.ndarray], Any]
) -> None:
    (version / "build.json").unlink()
    assert files(found(version, "default")) == ["build.json"]
    index = np.load(version / "index" / "train.npy")
    change(index)
    np.save(version / "index" / "train.npy", index)
    assert set(files(found(version, "default"))) == {"build.json", "index/train.npy"}


@pytest.mark.parametrize(("column", "values"), [("key", "nobody"), ("row", 7), ("shard", 3)])
def test_without_its_seal_a_table_of_samples_is_compared_with_the_tars(
    version: Path, column: str, values: Any
) -> None:
    (version / "build.json").unlink()
    path = version / "samples" / "train.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0][column] = values
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    assert set(files(found(version, "default"))) == {"build.json", "samples/train.parquet"}


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"\xff\xfe{"])
def test_a_lost_build_json_asks_for_the_config(version: Path, content: bytes | None) -> None:
    build = version / "build.json"
    build.unlink() if content is None else build.write_bytes(content)
    (version / "index/train.npy").unlink()
    findings = verify(version, "quick").findings
    assert {finding.command for finding in findings} == {f"tarmac repair {version} --config CONFIG"}


def test_a_build_json_that_was_edited_needs_no_config(version: Path) -> None:
    build = version / "build.json"
    build.write_text(build.read_text().replace('"host": "', '"host": "x'))
    (finding,) = verify(version, "quick").findings
    assert finding.where["file"] == "build.json" and finding.command == f"tarmac repair {version}"
