"""Causes outside the data's way: a tracker, a checkpoint, a download, another rank that does not come."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.signs import DISKS, MOVED_BYTES, PIPES, POLLS, SOCKETS, STEADY, Signs
from tasks.diagnosis.observation.procfs import Connection, OpenFile
from tasks.diagnosis.observation.record import ObservedProcess

SOME_CPU_S = 0.03
"""Of a rank between the looks: who waits for an answer uses none, who gets one piece by piece does."""
TRACKER_CALLS = ("wandb/", "mlflow/", "comet_ml/", "trackio/")
SAVING_CALLS = (
    "torch/serialization.py",
    "safetensors/",
    "torch/distributed/checkpoint",
    "save_checkpoint",
    "save_pretrained",
)
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".distcp", ".npz", ".tmp")
DOWNLOAD_CALLS = (
    "huggingface_hub/",
    "urllib/request.py",
    "httpx/",
    "requests/",
    "urllib3/",
    "http/client.py",
    "fsspec/",
)
NETWORK_CALLS = ("socket.py", "ssl.py", "httpcore/", "http/client.py", "socket.create_connection", "select")


def _tracker(signs: Signs) -> Support | None:
    for rank in signs.sleeping_ranks():
        call = signs.calls(rank, *TRACKER_CALLS)
        trackers = [one for one in signs.seen.of("tracker") if one.rank == rank.rank]
        silent = [
            link
            for one in trackers
            for link in one.connections
            if link.state == "syn_sent" or link.waits_bytes
        ]
        if call is None and not (silent and _says_wandb(signs) and not _saves(signs, rank)):
            continue
        links = silent or [link for one in (*trackers, rank) for link in one.connections]
        return Support(
            f"rank {rank.rank} waits for its tracker, which waits for its server",
            "WANDB_MODE=offline and wandb sync later; Tarmac's own runs never wait for wandb",
            {
                **({"stack": call} if call else {}),
                **({"connection": f"{links[0].remote}, {links[0].state}"} if links else {}),
                "workers": "served" if signs.is_served else f"{len(signs.living_workers)} living",
            },
            {"rank": rank.rank},
        )
    return None


def _says_wandb(signs: Signs) -> bool:
    lines = signs.seen.log.lines if signs.seen.log is not None else ()
    return bool(lines) and lines[-1].lstrip().startswith("wandb:")


def _not_tracker(signs: Signs) -> str | None:
    if not signs.ranks:
        return None
    if signs.is_waiting_for_data:
        return "the training waits for data"
    if not signs.seen.of("tracker") and all(rank.stack for rank in signs.ranks) and _tracker(signs) is None:
        return "no tracker runs"
    return None


def _checkpoint(signs: Signs) -> Support | None:
    for rank in signs.ranks:
        if rank.last is None or signs.runs(rank) or signs.waits_for_data(rank):
            continue
        call, file = signs.calls(rank, *SAVING_CALLS), _saves(signs, rank)
        if call is None and file is None:
            continue
        where = {} if file is None else {"file": os.path.basename(file.path)}
        return Support(
            f"rank {rank.rank} writes a checkpoint to a file system that does not answer",
            f"look at the file system of {os.path.dirname(file.path) if file else 'the checkpoints'} "
            "(df, mount, its server); training goes on when the write returns",
            {
                "waits in": next(iter(rank.waits or {}), ""),
                **(
                    {"written": f"{file.offset or 0:,} bytes, no more in {rank.seconds:.0f} s"}
                    if file
                    else {}
                ),
                **({"stack": call} if call else {}),
            },
            {"rank": rank.rank, **where},
        )
    return None


def _saves(signs: Signs, rank: ObservedProcess) -> OpenFile | None:
    """A file of weights that the rank has open for writing, and has not written to between the looks."""
    if (
        rank.first is None
        or rank.last is None
        or rank.share(*DISKS, *PIPES) < STEADY
        or not signs.sleeps(rank)
    ):
        return None
    before = {(file.fd, file.path): file.offset for file in rank.first.files or ()}
    resting = [
        file
        for file in rank.last.files or ()
        if file.is_writable and file.is_regular and before.get((file.fd, file.path)) == file.offset
    ]
    written = [file for file in resting if rank.last.syscall == f"write {file.fd}"]
    return next((file for file in written or resting if _is_of_weights(file)), None)


def _is_of_weights(file: OpenFile) -> bool:
    is_log = file.fd <= 2 or file.path.endswith((".log", ".lock", ".txt", ".jsonl"))
    in_checkpoints = "checkpoint" in os.path.basename(os.path.dirname(file.path))
    return not is_log and (file.path.endswith(WEIGHTS) or in_checkpoints)


def _not_checkpoint(signs: Signs) -> str | None:
    if signs.is_waiting_for_data:
        return "the training waits for data"
    opened = [file for rank in signs.ranks for file in (rank.last.files if rank.last else None) or ()]
    if not opened or not all(rank.stack for rank in signs.ranks) or _checkpoint(signs) is not None:
        return None
    is_open = any(file.is_writable and file.path.endswith(WEIGHTS) for file in opened)
    return None if is_open else "no file of weights is open"


def _download(signs: Signs) -> Support | None:
    for rank in signs.sleeping_ranks():
        links = [link for link in rank.connections if link.state in ("established", "syn_sent", "close_wait")]
        call = signs.calls(rank, *DOWNLOAD_CALLS)
        in_network = rank.share(*SOCKETS, *POLLS) >= STEADY
        partial = [
            file for file in (rank.last.files if rank.last else None) or () if ".incomplete" in file.path
        ]
        read = rank.grown("read_bytes")
        if not links or not in_network or _receives(rank) or signs.in_collective(rank):
            continue
        if signs.calls(rank, *TRACKER_CALLS) or (
            call is None and not (partial or _is_before_training(signs, rank))
        ):
            continue
        return Support(
            f"rank {rank.rank} waits for an answer from {links[0].remote}",
            "download ahead: tarmac fetch CONFIG, or huggingface-cli download; then HF_HUB_OFFLINE=1",
            {
                "connection": f"{links[0].remote}, {links[0].state}, {read or 0} B in {rank.seconds:.0f} s",
                **({"file": os.path.basename(partial[0].path)} if partial else {}),
                **({"stack": call} if call else {}),
            },
            {"rank": rank.rank},
        )
    return None


def _receives(rank: ObservedProcess) -> bool:
    """Whether something comes: recv(2) is in no counter, but what comes is written, kept or worked on."""
    if rank.first is None or rank.last is None:
        return False
    moved = max(rank.grown("read_bytes") or 0, rank.grown("written_bytes") or 0)
    kept = rank.last.resident_bytes - rank.first.resident_bytes
    return max(moved, kept) >= MOVED_BYTES or rank.last.cpu_s - rank.first.cpu_s > SOME_CPU_S


def _is_before_training(signs: Signs, rank: ObservedProcess) -> bool:
    """Whether nothing shows that the training has begun: no worker, no other rank, no line of progress."""
    return not signs.seen.workers_of(rank) and len(signs.ranks) == 1 and not signs.progress


def _not_download(signs: Signs) -> str | None:
    if signs.is_waiting_for_data:
        return "the training waits for data"
    if signs.ranks and all(rank.last is not None and rank.last.files is not None for rank in signs.ranks):
        return None if any(_remote(rank.connections) for rank in signs.ranks) else "no connection is open"
    return None


def _remote(links: Sequence[Connection]) -> bool:
    return any(link.state != "close_wait" for link in links)


def _desync(signs: Signs) -> Support | None:
    if len(signs.ranks) < 2 or _goes_on(signs):
        return None
    gone = [rank for rank in signs.ranks if rank.last is None]
    waiting = [rank for rank in signs.ranks if rank.last is not None and not signs.waits_for_data(rank)]
    inside = [rank for rank in waiting if signs.in_collective(rank)]
    if not waiting or any(signs.waits_for_data(rank) for rank in signs.ranks):
        return None
    if any(cause(signs) for cause in (_tracker, _checkpoint, _download)):
        return None
    places = {signs.calls(rank, "distributed_c10d.py") or "elsewhere" for rank in waiting}
    callers = {_caller(rank) for rank in inside}
    is_apart = len(places) > 1 or len(callers) > 1 or bool(gone)
    if not inside or not is_apart or not all(signs.sleeps(rank) or rank in inside for rank in waiting):
        return None
    shown = {f"rank {rank.rank}": _caller(rank) for rank in waiting}
    return Support(
        "the ranks wait for one another in different places",
        "give every rank as many batches: tarmac preflight counts them per rank and worker",
        {**shown, **{f"rank {rank.rank}": "gone" for rank in gone}},
        {"rank": (gone or waiting)[0].rank},
    )


def _caller(rank: ObservedProcess) -> str:
    """The innermost call of a rank that is not torch's."""
    own = ("torch/", "threading.py", "multiprocessing/", "contextlib.py")
    calls = rank.stack or ()
    return next((call for call in calls if not any(one in call for one in own)), "unseen")


def _not_desync(signs: Signs) -> str | None:
    if _goes_on(signs):
        return "the log tells of progress meanwhile"
    return "there is one rank" if len(signs.ranks) == 1 and signs.main is not None else None


def _goes_on(signs: Signs) -> bool:
    """Whether the log, which tells of progress, was written while it was looked at. One look at the stacks of
    ranks that train finds them apart as well: one in the exchange of a step, another just before it."""
    log = signs.seen.log
    return log is not None and log.quiet_s < signs.seen.seconds and bool(signs.progress)


WAITING = (
    Cause("tracker.blocked", "error", _tracker, _not_tracker),
    Cause("checkpoint.stalled", "error", _checkpoint, _not_checkpoint),
    Cause("download.blocked", "error", _download, _not_download),
    Cause("collective.desync", "error", _desync, _not_desync),
)
