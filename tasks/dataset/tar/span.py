"""The members of one sample from the bytes of its span, for readers that seek by the index.

One read fetches a sample whole; its members are parsed from the tar headers in it. Member names are only
ever keys of a dictionary, never paths. The caller compares the span's CRC32C first, so that parsing needs no
check of its own.
"""

from __future__ import annotations

from tasks.dataset.tar.format import BLOCK


def parse_sample(span: bytes) -> dict[str, bytes]:
    """The members of one sample by suffix, such as `{"png": …, "txt": …}`; ValueError when it is no tar."""
    members = {}
    offset = 0
    while offset < len(span):
        name = span[offset : offset + 100].partition(b"\0")[0].decode()
        size = int(span[offset + 124 : offset + 135], 8)
        start = offset + BLOCK
        members[name.partition(".")[2]] = span[start : start + size]
        offset = start + size + -size % BLOCK
    if offset != len(span):
        raise ValueError(f"a span of {len(span)} bytes ends within a member")
    return members


def parse_key(span: bytes) -> str:
    """The key of the sample in a span."""
    return span[:100].partition(b"\0")[0].decode().partition(".")[0]
