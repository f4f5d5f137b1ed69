"""Runs somebody's training command and watches it: the verdict of a stall while it lasts, the outcome after.

The command's output passes through byte by byte, on a terminal where this is one, so that bars look as they
would without. Signals reach it once, its exit code becomes ours. Its lines show how far it is; where none
does, the work of its processes has to do. It needs no change, does not know that it is watched, and goes on
where we are killed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tasks.core.errors import UsageError
from tasks.core.findings import Report
from tasks.diagnosis import examination, outcome
from tasks.diagnosis.examination import Examination
from tasks.diagnosis.passage import Passage
from tasks.diagnosis.rhythm import Rhythm
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Trainer

POLL_S = 0.5
KEPT_LINES = 400
LONGEST_LINE = 10_000
KEPT_LOG_BYTES = 4 << 20
ACTIVE_CORES = 0.02
"""Processes that use less of a core, and read and write nothing, are idle."""
IDLE_S = 60.0
GRACE_S = (20.0, 10.0)
"""Between the signals that stop a training: SIGINT, SIGTERM, SIGKILL."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SI_KERNEL = 0x80
"""A signal of the terminal (sigaction(2)), which its whole foreground group has got already."""


@dataclass(frozen=True)
class WatchResult:
    """How the command ended. `exit_code` is what this process should end with: the command's own, but 1 where
    a finding says that it failed, or it was stopped."""

    report: Report
    exit_code: int
    trainer: str
    steps: int
    seconds: float
    stalls: Sequence[Examination] = ()
    checkpoint: str | None = None
    was_stopped: bool = False
    """Whether it was ended for the last of the stalls."""


