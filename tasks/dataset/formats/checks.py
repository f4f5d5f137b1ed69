"""Checks members by their suffix: in tars of unknown modality, and members that a modality does not define.

A check returns if the content is sound, raises ValueError or its decoder's error if it is not, and Unjudged
if this machine cannot tell; it discards what it decodes. Sizes that a header claims are compared with a
limit, and with the bytes that exist, before memory is allocated. Nothing is unpickled, or unpacked beyond a
limit.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import product
from typing import IO, Any, cast
from unicodedata import category

from tasks.dataset.formats import Unjudged, images, npy, tensors, zips
from tasks.dataset.formats.volumes import stored
from tasks.dataset.version.rejects import Reason, Reject

UNSEEN = ("Cc", "Cf", "Zs", "Zl", "Zp")
"""Unicode's categories of control characters, of formatting such as zero-width spaces, and of white space."""
MOST_UNPACKED = 1 << 30
MOST_GROWTH = 8
"""An archive may unpack to MOST_UNPACKED bytes, or to this many times its own size if that is more."""
LARGEST_TEXT = 32 << 20
"""JSON with more bytes is not judged, because parsing may take thirty times as much memory."""
LONGEST = 200
"""The most characters of a decoder's message."""
KINDS = {
    "jpeg": "jpg",
    "jpe": "jpg",
    "jfif": "jpg",
    "mpo": "jpg",
    "tif": "tiff",
    "heif": "heic",
    "hif": "heic",
}
"""The name of an image's format, for suffixes that differ from it."""


class Blank(Exception):
    """The text has no visible characters."""


def is_blank(text: str) -> bool:
    """Whether the text has no visible characters."""
    return not text[:1].isalnum() and all(category(char) in UNSEEN for char in text)


def image_of(suffix: str) -> Callable[[bytes], None]:
    expected = KINDS.get(suffix, suffix)

    def check(content: bytes) -> None:
        if expected == "heic" and not images.can_read_heic():
            raise Unjudged
        kind = images.check_image(content, images.ANY_SIZE)
        if kind != expected:
            raise ValueError(f"holds a {kind}")

    return check


def text(content: bytes) -> None:
    try:
        found = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if found and is_blank(found):
        raise Blank


def json_object(
    content: bytes | str, reason: Reason, name: str = "json", loads: Callable[..., Any] = json.loads
) -> dict[str, Any]:
    """Return the object in a JSON text; Reject if it holds none."""
    try:
        value = loads(content)
    except (ValueError, RecursionError) as error:
        raise Reject(reason, f"{name} is not valid JSON: {str(error)[:LONGEST]}") from None
    if not isinstance(value, dict):
        raise Reject(reason, f"{name} is not a JSON object")
    return value


def json_value(content: bytes) -> None:
    if len(content) > LARGEST_TEXT:
        raise Unjudged
    json.loads(content)


def json_lines(content: bytes) -> None:
    for line in io.BytesIO(content):
        if line.strip():
            json_value(line)


def npy_array(content: bytes) -> None:
    _require_array(content[: npy.LONGEST_HEADER], len(content), "it")


def _require_array(start: bytes, size: int, name: str) -> None:
    """ValueError or Reject unless an NPY file of `size` bytes with this start holds what its header
    claims."""
    header = npy.parse_header(start, name)
    if header.dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never unpickled")
    if size != header.offset + header.size_bytes:
        raise ValueError(f"{name} has {size:,} bytes for {header.dtype} {header.shape}")


def npz_arrays(content: bytes) -> None:
    """Check the arrays that numpy would read; to numpy, entries that are not NPY files are plain bytes."""
    limit = left = _most_unpacked(content)
    with zips.opened(io.BytesIO(content), "it", "volume.undecodable") as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                start = file.read(npy.LONGEST_HEADER)
                size = len(start) + sum(map(len, zips.parts(file, "it", limit, left - len(start))))
            left -= size
            if entry.filename.endswith(".npy"):
                _require_array(start, size, entry.filename[:80])


def gzipped(content: bytes) -> None:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        for _ in zips.parts(cast(IO[bytes], file), "it", _most_unpacked(content)):
            pass


def _most_unpacked(content: bytes) -> int:
    return max(MOST_UNPACKED, MOST_GROWTH * len(content))


def saved_tensors(content: bytes) -> None:
    if len(content) > tensors.LARGEST_BYTES:
        raise Unjudged
    tensors.load_tensor(content, "it")


def zipped_tensors(content: bytes) -> None:
    saved_tensors(zips.gunzip(content, "it", tensors.UNSOUND, tensors.LARGEST_BYTES))


def volume(content: bytes) -> None:
    """Check a volume chunk by chunk, so that memory holds only one of them, however large the volume is."""
    if find_spec("blosc2") is None:
        raise Unjudged
    opened = stored.open_volume(stored.B2ND, content)
    parts = [
        [slice(start, min(start + step, side)) for start in range(0, side, step)]
        for side, step in zip(opened.shape, opened.chunk, strict=True)
    ]
    for depth, height, width in product(*parts):
        stored.read_crop(opened, (depth, height, width))


CHECKS: Mapping[str, Callable[[bytes], object]] = {
    **{suffix: image_of(suffix) for suffix in images.SUFFIXES},
    **dict.fromkeys(("txt", "text", "caption", "cap"), text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    "json": json_value,
    "jsonl": json_lines,
    "npy": npy_array,
    "npz": npz_arrays,
    "pth": saved_tensors,
    "pt": saved_tensors,
    "pth.gz": zipped_tensors,
    "pt.gz": zipped_tensors,
    "gz": gzipped,
    "b2nd": volume,
}
PICKLES = ("pyd", "pkl", "pickle")
"""The last parts of suffixes of members that loaders unpickle, which executes code in them."""


def is_pickle(suffix: str) -> bool:
    return suffix.rpartition(".")[2] in PICKLES


def problem_of(suffix: str, content: bytes) -> tuple[str, str] | None:
    """Return what is wrong with a member, as verify's code and a message; None if it is sound. Raises
    Unjudged if this machine cannot tell."""
    check = check_of(suffix)
    if check is None:
        raise Unjudged
    try:
        check(content)
    except Unjudged:
        raise
    except Blank:
        return "member.empty", "the text is blank"
    except Exception as error:  # noqa: BLE001 - decoders raise anything on torn data
        return "member.undecodable", worded(error)
    return None


def worded(error: Exception) -> str:
    """Return a decoder's message, preceded by the type of the error unless this project wrote the message."""
    if isinstance(error, Reject):
        return error.detail[:LONGEST]
    if type(error) is ValueError and str(error):
        return str(error)[:LONGEST]
    return f"{type(error).__name__}: {error}"[:LONGEST]


def check_of(suffix: str) -> Callable[[bytes], object] | None:
    """Return the check for the last two parts of the suffix, or for the last one: `000.jpg` is a jpg."""
    parts = suffix.rsplit(".", 2)
    return CHECKS.get(".".join(parts[-2:])) or CHECKS.get(parts[-1])
