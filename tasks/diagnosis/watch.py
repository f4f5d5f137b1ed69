"""Runs a user's training command and watches it for stalls, and judges its outcome.

The command's output passes through byte by byte, on a terminal where this process has one, so that progress
bars look as usual. Each signal reaches the command once, and its exit code becomes ours. The lines of its
output show its progress; where they do not, the activity of its processes replaces them. The command needs no
change, does not notice that it is watched, and goes on where this process is killed.

The outcome is judged by evidence, because an exit code proves nothing: open_clip's trainer ends with 0 where
the experiment exists already, and a loader that yields no batch ends with 0 and a checkpoint of an untrained
model.
"""

from __future__ import annotations

import glob
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tasks.core.errors import UsageError
from tasks.core.findings import Finding, Report
from tasks.diagnosis import examination
from tasks.diagnosis.causes.ending import killed
from tasks.diagnosis.causes.learning import Learning
from tasks.diagnosis.causes.printed import OF_OTHERS, findings_in
from tasks.diagnosis.examination import Examination
from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.observe import LAST_WORDS
from tasks.diagnosis.passage import Passage
from tasks.diagnosis.rhythm import Rhythm
from tasks.diagnosis.slow import SlowWatch
from tasks.runs.goodput import Goodput
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import LogLine, Trainer

