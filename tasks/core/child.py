"""Runs heavy work in a child process, in its own session, that ends when its starter ends.

Prefect's process is threaded and long-lived: a fork of it deadlocks, and a stuck C call in it cannot be
stopped. So a stage calls a function by name in a fresh interpreter. The child's standard input is a pipe that
the starter holds open: when it closes, for whatever reason the starter ended, the child kills its whole
process group. Messages return as JSON lines on a separate pipe, so that printed output cannot be mistaken for
a message. The starter logs the child's log records again. If the child crashes, the error quotes the last
lines that it printed, because a Prefect worker does not show the output of its children.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from typing import Any

from pydantic import validate_call
from pydantic_core import to_jsonable_python

from tasks.core import screen
from tasks.core.errors import KINDS, NeedsApproval, TarmacError, kind_of
from tasks.core.process import child_environment, do_last_acts
from tasks.core.screen import Progress, no_progress

PROGRESS_INTERVAL_S = 0.2
IDLE_S = 0.5
LAST_LINES = 15
WITHHELD = "its output is not quoted, because the dataset is private; run it in a terminal to see the output"
logger = logging.getLogger(__name__)


class Killed(TarmacError):
    """A child was killed by a signal; a retry may succeed."""


def call(
    target: str,
    arguments: Mapping[str, Any],
    on_progress: Progress = no_progress,
    is_private: bool = False,
    on_idle: Callable[[], None] = lambda: None,
) -> Any:
    """Run `package.module:function` with JSON arguments in a child process and return its JSON result.

    pydantic coerces the arguments to the function's annotations (paths, configs). Records that the
    child logs at INFO or above are logged here. Its printed output goes to this process's standard error, and
    the last lines also to the log, or into the error. Errors of KINDS are raised here again; a child that
    crashed or was killed raises a TarmacError with its last lines. If `is_private`, printed output is neither
    logged nor quoted and only goes to standard error. `on_idle` is called at least once a second; an
    exception that it raises ends the child.
    """
    read_end, write_end = os.pipe()
    output = _Output(is_private)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.core.child", target, str(write_end)],
            stdin=subprocess.PIPE,
            stdout=output.descriptor,
            stderr=output.descriptor,
            env=child_environment(),
            pass_fds=[write_end],
            start_new_session=True,
        )
    finally:
        os.close(write_end)
        os.close(output.descriptor)
    with os.fdopen(read_end, "rb", buffering=0) as messages:
        try:
            answer = _converse(process, _lines(messages, on_idle), arguments, on_progress, is_private)
        finally:
            _end(process)
            output.finish()
    if answer is not None:
        output.show(target)
        return _result(answer)
    code = process.returncode
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    message = "\n  ".join([f"{target} {ended}", *output.quoted()])
    raise Killed(message) if code < 0 else TarmacError(message)


def _converse(
    process: subprocess.Popen[bytes],
    messages: Iterator[bytes],
    arguments: Mapping[str, Any],
    on_progress: Progress,
    is_private: bool,
) -> dict[str, Any] | None:
    """Return the child's last message, with its result or error; None if it ended without one."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and its last lines show why
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()
    for line in messages:
        message = json.loads(line)
        if "progress" in message:
            on_progress(*message["progress"])
        elif "log" in message:
            name, level, text = message["log"]
            logging.getLogger(name).log(level, "%s", text, extra={"is_private": is_private})
        else:
            answer: dict[str, Any] = message
            return answer
    process.wait()
    return None


def _result(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        error = KINDS[answer["error"]](answer["text"], field=answer["field"])
        if isinstance(error, NeedsApproval):
            error.samples = answer["samples"]
        raise error
    return answer["result"]


class _Output:
    """Forwards a child's printed output to standard error. The last lines are held back until it is known
    whether an error quotes them; all earlier lines are forwarded at once."""

    def __init__(self, is_private: bool) -> None:
        self._is_private = is_private
        self._last: deque[str] = deque()
        read_end, self.descriptor = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(read_end,), daemon=True)
        self._reader.start()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._last.append(line.rstrip("\n"))
                if self._is_private or len(self._last) > LAST_LINES:
                    sys.stderr.write(self._last.popleft() + "\n")

    def finish(self) -> None:
        """Wait until all output is read, but not long: a process that the child left behind may hold the
        pipe."""
        self._reader.join(timeout=2)

    def show(self, target: str) -> None:
        """Print and log the lines that were held back."""
        if lines := list(self._last):
            text = "\n".join(lines)
            sys.stderr.write(text + "\n")
            logger.info("%s printed:\n%s", target, text)

    def quoted(self) -> list[str]:
        """Return the last lines, for an error."""
        return [WITHHELD] if self._is_private else list(self._last)


def _lines(messages: FileIO, on_idle: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines of an unbuffered pipe until it closes, and call `on_idle` before each wait."""
    rest = b""
    while True:
        on_idle()
        if not select.select([messages], [], [], IDLE_S)[0]:
            continue
        read = messages.read(1 << 16)
        if not read:
            return
        *whole, rest = (rest + read).split(b"\n")
        yield from whole


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the child's input, which ends the child and its process group, and reap the child."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_starter() -> None:
    """Kill this process group when standard input closes: the starter has ended, or has the result."""

    def wait() -> None:
        while os.read(0, 1 << 16):
            continue
        do_last_acts()
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-starter", daemon=True).start()


def _log_to_starter(send: Callable[[dict[str, Any]], None]) -> None:
    """Send log records at INFO or above to the starter, which logs them again."""

    class Sender(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send({"log": [record.name, record.levelno, self.format(record)]})

    screen.logger.handlers.clear()  # the starter prints it
    logging.getLogger().addHandler(Sender())
    logging.getLogger("tasks").setLevel(logging.INFO)


def main(target: str, descriptor: int) -> int:
    """Run the child's side of `call` and return its exit code."""
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
    _log_to_starter(send)
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    extra = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
    try:
        result = validate_call(function)(**arguments, **extra)
        sys.stdout.flush()  # the starter ends this process once it has the result
    except TarmacError as error:
        samples = list(error.samples) if isinstance(error, NeedsApproval) else []
        send({"error": kind_of(error), "text": error.reason, "field": error.field, "samples": samples})
        return error.exit_code
    send({"result": to_jsonable_python(result)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
