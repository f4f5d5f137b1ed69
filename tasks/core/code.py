"""Which code this is: two processes with the same digest do the same to the same input."""

from __future__ import annotations

import hashlib
from pathlib import Path


def code_digest() -> str:
    """SHA-256 over the names and contents of the library's own sources, 12 digits."""
    root = Path(__file__).resolve().parents[1]
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]
