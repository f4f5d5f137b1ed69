"""Bytes of a member to a value: RGB image, CT volume, text, JSON.

Nothing here runs code that data brings. Images are decoded to what a viewer would show: upright, and
converted by the same function as in the build. Every fault is a DataError; the caller, who knows the sample,
adds where it lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasks.core.errors import DataError
from tasks.dataset.formats import images, pixels
from tasks.dataset.formats.pixels import EncodedImage, Pixels
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.stored import Crop, StoredVolume
from tasks.dataset.version.layout import CAPTIONS
from tasks.dataset.version.rejects import Reject
from tasks.loader import worker_state
from tasks.loader.worker_state import decoding

_CAPTIONS_FIELD = f'"{CAPTIONS}"'.encode()


def image_of(members: Mapping[str, bytes]) -> Image.Image:
    """Return the image of an image_text sample, whichever member holds it."""
    return decode_image(members[picture_name(members)])


def picture_name(members: Mapping[str, bytes]) -> str:
    """Return the member that holds the image."""
    name = next((name for name in images.MEMBERS if name in members), None)
    if name is None:
        raise DataError(f"no member jpg, png or webp; it has {', '.join(sorted(members)) or 'none'}")
    return name


@contextmanager
def _faults_of_pictures() -> Iterator[None]:
    try:
        yield
    except Reject as reject:
        raise DataError(f"picture cannot be decoded: {reject.detail}") from None
    except (OSError, SyntaxError, ValueError) as error:  # so many pixels that no image can be made of them
        raise DataError(f"picture cannot be decoded: {error}") from error


@decoding
def decode_image(data: bytes, *, turns: bool = True) -> Image.Image:
    """Return an image of mode RGB, decoded as the build did, with whatever number of pixels the build
    allowed; upright, unless with `turns` False."""
    with _faults_of_pictures():
        kind, picture = images.decode(data, images.ANY_SIZE)
        if kind not in images.MEMBERS:
            raise DataError(f"picture cannot be decoded: shards hold {', '.join(images.MEMBERS)}, not {kind}")
        return images.to_rgb(images.upright(picture) if turns else picture)


def open_image(data: bytes, *, turns: bool = True) -> EncodedImage:
    """Read the header of an image, whose `size` is that of what `decode_image` returns."""
    with _faults_of_pictures():
        image = pixels.read_header(data, images.ANY_SIZE, turns=turns)
    if image.header.kind not in images.MEMBERS:
        raise DataError(
            f"picture cannot be decoded: shards hold {', '.join(images.MEMBERS)}, not {image.header.kind}"
        )
    return image


@decoding
def decode_pixels(image: EncodedImage, factor: int = 1) -> Pixels:
    """Return the pixels of what `decode_image` returns, [height, width, 3] uint8; a JPEG's `factor` (1, 2, 4
    or 8) times smaller."""
    with _faults_of_pictures():
        found, is_refused = pixels.pixels_of(image, factor)
    if is_refused:
        worker_state.mine.refusing()
    return found


def volume_of(members: Mapping[str, bytes]) -> StoredVolume:
    """Return the volume of a volume_report sample, whichever member holds it; nothing is decompressed yet."""
    name = stored.member_of(members)
    if name is None:
        wanted = " or ".join(stored.MEMBERS)
        raise DataError(f"no member {wanted}; it has {', '.join(sorted(members)) or 'none'}")
    try:
        return stored.open_volume(name, members[name])
    except stored.Damaged as error:
        raise DataError(f"volume cannot be decoded: {error}") from error
    except OSError as error:  # of a map of the shard
        raise DataError(f"volume cannot be read: {error}") from error


@decoding
def decode_volume(
    members: Mapping[str, bytes],
    crop: Crop | None = None,
    out: NDArray[np.int16] | None = None,
    threads: int = 1,
) -> NDArray[np.int16]:
    """Return the voxels in HU, (D, H, W): all of them, or those of a crop within the volume. They are in
    `out`, if it is given, of the same shape and in C order, or else in an array that may be read-only.

    For a crop only the chunks that it touches are read. They are compared with the checksums in the sample's
    `json`, where it holds them, and so are all chunks of a volume that lies in a memory map of its shard,
    which nobody has read yet. Chunks that a crop takes whole are decompressed by up to `threads` threads.
    """
    volume = volume_of(members)
    is_proven = crop is None and all(isinstance(one, bytes) for one in members.values())
    facts = decode_json(members["json"]) if "json" in members and not is_proven else {}
    expected = facts.get("chunk_crc32c") if isinstance(facts, dict) else None
    try:
        return stored.read_crop(volume, crop, expected, out, threads)
    except stored.Damaged as error:
        raise DataError(f"volume cannot be decoded: {error}") from error
    except OSError as error:
        raise DataError(f"volume cannot be read: {error}") from error


def decode_text(data: bytes) -> str:
    """Decode UTF-8, strictly: a caption in another encoding would train on garbage."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"text is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}") from error


def captions_of(members: Mapping[str, bytes]) -> list[str]:
    """Return all captions of an image_text sample, its txt first; most samples have no other."""
    text, document = decode_text(members["txt"]), members.get("json", b"")
    if _CAPTIONS_FIELD not in document:
        return [text]
    facts = decode_json(document)
    listed = facts.get(CAPTIONS) if isinstance(facts, dict) else None
    is_ours = (
        isinstance(listed, list) and listed[:1] == [text] and all(isinstance(one, str) for one in listed)
    )
    return list(listed) if is_ours and listed is not None else [text]


@decoding
def decode_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"JSON cannot be read: {error}") from error
