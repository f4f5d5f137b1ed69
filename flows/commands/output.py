"""The standard output of the commands: lines for people, or one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(text: str) -> int:
    """Print lines; returns the exit code of success."""
    sys.stdout.write(text + "\n")
    return 0


def print_json(value: Any) -> int:
    """Print one JSON object; returns the exit code of success."""
    return say(json.dumps(value, ensure_ascii=False))


def print_result(**facts: Any) -> int:
    """Print the JSON object of a command that succeeded and has no findings; returns its exit code."""
    return print_json({"ok": True, "findings": [], **facts})
