"""Members checked by their suffix: those of tars of no known modality, and those that a modality leaves out.

A check returns when the content is sound, raises ValueError or what its decoder raises when it is not, and
Unjudged where nobody can tell; whatever it decodes is thrown away. Sizes that a header claims are compared
with a limit, and with what is there, before anything is made as large. Nothing is unpickled, and nothing is
unpacked beyond a limit.
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
from tasks.dataset.rejects import Reason, Reject

UNSEEN = ("Cc", "Cf", "Zs", "Zl", "Zp")
"""Unicode's categories of control characters, of formatting such as zero-width spaces, and of white space."""
MOST_UNPACKED = 1 << 30
MOST_GROWTH = 8
"""Times its own size that a large archive may unpack to beyond MOST_UNPACKED bytes."""
LARGEST_TEXT = 32 << 20
"""JSON of more bytes is not judged: parsed, it may take thirty times as many."""
LONGEST = 200
"""Letters of what a decoder says."""
KINDS = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "mpo": "jpg", "tif": "tiff"}
"""What the format of an image is called where its suffix has another name for it."""


class Blank(Exception):
    """There is nothing to be seen in it."""


def is_blank(text: str) -> bool:
    """Whether nothing of the text can be seen."""
    return not text[:1].isalnum() and all(category(char) in UNSEEN for char in text)


def image_of(suffix: str) -> Callable[[bytes], None]:
    expected = KINDS.get(suffix, suffix)

    def check(content: bytes) -> None:
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
    """The object in a JSON text; Reject for what is none."""
    try:
        value = loads(content)
    except (ValueError, RecursionError) as error:
        raise Reject(reason, f"{name} is no valid JSON: {str(error)[:LONGEST]}") from None
    if not isinstance(value, dict):
        raise Reject(reason, f"{name} is no JSON object")
    return value


def json_value(content: bytes) -> None:
    if len(content) > LARGEST_TEXT:
        raise Unjudged
    json.loads(content)


def json_lines(content: bytes) -> None:
    for line in io.BytesIO(content):
        if line.strip():
            json_value(line)


def integer(content: bytes) -> None:
    int(content)


def npy_array(content: bytes) -> None:
    _require_array(content[: npy.LONGEST_HEADER], len(content), "it")


def _require_array(start: bytes, size: int, name: str) -> None:
    """ValueError or Reject unless an NPY file of `size` bytes that starts so holds what its header says."""
    header = npy.parse_header(start, name)
    if header.dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never unpickled")
    if size != header.offset + header.size_bytes:
        raise ValueError(f"{name} has {size:,} bytes for {header.dtype} {header.shape}")


def npz_arrays(content: bytes) -> None:
    """As numpy reads them: entries that are no NPY files are bytes to it."""
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
    """Chunk by chunk: however large the whole is, memory holds one of them."""
    if find_spec("blosc2") is None:
        raise Unjudged
    opened = stored.open_volume(stored.B2ND, content)
    parts = [
        [slice(start, min(start + step, side)) for start in range(0, side, step)]
        for side, step in zip(opened.shape, opened.chunk, strict=True)
    ]
    for depth, height, width in product(*parts):
        opened.voxels((depth, height, width))


CHECKS: Mapping[str, Callable[[bytes], None]] = {
    **{suffix: image_of(suffix) for suffix in images.SUFFIXES},
    **dict.fromkeys(("txt", "text", "caption", "cap"), text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), integer),
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
"""Ends of the suffixes of members that loaders unpickle, which executes what is in them."""


def is_pickle(suffix: str) -> bool:
    return suffix.rpartition(".")[2] in PICKLES


def problem_of(suffix: str, content: bytes) -> tuple[str, str] | None:
    """What is wrong with a member, as verify's code and words; None when it is sound, Unjudged where nobody
    can tell."""
    check = check_of(suffix)
    if check is None:
        raise Unjudged
    try:
        check(content)
    except Unjudged:
        raise
    except Blank:
        return "member.empty", "the text is blank"
    except Exception as error:  # noqa: BLE001 - decoders raise whatever torn data lead them to
        return "member.undecodable", worded(error)
    return None


def worded(error: Exception) -> str:
    """What a decoder says of the content; the kind of error too, unless the words are this project's."""
    if isinstance(error, Reject):
        return error.detail[:LONGEST]
    if type(error) is ValueError and str(error):
        return str(error)[:LONGEST]
    return f"{type(error).__name__}: {error}"[:LONGEST]


def check_of(suffix: str) -> Callable[[bytes], None] | None:
    """By the last two parts of the suffix, or the last: `000.jpg` is a jpg."""
    parts = suffix.rsplit(".", 2)
    return CHECKS.get(".".join(parts[-2:])) or CHECKS.get(parts[-1])
