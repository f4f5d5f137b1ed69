"""A root folder of Debian with Python and nothing else, in which commands run as in a new container.

`clean_root()` is the way in. debootstrap makes the base once, in `.cache/clean-root`, and each root is a copy of
it in memory. Processes, mounts and memory files are the root's own; they all end with it, even where the test is
killed. The network is the machine's, so that pip and uv reach their index by the machine's settings.

uv's cache is mounted into the root: what the machine has downloaded once is not downloaded again. Packages that
uv installs there are links into the cache, because the cache lies on another file system and a copy of torch and
its CUDA libraries would take gigabytes. All of it takes root, for mount and chroot.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.services import BIN, ROOT

CACHE = ROOT / ".cache" / "clean-root"
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
MIRROR = "http://deb.debian.org/debian"
PROXIES = {f"{scheme}_proxy" for scheme in ("http", "https", "all", "no")}
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
SETTINGS = (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf", Path.home() / ".config/uv/uv.toml")
NETWORK = (Path("/etc/resolv.conf"), Path("/etc/hosts"))
UV, UV_CACHE = "/opt/uv", "/opt/uv-cache"
"""Where uv and its cache are in the root: on no PATH, so that nothing but a test finds them."""
HOLD = """
set -e
base=$1 root=$2 uv_cache=$3
mount -t tmpfs -o mode=755 tmpfs "$root"
cp -a "$base/." "$root"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t proc proc "$root/proc"
mkdir "$root/opt/uv-cache"
mount --bind "$uv_cache" "$root/opt/uv-cache"
exec chroot "$root" /bin/bash --norc -c 'echo ready; read -r'
"""
"""The first process of a root. It stays until its input ends, and reaps whose parents have ended, as an init does."""
NAMESPACES = ("--mount", "--pid", "--ipc", "--uts")


class Ended(NamedTuple):
    """What a command wrote to both of its outputs, and its exit code."""

    output: str
    code: int


class CleanRoot:
    """One root. Its commands see no variable of this process but those by which pip and uv find their index."""

    def __init__(self, first_process: int) -> None:
        self._first_process = first_process
        self.folder = Path(f"/proc/{first_process}/root")
        """The root as this machine sees it; it exists as long as the root."""
        self.env = {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "TERM": "dumb",
            "COLUMNS": "400",
            **self._index_settings(),
        }
        self.put(BIN / "uv", UV)
        for path in NETWORK:
            self.put(path, str(path))

    def put(self, path: Path, place: str) -> None:
        """Copy a file or a folder of this machine to a place in the root, as `COPY` of a Dockerfile does."""
        target = self.folder / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)

    def run(self, script: str, timeout: float = 300, folder: str = "/root") -> Ended:
        """Run lines of bash, as `RUN` of a Dockerfile does: each call is a shell of its own."""
        with self._shell(folder, "-c", script) as shell:
            try:
                output, _ = shell.communicate(timeout=timeout)
            finally:
                _end(shell)
        return Ended(output, shell.returncode)

    @contextmanager
    def terminal(self) -> Iterator[Terminal]:
        """A shell into which command after command is typed."""
        with self._shell("/root") as shell:
            try:
                yield Terminal(shell)
            finally:
                _end(shell)

    def _shell(self, folder: str, *words: str) -> subprocess.Popen[str]:
        enter = ["nsenter", f"--target={self._first_process}", *NAMESPACES, "--root"]
        return subprocess.Popen(
            [*enter, "/usr/bin/env", f"--chdir={folder}", "/bin/bash", "--noprofile", "--norc", *words],
            env=self.env,
            stdin=subprocess.DEVNULL if words else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _index_settings(self) -> dict[str, str]:
        """The variables by which pip and uv find their index here; the files they name are copied to the same
        places in the root."""
        named = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "UV_")) or name.lower() in PROXIES or name in CERTIFICATES
        }
        for path in [*(Path(named[name]) for name in CERTIFICATES if name in named), *SETTINGS]:
            if path.is_file():
                self.put(path, str(path))
        return {**named, "UV_CACHE_DIR": UV_CACHE, "UV_LINK_MODE": "symlink"}


class Terminal:
    """A shell that lives on between commands, as that of a reader who types what a page shows."""

    def __init__(self, shell: subprocess.Popen[str]) -> None:
        self._shell = shell

    def types(self, command: str, timeout: float = 300) -> Ended:
        """The command's output and exit code; the shell goes on with the next one. Commands cannot read what
        comes after them, because their input is empty. One that takes longer ends the shell."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        mark = uuid.uuid4().hex
        limit = threading.Timer(timeout, _end, [self._shell])
        limit.start()
        try:
            self._shell.stdin.write(f"{{ {command}\n}} </dev/null\ncode=$?; echo; echo {mark} $code\n")
            self._shell.stdin.flush()
            lines: list[str] = []
            for line in self._shell.stdout:
                if line.startswith(mark):
                    return Ended("".join(lines).removesuffix("\n"), int(line.split()[1]))
                lines.append(line)
        finally:
            limit.cancel()
        raise AssertionError(f"the shell ended, or {timeout:.0f} s were over: {command}\n{''.join(lines)}")


def _end(shell: subprocess.Popen[str]) -> None:
    """End a shell and what it has started. Its own process is nsenter's child, which a kill of nsenter leaves."""
    if shell.poll() is None:
        os.killpg(shell.pid, signal.SIGKILL)


@contextmanager
def clean_root() -> Iterator[CleanRoot]:
    """A root of one's own: `put` files into it and `run` commands there, or type them into its `terminal`.

        with clean_root() as root:
            root.put(wheel, "/root/" + wheel.name)
            assert root.run(f"python3 -m venv v && v/bin/pip install ./{wheel.name}").code == 0

    It starts in two seconds, holds Python and pip, and is gone afterwards. Files below `root.folder` can be read
    and written from here. Without root or debootstrap a test fails; it is not skipped.
    """
    if os.geteuid() != 0:
        pytest.fail("a clean root takes root, for mount and chroot; the other system tests do not")
    base, place = _base(), CACHE / "mounted"
    place.mkdir(exist_ok=True)
    cache = subprocess.run([BIN / "uv", "cache", "dir"], capture_output=True, text=True, check=True)
    Path(cache.stdout.strip()).mkdir(parents=True, exist_ok=True)
    apart = ["unshare", *NAMESPACES, "--fork", "--kill-child"]
    holds = [*apart, "/bin/sh", "-c", HOLD, "sh", str(base), str(place), cache.stdout.strip()]
    with subprocess.Popen(holds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            assert holder.stdout.readline() == "ready\n", (
                "the root could not be mounted; the reason is printed"
            )
            (first,) = psutil.Process(holder.pid).children()
            yield CleanRoot(first.pid)
        finally:
            holder.stdin.close()  # ends the first process, and the kernel all others and the mounts with it


def wheel(folder: Path) -> Path:
    """The wheel of this checkout, built into the folder."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl"))


def _base() -> Path:
    """The folder that debootstrap has filled; made once for all tests of all processes."""
    folder = CACHE / SUITE
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            if shutil.which("debootstrap") is None:
                pytest.fail("debootstrap is not installed: apt-get install debootstrap (.ci/run does it)")
            draft = CACHE / "draft"
            shutil.rmtree(draft, ignore_errors=True)
            make = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(draft), MIRROR]
            done = subprocess.run(make, stdout=subprocess.PIPE, text=True, timeout=400)
            assert done.returncode == 0, done.stdout[-2000:]
            draft.rename(folder)
    return folder
