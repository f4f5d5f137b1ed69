"""Leases and pins: one writer at a time holds a lease, and a pin keeps a dataset version for a run.

A lease is a file that names its holder by host, boot id, pid namespace, pid and start time. If its pid is
visible here, the death of a holder is certain and detected at once. A holder on another host, in another
container or from before a reboot counts as dead once its heartbeat is older than STALE_S. Hosts' clocks may
differ, so the heartbeat is the time at which the file system stamped the lease, compared with the stamp of a
new file. A lease is created by a hard link, which is atomic on local disks and on NFS. A process that takes,
takes over or releases a lease locks its folder for that moment (flock), so that no process moves a lease that
another has just taken over. Where the file system has no such lock, the loser detects the loss by `watch`.

A pin is a small text file per run in the dataset's folder `pins`: the version's name, the run's folder and
the folder's host. It is valid as long as the run's folder exists, which only that host can check.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tasks.core.errors import TarmacError
from tasks.core.files import digest, write_atomic, write_json
from tasks.core.process import Identity

logger = logging.getLogger(__name__)
HEARTBEAT_S = 10.0
STALE_S = 120.0
CHECK_S = 2.0
GUARD_S = 5.0
"""How long to wait for a process that takes a lease in the same folder; it locks it for milliseconds."""
PINS = "pins"


@dataclass(frozen=True)
class Holder:
    """The process that holds the lease at `path`, since when (Unix seconds), and its last heartbeat."""

    identity: Identity
    since: float
    heartbeat: float
    path: Path

    def is_alive(self) -> bool:
        if self.identity.is_visible:
            return self.identity.is_alive()
        # A heartbeat far in the future is from before the clock was set back; a live holder would renew it.
        return abs(_clock(self.path) - self.heartbeat) < STALE_S

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"process {self.identity.pid} on {self.identity.host} (since {since})"


class Held(TarmacError):
    """Another process holds the lease: `holder`, or None if it is not known yet."""

    def __init__(self, path: Path, holder: Holder | None) -> None:
        self.holder = holder
        super().__init__(
            f"{path.parent} is in use by {holder or 'a process that is just starting to use it'}"
        )


def holder_of(path: Path) -> Holder | None:
    """Return the holder named in the lease file, dead or alive; None without a readable lease."""
    try:
        return _read(path)
    except OSError:
        return None


def _read(path: Path) -> Holder | None:
    """Like `holder_of`, but raise OSError if the lease cannot be read now: its holder may be alive."""
    with path.open(encoding="utf-8") as file:
        heartbeat = os.fstat(file.fileno()).st_mtime
        try:
            value = json.load(file)
            return Holder(Identity.from_json(value), float(value["since"]), heartbeat, path)
        except (ValueError, KeyError, TypeError):
            return None


def is_lost(path: Path, holder: Identity) -> bool:
    """Whether this holder no longer has the lease; False if the lease cannot be read now.

    The file is opened, which makes NFS ask its server.
    """
    try:
        found = _read(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return found is not None and found.identity != holder


def _clock(path: Path) -> float:
    """Return the time of the clock that stamps files beside `path`; this host's time if nothing can be
    written."""
    try:
        with tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _flocked(descriptor: int) -> bool:
    """Whether this process has the lock now, or the file system does not support locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # NFS cannot lock folders, and Lustre locks nothing unless it is mounted so
        return True
    return True


