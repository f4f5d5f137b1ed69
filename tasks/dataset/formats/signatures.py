"""Recognises the kind of a file by its first bytes, whatever its name."""

from __future__ import annotations

import codecs

from tasks.dataset.tar.format import LFS, LFS_POINTER

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
START = 512
"""Bytes from a file's start that show its kind."""
BEGINNINGS = {
    b"%PDF-": "a PDF file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip",
    b"\xff\x0a": "a JPEG XL image",
    b"\0\0\0\x0cJXL ": "a JPEG XL image",
    b"\0\0\0\x0cjP  ": "a JPEG 2000 image",
}
AVIF = (b"avif", b"avis")
HEIC = (
    *(b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs"),
    *(b"mif1", b"msf1"),
)
"""Brands of the container format that MP4 videos use too."""
MARKUP = {"<!doctype html": "HTML", "<html": "HTML", "<svg": "SVG", "<": "XML", "{": "JSON", "[": "JSON"}


def image_kind(data: bytes) -> str | None:
    """Return the name of the image's format; None if it is no known image format."""
    if data.startswith(JPEG):
        return "jpg"
    if data.startswith(PNG):
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith((b"II*\0", b"MM\0*")):
        return "tiff"
    if data[4:8] == b"ftyp":  # an ISO base media file: its main brand, and the compatible ones
        end = min(int.from_bytes(data[:4]), START)
        brands = {data[8:12], *(data[place : place + 4] for place in range(16, end, 4))}
        if not brands.isdisjoint(AVIF):
            return "avif"
        if not brands.isdisjoint(HEIC):
            return "heic"
    return "bmp" if data.startswith(b"BM") else None


def is_lossless_webp(data: bytes) -> bool:
    """Whether the first chunk that holds a picture is lossless."""
    start = 12
    while start + 8 <= len(data):
        name = data[start : start + 4]
        if name in (b"VP8L", b"VP8 ", b"ANMF"):
            return name == b"VP8L"
        start += 8 + (int.from_bytes(data[start + 4 : start + 8], "little") + 1) // 2 * 2
    return False


def described(data: bytes) -> str:
    """Describe a file that is no image, by its kind alone. Its bytes must not be shown: they may be anything,
    such as a password file that a row names by mistake, and many people read reports of rejects."""
    start = data[:START]
    if start.startswith(LFS):
        return LFS_POINTER
    for beginning, name in BEGINNINGS.items():
        if start.startswith(beginning):
            return name
    if start[4:8] == b"ftyp":
        return "a video"
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return "no known kind of file"
    if any(char < " " and not char.isspace() for char in text):
        return "no known kind of file"
    written = text.lstrip().lower()
    return next((name for beginning, name in MARKUP.items() if written.startswith(beginning)), "text")
