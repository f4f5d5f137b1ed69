import json
from collections.abc import Callable

import numpy as np
import pytest

from tasks.core.errors import DataError
from tasks.dataset.formats.volumes import stored
from tasks.loader.decoders import decode_volume

CROP = (slice(3, 20), slice(100, 140), slice(7, 9))


def volume() -> np.ndarray:
    return np.random.default_rng(0).integers(-1000, 1000, (33, 150, 121)).astype(np.int16)


def sample(encoding: str) -> dict[str, bytes]:
    name, content = stored.encode(volume(), encoding)
    checksums = stored.checksums(stored.open_volume(name, content))
    return {name: bytes(content), "json": json.dumps({"chunk_crc32c": checksums}).encode(), "txt": b"clear"}


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_the_whole_volume_and_a_crop(encoding: str) -> None:
    members = sample(encoding)
    np.testing.assert_array_equal(decode_volume(members), volume())
    np.testing.assert_array_equal(decode_volume(members, CROP), volume()[CROP])
    assert decode_volume(members, CROP).dtype == np.int16


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_a_crop_meets_only_damage_that_it_touches(encoding: str) -> None:
    members = sample(encoding)
    name = next(iter(members))
    torn = bytearray(members[name])
    torn[len(torn) // 3] ^= 0xFF
    members[name] = bytes(torn)
    with pytest.raises(DataError, match=r"chunk \d+"):
        decode_volume(members, stored.whole(stored.open_volume(name, bytes(torn))))
    last = (slice(32, 33), slice(140, 150), slice(120, 121))
    np.testing.assert_array_equal(decode_volume(members, last), volume()[last])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-9],
        lambda data: b"<html>" + data[6:],
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "cut", "html", "zeros"],
)
@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_what_is_no_volume_is_a_data_error(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    members = sample(encoding)
    name = next(iter(members))
    with pytest.raises(DataError, match="volume cannot be decoded"):
        decode_volume({name: damage(members[name])})


def test_a_sample_without_a_volume_says_what_it_has() -> None:
    with pytest.raises(DataError, match=r"no member volume.b2nd or volume.npy; it has json, txt"):
        decode_volume({"txt": b"", "json": b"{}"})


def test_a_crop_beyond_the_volume_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(IndexError):
        decode_volume(sample("blosc2"), (slice(0, 34), slice(0, 1), slice(0, 1)))