POLL_S = 0.5
KEPT_LINES = LAST_WORDS
LONGEST_LINE = 10_000
KEPT_LOG_BYTES = 4 << 20
ACTIVE_CORES = 0.02
"""Processes that use less of a core, and read and write nothing, are idle."""
IDLE_S = 60.0
ACTIVITY_EVERY_S = 5.0
GRACE_S = (20.0, 10.0)
"""The time between the signals that stop a training: SIGINT, SIGTERM, SIGKILL."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SI_KERNEL = 0x80
"""The origin of a signal of the terminal (sigaction(2)), which its whole foreground group receives."""


@dataclass(frozen=True)
class WatchResult:
    """The end of the command. `exit_code` is for this process: the command's own, but 1 where a finding
    proves that it failed, or where it was stopped because of the last of the stalls."""

    report: Report
    exit_code: int
    trainer: str
    steps: int
    loss: float | None
    """The last loss in its lines, None where none has one."""
    seconds: float
    stalls: Sequence[Examination] = ()
    checkpoint: str | None = None
    was_stopped: bool = False
    goodput: Goodput = field(default_factory=Goodput)
    slow: Sequence[Finding] = ()
    """What made it slow, of the findings."""
    wrong: Sequence[Finding] = ()
    """What shows that it did not learn, of the findings."""

    @property
    def doubts(self) -> list[str]:
        """Why a command that ended with 0 did not end well, in words; its findings say more."""
        named = ((self.slow, "was slow"), (self.wrong, "learned badly"))
        words = [f"{how} ({', '.join(one.code for one in some)})" for some, how in named if some]
        known = {one.code for some, _ in named for one in some}
        other = [one.code for one in self.report.findings if one.code not in known]
        return [*([f"leaves a doubt ({', '.join(other)})"] if other else []), *words]


@dataclass
class _OutputListener:
    """The state of the command by its output so far. The thread that passes the output on calls `hear`."""

    trainer: Trainer
    log: Path
    rhythm: Rhythm
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    failures: list[str] = field(default_factory=list)
    slow: SlowWatch | None = None
    learning: Learning = field(init=False)
    _rest: bytes = b""

    def __post_init__(self) -> None:
        self.learning = Learning(self.trainer)

    def hear(self, part: bytes) -> None:
        """Take bytes of the output; a carriage return ends a line as well, as bars are redrawn by it."""
        is_long = self.log.exists() and self.log.stat().st_size > KEPT_LOG_BYTES
        kept = self.log.read_bytes()[-KEPT_LOG_BYTES // 4 :] if is_long else b""
        with self.log.open("wb" if is_long else "ab") as file:
            file.write(kept + part)
        *whole, rest = re.split(rb"[\r\n]", self._rest + part)
        self._rest = rest[-LONGEST_LINE:]
        for raw in whole:
            line = raw.decode(errors="replace")[:LONGEST_LINE]
            if not line.strip():
                continue
            self.lines.append(line)
            progress = self.trainer.progress(line)
            if progress is not None:
                now = time.monotonic()
                if self.rhythm.note(progress, now):
                    self.learning.note(progress)
                    if self.slow is not None:
                        self.slow.course.note(progress, now)
                continue
            self.learning.hear(line)
            if self.trainer.failed(line):
                self.failures.append(line)


def watch(
    words: Sequence[str],
    folder: Path,
    show: Callable[[str], None],
    *,
    pattern: str | None = None,
    stops: bool = False,
    output_to_stderr: bool = False,
) -> WatchResult:
    """Run the command until it ends, and `show` lines about it. `pattern` is a regular expression of lines
    that show progress; with `stops` a stall ends the command. UsageError where it cannot be started."""
    command = Command.of(words, folder)
    trainer = recognise(command)
    if pattern is not None:
        try:
            line = LogLine("step", re.compile(pattern))
        except re.error as error:
            raise UsageError(f"--progress: {pattern!r} is no regular expression: {error}") from None
        trainer = replace(trainer, lines=(line, *trainer.lines))
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
                passage.start()
                raise UsageError(f"tarmac watch: {words[0]} cannot be started: {error.strerror}") from None
            slow = listener.slow = _slow_watch(process.pid, began, listener.log, trainer.workers_option)
            passage.start()
            signals.forward_to(process)
            stalls = _attend(process, listener, slow, show, stops)
            passage.finish()
    code, was_stopped = process.returncode, stops and bool(stalls)
    saved = _checkpoints_since(trainer, command, began_at)
    if code:
        findings = [] if was_stopped else _judge_failure(trainer, list(listener.lines), code)
    else:
        findings = list(_judge_outcome(trainer, command, listener, bool(saved)))
    reached = trainer.reached(command) if code == 0 else None
    if reached is not None and reached.written >= began_at - 1 and reached.step < reached.steps:
        evidence = {
            "what": f"it ended at step {reached.step:,} of {reached.steps:,}",
            "by": str(reached.file),
        }
        remedy = "right after an early stop; else start it again with --resume_from_checkpoint"
        findings.append(Finding("run.incomplete", "warning", remedy, evidence=evidence))
    if was_stopped or code == 0:
        code = int(was_stopped or any(one.severity == "error" for one in findings))
    causes = [finding for one in stalls for finding in one.verdict.report.findings]
    listener.learning.look()
    wrong = listener.learning.found
    return WatchResult(
        Report([*findings, *causes, *slow.found, *wrong]),
        128 - code if code < 0 else code,
        trainer.name,
        listener.rhythm.steps,
        listener.rhythm.loss,
        time.monotonic() - began,
        stalls,
        saved[-1] if saved else None,
        was_stopped,
        slow.finish(time.monotonic()),
        slow.found,
        wrong,
    )


def _slow_watch(pid: int, began: float, log: Path, workers_option: str) -> SlowWatch:
    def examine() -> Sequence[Finding]:
        return examination.examine_process(pid, log).verdict.report.findings

    return SlowWatch(pid, began, examine, workers_option)


def _attend(
    process: subprocess.Popen[bytes],
    listener: _OutputListener,
    slow: SlowWatch,
    show: Callable[[str], None],
    stops: bool,
) -> list[Examination]:
    """Wait for the end; examine the process where it is silent for too long, and show each stall once, and
    of a silence that may yet end each cause once."""
    found: list[Examination] = []
    warned: set[str] = set()
    activity = _TreeActivity(process.pid)
    stalled: tuple[str, float] | None = None
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    # Popen.wait with a timeout would look twenty times a second.
    threading.Thread(target=wait, name="wait-for-command", daemon=True).start()
    while not ended.wait(POLL_S):
        rhythm, now = listener.rhythm, time.monotonic()
        if stalled is not None and rhythm.since > stalled[1]:
            show(f"✓ goes on after {rhythm.since - stalled[1]:.0f} s ({stalled[0]})")
            stalled = None
        if stalled is None:
            _show_findings("slow", slow.look(now), show)
        _show_findings("wrong", listener.learning.look(), show)
        # Lines of progress are activity themselves.
        is_idle = rhythm.silence(now) > ACTIVITY_EVERY_S and activity.idle_s(now) > IDLE_S
        if stalled is not None or not (is_idle or rhythm.is_suspicious(now)):
            continue
        examined = examination.examine_process(process.pid, listener.log)
        if process.poll() is not None:
            return found
        is_stalled = examined.verdict.state == "stalled"
        if is_stalled or _warns_anew(examined, warned):
            lines = examination.text_of(examined)
            show("\n".join([f"! no progress for {rhythm.silence(now):.0f} s", *lines]))
        if not is_stalled:
            rhythm.was_at_work(time.monotonic())
            activity.since = time.monotonic()
            continue
        found.append(examined)
        stalled = examined.verdict.report.findings[0].code, rhythm.since
        if stops:
            _stop(process, show)
            break
    return found


def _show_findings(mark: str, findings: Iterable[Finding], show: Callable[[str], None]) -> None:
    for finding in findings:
        show("\n".join([f"! {mark}", *finding.lines()]))


def _warns_anew(examined: Examination, warned: set[str]) -> bool:
    """Whether there is a warning of a code that is not among those warned of, which it is from now on."""
    codes = {one.code for one in examined.verdict.report.findings if one.severity == "warning"} - warned
    warned |= codes
    return bool(codes)


def _stop(process: subprocess.Popen[bytes], show: Callable[[str], None]) -> None:
    """End the command and its descendants, politely first."""
    show(f"! stops it: --stop (pid {process.pid})")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for sign, grace in zip((signal.SIGINT, signal.SIGTERM), GRACE_S, strict=True):
        process.send_signal(sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            break
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _checkpoints_since(trainer: Trainer, command: Command, began: float) -> list[str]:
    """Return the files of checkpoints that were written since a time in Unix seconds, the newest last."""
    found: list[tuple[float, str]] = []
    for file in (file for pattern in trainer.checkpoints(command) for file in glob.glob(pattern)):
        with suppress(OSError):  # removed meanwhile
            if (written := os.path.getmtime(file)) >= began - 1:
                found.append((written, file))
    return [file for _, file in sorted(found)]


def _judge_failure(trainer: Trainer, lines: Sequence[str], code: int) -> list[Finding]:
    """Find why a training failed: in its output, and in a signal that ended it and was not passed on."""
    found = list(findings_in(lines, trainer, is_over=True))
    if code < 0 and -code not in FORWARDED and not any(one.code == "process.gone" for one in found):
        found.insert(0, killed("the command", -code))
    return found


def _judge_outcome(
    trainer: Trainer, command: Command, listener: _OutputListener, has_saved: bool
) -> Iterator[Finding]:
    """Find evidence that a training did not do its work, although its exit code is 0."""
    rhythm, lines = listener.rhythm, [*listener.failures, *listener.lines]
    failure = next(filter(trainer.failed, lines), None)
    if failure is not None:
        evidence = {"what": f"it ended with exit code 0 and printed: {failure.strip()[:160]}"}
        remedy = "give another --name, or --resume latest"
        yield Finding("run.no_batches", "error", remedy, evidence=evidence)
        return
    if trainer.must_log_steps and not rhythm.steps:
        evidence = {"what": "it ended with exit code 0 without a single step"}
        remedy = "tarmac preflight -- COMMAND shows why no batch came"
        yield Finding("run.no_batches", "error", remedy, evidence=evidence)
        return
    if rhythm.loss is not None and not math.isfinite(rhythm.loss):
        remedy = "lower the learning rate, or take bf16 or fp32; resume from before it"
        evidence = {"what": f"its last loss is {rhythm.loss}"}
        yield Finding("loss.nonfinite", "error", remedy, evidence=evidence)
    patterns = trainer.checkpoints(command)
    if rhythm.steps and patterns and trainer.must_log_steps and not has_saved:
        evidence = {"what": f"it wrote no checkpoint: {patterns[0]}"}
        yield Finding("checkpoint.stalled", "warning", "see its log about saving", evidence=evidence)
    if rhythm.phase != "end":
        yield from _last_words(trainer, list(listener.lines))


def _last_words(trainer: Trainer, lines: Sequence[str]) -> Iterator[Finding]:
    """Find what the output states last of an error, after which no step came: a thread or a program within
    the command may have failed where its exit code is 0. A rank that leaves the others at the end is none."""
    for one in findings_in(lines, trainer, is_over=True):
        if one.severity == "error" and one.code not in (*OF_OTHERS, "run.no_batches", "loss.nonfinite"):
            yield replace(one, severity="warning")


class _TreeActivity:
    """The CPU time and I/O of a process and its descendants, to find when they do nothing at all."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.since = self._at = time.monotonic()
        self._cpu_s, self._bytes = 0.0, 0

    def idle_s(self, now: float) -> float:
        """Return for how long they have been idle, as of the last look at them."""
        if now - self._at < ACTIVITY_EVERY_S:
            return self._at - self.since
        family = procfs.family(self._pid)
        cpu_s = sum(found.cpu_s for one in family if (found := procfs.stat(one)) is not None)
        counters = [procfs.numbers(one, "io") for one in family]
        size = sum(one.get("rchar", 0) + one.get("wchar", 0) for one in counters)
        if abs(cpu_s - self._cpu_s) / max(now - self._at, 1e-3) > ACTIVE_CORES or size != self._bytes:
            self.since = now
        self._at, self._cpu_s, self._bytes = now, cpu_s, size
        return now - self.since


class _Signals:
    """Passes signals on to the command. They are blocked here and fetched one by one with their sender,
    because signals of the terminal reach the command by themselves."""

    def __enter__(self) -> _Signals:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self._ended = threading.Event()
        return self

    def give_back(self) -> None:
        """Restore the signals; the child calls this."""
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
