"""Reads what Linux reports about one process in /proc (proc(5)), without tracing, stopping or slowing it.

Each value needs the permission of its file. State, CPU and command are open to all users; I/O counters,
descriptors and wait channels only to the same user (PTRACE_MODE_READ); the system call only to a tracer,
which an unrelated process is not where Yama restricts tracing. A value that may not be read is None, never
zero.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
SYSCALLS = {
    0: "read",
    1: "write",
    7: "poll",
    23: "select",
    61: "wait4",
    202: "futex",
    230: "clock_nanosleep",
    232: "epoll_wait",
    257: "openat",
}
"""Names of the system calls in which stalled processes are found, by their number on x86-64."""
LONGEST_PATH = 4096


@dataclass(frozen=True)
class OpenFile:
    """One descriptor. `path` is the text of the link, such as `/data/0.tar` or `pipe:[81]`."""

    fd: int
    path: str
    offset: int | None
    is_writable: bool

    @property
    def is_regular(self) -> bool:
        """Whether the path is a file on a disk, not a pipe, a socket, a device or shared memory."""
        return self.path.startswith("/") and not self.path.startswith(("/dev/", "/proc/", "/sys/", "/memfd:"))


@dataclass(frozen=True)
class Thread:
    """One thread, with its state as in /proc/PID/stat and the kernel function that it sleeps in."""

    name: str
    state: str
    wait: str | None
    number: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Look:
    """A process at one moment. Counters are totals since its start; `at` is in monotonic seconds."""

    at: float
    state: str
    cpu_s: float
    read_bytes: int | None
    """The bytes that read calls returned, whether from a disk, its cache or a pipe."""
    disk_bytes: int | None
    """The bytes that had to be fetched from a disk."""
    written_bytes: int | None
    wait: str | None
    syscall: str | None
    resident_bytes: int
    threads: Sequence[Thread]
    files: Sequence[OpenFile] | None
    dirtied_bytes: int | None = None
    """The bytes that it has changed in the page cache: these grow during a long write, which `written_bytes`
    do only at its end."""
    switches: int | None = None
    """How often the main thread gave its core away to wait. A thread that waits for nothing but one event
    that does not come gives it away once."""


@dataclass(frozen=True)
class ProcStat:
    """The fields of /proc/PID/stat that are used; `exit_code` has the form of wait(2), 0 during its life."""

    name: str
    state: str
    parent: int
    cpu_s: float
    started_ticks: int
    exit_code: int


def stat(pid: int) -> ProcStat | None:
    """Return the state of a process, or None when there is none."""
    text = _text(f"{PROC}/{pid}/stat")
    if text is None:
        return None
    name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    return ProcStat(name, fields[0], int(fields[1]), cpu, int(fields[19]), int(fields[49]))


def look_at_process(pid: int, at: float) -> Look | None:
    """Look at a process now; None when it is gone or a zombie."""
    base, seen = PROC / str(pid), stat(pid)
    if seen is None or seen.state in "ZX":
        return None
    io, status = numbers(pid, "io"), numbers(pid, "status")
    return Look(
        at=at,
        state=seen.state,
        cpu_s=seen.cpu_s,
        read_bytes=io.get("rchar"),
        disk_bytes=io.get("read_bytes"),
        written_bytes=io.get("wchar"),
        wait=_wait(base),
        syscall=_syscall(base),
        resident_bytes=status.get("VmRSS", 0) * 1024,
        threads=list(_threads(base)),
        files=open_files(pid),
        dirtied_bytes=io.get("write_bytes"),
        switches=status.get("voluntary_ctxt_switches"),
    )


def open_files(pid: int) -> list[OpenFile] | None:
    """Return the descriptors of a process with their offsets, or None where they may not be read."""
    base = PROC / str(pid)
    try:
        descriptors = sorted(int(name) for name in os.listdir(base / "fd"))
    except OSError:
        return None
    found = []
    for number in descriptors:
        with suppress(OSError):  # closed meanwhile
            path = os.readlink(base / "fd" / str(number))
            info = _fields(base / "fdinfo" / str(number))
            offset = int(info["pos"]) if "pos" in info else None
            is_writable = bool(int(info.get("flags", "0"), 8) & (os.O_WRONLY | os.O_RDWR))
            found.append(OpenFile(number, path, offset, is_writable))
    return found


def argv(pid: int) -> list[str]:
    """Return the command line of a process; empty for a kernel thread or a process that is gone."""
    text = _text(PROC / str(pid) / "cmdline") or ""
    return text.rstrip("\0").split("\0") if text else []


def folder(pid: int) -> str:
    """Return the working folder of a process, or "" where it may not be read."""
    try:
        return os.readlink(PROC / str(pid) / "cwd")
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str] | None:
    """Return the environment that a process was started with, or None where it may not be read."""
    text = _text(PROC / str(pid) / "environ")
    if text is None:
        return None
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def family(pid: int) -> list[int]:
    """Return the process and its present descendants, parents first; empty when it is gone."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(PROC):
        if name.isdigit() and (seen := stat(int(name))) is not None:
            children.setdefault(seen.parent, []).append(int(name))
    found = [pid] if (PROC / str(pid)).exists() else []
    for member in found:
        found.extend(sorted(children.get(member, [])))
    return found


