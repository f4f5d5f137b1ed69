"""Causes outside the way of the data: a tracker, a checkpoint, a download, a lock, a question to the user."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from tasks.core.units import format_duration, size
from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.signs import (
    DISKS,
    EVENT_LOOPS,
    LOCKS,
    PIPES,
    POLLS,
    SOCKETS,
    STEADY,
    TRACKER_CALLS,
    Signs,
)
from tasks.diagnosis.observation.locks import LOCK_SUFFIX, FileLock
from tasks.diagnosis.observation.procfs import OpenFile
from tasks.diagnosis.observation.record import ObservedProcess
from tasks.diagnosis.observation.sockets import Connection

SAVING_CALLS = (
    "torch/serialization.py",
    "safetensors/",
    "torch/distributed/checkpoint",
    "save_checkpoint",
    "save_pretrained",
    "save_model",
)
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".distcp", ".npz", ".tmp")
DOWNLOAD_CALLS = (
    "huggingface_hub/",
    "urllib/request.py",
    "http/client.py",
    "httpx/",
    "httpcore/",
    "requests/",
    "urllib3/",
    "aiohttp/",
    "fsspec/",
    "botocore/",
    "gcsfs/",
)
LOCK_CALLS = ("filelock/", "fasteners/", "portalocker/", "flock")
INPUT_CALLS = ("pdb.py", "bdb.py", "code.py", "getpass.py", "IPython/", "input (")
NAPS = ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep")
"""What a process does that sleeps for a time of its own choice."""
NO_ROOM = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded")
TERMINALS = ("n_tty_read", "tty_read", "wait_woken")
PROMPT = re.compile(
    r"(?:\((?:Pdb|ipdb|Py)\+?\+?\)|ipdb>|>>>|\?|\[[yYnN]/[yYnN]\]|\b[Pp]assword[^:]*:|[Cc]hoice:|[Kk]ey:) ?$"
)
"""The end of a line that asks its user for an answer, and has no end of line."""


def _waits_for_data(signs: Signs) -> str | None:
    return "the training waits for data" if signs.is_waiting_for_data else None


def _tracker(signs: Signs) -> Support | None:
    lines = signs.log_lines
    ends_in_wandb = bool(lines) and lines[-1].lstrip().startswith("wandb:")
    for rank in signs.sleeping_ranks():
        call = signs.calls(rank, *TRACKER_CALLS)
        trackers = [one for one in signs.seen.of("tracker") if one.rank == rank.rank]
        links = [link for one in trackers for link in one.connections]
        silent = [link for link in links if link.state == "syn_sent" or link.waits_bytes]
        if call is None and not (silent and ends_in_wandb and not _saves(signs, rank)):
            continue
        is_answered = any(map(signs.receives, trackers)) or any(map(signs.sends, trackers))
        link = next(iter(silent or [*links, *rank.connections]), None)
        return Support(
            f"rank {rank.rank} waits for its tracker, which waits for its server",
            "WANDB_MODE=offline and wandb sync later; Tarmac's own runs never wait for wandb",
            {
                "stack": call,
                "connection": f"{link.remote}, {link.state}" if link is not None else None,
                "workers": "served" if signs.is_served else f"{len(signs.living_workers)} living",
            },
            {"rank": rank.rank},
            severity="warning" if is_answered else None,
            may_be_a_pause=True,
        )
    return None


def _slow_tracker(signs: Signs) -> Support | None:
    """Find a rank that goes on, and spends its time in the calls of its tracker."""
    for rank in signs.ranks if signs.goes_on else ():
        call = signs.calls(rank, *TRACKER_CALLS)
        waits = 1 - rank.share("runs")
        if call is None or signs.sleeps(rank) or waits < 0.4:
            continue
        return Support(
            f"rank {rank.rank} trains, and waits for its tracker",
            "log less often, or leave files and tables to the end; Tarmac's own runs never wait for wandb",
            {"stack": call, "called from": signs.own_call(rank), "rests": f"{waits:.0%} of the time"},
            {"rank": rank.rank},
        )
    return None


def _no_tracker_runs(signs: Signs) -> str | None:
    is_traced = signs.ranks and all(rank.stack for rank in signs.ranks)
    return "no tracker runs" if is_traced and not signs.seen.of("tracker") else None


def _saving(signs: Signs) -> Iterator[tuple[ObservedProcess, str | None, OpenFile | None]]:
    """Yield each rank that saves and waits, with the call that saves and the file of weights."""
    for rank in signs.ranks:
        if rank.last is None or signs.runs(rank) or signs.waits_for_data(rank) or signs.in_collective(rank):
            continue
        call, file = signs.calls(rank, *SAVING_CALLS), _saves(signs, rank)
        saves = call is not None or _opened(rank).endswith(WEIGHTS)
        if file is not None or (saves and rank.share(*DISKS, *PIPES) >= STEADY):
            yield rank, call, file


def _checkpoint(signs: Signs) -> Support | None:
    for rank, call, file in _saving(signs):
        if signs.writes(rank):
            continue
        path = file.path if file is not None else _opened(rank)
        return Support(
            f"rank {rank.rank} writes a checkpoint to a file system that does not answer",
            f"look at the file system of {os.path.dirname(path) if path else 'the checkpoints'} "
            "(df, mount, its server); training goes on when the write returns",
            {
                "waits in": next(iter(rank.waits or {}), ""),
                "written": f"nothing in {rank.seconds:.0f} s",
                "stack": call,
            },
            {"rank": rank.rank, **({"file": os.path.basename(path)} if path else {})},
            may_be_a_pause=True,
        )
    return None


def _opened(rank: ObservedProcess) -> str:
    """Return the path that the rank is opening, which has no descriptor yet."""
    name, _, path = (rank.last.syscall or "" if rank.last is not None else "").partition(" ")
    return path if name == "openat" else ""


def _slow_checkpoint(signs: Signs) -> Support | None:
    for rank, call, file in _saving(signs):
        if not signs.writes(rank):
            continue
        written = rank.grown("dirtied_bytes") or rank.grown("written_bytes") or 0
        rate = f"{size(written / rank.seconds)}/s" if written and rank.seconds else None
        return Support(
            f"rank {rank.rank} writes a checkpoint" + (f" at {rate}" if rate else ", piece by piece"),
            "wait, write to a faster disk, or save less often; it goes on by itself",
            {"rate": rate, "stack": call},
            {"rank": rank.rank, **({"file": os.path.basename(file.path)} if file else {})},
        )
    return None


def _saves(signs: Signs, rank: ObservedProcess) -> OpenFile | None:
    """Return the file of weights that the rank writes to and waits for."""
    if rank.first is None or rank.last is None or rank.share(*DISKS, *PIPES) < STEADY:
        return None
    opened = [file for file in rank.files if file.is_writable and file.is_regular and _is_of_weights(file)]
    written = [file for file in opened if rank.last.syscall == f"write {file.fd}"]
    return next(iter(written or opened), None)


def _is_of_weights(file: OpenFile) -> bool:
    is_log = file.fd <= 2 or file.path.endswith((".log", ".lock", ".txt", ".jsonl"))
    in_checkpoints = "checkpoint" in os.path.basename(os.path.dirname(file.path))
    return not is_log and (file.path.endswith(WEIGHTS) or in_checkpoints)


def _no_weights_are_open(signs: Signs) -> str | None:
    opened = [file for rank in signs.ranks for file in rank.files]
    if not opened or not all(rank.stack for rank in signs.ranks):
        return None
    is_open = any(file.is_writable and file.path.endswith(WEIGHTS) for file in opened)
    return None if is_open or any(map(_opened, signs.ranks)) else "no file of weights is open"


def _download(signs: Signs) -> Support | None:
    """Find a rank, or a reader that a rank waits for, whose peer sends nothing."""
    for process in _downloading(signs):
        link = _open_links(process)[0]
        if signs.receives(process) or signs.sends(process):
            continue
        partial = next((file for file in process.files if ".incomplete" in file.path), None)
        return Support(
            f"{_name(process)} waits for an answer from {link.remote}",
            "look at that server; a time limit on each request and a retry get over it. Or download ahead: "
            "tarmac fetch CONFIG, or huggingface-cli download; then HF_HUB_OFFLINE=1",
            {
                "connection": f"{link.remote}, {link.state}",
                "silent for": format_duration(link.quiet_s or process.seconds),
                "file": os.path.basename(partial.path) if partial is not None else None,
                "command": " ".join(process.command)[:160] if process.role == "helper" else None,
                "stack": signs.calls(process, *DOWNLOAD_CALLS) or signs.own_call(process),
            },
            {"rank": process.rank, **({"worker": process.pid} if process.role != "rank" else {})},
            may_be_a_pause=True,
        )
    return None


def _slow_download(signs: Signs) -> Support | None:
    """Find a process that waits for a transfer which goes on, slowly."""
    for process in _downloading(signs):
        moved = [
            (count, f"{verb} {link.remote}")
            for link in process.connections
            for count, verb in (
                (link.received_bytes, "receives from"),
                (link.sent_bytes, "sends to"),
            )
            if count
        ]
        if not moved or not process.seconds:
            continue
        count, how = max(moved)
        rate = f"{size(count / process.seconds)}/s"
        return Support(
            f"{_name(process)} {how} at {rate}, and the training waits for it",
            "wait, it goes on by itself; or copy what it needs to a local disk before: tarmac fetch CONFIG",
            {"rate": rate, "stack": signs.calls(process, *DOWNLOAD_CALLS) or signs.own_call(process)},
            {"rank": process.rank, **({"worker": process.pid} if process.role != "rank" else {})},
        )
    return None


def _downloading(signs: Signs) -> Iterator[ObservedProcess]:
    """Yield the processes that wait at an open connection for what the training needs to go on."""
    trackers = {link.remote for one in signs.seen.of("tracker") for link in one.connections}
    for rank in signs.sleeping_ranks():
        if (
            not _waits_at_link(rank, trackers)
            or signs.in_collective(rank)
            or signs.calls(rank, *TRACKER_CALLS)
        ):
            continue
        is_partial = any(".incomplete" in file.path for file in rank.files)
        has_begun = signs.seen.workers_of(rank) or len(signs.ranks) > 1 or signs.progress
        # The event loop of a server or a notebook rests beside open connections, too. Where stacks are known,
        # they tell whether it is a client's.
        is_client = rank.stack is None and not has_begun and rank.share(*EVENT_LOOPS) < STEADY
        if signs.calls(rank, *DOWNLOAD_CALLS) or is_partial or is_client:
            yield rank
    if signs.is_starved:
        # A worker that waits to be asked for more also polls, maybe beside a connection that it keeps for
        # later; but while the rank waits for data, one of them has work to do.
        readers = [*signs.living_workers, *signs.helpers]
        waiting = [one for one in readers if _waits_at_link(one) and not signs.moves(one)]
        yield from sorted(waiting, key=lambda one: (one.role != "helper", signs.own_call(one) is None))


def _waits_at_link(process: ObservedProcess, others: Collection[str] = ()) -> bool:
    """Return whether it waits at a connection to none of `others`; an asyncio client does so in a thread."""
    links = [link for link in _open_links(process) if link.remote not in others]
    return bool(links) and process.share(*SOCKETS, *POLLS, *LOCKS) >= STEADY


def _open_links(process: ObservedProcess) -> list[Connection]:
    """Return the open connections; those come first whose peer was asked and has not answered."""
    links = [link for link in process.connections if link.state in ("established", "syn_sent", "close_wait")]
    return sorted(links, key=lambda link: (link.state != "syn_sent", -(link.quiet_s or 0.0)))


def _name(process: ObservedProcess) -> str:
    return f"rank {process.rank}" if process.role == "rank" else f"{process.role} {process.pid}"


def _no_connection_is_open(signs: Signs) -> str | None:
    processes = [*signs.ranks, *signs.living_workers, *signs.helpers]
    is_seen = all(one.last is not None and one.last.files is not None for one in processes)
    links = [link for one in processes for link in one.connections if link.state != "close_wait"]
    return "no connection is open" if signs.ranks and is_seen and not links else None


def _input(signs: Signs) -> Support | None:
    for rank in signs.sleeping_ranks():
        stdin = next((file for file in rank.files if file.fd == 0), None)
        if stdin is None or stdin.path == os.devnull:
            continue
        reads = rank.last is not None and rank.last.syscall == "read 0"
        call = signs.calls(rank, *INPUT_CALLS)
        question = _question(signs)
        asks = question is not None and rank.share(*TERMINALS, *PIPES, *POLLS, *SOCKETS) >= STEADY
        if not reads and call is None and not asks:
            continue
        is_debugger = call is not None and any(name in call for name in ("pdb.py", "bdb.py", "IPython/"))
        return Support(
            f"rank {rank.rank} waits for "
            + ("commands to a debugger" if is_debugger else "an answer from its user"),
            "remove the breakpoint, or answer it in its terminal"
            if is_debugger
            else "answer it in its terminal, or pass the option that answers it; a job has nobody to ask",
            {"question": question, "reads": stdin.path, "stack": signs.own_call(rank) or call},
            {"rank": rank.rank},
        )
    return None


def _question(signs: Signs) -> str | None:
    log = signs.seen.log
    if log is None or not log.is_unfinished or not log.lines or not PROMPT.search(log.lines[-1]):
        return None
    return log.lines[-1].strip()[-160:]


def _lock(signs: Signs) -> Support | None:
    for process in (*signs.ranks, *signs.living_workers, *signs.helpers):
        lock = next((one for one in signs.seen.locks if process.pid in one.waiters), None)
        call = signs.calls(process, *LOCK_CALLS)
        if lock is None and (call is None or not signs.sleeps(process)):
            continue
        lock = lock or _held_by_others(signs)
        by = _holder(signs, lock) if lock is not None else None
        path = lock.path if lock is not None and lock.path else None
        return Support(
            f"{_name(process)} waits for the lock on {Path(path).name if path else 'a file'}"
            + (f", which {by} holds" if by else ""),
            f"see what {by} does: the lock is free when it ends"
            if by
            else "remove the lock's file if nobody holds it",
            {
                "lock": path,
                "held by": " ".join(lock.command)[:160] if lock is not None else None,
                "stack": call,
            },
            {"rank": process.rank, **({"file": path} if path else {})},
        )
    return None


def _held_by_others(signs: Signs) -> FileLock | None:
    """Return the lock's file that another process holds, if there is only one: below the folder that the
    training runs in, else anywhere."""
    asking = {one.pid for one in signs.seen.processes if signs.calls(one, *LOCK_CALLS)}
    held = [one for one in signs.seen.locks if one.path.endswith(LOCK_SUFFIX) and one.holder not in asking]
    near = [one for one in held if Path(one.path).is_relative_to(signs.seen.folder or ".")]
    likely = near or held
    return likely[0] if len(likely) == 1 else None


def _holder(signs: Signs, lock: FileLock) -> str:
    own = next((one for one in signs.seen.processes if one.pid == lock.holder), None)
    return f"process {lock.holder}" if own is None else f"{_name(own)} (process {own.pid})"


def _no_lock_is_held(signs: Signs) -> str | None:
    is_traced = signs.ranks and all(rank.stack for rank in signs.ranks)
    return "no file's lock is held" if is_traced and not signs.seen.locks else None


def _disk_full(signs: Signs) -> Support | None:
    """Find a process that tries again and again where no room is left: it sleeps in between, and its log says
    so or a file system that it writes to is full. It may write what little fits, each time."""
    lines = signs.log_lines
    last_step = max((at for at, line in enumerate(lines) if signs.trainer.progress(line)), default=-1)
    stated = [line for line in lines[last_step + 1 :] if NO_ROOM.search(line)]
    for process in (*signs.ranks, *signs.living_workers):
        rests = process.share(*NAPS) >= 0.5 and not signs.moves(process)
        call = signs.calls(process, *SAVING_CALLS)
        is_full = bool(signs.seen.full) and not signs.goes_on
        if not (rests and (stated or is_full)) and not (is_full and call is not None):
            continue
        return Support(
            f"{_name(process)} cannot write: no room is left"
            + (f" in {signs.seen.full[0]}" if signs.seen.full else ""),
            "make room there (df -h, df -i); it goes on by itself if it tries again",
            {
                "full": ", ".join(signs.seen.full[:3]) or None,
                "log": stated[-1].strip()[:160] if stated else None,
                "stack": call or signs.own_call(process),
            },
            {"rank": process.rank},
        )
    return None


WAITING = (
    Cause("disk.full", "error", _disk_full, (_waits_for_data,)),
    Cause("lock.waiting", "error", _lock, (_no_lock_is_held,)),
    Cause("input.waiting", "error", _input, (_waits_for_data,), yields_to=("lock.waiting",)),
    Cause("tracker.slow", "warning", _slow_tracker, yields_to=("tracker.blocked",)),
    Cause(
        "tracker.blocked",
        "error",
        _tracker,
        (_waits_for_data, _no_tracker_runs),
        yields_to=("input.waiting",),
    ),
    Cause(
        "checkpoint.stalled",
        "error",
        _checkpoint,
        (_waits_for_data, _no_weights_are_open),
        yields_to=("lock.waiting",),
    ),
    Cause("checkpoint.slow", "warning", _slow_checkpoint, yields_to=("checkpoint.stalled",)),
    Cause(
        "download.blocked",
        "error",
        _download,
        (_no_connection_is_open,),
        yields_to=("tracker.blocked", "lock.waiting", "input.waiting"),
    ),
    Cause(
        "download.slow",
        "warning",
        _slow_download,
        (_no_connection_is_open,),
        yields_to=("download.blocked", "tracker.blocked", "checkpoint.stalled"),
    ),
)
