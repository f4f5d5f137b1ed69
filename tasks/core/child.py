"""Heavy work in a process of its own: started in its own session, ended when its starter ends.

Prefect's process is threaded and long-lived: a fork of it deadlocks, and a stuck C call in it cannot be
stopped. So a stage calls a function by name in a fresh interpreter. The child's standard input is a pipe that
the starter holds open: when it closes, because the starter ended in whatever way, the child kills its whole
process group. Messages return as JSON lines on a pipe of their own, so that nothing the work prints can be
mistaken for one.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import validate_call
from pydantic_core import to_jsonable_python

from tasks.core.errors import KINDS, TarmacError, kind_of
from tasks.core.process import child_environment
from tasks.core.screen import Progress, no_progress

PROGRESS_INTERVAL_S = 0.2
LAST_LINES = 15


class Killed(TarmacError):
    """A child was killed by a signal; another try may succeed."""


def call(
    target: str,
    arguments: Mapping[str, Any],
    on_progress: Progress = no_progress,
    log: Path | None = None,
) -> Any:
    """Run `package.module:function` with JSON arguments in a child process and return its JSON result.

    pydantic coerces the arguments to the function's annotations (paths, configs). What the child prints goes
    to `log`, or to this process's standard error. Errors of KINDS are raised here as they were;
    a child that crashed or was killed is a TarmacError with its last lines.
    """
    read_end, write_end = os.pipe()
    output = log.open("ab") if log is not None else None
    printed = output if output is not None else 2
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.core.child", target, str(write_end)],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            env=child_environment(),
            pass_fds=[write_end],
            start_new_session=True,
        )
    finally:
        os.close(write_end)
        if output is not None:
            output.close()
    with os.fdopen(read_end, "rb") as messages:
        try:
            return _converse(process, messages, target, arguments, on_progress, log)
        finally:
            _end(process)


def _converse(
    process: subprocess.Popen[bytes],
    messages: Any,
    target: str,
    arguments: Mapping[str, Any],
    on_progress: Progress,
    log: Path | None,
) -> Any:
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments).encode() + b"\n")
    process.stdin.flush()
    for line in messages:
        message = json.loads(line)
        if "progress" in message:
            on_progress(*message["progress"])
        elif "error" in message:
            raise KINDS[message["error"]](message["text"])
        else:
            return message["result"]
    code = process.wait()
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    tail = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log is not None else []
    message = "\n  ".join([f"{target} {ended}" + (f"; its log is {log}" if log else ""), *tail])
    raise Killed(message) if code < 0 else TarmacError(message)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the child's input, which ends it and its group, and reap it."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_starter() -> None:
    """Kill this process group when standard input closes: the starter is gone, or has its result."""

    def wait() -> None:
        while os.read(0, 1 << 16):
            continue
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-starter", daemon=True).start()


def main(target: str, descriptor: int) -> int:
    """The child's side of `call`."""
    os.set_inheritable(descriptor, False)
    lock = threading.Lock()
    last = 0.0

    def send(message: dict[str, Any]) -> None:
        with lock:
            os.write(descriptor, json.dumps(message).encode() + b"\n")

    def progress(done: int, total: int, note: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_INTERVAL_S or done >= total:
            last = now
            send({"progress": [done, total, note]})

    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:  # a buffer's lock can block the exit
        arguments = json.loads(stdin.readline())
    _end_with_starter()
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    extra = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
    try:
        result = validate_call(function)(**arguments, **extra)
    except TarmacError as error:
        send({"error": kind_of(error), "text": str(error)})
        return error.exit_code
    send({"result": to_jsonable_python(result)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