def age_s(pid: int) -> float | None:
    """Return the seconds since a process was started."""
    seen, up = stat(pid), _text(PROC / "uptime")
    if seen is None or up is None:
        return None
    return max(float(up.split()[0]) - seen.started_ticks / TICKS, 0.0)


def descriptor_limit(pid: int) -> int | None:
    """Return how many descriptors a process may open."""
    for line in lines(pid, "limits"):
        if line.startswith("Max open files"):
            limit = line.split()[3]
            return int(limit) if limit.isdigit() else None
    return None


def wait_of(pid: int) -> str | None:
    """Return the kernel function that the main thread sleeps in, "" while it runs, None if unreadable."""
    return _wait(PROC / str(pid))


def _threads(base: Path) -> Iterator[Thread]:
    try:
        threads = sorted(os.listdir(base / "task"), key=int)
    except OSError:
        return
    for number in threads:
        text = _text(base / "task" / number / "stat")
        if text is not None:
            name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
            yield Thread(name, fields[0], _wait(base / "task" / number), int(number), cpu_s)


def _wait(base: Path) -> str | None:
    """Return the kernel function that a thread sleeps in, without compilers' suffixes."""
    text = _text(base / "wchan")
    return None if text is None else "" if text == "0" else text.partition(".")[0]


def _syscall(base: Path) -> str | None:
    """Return the main thread's system call with what it is about, such as `read 14` or `openat /data/0.tar`;
    None if unreadable."""
    words = (_text(base / "syscall") or "").split()
    if not words or not words[0].isdigit():
        return words[0] if words else None
    name = SYSCALLS.get(int(words[0]), f"syscall {words[0]}") if os.uname().machine == "x86_64" else words[0]
    if name in ("read", "write"):
        return f"{name} {int(words[1], 16)}"
    path = _string_at(base, int(words[2], 16)) if name == "openat" else ""
    return f"{name} {path}" if path else name


def _string_at(base: Path, address: int) -> str:
    """Return the text at an address of the process, or "" where its memory may not be read."""
    try:
        with (base / "mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(LONGEST_PATH).partition(b"\0")[0].decode(errors="replace")
    except (OSError, ValueError, OverflowError):
        return ""


def numbers(pid: int, file: str) -> dict[str, int]:
    """Return the `name: number` lines of a file of /proc/PID; empty where it may not be read."""
    first = {name: value.partition(" ")[0] for name, value in _fields(PROC / str(pid) / file).items()}
    return {name: int(word) for name, word in first.items() if word.isdigit()}


def lines(pid: int, file: str) -> list[str]:
    """Return the lines of a file of /proc/PID; none where it may not be read."""
    return (_text(PROC / str(pid) / file) or "").splitlines()


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in (_text(path) or "").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _text(path: Path | str) -> str | None:
    """Return the text of a file, or None where the process is gone or the file may not be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # a watch reads thousands a minute
            return file.readall().decode(errors="replace")
    except OSError:
        return None