class Lease:
    """A lease on the folder that contains `path`; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._mine = Identity.mine()

    @property
    def identity(self) -> Identity:
        """The process that takes the lease through this object."""
        return self._mine

    def acquire(self) -> None:
        """Take the lease; raises Held if a live holder has it, OSError if the lease cannot be read."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._guard():
            self._take()
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{self.path.name}", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        if not self._create():
            try:
                holder = _read(self.path)
            except FileNotFoundError:
                holder = None
            except OSError as error:
                if error.errno == errno.ESTALE:  # on NFS: another process has just replaced it
                    raise Held(self.path, None) from None
                raise
            if holder is not None and holder.is_alive():
                raise Held(self.path, holder)
            self._remove_dead()
            if not self._create():
                raise Held(self.path, holder_of(self.path))

    def wait(self, timeout_s: float | None = None, poll_s: float = 1.0) -> None:
        """Take the lease once its holder releases it or dies; raises Held after `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                return self.acquire()
            except Held:
                if deadline is not None and time.monotonic() > deadline:
                    raise
                time.sleep(poll_s)

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` in its own thread within about CHECK_S seconds after the lease is lost."""

        def look() -> None:
            while not self._stop.wait(CHECK_S):
                lost = is_lost(self.path, self._mine)
                if lost and not self._stop.is_set():  # otherwise it is gone because it was released
                    return on_lost()

        threading.Thread(target=look, name=f"watch-{self.path.name}", daemon=True).start()

    def require(self) -> None:
        """Raise TarmacError if another process took the lease over, which can happen while this one is
        suspended."""
        if not self._is_mine():
            raise TarmacError(
                f"{self.path.parent} was taken over by {holder_of(self.path) or 'another process'}; run again"
            )

    def _is_mine(self) -> bool:
        holder = holder_of(self.path)
        return holder is not None and holder.identity == self._mine

    def release(self) -> None:
        """Release the lease; this is safe even if another process has taken it over meanwhile."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with contextlib.ExitStack() as guarded:
            with contextlib.suppress(Held, FileNotFoundError):
                guarded.enter_context(self._guard())
            if self._is_mine():
                self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Exclude every other process that takes a lease in this folder; raises Held if one does not
        finish."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            deadline = time.monotonic() + GUARD_S
            while not _flocked(folder):
                if time.monotonic() > deadline:
                    raise Held(self.path, None)
                time.sleep(0.01)
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(
                    folder, fcntl.LOCK_UN
                )  # closing does not unlock it if a forked process has a copy
            os.close(folder)

    def _create(self) -> bool:
        """Create the lease by linking a draft to its path; False if a lease exists already."""
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        write_json(draft, {**self._mine.to_json(), "since": time.time()})
        try:
            os.link(draft, self.path)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def _remove_dead(self) -> None:
        """Move a dead lease away. Only one rename succeeds; a live lease that was moved by mistake is
        restored."""
        grave = self.path.with_name(f".{self.path.name}.dead.{os.getpid()}.{threading.get_ident()}")
        try:
            os.rename(self.path, grave)
        except FileNotFoundError:
            return
        try:
            holder = _read(grave)
            may_live = holder is not None and holder.is_alive()
        except OSError:
            may_live = True
        if may_live:
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # rewritten already, or swept
                os.link(grave, self.path)
        grave.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                holder = _read(self.path)
                if holder is not None and holder.identity != self._mine:
                    return  # taken over while this process could not renew it
                os.utime(self.path)  # sets the file system's time; a rewrite could undo a takeover
            except FileNotFoundError:
                return
            except OSError as error:
                logger.warning("%s: no heartbeat (%s); trying again", self.path, error)

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def pin(dataset: Path, run: str, version: str, folder: Path) -> None:
    """Keep the version from being pruned while the run's folder exists; raises OSError.

    If a run of the same id in another folder has a pin, a digest is appended to the name of this one.
    """
    place = f"{folder}\n{socket.gethostname()}\n"
    content = os.fsencode(f"{version}\n{place}")
    path = dataset / PINS / run
    if _is_anothers(path, place):
        path = dataset / PINS / f"{run}-{digest(place)[:8]}"
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)


def _is_anothers(path: Path, place: str) -> bool:
    """Whether the pin belongs to a run in another folder that may still exist."""
    try:
        _, *rest = os.fsdecode(path.read_bytes()).splitlines()
    except (OSError, ValueError):
        return False
    return len(rest) == 2 and rest != place.splitlines() and not _is_gone(Path(rest[0]), rest[1])


def pinned(dataset: Path) -> dict[str, list[str]]:
    """Return the names of the runs that pin each version, without runs whose folder is gone."""
    runs: dict[str, list[str]] = {}
    for path, version, is_gone in _pins(dataset):
        if not is_gone:
            runs.setdefault(version, []).append(path.name)
    return runs


def drop_stale_pins(dataset: Path) -> None:
    """Remove the pins of runs whose folder is gone; pins that cannot be removed are left."""
    for path, _, is_gone in _pins(dataset):
        if is_gone:
            with contextlib.suppress(OSError):
                path.unlink()


def _pins(dataset: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield each pin's file, its version, and whether its run is gone; an unreadable pin counts as valid."""
    for path in sorted((dataset / PINS).glob("*")):
        if path.name.startswith("."):
            continue  # a file that is being written
        try:
            version, *rest = os.fsdecode(path.read_bytes()).splitlines()
        except (OSError, ValueError):
            yield path, "", False
            continue
        yield path, version.strip(), len(rest) == 2 and _is_gone(Path(rest[0]), rest[1])


def _is_gone(folder: Path, host: str) -> bool:
    """Whether the run's folder was removed while its disk is still mounted: the parent folder exists."""
    if host != socket.gethostname():
        return False
    try:
        folder.lstat()
    except FileNotFoundError:
        return folder.parent.is_dir()
    except (OSError, ValueError):  # ValueError for text that is not a valid path
        return False
    return False