@dataclass
class _OutputListener:
    """What the command's lines have shown so far; fed by the thread that passes the output on."""

    trainer: Trainer
    log: Path
    rhythm: Rhythm
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    failures: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self, part: bytes) -> None:
        """Bytes of the output; a carriage return ends a line as well, as a bar draws itself anew."""
        with self._lock:
            self._keep(part)
            *whole, rest = re.split(rb"[\r\n]", self._rest + part)
            self._rest = rest[-LONGEST_LINE:]
            for raw in whole:
                line = raw.decode(errors="replace")[:LONGEST_LINE]
                if not line.strip():
                    continue
                self.lines.append(line)
                progress = self.trainer.progress(line)
                if progress is not None:
                    self.rhythm.note(progress, time.monotonic())
                elif any(one.search(line) for one in self.trainer.failures):
                    self.failures.append(line)

    def _keep(self, part: bytes) -> None:
        """The log that an examination reads: the last of the output."""
        is_long = self.log.exists() and self.log.stat().st_size > KEPT_LOG_BYTES
        kept = self.log.read_bytes()[-KEPT_LOG_BYTES // 4 :] if is_long else b""
        with self.log.open("wb" if is_long else "ab") as file:
            file.write(kept + part)


def watch(
    words: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    *,
    pattern: str | None = None,
    stops: bool = False,
    output_to_stderr: bool = False,
) -> WatchResult:
    """Run the command until it ends. `say` shows lines about it; `pattern` is a regular expression of lines
    that show progress; `stops` ends the command when a verdict names an error. UsageError where it cannot be
    started."""
    command = Command.of(words, folder)
    trainer = _with_pattern(recognise(command), pattern)
    began, began_at = time.monotonic(), time.time()
    with tempfile.TemporaryDirectory(prefix="tarmac-watch-") as kept:
        listener = _OutputListener(trainer, Path(kept, "output.log"), Rhythm(began))
        passage = Passage(listener.hear, 2 if output_to_stderr else 1)
        with _Signals() as signals:
            try:
                process = subprocess.Popen(
                    list(words), stdout=passage.out, stderr=passage.err, preexec_fn=signals.give_back
                )
            except OSError as error:
                raise UsageError(f"tarmac watch: {words[0]} cannot be started: {error.strerror}") from None
            finally:
                passage.start()
            signals.forward_to(process)
            examinations = _attend(process, listener, say, stops)
            passage.finish()
    code = process.returncode
    findings = []
    if code == 0:
        findings = list(outcome.judge_outcome(trainer, command, listener.rhythm, _heard(listener), began_at))
    saved = outcome.checkpoints_since(trainer, command, began_at)
    report = Report([*findings, *(one for each in examinations for one in each.verdict.report.findings)])
    was_stopped = stops and bool(examinations)
    failed = was_stopped or any(one.severity == "error" for one in findings)
    return WatchResult(
        Report(findings) if not examinations else report,
        int(failed) if was_stopped or code == 0 else 128 - code if code < 0 else code,
        trainer.name,
        listener.rhythm.steps,
        time.monotonic() - began,
        examinations,
        saved[-1] if saved else None,
        was_stopped,
    )


def _heard(listener: _OutputListener) -> list[str]:
    return [*listener.failures, *listener.lines]


def _with_pattern(trainer: Trainer, pattern: str | None) -> Trainer:
    if pattern is None:
        return trainer
    try:
        line = LogLine("step", re.compile(pattern))
    except re.error as error:
        raise UsageError(f"--progress: {pattern!r} is no regular expression: {error}") from None
    return replace(trainer, lines=(line, *trainer.lines))


def _attend(
    process: subprocess.Popen[bytes], listener: _OutputListener, say: Callable[[str], None], stops: bool
) -> list[Examination]:
    """Wait for the end; examine the process where it is silent for too long, and show each verdict once."""
    found: list[Examination] = []
    work = _TreeActivity(process.pid)
    told: tuple[str, float] | None = None
    while True:
        try:
            process.wait(POLL_S)
            return found
        except subprocess.TimeoutExpired:
            pass
        rhythm, now = listener.rhythm, time.monotonic()
        if told is not None and rhythm.since > told[1]:
            say(f"✓ goes on after {rhythm.since - told[1]:.0f} s ({told[0]})")
            told = None
        is_silent = rhythm.is_suspicious(now) and (rhythm.steps > 0 or listener.trainer.must_log_steps)
        if told is not None or not (is_silent or work.idle_s(now) > IDLE_S):
            continue
        examined = examination.examine_process(process.pid, listener.log)
        if process.poll() is not None:
            return found
        if examined.verdict.state != "stalled":
            rhythm.was_at_work(time.monotonic())
            work.looked_at(time.monotonic())
            continue
        found.append(examined)
        told = examined.verdict.report.findings[0].code, rhythm.since
        say("\n".join([f"! no progress for {rhythm.silence(now):.0f} s", *examination.text_of(examined)]))
        if stops:
            _stop(process, say)
            return found


def _stop(process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """End the command and what it has started, politely first."""
    say(f"! stops it: --stop (pid {process.pid})")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for sign, grace in zip((signal.SIGINT, signal.SIGTERM), GRACE_S, strict=True):
        process.send_signal(sign)
        try:
            process.wait(grace)
            break
        except subprocess.TimeoutExpired:
            continue
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


class _TreeActivity:
    """The CPU time and I/O of a process and its descendants, to see when they do nothing at all."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since = self._at = time.monotonic()
        self._cpu_s, self._bytes = 0.0, 0

    def idle_s(self, now: float) -> float:
        """For how long they have been idle."""
        cpu_s, size = self._read()
        elapsed = max(now - self._at, 1e-3)
        if abs(cpu_s - self._cpu_s) / elapsed > ACTIVE_CORES or size != self._bytes:
            self._since = now
        self._at, self._cpu_s, self._bytes = now, cpu_s, size
        return now - self._since

    def looked_at(self, now: float) -> None:
        self._since = now

    def _read(self) -> tuple[float, int]:
        cpu_s, size = 0.0, 0
        try:
            family = [psutil.Process(self._pid), *psutil.Process(self._pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return 0.0, 0
        for one in family:
            try:
                times, moved = one.cpu_times(), one.io_counters()
                cpu_s += times.user + times.system
                size += moved.read_chars + moved.write_chars
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return cpu_s, size


class _Signals:
    """Passes signals on to the command. They are blocked here and fetched one by one, with their sender: what
    the terminal sends reaches the command by itself."""

    def __enter__(self) -> _Signals:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self._ended = threading.Event()
        return self

    def give_back(self) -> None:
        """In the child: the signals as they were."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        def forward() -> None:
            while not self._ended.is_set():
                found = signal.sigtimedwait(FORWARDED, POLL_S)
                if found is not None and found.si_code != SI_KERNEL and process.poll() is None:
                    process.send_signal(found.si_signo)

        self._thread = threading.Thread(target=forward, name="forward-signals", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if hasattr(self, "_thread"):
            self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def to_stderr(text: str) -> None:
    """Show lines about the training beside its own output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
