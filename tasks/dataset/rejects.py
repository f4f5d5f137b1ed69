"""Why a raw sample could not be taken. A reject is counted and recorded by reason; it never stops a build."""

from __future__ import annotations

import re
from typing import Literal

from tasks.core.addresses import named

Reason = Literal[
    "source.unreadable",
    "member.missing",
    "key.duplicate",
    "image.undecodable",
    "image.empty",
    "image.not_an_image",
    "image.too_large",
    "image.too_small",
    "caption.missing",
    "caption.empty",
    "caption.encoding",
    "volume.undecodable",
    "volume.pickle",
    "volume.shape",
    "volume.dtype",
    "volume.nonfinite",
    "volume.hu_range",
    "volume.spacing",
    "report.missing",
    "labels.missing",
    "reinforcement.crop",
    "reinforcement.rows",
    "reinforcement.members",
    "chat.turns",
    "chat.images",
    "chat.ratings",
    "archive.bomb",
    "archive.unsafe",
]

TRANSIENT: Reason = "source.unreadable"
"""The reason that may be gone at the next try (a disk, rights, too many open files): it is not kept, so the
next build reads the sample again."""


class Reject(Exception):
    """One raw sample cannot be taken.

    `detail` is for a person and must be the same wherever and whenever the sample is read: no addresses, no
    absolute paths, no line numbers.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


_ADDRESS = re.compile(r"\b(?:https?|s3|gs)://[^\s\"']+")


def printable(text: str) -> str:
    """The text as tables and pages may hold it: what is not valid Unicode (bytes that were not UTF-8) written
    out as escapes, addresses without what lets one read them."""
    if "://" in text:
        text = _ADDRESS.sub(lambda found: named(found[0]), text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
