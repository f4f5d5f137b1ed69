"""What a file is that stands where an image belongs: by its kind alone, since its bytes may be anything, such
as a password file that a row named by mistake, and reports of rejects are read by many."""

from __future__ import annotations

LOOKED_AT = 512
"""Bytes from the file's start."""
BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", "a PDF file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
)
BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"mif1"), "a HEIC image"),
    **dict.fromkeys((b"avif", b"avis"), "an AVIF image"),
}
"""Of the container that holds MP4 videos too."""
MARKUP: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype html", "HTML"),
    (b"<html", "HTML"),
    (b"<svg", "SVG"),
    (b"<", "XML"),
    (b"{", "JSON"),
    (b"[", "JSON"),
)


def described(data: bytes) -> str:
    """Such as `HTML` or `an AVIF image`; `no known kind of file` where nothing is known."""
    start = data[:LOOKED_AT]
    for beginning, name in BEGINNINGS:
        if start.startswith(beginning):
            return name
    if start[4:8] == b"ftyp":
        return BRANDS.get(start[8:12], "a video")
    if not _is_text(start):
        return "no known kind of file"
    written = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return next((name for beginning, name in MARKUP if written.startswith(beginning)), "text")


def _is_text(start: bytes) -> bool:
    """Whether it is UTF-8 without control characters; a last character may be cut."""
    if any(byte < 0x20 and byte not in b"\t\n\v\f\r" for byte in start):
        return False
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and len(start) == LOOKED_AT
    return True
