"""The CRC32C of a whole from those of its parts."""

import random
from itertools import pairwise

import google_crc32c
import pytest

from tasks.loader.mapped_samples import combined


@pytest.mark.parametrize("cuts", [0, 1, 2, 40])
def test_parts_give_the_checksum_of_the_whole(cuts: int) -> None:
    draws = random.Random(cuts)
    whole = draws.randbytes(70_001)
    at = [0, *sorted(draws.choices(range(len(whole)), k=cuts)), len(whole)]
    parts = [whole[start:stop] for start, stop in pairwise(at)]
    checksums = [google_crc32c.value(part) for part in parts]
    assert combined(checksums, [len(part) for part in parts]) == google_crc32c.value(whole)
    if cuts > 1:
        changed = [checksums[0] ^ 1, *checksums[1:]]
        assert combined(changed, [len(part) for part in parts]) != google_crc32c.value(whole)


def test_nothing_has_the_checksum_of_nothing() -> None:
    assert combined([], []) == google_crc32c.value(b"") == 0


def test_bytes_beyond_the_memory_of_any_machine() -> None:
    """Zeros of 2^40 bytes: those of 2^39, twice."""
    half = combined([google_crc32c.value(b"\1"), 0], [1, 1 << 39])
    assert combined([half, 0], [1, 1 << 39]) == combined([google_crc32c.value(b"\1"), 0], [1, 1 << 40])


@pytest.mark.parametrize("checksums", [[-1], [1 << 32], ["x"], [1, 2]])
def test_what_is_no_checksum_of_a_part_is_refused(checksums: list[int]) -> None:
    with pytest.raises((OverflowError, ValueError)):
        combined(checksums, [5])
