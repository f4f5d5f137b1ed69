"""Which code this is: two processes with the same digest do the same to the same input."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3


def code_digest() -> str:
    """BLAKE3 over the names and contents of the library's own sources, 12 digits."""
    root = Path(__file__).resolve().parents[1]
    total = blake3()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]
