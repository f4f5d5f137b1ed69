"""Causes on the data's way to the training: filter, shuffle buffer, decoding, disk, and the workers."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

from tasks.core.units import counted, format_duration, size
from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.signs import DISKS, LOCKS, MOVED_BYTES, POLLS, STEADY, Signs
from tasks.diagnosis.observation.record import ObservedProcess

ENOUGH_SAMPLES = 8
"""Of one filter's refusals; with fewer it may be a bad patch of a sound dataset."""
AGAIN = 3
"""So many times over is no chance: a file or a worker's share is being read in circles."""
LARGE_PIXELS = 12_000_000
SLOW_BYTES_PER_S = 50e6
"""A single hard disk reads tars at twice that."""
KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU})
DECODING = ("PIL/ImageFile.py", "PIL/Image.py", "torchvision/", "turbojpeg", "cv2", "albumentations")


def _spinning(signs: Signs) -> Support | None:
    found = signs.filtered
    if not signs.is_starved or not signs.advances or found is None:
        return None
    if found.samples < ENOUGH_SAMPLES or found.refused < found.samples:
        return None
    rule = signs.trainer.rules(signs.command)[0]
    workers = counted(len(signs.living_workers), "worker")
    pid = signs.seen.pid
    return Support(
        f"{workers} read and drop everything ({found.why}). It will never start.",
        f"give every sample what the filter asks for ({found.why}); they have {' '.join(found.members)}",
        {
            "workers": f"+{size(signs.read_bytes)} read, 0 batches",
            "data": f"{Path(found.shard).name}: 0 of {found.samples:,} samples pass; they have "
            + " ".join(found.members),
            "rule": rule.place(signs.command),
        },
        {"shard": Path(found.shard).name},
        command=f"kill -INT {pid}; tarmac preflight -- {shlex.join(signs.seen.command)}",
    )


def _not_spinning(signs: Signs) -> str | None:
    found = signs.filtered
    if found is not None and found.refused < found.samples:
        return (
            f"{found.samples - found.refused:,} of {found.samples:,} samples just passed have what is needed"
        )
    if signs.is_delivered:
        return f"batches come ({size(signs.delivered_bytes)} handed over)"
    if signs.is_served:
        return "the workers wait to be asked for more"
    if signs.living_workers and signs.read_bytes is not None and not any(map(signs.moves, signs.readers)):
        return "the workers read nothing"
    return None


def _filling(signs: Signs) -> Support | None:
    read, data, found = signs.samples_read, signs.data, signs.filtered
    if not signs.is_starved or not signs.has_never_delivered or read is None or data is None:
        return None
    if (
        read >= data.buffered
        or _starved(signs) is not None
        or (found is not None and found.refused == found.samples)
    ):
        return None
    if not any(map(signs.moves, signs.readers)):
        return None
    rate = (signs.read_rate or 0.0) / (signs.sample_bytes or 1.0) / len(signs.living_workers)
    left = format_duration((data.buffered - read) / rate) if rate > 0 else "unknown"
    return Support(
        f"each worker fills its shuffle buffer: {read:,} of {data.buffered:,} samples, {left} left",
        "wait, read from a faster disk, or make the buffer's start smaller; it starts by itself",
        {
            "rate": f"{size(signs.read_rate)}/s, {rate:.1f} samples/s per worker",
            "needs": f"{data.buffered:,} samples of {size(signs.sample_bytes)} per worker",
        },
    )


def _not_filling(signs: Signs) -> str | None:
    read, data = signs.samples_read, signs.data
    if read is not None and data is not None and data.buffered and read >= data.buffered:
        return f"{read:,} samples read per worker; it needs {data.buffered:,}"
    if signs.is_delivered:
        return "batches come"
    if signs.living_workers and signs.read_bytes is not None and not any(map(signs.moves, signs.readers)):
        return "the workers read nothing"
    return None


def _decoding(signs: Signs) -> Support | None:
    working = [one for one in signs.readers if one.share("runs") >= STEADY]
    if not signs.is_waiting_for_data or len(working) < len(signs.readers) or not working:
        return None
    pixels = signs.pixels
    calls = [call for one in working if (call := signs.calls(one, *DECODING)) is not None]
    found = signs.filtered
    if pixels < LARGE_PIXELS or (found is not None and found.refused == found.samples):
        return None
    return Support(
        f"decoding holds the training up: images of {pixels / 1e6:.0f} megapixels",
        "store them smaller: tarmac build with dataset.image.max_side, such as 512",
        {
            "workers": f"{len(working)} of {len(signs.readers)} compute all the time",
            "read": f"{size(signs.read_rate)}/s",
            **({"stacks": calls[0]} if calls else {}),
        },
        severity="warning" if signs.is_delivered else "error",
    )


