"""Small raw datasets to start from, made of what comes with the installed packages: no download.

Each is a function from a folder to the number of samples written, 0 when something is there already. The
folder appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tasks.dataset.examples.digits import DIGITS, digits
from tasks.dataset.examples.digits_chat import digits_chat
from tasks.dataset.examples.phantoms import phantoms
from tasks.dataset.examples.reinforced import reinforced

__all__ = ["DIGITS", "EXAMPLES", "digits", "digits_chat", "phantoms", "reinforced"]

EXAMPLES: Mapping[str, Callable[[Path], int]] = {
    "digits": digits,
    "digits-chat": digits_chat,
    "phantoms": phantoms,
    "reinforced": reinforced,
}
"""What `tarmac example NAME` can write."""
