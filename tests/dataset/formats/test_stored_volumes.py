"""What a stored volume may be, and what is refused before Blosc2 sees it."""

import random
import struct
import subprocess
import sys
from math import prod
from typing import Any

import blosc2
import numpy as np
import pytest

from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.stored import CHUNK_HEADER, Damaged

SHAPE = (20, 130, 50)
VOLUME = (np.random.default_rng(0).integers(-1000, 1000, SHAPE) // 50 * 50).astype(np.int16)
FRAME = bytes(stored.encode(VOLUME, "blosc2")[1])
HEADER = struct.unpack_from(">i", FRAME, 11)[0]
PACKED = struct.unpack_from(">q", FRAME, 39)[0]
INDEX = HEADER + PACKED


def read(frame: bytes) -> np.ndarray:
    return stored.read_crop(stored.open_volume(stored.B2ND, frame))


def changed(at: int, value: bytes) -> bytes:
    return FRAME[:at] + value + FRAME[at + len(value) :]


def test_any_library_reads_it() -> None:
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(FRAME)[:], VOLUME)
    np.testing.assert_array_equal(read(FRAME), VOLUME)
    assert len(FRAME) < VOLUME.nbytes


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (16, 120, 120), (17, 121, 40), (40, 41, 300)])
@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_every_shape_comes_back_within_the_predicted_size(shape: Any, encoding: str) -> None:
    volume = np.random.default_rng(0).integers(-32768, 32767, shape).astype(np.int16)
    name, content = stored.encode(volume, encoding)
    assert len(content) <= stored.most_bytes(shape, encoding)
    found = stored.open_volume(name, bytes(content))
    np.testing.assert_array_equal(stored.read_crop(found), volume)
    crop = tuple(slice(side // 3, side // 3 + 1 + side // 2) for side in shape)
    np.testing.assert_array_equal(stored.read_crop(found, crop, stored.checksums(found)), volume[crop])  # type: ignore[arg-type]


def test_a_crop_of_ct_clips_shape_touches_few_chunks() -> None:
    volume = np.zeros((240, 480, 480), np.int16)
    name, content = stored.encode(volume, "blosc2")
    found = stored.open_volume(name, content)
    checksums, asked = stored.checksums(found), set()
    packed = found.packed
    found.packed = lambda number: asked.add(number) or packed(number)  # type: ignore[method-assign, func-returns-value]
    stored.read_crop(found, (slice(96, 128), slice(120, 240), slice(130, 250)), checksums)
    assert len(asked) == 4, "of 240 chunks"


EDGES = (33, 250, 121)
"""Not a multiple of chunk or block along any side."""
CROPS = [
    None,
    (slice(16, 32), slice(0, 120), slice(0, 120)),
    (slice(16, 33), slice(120, 250), slice(0, 121)),
    (slice(3, 20), slice(100, 140), slice(7, 9)),
]


@pytest.mark.parametrize("crop", CROPS, ids=["whole", "a chunk", "chunks at the end", "parts of chunks"])
@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_crop_is_written_where_it_is_wanted(encoding: str, crop: Any, threads: int) -> None:
    volume = np.random.default_rng(0).integers(-1000, 1000, EDGES).astype(np.int16)
    volume[:16] = 0  # chunks without bytes of their own
    volume[16:32, :120] = -1000
    found = stored.open_volume(*stored.encode(volume, encoding))
    wanted = volume[crop or stored.whole(found)]
    batch = np.full((2, *wanted.shape), 7, np.int16)
    assert stored.read_crop(found, crop, stored.checksums(found), batch[1], threads) is not None
    np.testing.assert_array_equal(batch[1], wanted)
    assert (batch[0] == 7).all()
    np.testing.assert_array_equal(stored.read_crop(found, crop, threads=threads), wanted)


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_the_spans_of_chunks_hold_the_bytes_of_their_checksums(encoding: str) -> None:
    import google_crc32c

    volume = np.random.default_rng(0).integers(-1000, 1000, EDGES).astype(np.int16)
    volume[:16] = 0
    name, content = stored.encode(volume, encoding)
    found = stored.open_volume(name, content)
    for (start, stop), checksum in zip(found.spans, stored.checksums(found), strict=True):
        if start < stop:
            assert google_crc32c.value(bytes(content[start:stop])) == checksum
    assert sum(start == stop for start, stop in found.spans) == (6 if encoding == "blosc2" else 0)


OTHERS = {
    "float": blosc2.asarray(VOLUME.astype(np.float32)),
    "two dimensions": blosc2.asarray(VOLUME[0]),
    "big-endian": blosc2.asarray(VOLUME.astype(">i2")),
    "too large": blosc2.zeros((1 << 13, 1 << 13, 1 << 10), chunks=(512, 512, 256), dtype=np.int16),
    "too large chunks": blosc2.zeros((1 << 14, 1 << 14, 2), chunks=(1 << 14, 1 << 14, 2), dtype=np.int16),
    "uninitialised": blosc2.uninit((100, 100, 100), dtype=np.int16),
    "another filter": blosc2.asarray(VOLUME, cparams={"filters": [blosc2.Filter.DELTA], "nthreads": 1}),
    "no array": blosc2.SChunk(data=VOLUME.tobytes()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_frames_are_refused(kind: str) -> None:
    with pytest.raises(Damaged):
        read(OTHERS[kind].to_cframe())


def test_metadata_is_never_looked_at() -> None:
    array = blosc2.asarray(VOLUME, cparams={"nthreads": 1})
    array.schunk.vlmeta["_LazyArray"] = {"expression": "__import__('os').system('touch evaluated')"}
    np.testing.assert_array_equal(read(array.to_cframe()), VOLUME)
    with pytest.raises(Damaged, match="not a plain"):
        read(blosc2.asarray(VOLUME, meta={"LazyArray": {"UDF": "x"}}).to_cframe())


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"", "not a Blosc2 frame"),
        (FRAME[:50], "not a Blosc2 frame"),
        (FRAME[:-1], "claims"),
        (FRAME + b"\0", "claims"),
        (changed(16, struct.pack(">q", 1 << 60)), "claims"),
        (changed(39, struct.pack(">q", 1 << 60)), "claims"),
        (changed(39, struct.pack(">q", -5)), "claims"),
        (changed(11, struct.pack(">i", 1 << 30)), "claims"),
        (changed(HEADER + 2, bytes([FRAME[HEADER + 2] | 0xE0])), "not built in"),  # a codec of a plugin
        (changed(HEADER + 16, b"\x21"), "not built in"),  # a filter of a plugin
        (changed(INDEX + 2, bytes([FRAME[INDEX + 2] | 0xE0])), "not built in"),
        (changed(HEADER + 31, b"\x40"), "no values"),
        (changed(HEADER + 4, struct.pack("<i", 1 << 30)), "instead of"),
        (changed(HEADER + 12, struct.pack("<i", 40)), "compressed bytes instead of"),
    ],
)
def test_hostile_frames_are_refused_before_they_are_decompressed(frame: bytes, problem: str) -> None:
    with pytest.raises(Damaged, match=problem):
        read(frame)


FUZZ = """
import random, sys
from tests.dataset.formats.test_stored_volumes import FRAME, HEADER, INDEX, Damaged, read
draws = random.Random(int(sys.argv[1]))
for _ in range(120):
    frame = bytearray(FRAME)
    start, stop = draws.choice([(0, len(frame)), (0, HEADER + 64), (INDEX, len(frame))])
    for _ in range(draws.choice([1, 1, 2, 8])):
        frame[draws.randrange(start, stop)] = draws.randrange(256)
    try:
        read(bytes(frame))
    except Damaged:
        pass
print("alive")
"""


def test_torn_bytes_never_end_the_process() -> None:
    code = [sys.executable, "-c", FUZZ, str(random.Random(0).randrange(1000))]
    found = subprocess.run(code, capture_output=True, text=True)
    assert found.stdout.strip() == "alive", found.stderr[-2000:]


def test_the_chunks_checksum_is_of_the_bytes_in_the_frame() -> None:
    """So that whoever reads a range of the shard can compare it without this library."""
    import google_crc32c

    volume = stored.open_volume(stored.B2ND, FRAME)
    (size,) = struct.unpack_from("<i", FRAME, HEADER + 12)
    assert size > CHUNK_HEADER and prod(volume.chunk) < prod(SHAPE)
    assert google_crc32c.value(FRAME[HEADER : HEADER + size]) == stored.checksums(volume)[0]
