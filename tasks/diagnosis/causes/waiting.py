"""Causes outside the way of the data: a tracker, a checkpoint, a download, a rank that does not come."""

from __future__ import annotations

import os

from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.signs import DISKS, MOVED_BYTES, PIPES, POLLS, SOCKETS, STEADY, Signs
from tasks.diagnosis.observation.procfs import OpenFile
from tasks.diagnosis.observation.record import ObservedProcess

SOME_CPU_S = 0.03
"""CPU time of a rank between the looks: a rank that waits for an answer uses none, one that gets the answer
piece by piece does."""
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
TORCH_CALLS = ("torch/", "threading.py", "multiprocessing/", "contextlib.py")


def _waits_for_data(signs: Signs) -> str | None:
    return "the training waits for data" if signs.is_waiting_for_data else None


def _tracker(signs: Signs) -> Support | None:
    lines = signs.seen.log.lines if signs.seen.log is not None else ()
    ends_in_wandb = bool(lines) and lines[-1].lstrip().startswith("wandb:")
    for rank in signs.sleeping_ranks():
        call = signs.calls(rank, *TRACKER_CALLS)
        trackers = [one for one in signs.seen.of("tracker") if one.rank == rank.rank]
        links = [link for one in trackers for link in one.connections]
        silent = [link for link in links if link.state == "syn_sent" or link.waits_bytes]
        if call is None and not (silent and ends_in_wandb and not _saves(signs, rank)):
            continue
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
        )
    return None


def _no_tracker_runs(signs: Signs) -> str | None:
    is_traced = signs.ranks and all(rank.stack for rank in signs.ranks)
    return "no tracker runs" if is_traced and not signs.seen.of("tracker") else None


def _checkpoint(signs: Signs) -> Support | None:
    for rank in signs.ranks:
        if rank.last is None or signs.runs(rank) or signs.waits_for_data(rank):
            continue
        call, file = signs.calls(rank, *SAVING_CALLS), _saves(signs, rank)
        if call is None and file is None:
            continue
        written = f"{file.offset or 0:,} bytes, no more in {rank.seconds:.0f} s" if file else None
        return Support(
            f"rank {rank.rank} writes a checkpoint to a file system that does not answer",
            f"look at the file system of {os.path.dirname(file.path) if file else 'the checkpoints'} "
            "(df, mount, its server); training goes on when the write returns",
            {"waits in": next(iter(rank.waits or {}), ""), "written": written, "stack": call},
            {"rank": rank.rank, **({"file": os.path.basename(file.path)} if file else {})},
        )
    return None


def _saves(signs: Signs, rank: ObservedProcess) -> OpenFile | None:
    """Return a file of weights that the rank has open for writing but did not write to between the looks."""
    if rank.first is None or rank.last is None or not signs.sleeps(rank):
        return None
    if rank.share(*DISKS, *PIPES) < STEADY:
        return None
    before = {(file.fd, file.path): file.offset for file in rank.first.files or ()}
    resting = [
        file
        for file in rank.files
        if file.is_writable and file.is_regular and before.get((file.fd, file.path)) == file.offset
    ]
    written = [file for file in resting if rank.last.syscall == f"write {file.fd}"]
    return next((file for file in written or resting if _is_of_weights(file)), None)


def _is_of_weights(file: OpenFile) -> bool:
    is_log = file.fd <= 2 or file.path.endswith((".log", ".lock", ".txt", ".jsonl"))
    in_checkpoints = "checkpoint" in os.path.basename(os.path.dirname(file.path))
    return not is_log and (file.path.endswith(WEIGHTS) or in_checkpoints)


def _no_weights_are_open(signs: Signs) -> str | None:
    opened = [file for rank in signs.ranks for file in rank.files]
    if not opened or not all(rank.stack for rank in signs.ranks):
        return None
    is_open = any(file.is_writable and file.path.endswith(WEIGHTS) for file in opened)
    return None if is_open else "no file of weights is open"