def _not_decoding(signs: Signs) -> str | None:
    if signs.is_served:
        return "the workers wait to be asked for more"
    if signs.readers and all(one.share("runs") < 0.1 for one in signs.readers) and signs.living_workers:
        return "the workers compute nothing"
    return None


def _disk(signs: Signs) -> Support | None:
    slow = [one for one in signs.readers if one.share(*DISKS) >= 0.5]
    rate = signs.read_rate
    if not slow or rate is None or rate >= SLOW_BYTES_PER_S:
        return None
    if signs.living_workers and not signs.is_waiting_for_data and not _mostly_polls(signs):
        return None
    tars = sorted({os.path.dirname(file) for one in slow for file in _read_files(one)})
    return Support(
        f"{len(slow)} of {len(signs.readers)} readers wait for the disk, which gives {size(rate)}/s",
        "copy the shards to a local disk, or look for who else uses this one",
        {"rate": f"{size(rate)}/s", **({"folder": tars[0]} if tars else {})},
        {} if not tars else {"file": next(file for one in slow for file in _read_files(one))},
        severity="warning" if rate > 0 else "error",
    )


def _mostly_polls(signs: Signs) -> bool:
    """Whether the rank waits at its queue more often than not. A training that still gets some batches
    does not wait all the time, and without a stack nothing else shows it."""
    return signs.main is not None and signs.main.share(*POLLS) >= 0.5 and not signs.runs(signs.main)


def _not_disk(signs: Signs) -> str | None:
    rate = signs.read_rate
    if not signs.readers or rate is None:
        return None
    if any(one.share(*DISKS) >= 0.2 for one in signs.readers):
        return None
    return f"{size(rate)}/s" if rate > 0 else "nobody waits for a disk"


def _deadlock(signs: Signs) -> Support | None:
    if not signs.is_starved:
        return None
    stuck = [one for one in signs.living_workers if _is_locked(signs, one)]
    if not stuck or len(stuck) + len(signs.idle_workers) < len(signs.living_workers):
        return None
    call = next((one.stack[0] for one in stuck if one.stack), None)
    context = next((found for one in stuck if (found := _own_call(one)) is not None), None)
    return Support(
        f"{len(stuck)} of {counted(len(signs.living_workers), 'worker')} wait for a lock nobody releases",
        "start the workers by forkserver or spawn (multiprocessing_context), or take the lock's owner "
        "out of the process before the workers are forked",
        {
            "workers": f"asleep in {next(iter(stuck[0].waits or {}), 'futex')}, 0 bytes read, no CPU",
            **({"stack": call} if call else {}),
            **({"called from": context} if context and context != call else {}),
        },
        {"worker": stuck[0].pid},
    )


def _is_locked(signs: Signs, worker: ObservedProcess) -> bool:
    """Whether it sleeps on a lock and no thread of it waits for anything that could come from outside."""
    threads = worker.last.threads if worker.last is not None else ()
    return (
        worker.share(*LOCKS) >= STEADY
        and signs.sleeps(worker)
        and not signs.moves(worker)
        and all((thread.wait or "").startswith(LOCKS) for thread in threads)
    )


def _own_call(worker: ObservedProcess) -> str | None:
    """The innermost call that is no part of Python's own library."""
    own = ("threading.py", "multiprocessing/", "queue.py", "logging/__init__.py", "concurrent/")
    return next((call for call in worker.stack or () if not any(one in call for one in own)), None)


def _not_deadlock(signs: Signs) -> str | None:
    if signs.is_delivered:
        return "batches come"
    awake = [one for one in signs.living_workers if signs.runs(one) or signs.moves(one)]
    if signs.living_workers and len(awake) == len(signs.living_workers):
        return "all workers work"
    if signs.is_served:
        return "the workers wait to be asked for more"
    return None


def _starved(signs: Signs) -> Support | None:
    data = signs.data
    if not signs.is_starved or data is None or not signs.has_never_delivered:
        return None
    for worker in signs.living_workers:
        owned = sum(tar.samples_before + tar.samples for tar in worker.passed)
        read = signs.samples_read_by(worker)
        if read is None or not 0 < owned < data.batch_size or read < AGAIN * owned:
            continue
        return Support(
            f"a worker reads the same few samples again and again; a batch takes {data.batch_size}",
            "fewer workers, a smaller batch, or more and evener shards: tarmac preflight counts them",
            {"seen": f"{counted(owned, 'sample')} of its own, read {read // owned:,} times over"},
            {"worker": worker.pid, "shard": Path(worker.passed[0].path).name},
        )
    return None


