"""What counts as a text."""

from __future__ import annotations

from unicodedata import category

UNSEEN = ("Cc", "Cf", "Zs", "Zl", "Zp")
"""Unicode's categories of control characters, of formatting such as zero-width spaces, and of white space."""


def is_blank(text: str) -> bool:
    """Whether nothing of it can be seen."""
    return not text[:1].isalnum() and all(category(char) in UNSEEN for char in text)
