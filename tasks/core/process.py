"""Identifies processes, checks whether they are alive, and ties their lifetime to their starter's.

A pid alone identifies no process: pids are reused, and each pid namespace (a container) has its own numbers.
Host, boot id, namespace, pid and start time together identify one.

Every command imports this module, so what takes longer to import than the rest of it is imported where it is
used.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_last_acts: list[Callable[[], None]] = []

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Constants from glibc's <malloc.h>."""
PR_SET_PDEATHSIG, PR_SET_PTRACER, PR_SET_PTRACER_ANY = 1, 0x59616D61, -1
"""Constants from linux/prctl.h."""
LARGEST_KEPT = 32 << 20
"""Bytes; glibc takes no higher threshold."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
HOME = str(Path(__file__).resolve().parents[2])
"""The folder in which Python finds Tarmac's packages."""
PATH_SETTINGS = ("PYTHONPATH", "PYTHONSAFEPATH")
USERS = "TARMAC_USERS_"
"""Under this prefix an environment holds what the user's own one says of PATH_SETTINGS."""


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot, or the boot time if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))


def pid_namespace() -> str | None:
    """Return the kernel's name for this process's pid namespace; None on systems without namespaces."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


@dataclass(frozen=True, eq=False)
class Identity:
    """The unique identity of one process.

    `started` is its start time in Unix seconds, which moves when the clock is set. `ticks` is the kernel's
    own count since boot, which does not, and decides where the system has it (Linux). `namespace` is the pid
    namespace, None where the system has none.
    """

    host: str
    boot_id: str
    pid: int
    started: float
    ticks: int | None = None
    namespace: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        started = self.started if self.ticks is None else None
        return self.host, self.boot_id, self.pid, started, self.ticks, self.namespace

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a live process; raises psutil.NoSuchProcess if there is none."""
        import socket

        import psutil

        started = round(psutil.Process(pid).create_time(), 2)
        return cls(socket.gethostname(), boot_id(), pid, started, _start_ticks(pid), pid_namespace())

    @classmethod
    def mine(cls) -> Identity:
        return cls.of(os.getpid())

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Identity:
        return cls(
            value["host"],
            value["boot_id"],
            int(value["pid"]),
            float(value["started"]),
            value.get("ticks"),
            value.get("namespace"),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_visible(self) -> bool:
        """Whether `pid` means the same process here: containers may share a host name, but not their pids."""
        import socket

        return (
            self.host == socket.gethostname()
            and self.boot_id == boot_id()
            and self.namespace == pid_namespace()
        )

    def is_alive(self) -> bool:
        """Whether this very process runs here; a zombie is dead, and so is a process from before a reboot.

        A process of another host or container is not visible from here and counts as dead; its users judge by
        heartbeat.
        """
        if not self.is_visible:
            return False
        import psutil

        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if self.ticks is not None:
                return _start_ticks(self.pid) == self.ticks
            return bool(abs(process.create_time() - self.started) < 0.05)
        except psutil.NoSuchProcess:
            return False


def _start_ticks(pid: int) -> int | None:
    """Return the clock ticks from boot to the process's start, field 22 of /proc/PID/stat (proc(5)); None
    without it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def available_cores() -> int:
    """Return the number of cores this process may use, by affinity and by the container's quota (cgroup v2,
    cpu.max)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text(encoding="ascii").split()
    except FileNotFoundError:
        return cores
    return cores if quota == "max" else max(min(cores, math.ceil(int(quota) / int(period))), 1)


@contextmanager
def before_killed(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in its own thread if this process is about to be killed during the block because its starter
    ended, so that it can end work elsewhere. `act` may take 3 s; a build's children end within 5 s."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def do_last_acts() -> None:
    """Call the functions given to `before_killed`. Errors are ignored, because nobody is left to report
    to."""
    for act in tuple(_last_acts):
        with suppress(Exception):
            act()


def child_environment() -> dict[str, str]:
    """Return the environment for a Python child that imports Tarmac, whatever its working directory.

    `python -m` and `python -c` look in the working directory first, and every Python looks in PYTHONPATH, so
    a user's own `tasks.py` there would replace Tarmac's package. `users_environment` takes this back.
    """
    found = {USERS + name: os.environ.get(name, "") for name in PATH_SETTINGS}
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", HOME)]
    ours = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([HOME, *others])}
    return {**found, **os.environ, **ours}


@contextmanager
def as_for_a_child() -> Iterator[None]:
    """Give this process the settings of `child_environment` during the block, in which Python itself starts a
    child, such as multiprocessing's forkserver: it imports what it preloads before it is given a path."""
    before = {
        name: os.environ.get(name) for name in (*PATH_SETTINGS, *(USERS + one for one in PATH_SETTINGS))
    }
    os.environ.update(child_environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def users_environment() -> dict[str, str]:
    """Return this process's environment with the user's own settings of where Python looks for modules, by
    which a program of the user's finds its own modules and not Tarmac's."""
    environment = dict(os.environ)
    for name in PATH_SETTINGS:
        found = environment.pop(USERS + name, environment.get(name))
        if found:
            environment[name] = found
        else:
            environment.pop(name, None)
    return environment


def kill_tree(identity: Identity, grace_s: float = 5.0) -> None:
    """End a process and its descendants: SIGTERM, then SIGKILL after `grace_s` seconds.

    Does nothing if the pid now belongs to another process.
    """
    if not identity.is_alive():
        return
    import psutil

    process = psutil.Process(identity.pid)
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for member in family:
            try:
                member.send_signal(sign)
            except psutil.NoSuchProcess:
                continue
        _, family = psutil.wait_procs(family, timeout=grace_s)
        if not family:
            return


def signal_at_starters_end(sign: signal.Signals) -> None:
    """Have the kernel send `sign` to this process when the thread that started it ends, for any reason
    (Linux); raises OSError if the kernel refuses."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sign) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def explain_itself() -> None:
    """Make this process explain its end and its standstills: a fatal signal prints the Python stacks to
    standard error, and where Yama restricts ptrace (Linux), other processes of this user may read its stack.

    Neither is passed on to children that multiprocessing starts.
    """
    import ctypes
    import faulthandler

    faulthandler.enable(file=2)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # fails where there is no Yama, and nothing to permit
        prctl(PR_SET_PTRACER, ctypes.c_long(PR_SET_PTRACER_ANY), 0, 0, 0)


def die_with_parent() -> None:
    """In a process started by multiprocessing: end at once when the starter ends, for any reason.

    The starter's sentinel is a pipe that the kernel closes, so nothing polls, and SIGKILL is noticed too.
    """
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="die-with-parent", daemon=True).start()


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks, for a process that allocates and frees the same large blocks repeatedly,
    such as a step's activations or an image's pixels.

    By default glibc returns such blocks to the system, which zeroes them page by page when they are allocated
    again: this takes up to 11 % of a small model's step on the CPU, and 7 % of the time of decoding images.
    After this call they stay in the process, except for blocks above 32 MiB. Other C libraries are
    unaffected.
    """
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_TRIM_THRESHOLD, -1)  # never
        set_option(M_MMAP_THRESHOLD, LARGEST_KEPT)