def _not_starved(signs: Signs) -> str | None:
    owned = [sum(tar.samples_before + tar.samples for tar in one.passed) for one in signs.living_workers]
    if signs.data is None or not owned or min(owned) < signs.data.batch_size:
        return None
    return f"every worker has {min(owned):,} samples or more; a batch takes {signs.data.batch_size}"


def _poison(signs: Signs) -> Support | None:
    """A file that is read again and again, while nothing is delivered."""
    if not signs.is_starved:
        return None
    for worker in signs.living_workers:
        paths = {path for path, _ in worker.places}
        read, size_read = worker.grown("read_bytes") or 0, max((at for _, at in worker.places), default=0)
        if len(paths) != 1 or worker.passed or read < max(AGAIN * size_read, MOVED_BYTES):
            continue
        path = next(iter(paths))
        return Support(
            f"worker {worker.pid} reads one file again and again and gets no sample out of it",
            f"look at {os.path.basename(path)}; a loader should give a sample up after its first failure",
            {"file": os.path.basename(path), "read": f"{size(read)} in {worker.seconds:.0f} s"},
            {"worker": worker.pid, "file": os.path.basename(path)},
        )
    return None


def _not_poison(signs: Signs) -> str | None:
    if signs.is_delivered:
        return "batches come"
    files = {path for one in signs.living_workers for path, _ in one.places}
    return f"{len(files)} files are read" if len(files) > len(signs.living_workers) > 0 else None


def _dead(signs: Signs) -> list[ObservedProcess]:
    return [one for one in signs.seen.of("worker") if one.last is None and one.exit_code]


def _killed(signs: Signs) -> Support | None:
    dead = [one for one in _dead(signs) if one.signal in KILLS]
    if not dead:
        return None
    one = dead[0]
    records = [record for record in signs.seen.kernel if f" {one.pid} " in f"{record} "]
    by = "by the kernel, for memory" if records else f"by {signal.Signals(one.signal).name}"
    remedy = (
        "fewer workers or a smaller prefetch; tarmac preflight gives the largest settings that fit"
        if records
        else "find out who sent the signal; without memory records it was no shortage that the kernel saw"
        if signs.seen.kernel
        else "look for an out-of-memory kill (dmesg); fewer workers or a smaller prefetch need less"
    )
    return Support(
        f"{counted(len(dead), 'worker')} of rank {one.rank} killed {by}",
        remedy,
        {
            "worker": one.pid,
            "signal": signal.Signals(one.signal).name,
            **({"kernel": records[0]} if records else {}),
        },
        {"rank": one.rank, "worker": one.pid},
    )


def _not_killed(signs: Signs) -> str | None:
    if _dead(signs) or not signs.living_workers:
        return None
    return f"all {len(signs.living_workers)} workers live"


def _crashed(signs: Signs) -> Support | None:
    dead = [one for one in _dead(signs) if one.signal not in KILLS]
    if not dead:
        return None
    one = dead[0]
    how = signal.Signals(one.signal).name if one.signal else f"exit code {one.exit_code >> 8}"
    records = [record for record in signs.seen.kernel if f"[{one.pid}]" in record]
    return Support(
        f"{counted(len(dead), 'worker')} of rank {one.rank} crashed ({how})",
        "set PYTHONFAULTHANDLER=1 and start it again: the log then names the line that crashes",
        {"worker": one.pid, "how": how, **({"kernel": records[0]} if records else {})},
        {"rank": one.rank, "worker": one.pid},
    )


def _loader_bound(signs: Signs) -> Support | None:
    main = signs.main
    if main is None or not signs.is_delivered or not signs.is_waiting_for_data or signs.runs(main):
        return None
    waits = main.share("poll_schedule_timeout", "do_poll", "do_sys_poll", *LOCKS)
    return Support(
        f"it trains, and waits for data {waits:.0%} of the time",
        "tarmac bench finds the number of workers that feeds it",
        {"read": f"{size(signs.read_rate)}/s", "workers": len(signs.living_workers)},
    )


LOADING = (
    Cause("worker.killed", "error", _killed, _not_killed),
    Cause("worker.crashed", "error", _crashed, _not_killed),
    Cause("filter.spinning", "error", _spinning, _not_spinning),
    Cause("worker.starved", "error", _starved, _not_starved),
    Cause("sample.poison", "error", _poison, _not_poison),
    Cause("shuffle.filling", "warning", _filling, _not_filling),
    Cause("decode.slow", "error", _decoding, _not_decoding),
    Cause("disk.slow", "error", _disk, _not_disk),
    Cause("worker.deadlock", "error", _deadlock, _not_deadlock),
    Cause("loader.bound", "warning", _loader_bound, lambda signs: None),
)


def _read_files(process: ObservedProcess) -> list[str]:
    files = process.last.files if process.last is not None else None
    return [file.path for file in files or () if file.is_regular and not file.is_writable]
