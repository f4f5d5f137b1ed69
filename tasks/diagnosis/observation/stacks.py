"""Reads the Python stacks of processes by py-spy, where it is installed and the system permits it.

A stack is the best evidence, and the first that is denied: a process may read another one's memory only as
its ancestor, as the same user on a machine without Yama's restriction, or as root. So stacks support
verdicts, and few depend on them. py-spy would suspend the process for some milliseconds; here it runs in the
mode that does not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 4.0
DEEPEST = 40
MOST_THREADS = 12
AT_ONCE = 4


@dataclass(frozen=True)
class Stacks:
    """The calls of a process's main thread and of its other Python threads by their names, innermost first. A
    call has the form `function (file:line)`. `gil_owner` is the thread that held Python's lock."""

    main: list[str]
    others: dict[str, list[str]]
    gil_owner: str | None


def stacks_of(pids: Sequence[int]) -> tuple[dict[int, Stacks], str | None]:
    """Return the stacks of each process, and the reason where all are missing."""
    beside = Path(sys.executable).with_name("py-spy")
    py_spy = str(beside) if beside.is_file() else shutil.which("py-spy")
    if py_spy is None:
        return {}, "Python stacks (py-spy is not installed: pip install 'tarmac[doctor]')"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = zip(pids, pool.map(lambda pid: _stacks(py_spy, pid), pids), strict=True)
    seen = {pid: stacks for pid, stacks in found if stacks is not None}
    return seen, None if seen or not pids else "Python stacks (no permission to trace)"


def _stacks(py_spy: str, pid: int) -> Stacks | None:
    command = [py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        threads = json.loads(done.stdout) if done.returncode == 0 else []
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return None
    names = [one.get("thread_name") or f"thread {one.get('thread_id')}" for one in threads]
    stacks = [(name, _calls(one["frames"])) for name, one in zip(names, threads, strict=True)]
    owner = next((name for name, one in zip(names, threads, strict=True) if one.get("owns_gil")), None)
    main = max(range(len(stacks)), key=lambda at: stacks[at][0] == "MainThread", default=None)
    if main is None or not stacks[main][1]:
        return None
    others = dict(one for at, one in enumerate(stacks) if at != main)
    return Stacks(stacks[main][1], dict(list(others.items())[:MOST_THREADS]), owner)


def _calls(frames: Sequence[dict[str, Any]]) -> list[str]:
    return [
        call_of(one["name"], one.get("filename") or "", one["line"], one.get("short_filename"))
        for one in frames[:DEEPEST]
    ]


def call_of(name: str, path: str, line: int, short: str | None = None) -> str:
    """Return a call in the form of all stacks, its file relative to the folder that its package is installed
    in; other files by `short`, or else by their last two names."""
    for mark in ("/site-packages/", "/dist-packages/", "/lib/python3"):
        if mark in path:
            rest = path.rpartition(mark)[2]
            path = rest.partition("/")[2] if mark == "/lib/python3" else rest
            break
    else:
        path = short or "/".join(path.split("/")[-2:])
    return f"{name} ({path}:{line})"
