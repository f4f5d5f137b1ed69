import io
import tarfile
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from blake3 import blake3

from tasks.dataset.tar.format import Sample, header, parse_header, parse_sample
from tasks.dataset.tar.writer import GATHERED, ShardWriter

SAMPLES = {
    "b": {"txt": b"text", "png": b"\x89PNG" * 300},
    "a": {"volume.npy": bytes(range(256)) * 2, "json": b"{}", "txt": "grün".encode()},
}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "x.tar"
    with ShardWriter(path) as writer:
        for key, members in SAMPLES.items():
            writer.add(key, members)
        writer.finish()
    return path


def test_any_tar_program_reads_it(shard: Path) -> None:
    with tarfile.open(shard) as tar:
        members = tar.getmembers()
        read = {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    assert [member.name for member in members] == ["b.png", "b.txt", "a.json", "a.txt", "a.volume.npy"]
    assert read["a.volume.npy"] == SAMPLES["a"]["volume.npy"]
    assert {(m.mode, m.uid, m.gid, m.mtime, m.uname, m.type) for m in members} == {(0o644, 0, 0, 0, "", b"0")}


def test_the_bytes_are_those_of_ustar() -> None:
    info = tarfile.TarInfo("key.txt")
    info.size = 12345
    theirs, ours = info.tobuf(tarfile.USTAR_FORMAT), header("key.txt", 12345)
    assert ours[:148] == theirs[:148]
    assert ours[156:265] == theirs[156:265]
    assert tarfile.TarInfo.frombuf(ours, "ascii", "strict").size == 12345  # which checks the checksum
    with pytest.raises(ValueError, match="ustar"):
        header("x" * 101, 1)
    with pytest.raises(ValueError, match="ustar"):
        header("x", 8**11)


def test_spans_and_checksums_are_what_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    large = np.arange(GATHERED, dtype=np.uint8)
    with ShardWriter(path) as writer:
        spans = [writer.add("a", {"txt": b"hello"}), writer.add("b", {"npy": large, "txt": b"x"})]
        digest = writer.finish()
    data = path.read_bytes()
    assert blake3(data).hexdigest() == digest
    assert len(data) == writer.size_bytes
    assert data.endswith(bytes(1024)) and len(data) % 512 == 0
    for span in spans:
        assert google_crc32c.value(data[span.offset : span.offset + span.length]) == span.crc32c
    second = data[spans[1].offset : spans[1].offset + spans[1].length]
    assert parse_sample(second) == Sample("b", {"npy": large.tobytes(), "txt": b"x"})


def test_a_torn_span_is_refused(shard: Path) -> None:
    span = shard.read_bytes()[:3072]
    assert parse_sample(span).members.keys() == {"png", "txt"}
    for torn in (span[:-1], span[:1300], b"garbage" * 100):
        with pytest.raises(ValueError, match=r".+"):
            parse_sample(torn)


def test_parse_header_refuses_what_is_none() -> None:
    good = header("a.txt", 3)
    parsed = parse_header(good)
    assert parsed is not None and (parsed.text, parsed.size, parsed.kind) == ("a.txt", 3, "0")
    assert parse_header(bytes(512)) is None
    flipped = bytearray(good)
    flipped[0] ^= 1
    for bad in (bytes(flipped), b"x" * 512, good[:500], good[:124] + b"-0000000001" + good[135:]):
        with pytest.raises(ValueError, match=r".+"):
            parse_header(bad)
    info = tarfile.TarInfo("folder/" * 20 + "a.txt")
    parsed = parse_header(io.BytesIO(info.tobuf(tarfile.USTAR_FORMAT)).read(512))
    assert parsed is not None and parsed.text == info.name


def test_samples_of_all_sizes_stand_in_the_order_they_came(tmp_path: Path) -> None:
    sizes = [10, GATHERED // 3, GATHERED, 700, 2 * GATHERED, GATHERED // 2, GATHERED // 2, 5]
    contents = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    path = tmp_path / "x.tar"
    with ShardWriter(path) as writer:
        spans = [writer.add(f"s{number}", {"npy": content}) for number, content in enumerate(contents)]
        digest = writer.finish()
    data = path.read_bytes()
    assert blake3(data).hexdigest() == digest
    for number, (span, content) in enumerate(zip(spans, contents, strict=True)):
        bytes_of = data[span.offset : span.offset + span.length]
        assert parse_sample(bytes_of) == Sample(f"s{number}", {"npy": content})
        assert google_crc32c.value(bytes_of) == span.crc32c


@pytest.mark.parametrize("size", [100, GATHERED // 2, 2 * GATHERED])
def test_a_full_disk_reaches_the_caller(size: int) -> None:
    with pytest.raises(OSError, match="No space left"), ShardWriter(Path("/dev/full")) as writer:
        for number in range(5):
            writer.add(f"s{number}", {"npy": bytes(size)})
        writer.finish()