def _download(signs: Signs) -> Support | None:
    for rank in signs.sleeping_ranks():
        links = [link for link in rank.connections if link.state in ("established", "syn_sent", "close_wait")]
        is_silent = rank.share(*SOCKETS, *POLLS) >= STEADY and not _receives(rank)
        if not links or not is_silent or signs.in_collective(rank) or signs.calls(rank, *TRACKER_CALLS):
            continue
        call = signs.calls(rank, *DOWNLOAD_CALLS)
        partial = next((file for file in rank.files if ".incomplete" in file.path), None)
        has_begun = signs.seen.workers_of(rank) or len(signs.ranks) > 1 or signs.progress
        if call is None and partial is None and has_begun:
            continue
        read = rank.grown("read_bytes") or 0
        return Support(
            f"rank {rank.rank} waits for an answer from {links[0].remote}",
            "download ahead: tarmac fetch CONFIG, or huggingface-cli download; then HF_HUB_OFFLINE=1",
            {
                "connection": f"{links[0].remote}, {links[0].state}, {read} B in {rank.seconds:.0f} s",
                "file": os.path.basename(partial.path) if partial is not None else None,
                "stack": call,
            },
            {"rank": rank.rank},
        )
    return None


def _receives(rank: ObservedProcess) -> bool:
    """Return whether data arrives. No counter counts recv(2), but arriving data is written, kept or used."""
    if rank.first is None or rank.last is None:
        return False
    moved = max(rank.grown("read_bytes") or 0, rank.grown("written_bytes") or 0)
    kept = rank.last.resident_bytes - rank.first.resident_bytes
    return max(moved, kept) >= MOVED_BYTES or rank.last.cpu_s - rank.first.cpu_s > SOME_CPU_S


def _no_connection_is_open(signs: Signs) -> str | None:
    is_seen = all(rank.last is not None and rank.last.files is not None for rank in signs.ranks)
    links = [link for rank in signs.ranks for link in rank.connections if link.state != "close_wait"]
    return "no connection is open" if signs.ranks and is_seen and not links else None


def _desync(signs: Signs) -> Support | None:
    if len(signs.ranks) < 2 or _goes_on(signs):
        return None
    gone = [rank for rank in signs.ranks if rank.last is None]
    waiting = [rank for rank in signs.ranks if rank.last is not None]
    inside = [rank for rank in waiting if signs.in_collective(rank)]
    if not inside or any(map(signs.waits_for_data, signs.ranks)):
        return None
    places = {signs.calls(rank, "distributed_c10d.py") or "elsewhere" for rank in waiting}
    callers = {_caller(rank) for rank in inside}
    is_apart = len(places) > 1 or len(callers) > 1 or bool(gone)
    if not is_apart or not all(signs.sleeps(rank) or rank in inside for rank in waiting):
        return None
    shown = {f"rank {rank.rank}": _caller(rank) for rank in waiting}
    return Support(
        "the ranks wait for one another in different places",
        "give every rank as many batches: tarmac preflight counts them per rank and worker",
        {**shown, **{f"rank {rank.rank}": "gone" for rank in gone}},
        {"rank": (gone or waiting)[0].rank},
    )


def _caller(rank: ObservedProcess) -> str:
    """Return the innermost call of a rank that is not torch's."""
    own = (call for call in rank.stack or () if not any(one in call for one in TORCH_CALLS))
    return next(own, "unseen")


def _log_goes_on(signs: Signs) -> str | None:
    return "the log shows progress meanwhile" if _goes_on(signs) else None


def _only_one_rank(signs: Signs) -> str | None:
    return "there is one rank" if len(signs.ranks) == 1 else None


def _goes_on(signs: Signs) -> bool:
    """Return whether the log, which shows progress, was written during the observation.

    One look at the stacks of ranks that train finds them apart as well: one in the exchange of a step,
    another just before it.
    """
    log = signs.seen.log
    return log is not None and log.quiet_s < signs.seen.seconds and bool(signs.progress)


WAITING = (
    Cause("tracker.blocked", "error", _tracker, (_waits_for_data, _no_tracker_runs)),
    Cause("checkpoint.stalled", "error", _checkpoint, (_waits_for_data, _no_weights_are_open)),
    Cause("download.blocked", "error", _download, (_waits_for_data, _no_connection_is_open)),
    Cause(
        "collective.desync",
        "error",
        _desync,
        (_log_goes_on, _only_one_rank),
        yields_to=("tracker.blocked", "checkpoint.stalled", "download.blocked"),
    ),
)
