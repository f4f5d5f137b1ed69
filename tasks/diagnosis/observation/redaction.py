"""Removes what a report must not carry: secrets in command lines and logs, and the home folder.

A secret is recognised by the name before it (`--wandb-key`, `HF_TOKEN=`, `Authorization:`), by an address
with a user in it, or by the form of a known provider's tokens. In doubt, too much is removed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

TAKEN_OUT = "[redacted]"
_NAME = r"[\w-]*(?:key|token|secret|passw(?:or)?d|credential|authorization)[\w-]*"
_ERROR = r"\w*(?:Error|Exception|Warning)\b"
"""The name of an error, such as KeyError, is followed by a message and no secret."""
_NAMED = re.compile(
    rf"(?i)(?<![\w-])(?!{_ERROR})(-{{0,2}}{_NAME}['\"]?\s*[=:]\s*['\"]?)(?:bearer\s+)?[^\s'\",;&]+"
)
_OPTION = re.compile(rf"(?i)--?{_NAME}")
_USER = re.compile(r"(?<=://)[^\s/@]+@")
_TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|ghp_\w{20,}|sk-[\w-]{20,}|AKIA[A-Z0-9]{12,}|[0-9a-f]{40,})\b")
_QUERY = re.compile(r"(?<=[?&])(?:X-Amz-[\w-]+|sig|signature|se|sv)=[^\s&'\"]+", re.IGNORECASE)
_DATA_NAMES = re.compile(r"(?i)--?(?:csv-)?(?:[\w-]+-)?(?:img|image|caption|text|json)[_-]key")
"""Options that name a column or a member, and hold no secret."""


def redacted(text: str) -> str:
    """Return a line without secrets, with the home folder written as `~`."""
    for pattern, instead in (
        (_NAMED, rf"\1{TAKEN_OUT}"),
        (_USER, f"{TAKEN_OUT}@"),
        (_QUERY, TAKEN_OUT),
        (_TOKEN, TAKEN_OUT),
    ):
        text = pattern.sub(instead, text)
    return without_home(text)


def without_home(text: str) -> str:
    """Return the text with the home folder written as `~`."""
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?=/|\b)", "~", text) if len(home) > 1 else text


def redacted_words(words: Sequence[str]) -> list[str]:
    """Return a command line without secrets, which may also be the word behind an option that names one."""
    shown: list[str] = []
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        is_value = _OPTION.fullmatch(before) is not None and not _DATA_NAMES.fullmatch(before)
        shown.append(TAKEN_OUT if is_value and not word.startswith("-") else redacted(word))
    return shown
