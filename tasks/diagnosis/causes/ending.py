"""Finds in a log which rank brought the end of a training about; the others ended because of it.

Each rank's own traceback is read, and how its launcher says that it ended: torchrun and accelerate, torch's
`mp.spawn`, Slurm's `srun`. An error that is about another process, as "Connection closed by peer", explains
nothing, and neither does the SIGTERM that a launcher sends to the ranks that are left.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tasks.core.findings import Finding
from tasks.diagnosis.causes.signs import own_call
from tasks.diagnosis.observation.stacks import call_of

TRACEBACK = "Traceback (most recent call last):"
_OF_RANK = re.compile(r"(?:\[[A-Za-z_]+(?P<bracketed>\d+)\]:?|(?P<plain>\d{1,5}):) ?")
"""torch writes `[rank3]: ` before the lines of an exception, torchrun `[default3]:`, `srun --label` `3: `."""
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:$|: )")
_SURVIVED = ("Exception ignored in", "Exception in thread", "--- Logging error ---")
"""What precedes the traceback of an exception that ends no process."""
_LAST_LINES = 40
"""A traceback that so many lines follow ended nothing, unless a launcher states that rank's exit code."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_RANK = re.compile(r"\s+rank\s+: (?P<rank>\d+) \(local_rank: \d+\)")
_EXIT = re.compile(r"\s+exitcode\s+: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_ROOT_CAUSE = "Root Cause (first observed failure):"
_SPAWNED = re.compile(
    r"\S*ProcessExitedException: process (?P<rank>\d+) terminated with "
    r"(?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))"
)
_SPAWNED_RAISED = re.compile(r"-- Process (?P<rank>\d+) terminated with the following error:")
_SRUN = re.compile(
    r"srun: error: \S+: tasks? (?P<rank>\d+)[^:]*: (?P<how>Exited with exit code \d+|[A-Z][\w ]+)"
)
_SRUN_SIGNALS = {
    "Killed": signal.SIGKILL, "Out Of Memory": signal.SIGKILL, "Terminated": signal.SIGTERM,
    "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT, "Bus error": signal.SIGBUS,
    "Interrupt": signal.SIGINT,
}  # fmt: skip
_OF_OTHERS = re.compile(
    r"Connection (?:closed|reset)|Read error|Write error|Broken pipe|Timed out waiting|recvValue failed|"
    r"remote process exited|DistNetworkError|DistStoreError|NCCL|Watchdog caught collective|Socket Timeout"
)
"""What torch.distributed says where another rank has gone."""
_WATCHDOG = re.compile(
    r"Watchdog caught collective|terminating? the process down due to|ProcessGroupNCCL.*abort"
)
"""NCCL's watchdog aborts each rank that waits too long for the others."""
_SHELL_SIGNAL = 128
"""A shell's exit code for a signal is this and its number."""
_LAUNCHERS = (
    "ChildFailedError", "ProcessExitedException", "ProcessRaisedException", "CalledProcessError",
    "SignalException",
)  # fmt: skip
"""The exceptions of a launcher, about its children."""
_BY_HAND = "see who ended it: a scheduler's time limit, a preemption, or somebody's kill"
_REMEDIES: dict[int, str] = {
    signal.SIGKILL: "look for an out-of-memory kill (dmesg); else a scheduler or somebody ended it",
    signal.SIGTERM: _BY_HAND,
    signal.SIGINT: "somebody interrupted it (Ctrl-C, or kill -INT)",
}
_CRASHED = "set PYTHONFAULTHANDLER=1 and start it again: the log then names the line that crashes"


@dataclass
class _Traceback:
    """A traceback as it was printed: its calls, innermost first, its last line, and the number of that in the
    log."""

    at: int = 0
    calls: list[str] = field(default_factory=list)
    error: str = ""


@dataclass
class _EndOfRank:
    """What the log says of one rank's end: its exit code, negative for a signal, and its own traceback.
    `is_first` where the launcher saw it end before all others."""

    rank: int | None
    code: int | None = None
    raised: _Traceback | None = None
    is_first: bool = False

    @property
    def is_of_others(self) -> bool:
        """Whether another process caused this end."""
        if self.raised is not None:
            return _OF_OTHERS.search(self.raised.error) is not None
        return self.code == -signal.SIGTERM and not self.is_first


def end_of(lines: Sequence[str]) -> Finding | None:
    """Return what ended the training: `process.gone` for a signal, `process.failed` for an exception, with
    the rank in `where`. None if no rank's end is in the log, or each was caused by another process."""
    ends = _ends(lines)
    causes = [one for one in ends if not one.is_of_others]
    if not causes:
        return None
    cause = min(causes, key=lambda one: (not one.is_first, one.code is None))
    others = sorted(one.rank for one in ends if one.rank is not None and one is not cause)
    evidence: dict[str, object] = {"what": _in_words(cause)}
    if cause.raised is not None and cause.raised.calls:
        evidence["stack"] = " from ".join(cause.raised.calls[:2])
    if others:
        names = ", ".join(map(str, others[:8])) + (" and more" if len(others) > 8 else "")
        evidence["then"] = f"rank{'s' * (len(others) > 1)} {names} ended because of it"
    where = {} if cause.rank is None else {"rank": cause.rank}
    if cause.code is not None and cause.code < 0:
        return Finding("process.gone", "error", _remedy(-cause.code), where, evidence)
    remedy = "mend what the exception names; the traceback stands in the log"
    return Finding("process.failed", "error", remedy, where, evidence)


def killed(who: str, sign: int) -> Finding:
    """Return `process.gone` for one that a signal ended."""
    return Finding("process.gone", "error", _remedy(sign), evidence={"what": _by_signal(who, sign)})


def _remedy(sign: int) -> str:
    return _REMEDIES.get(sign, _CRASHED)


def _by_signal(who: str, sign: int) -> str:
    name = signal.Signals(sign).name if sign in set(signal.Signals) else f"signal {sign}"
    return f"{who} was ended by {name}"


def _in_words(end: _EndOfRank) -> str:
    who = "it" if end.rank is None else f"rank {end.rank}"
    calls = end.raised.calls if end.raised is not None else []
    call = own_call(calls) or next(iter(calls), None)
    place = f", in {call}" if call is not None else ""
    if end.code is not None and end.code < 0:
        return _by_signal(who, -end.code) + place
    if end.raised is not None:
        return f"{who} raised {end.raised.error[:160]}{place}"
    return f"{who} ended with exit code {end.code}, and the log has no traceback of it"


def _ends(lines: Sequence[str]) -> list[_EndOfRank]:
    """Read the ends of all ranks; of a training without ranks, the one of its last traceback."""
    found: dict[int | None, _EndOfRank] = {}

    def end(rank: int | None) -> _EndOfRank:
        return found.setdefault(rank, _EndOfRank(rank))

    for rank, raised in _tracebacks(lines):
        if not any(name in raised.error for name in _LAUNCHERS):
            end(rank).raised = raised
    has_watchdog = any(_WATCHDOG.search(line) for line in lines)
    for rank, code, is_first in _exits(lines):
        if not (has_watchdog and code == -signal.SIGABRT):
            end(rank).code = _SHELL_SIGNAL - code if code > _SHELL_SIGNAL else code
            end(rank).is_first |= is_first
    if len(found) > 1 and None in found:  # printed before torch knew its rank
        lost = found.pop(None)
        failed = [one for one in found.values() if one.raised is None and (one.code or 0) > 0]
        for one in failed[:1]:
            one.raised = lost.raised
    is_last = len(lines) - _LAST_LINES
    return [
        one
        for one in found.values()
        if one.code is not None or (one.raised is not None and one.raised.at >= is_last)
    ]


def _tracebacks(lines: Iterable[str]) -> Iterator[tuple[int | None, _Traceback]]:
    """Yield each traceback that was printed to its end, with the rank that printed it; those of several ranks
    may be mixed line by line."""
    open_ones: dict[int | None, _Traceback] = {}
    spawned: int | None = None
    before = ""
    for at, line in enumerate(lines):
        prefix = _OF_RANK.match(line)
        rank = int(prefix["bracketed"] or prefix["plain"]) if prefix else None
        text = line[prefix.end() :] if prefix else line
        if (child := _SPAWNED_RAISED.match(text)) is not None:
            spawned = int(child["rank"])
        elif text.rstrip() == TRACEBACK and not before.startswith(_SURVIVED):
            open_ones[rank] = _Traceback()
        elif rank in open_ones and (frame := _FRAME.match(text)) is not None:
            open_ones[rank].calls.insert(0, call_of(frame["name"], frame["file"], int(frame["line"])))
        elif rank in open_ones and _RAISED.match(text) and not text.startswith(_CHAINED):
            ended = open_ones.pop(rank)
            ended.at, ended.error = at, text.strip()
            yield (spawned if rank is None else rank), ended
        before = text


def _exits(lines: Iterable[str]) -> Iterator[tuple[int, int, bool]]:
    """Yield rank, exit code and whether it was the first, by the words of the launchers."""
    rank, is_first, srun_was_seen = None, False, False
    for line in lines:
        if line.startswith(_ROOT_CAUSE):
            is_first = True
        elif (named := _RANK.match(line)) is not None:
            rank = int(named["rank"])
        elif (exited := _EXIT.match(line)) is not None and rank is not None:
            yield rank, int(exited["code"]), is_first
        elif (spawned := _SPAWNED.match(line)) is not None:
            code = -signal.Signals[spawned["signal"]] if spawned["signal"] else int(spawned["code"])
            yield int(spawned["rank"]), code, True
        elif (task := _SRUN.match(line)) is not None:
            sign = next((sign for how, sign in _SRUN_SIGNALS.items() if task["how"].startswith(how)), None)
            code = -sign if sign is not None else int((re.search(r"\d+$", task["how"]) or ["1"])[0])
            yield int(task["rank"]), code, not srun_was_seen
            srun_was_seen = True
