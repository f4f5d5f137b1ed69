"""Measures of a caption: how many words say something, and a digest that is equal for equal texts."""

from __future__ import annotations

import re

import xxhash

NOISE = re.compile(
    r"""
    \b(?:https?://|www\.)\S+                                   # an address
    | (?<!\S)\S+\.(?:jpe?g|png|gif|webp|bmp|tiff?|heic|avif|svg)\b  # the name of a file
    | \b(?:img|dsc[nf]?|pxl|mvi|gopr|p|wa)[_-]?\d[\w-]*        # what cameras and messengers call theirs
    | \b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b                       # an identifier
    | <[^<>]{1,40}>                                            # a placeholder or a mark of HTML
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Each alternative starts where a word does, or cannot pass its own start: so the time grows with the length
of a caption and not with its square, whatever a caption holds."""
WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|[^\W\d_]{2,}",
)
"""Two letters or more, or one character of a script that writes no spaces between words."""
_EMPTY = """
    image images img photo photos photograph picture pictures pic pics jpg jpeg png gif webp file thumb
    thumbnail caption alt text title untitled unnamed unknown undefined null none nan na default
    placeholder screenshot copy bild foto imagen imagem immagine
"""
EMPTY = frozenset(_EMPTY.split())
"""Words that say nothing of what a picture shows."""


def telling_words(text: str) -> int:
    """Return how many words of a caption say something: 0 for `IMG_2041.jpg`, `image` or `Untitled (3)`."""
    if any(mark in text for mark in "._-/<0123456789"):
        text = NOISE.sub(" ", text)
    return sum(word.lower() not in EMPTY for word in WORD.findall(text))


def text_hash(*texts: str) -> int:
    """Return a 64-bit digest of texts, equal for texts that differ only in case and white space."""
    return xxhash.xxh3_64_intdigest(
        "\0".join(" ".join(text.split()).casefold() for text in texts).encode("utf-8", "surrogatepass")
    )
