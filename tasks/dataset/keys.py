"""Keys of samples and the hash bits that place them.

A key is the sample's name in tars, tables and findings: it must survive every tar reader, the first-dot rule
of webdataset, and every file system that distinguishes upper from lower case (`k1` and `K1` are two samples).
So it is reduced to `A-Z a-z 0-9 _ -`, and begins with a letter or digit: Hugging Face `datasets` skips
members whose names begin with `.` or `__`, as the names from a Japanese or Russian path would. Shards and
splits use independent bits, so that the held-out samples do not all come from the same shards.
"""

from __future__ import annotations

import re
from hashlib import blake2b

LONGEST = 80
MARK_BYTES = 4
NAMELESS = "k"
"""The beginning of the key of a path without any ASCII letter or digit."""
HASH_BITS = 64
_SUFFIX = re.compile(
    r"\.(?:nii\.gz|nii|npz|npy|b2nd|jpe?g|jpe|jfif|mpo|png|webp|avif|hei[cf]|hif|bmp|gif|tiff?)\Z",
    re.IGNORECASE,
)
_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_CLEANED = bytes(byte if byte in _KEPT else ord("_") for byte in range(256))
_SHARD_HASH = blake2b(digest_size=8, person=b"tarmac-shard")


def stem(path: str) -> str:
    """The path without its known suffix: `a/b.nii.gz` -> `a/b`."""
    return _SUFFIX.sub("", path)


def key_of(original: str) -> str:
    """The key of a relative path; a short hash keeps paths apart that the cleaning would make equal."""
    name = stem(original)
    key = name.encode("ascii", "replace").translate(_CLEANED).decode().lstrip("_-")
    if key == name and 0 < len(key) <= LONGEST:
        return key
    mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).hexdigest()
    return f"{(key or NAMELESS)[: LONGEST - 2 * MARK_BYTES - 1]}-{mark}"


def shard_hash(key: str) -> int:
    """64 bits that place the key among all keys: they assign samples to shards and order them there."""
    running = _SHARD_HASH.copy()
    running.update(key.encode())
    return int.from_bytes(running.digest(), "big")


def split_hash(text: str) -> float:
    """A number in [0, 1) that decides the split of a key or group."""
    drawn = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"tarmac-split").digest()
    return (int.from_bytes(drawn, "big") >> 11) / (1 << 53)
