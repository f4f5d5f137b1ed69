"""A real Slurm of two emulated nodes on this machine, for tests: no systemd, no containers, loopback only.

    python -m tests.slurm_lab start|stop|status FOLDER       then: export SLURM_CONF=FOLDER/slurm.conf

Everything lies in FOLDER, whose owner must be the one who starts it or root (munge insists). Jobs really
run, as whoever started it. There is no accounting, as on many a cluster whose `sacct` nobody may ask, unless
TARMAC_TEST_SLURM is `accounting`: then slurmdbd and a MariaDB keep it, with limits of accounts and QOS.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.services import free_port, until

NODES = 2
CPUS = 4
"""Cores that a node claims, whatever the machine has."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
{accounting}
KillWait=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdTimeout=10
ReturnToService=2
{loopback}
NodeName=DEFAULT CPUs={cpus} RealMemory=4000 State=UNKNOWN
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=graced Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket
AccountingStorageEnforce=limits,qos"""
DATABASE = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
{loopback}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm_acct
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


def has_accounting() -> bool:
    return os.environ.get("TARMAC_TEST_SLURM") == "accounting"


def missing() -> list[str]:
    """Which of the programs this machine lacks."""
    wanted = (*PROGRAMS, "slurmdbd", "mariadbd") if has_accounting() else PROGRAMS
    return [name for name in wanted if shutil.which(name) is None]


@contextmanager
def slurm_lab(folder: Path) -> Iterator[Path]:
    """A running Slurm; the path of its slurm.conf, which clients look for in SLURM_CONF."""
    try:
        yield start(folder)
    finally:
        stop(folder)


@contextmanager
def slurm_or_skip(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running Slurm; the test is skipped where there is none, and fails in CI."""
    if lacks := missing():
        reason = f"{', '.join(lacks)} not installed: apt-get install slurm-wlm munge (.ci/run does it)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = factory.mktemp("slurm")
    for parent in (folder, folder.parent):
        parent.chmod(0o755)
    with slurm_lab(folder):
        yield folder


def start(folder: Path) -> Path:
    if _pids(folder):
        raise SystemExit(f"a Slurm runs in {folder} already")
    for name in ("munge", "state", "spool", "log"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    conf = folder / "slurm.conf"
    port = free_port()
    conf.write_text(_conf(folder, port))
    (folder / "slurmdbd.conf").write_text(
        DATABASE.format(port=port, user=_user(), folder=folder, loopback=_loopback())
    )
    (folder / "slurmdbd.conf").chmod(0o600)
    munge = {
        "socket": folder / "munge/socket",
        "key-file": key,
        "pid-file": folder / "munged.pid",
        "seed-file": folder / "munge/seed",
        "log-file": folder / "log/munged.log",
    }
    _run(
        ["munged", "--force", "--num-threads=2", *(f"--{name}={path}" for name, path in munge.items())], conf
    )
    if has_accounting():
        _start_accounting(folder, conf)
    _run(["slurmctld"], conf)
    for number in range(1, NODES + 1):
        _run(["slurmd", "-N", f"n{number}"], conf)
    count = ["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]
    until("Slurm's nodes", lambda: len(_run(count, conf).split()) == NODES, 30)
    return conf


def stop(folder: Path) -> None:
    """End the jobs while the daemons can, then the daemons, the controller first."""
    conf = folder / "slurm.conf"
    pids = _pids(folder)
    if "slurmctld" in pids:
        _run(["scancel", "-u", str(os.getuid())], conf)
        until("the jobs' end", lambda: not _run(["squeue", "-h"], conf).strip(), 30)
    order = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged")
    for name in sorted(pids, key=lambda name: order.index(name.partition("-")[0])):
        _end(pids[name])


def queue(conf: Path | None = None) -> list[str]:
    """The ids of the jobs that are queued or run in the Slurm of `conf`, or of this process."""
    return _run(["squeue", "-h", "-r", "-o", "%i"], conf or Path(os.environ["SLURM_CONF"])).split()


def _start_accounting(folder: Path, conf: Path) -> None:
    """Start slurmdbd and its database, and enter this user with an account."""
    database, socket_path = folder / "db", folder / "db.sock"
    if not (database / "mysql").exists():
        made = [f"--user={_user()}", f"--datadir={database}", "--auth-root-authentication-method=socket"]
        _run(["mariadb-install-db", "--no-defaults", *made, "--skip-test-db"], conf)
    served = [f"--user={_user()}", f"--datadir={database}", "--skip-networking", f"--socket={socket_path}"]
    with (folder / "log/mariadb.log").open("ab") as log:
        subprocess.Popen(
            ["mariadbd", "--no-defaults", *served, f"--pid-file={folder}/mariadbd.pid"],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    ping = ["mariadb-admin", "--no-defaults", f"--socket={socket_path}", "ping"]
    until("the database", lambda: subprocess.run(ping, capture_output=True).returncode == 0, 60)
    _run(["slurmdbd"], conf, MYSQL_UNIX_PORT=str(socket_path))
    show = ["sacctmgr", "-n", "-P", "show", "cluster"]
    env = {**os.environ, "SLURM_CONF": str(conf)}
    until("slurmdbd", lambda: subprocess.run(show, capture_output=True, env=env).returncode == 0, 60)
    for what in (
        ["cluster", "lab"],
        ["account", "lab", "Cluster=lab"],
        ["user", _user(), "Account=lab", "DefaultAccount=lab"],
    ):
        subprocess.run(["sacctmgr", "-i", "add", *what], env=env, capture_output=True, timeout=60)


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _loopback() -> str:
    """The daemons bind to the address of the host's name; where that is no loopback one they bind to all."""
    host = socket.gethostname().partition(".")[0]
    is_loopback = socket.gethostbyname(host).startswith("127.")
    return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if is_loopback else ""


def _conf(folder: Path, accounting_port: int) -> str:
    host = socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()}"
        for number in range(1, NODES + 1)
    )
    accounting = (
        ACCOUNTING.format(port=accounting_port, folder=folder)
        if has_accounting()
        else "AccountingStorageType=accounting_storage/none"
    )
    return CONF.format(
        host=host,
        port=free_port(),
        user=_user(),
        folder=folder,
        cpus=CPUS,
        nodes=nodes,
        accounting=accounting,
        loopback=_loopback(),
    )


def _run(command: list[str], conf: Path, **variables: str) -> str:
    env = {**os.environ, "SLURM_CONF": str(conf), **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command[0]}: {done.stderr or done.stdout}"
    return done.stdout


def _pids(folder: Path) -> dict[str, psutil.Process]:
    """The daemons that live, by name; a number in a file may be another process's by now."""
    found = {}
    for path in folder.glob("*.pid"):
        try:
            process = psutil.Process(int(path.read_text()))
            if process.name() == path.stem.partition("-")[0]:
                found[path.stem] = process
        except (ValueError, psutil.NoSuchProcess):
            continue
    return found


def _end(process: psutil.Process) -> None:
    """SIGTERM, then SIGKILL; one that its new parent has yet to reap is over."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 10
        try:
            process.send_signal(sign)
            while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(0.05)
        except psutil.NoSuchProcess:
            return
        if time.monotonic() < deadline:
            return


if __name__ == "__main__":
    action, place = sys.argv[1], Path(sys.argv[2]).absolute()
    if action == "start":
        print(f"export SLURM_CONF={start(place)}")
    elif action == "stop":
        stop(place)
    else:
        print(*sorted(_pids(place)), sep="\n")
        print(_run(["sinfo", "-N", "-l"], place / "slurm.conf"), _run(["squeue"], place / "slurm.conf"))
