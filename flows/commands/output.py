"""The standard output of the commands: lines for people, or one JSON object."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tasks.core import screen


def say(text: str) -> int:
    """Print lines; returns the exit code of success."""
    screen.erase()
    sys.stdout.write(text + "\n")
    return 0


def note(text: str) -> None:
    """Print a line that is no result to standard error."""
    screen.erase()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(value: Any) -> int:
    """Print one JSON object; returns the exit code of success."""
    return say(json.dumps(value, ensure_ascii=False))


def answer(
    as_json: bool, facts: Callable[[], Mapping[str, Any]], lines: Iterable[str], is_ok: bool = True
) -> int:
    """Print one JSON object of the facts, or the lines, whichever was asked for; returns the exit code of a
    command that succeeded, or has found something wrong."""
    if as_json:
        print_json(facts())
    else:
        say("\n".join(lines))
    return 0 if is_ok else 1


def print_result(**facts: Any) -> int:
    """Print the JSON object of a command, which succeeded and has no findings unless `facts` hold `ok` and
    `findings`; returns the exit code of success."""
    return print_json({"ok": True, "findings": [], **facts})


def with_config(text: str, config: object, changes: Iterable[str] | None) -> str:
    """Return a text in which commands that are suggested name this config, with the changes of the call,
    instead of `CONFIG`."""
    words = [str(config), *(part for change in changes or () for part in ("--set", change))]
    named = shlex.join(words).replace("\\", r"\\")
    return re.sub(r"\btarmac (build|run|train|fetch|plan) CONFIG\b", rf"tarmac \1 {named}", text)
