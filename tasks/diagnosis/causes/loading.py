"""Causes that keep the data from the training: a filter, the shuffle buffer, a sample, and the workers."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

from tasks.core.units import counted, format_duration, size
from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.signs import (
    ACCEPTS,
    LOCKS,
    MOVED_BYTES,
    STEADY,
    TRACKER_CALLS,
    Signs,
    own_call,
)
from tasks.diagnosis.observation.record import ObservedProcess

ENOUGH_SAMPLES = 8
"""The samples that a filter must refuse; with fewer it may be a bad patch of a sound dataset."""
AGAIN = 3
"""A file or a worker's share that is read so many times over is read in circles, not by chance."""
KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU})
EVENT = "wait (threading.py"
"""A wait for an event, which may come from outside of the process: a signal, or the end of a rest."""
MANY_SAMPLES = (
    *(".tar", ".parquet", ".arrow", ".jsonl", ".json", ".csv", ".tsv", ".txt", ".zip", ".gz", ".zst"),
    *(".h5", ".hdf5", ".mdb", ".bin", ".tfrecord", ".mds", ".npz", ".sqlite", ".db"),
)
"""Files that hold many samples: a pipeline may read one of them in circles."""


def _of(some: int, signs: Signs, does: str, do: str) -> str:
    """`1 of 2 workers reads`, `2 workers read`."""
    workers = len(signs.living_workers)
    number = counted(some, "worker") if some == workers else f"{some} of {counted(workers, 'worker')}"
    return f"{number} {does if some == 1 else do}"


def _batches_come(signs: Signs) -> str | None:
    return "batches come" if signs.is_delivered else None


def workers_are_served(signs: Signs) -> str | None:
    return "the workers wait to be asked for more" if signs.is_served else None


def _workers_read_nothing(signs: Signs) -> str | None:
    is_seen = signs.living_workers and signs.read_bytes is not None
    return "the workers read nothing" if is_seen and not any(map(signs.moves, signs.readers)) else None


def _spinning(signs: Signs) -> Support | None:
    if not signs.is_starved:
        return None
    return _dropping(signs) if signs.filtered is None else _filtering(signs) if signs.advances else None


def _filtering(signs: Signs) -> Support | None:
    """Find that the trainer's own filter, which is known, refuses the samples that were just read."""
    found = signs.filtered
    if found is None or found.samples < ENOUGH_SAMPLES or not found.drops_all:
        return None
    workers, members = counted(len(signs.living_workers), "worker"), " ".join(found.members)
    shard = Path(found.shard).name
    return Support(
        f"{workers} read and drop everything ({found.why}). It will never start.",
        f"give every sample what the filter asks for ({found.why}); they have {members}",
        {
            "workers": f"+{size(signs.read_bytes)} read, 0 batches",
            "data": f"{shard}: 0 of {found.samples:,} samples pass; they have {members}",
            "rule": signs.trainer.rules(signs.command)[0].place(signs.command),
        },
        {"shard": shard},
        command=f"kill -INT {signs.seen.pid}; tarmac preflight -- {shlex.join(signs.seen.command)}",
    )


def _dropping(signs: Signs) -> Support | None:
    """Find readers of any pipeline that read on, keep nothing and yield nothing.

    A buffer that fills up keeps what was read, so memory grows by it. It is an error where the same data was
    read again from its start, or where none of it can be decoded; else it may still be on its way to its
    first sample, as a training is that skips what it has trained on.
    """
    reading = [one for one in signs.readers if signs.moves(one)]
    others = [one for one in signs.readers if one not in reading]
    if signs.keeps_what_it_reads or signs.stopped_workers or not reading or not all(map(signs.runs, others)):
        return None
    undecodable, images = signs.undecodable
    is_junk = images >= ENOUGH_SAMPLES and undecodable == images
    again = [path for one in reading for path in one.read_again]
    call = next((call for one in reading if (call := signs.own_call(one)) is not None), None)
    kinds = signs.kinds
    read = [*again, *(path for path, _ in kinds), *(path for one in reading for path, _ in one.places)]
    file = Path(read[0]).name if read else None
    return Support(
        _of(len(reading), signs, "reads on and yields nothing", "read on and yield nothing")
        + (": no image can be decoded" if is_junk else f", {file} from its start again" if again else ""),
        "see what the pipeline drops: count what goes into each of its stages and what comes out, and let it "
        "report errors instead of swallowing them (webdataset: handler=wds.reraise_exception)",
        {
            "workers": f"+{size(signs.read_bytes)} read, 0 batches, memory as before",
            "data": f"{Path(kinds[0][0]).name}: {' '.join(kinds[0][1].members)}" if kinds else file,
            "images": f"{undecodable} of {images} cannot be decoded" if images else None,
            "stack": call,
        },
        {"shard": file} if file else {},
        severity=None if (again or is_junk) and signs.is_certain(signs.log_quiet_s) else "warning",
        may_be_a_pause=True,
    )


def _some_samples_pass(signs: Signs) -> str | None:
    found = signs.filtered
    if found is None or found.drops_all:
        return None
    passing = found.samples - found.refused
    return f"{passing:,} of {found.samples:,} samples just passed have what is needed"


def _bytes_are_delivered(signs: Signs) -> str | None:
    return f"batches come ({size(signs.delivered_bytes)} handed over)" if signs.is_delivered else None


def _filling(signs: Signs) -> Support | None:
    read, data = signs.samples_read, signs.data
    if not signs.is_starved or not signs.has_never_delivered or read is None or data is None:
        return None
    is_dropping = signs.filtered is not None and signs.filtered.drops_all
    if read >= data.buffered or is_dropping:
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


def _buffers_are_full(signs: Signs) -> str | None:
    read, data = signs.samples_read, signs.data
    if read is None or data is None or not data.buffered or read < data.buffered:
        return None
    return f"{read:,} samples read per worker; it needs {data.buffered:,}"


def workers_compute_nothing(signs: Signs) -> str | None:
    is_idle = signs.living_workers and all(one.share("runs") < 0.1 for one in signs.readers)
    return "the workers compute nothing" if is_idle else None


def _deadlock(signs: Signs) -> Support | None:
    stuck = [one for one in signs.living_workers if _is_locked(signs, one)]
    if not signs.is_starved or not stuck:
        return _own_deadlock(signs)
    if len(stuck) + len(signs.idle_workers) < len(signs.living_workers):
        return None
    call = next((one.stack[0] for one in stuck if one.stack), None)
    context = next((own for one in stuck if (own := signs.own_call(one)) is not None), None)
    return Support(
        _of(len(stuck), signs, "waits for a lock nobody releases", "wait for a lock nobody releases"),
        "start the workers by forkserver or spawn (multiprocessing_context), or take the lock's owner "
        "out of the process before the workers are forked",
        {
            "workers": f"asleep in {next(iter(stuck[0].waits or {}), 'futex')}, 0 bytes read, no CPU",
            "stack": call,
            "called from": context if context != call else None,
        },
        {"worker": stuck[0].pid},
    )


def _own_deadlock(signs: Signs) -> Support | None:
    """Find a rank that waits for a lock which none of its own threads will release, as all of them wait too.

    Only its stack shows a lock: an event with a time limit looks the same from outside.
    """
    main = signs.main
    if main is None or not main.stack or signs.in_collective(main) or signs.waits_for_data(main):
        return None
    others = {name: calls[0] for name, calls in main.other_stacks.items() if calls}
    rests = [calls for calls in main.other_stacks.values() if calls and EVENT in calls[0]]
    rests = [calls for calls in rests if not any(name in call for call in calls for name in TRACKER_CALLS)]
    may_wake = EVENT in main.stack[0] or any(own_call(calls) is not None for calls in rests)
    if may_wake or main.grown("switches") or not _is_locked(signs, main):
        return None
    return Support(
        f"rank {main.rank} waits for a lock, and all of its threads wait too: none will release it",
        "take both locks in the same order everywhere, and none twice (threading.RLock)",
        {"stack": main.stack[0], **others},
        {"rank": main.rank},
    )


def _is_locked(signs: Signs, process: ObservedProcess) -> bool:
    """Return whether it sleeps on a lock, and none of its threads does or awaits anything else. A thread that
    accepts connections, such as that of torch's shared memory, releases no lock."""
    threads = process.last.threads if process.last is not None else ()
    is_asleep = process.share(*LOCKS) >= STEADY and signs.sleeps(process) and not signs.moves(process)
    return is_asleep and all((thread.wait or "").startswith((*LOCKS, *ACCEPTS)) for thread in threads)


def _all_workers_work(signs: Signs) -> str | None:
    workers = signs.living_workers
    is_all = workers and all(signs.runs(one) or signs.moves(one) for one in workers)
    return "all workers work" if is_all else None


def _starved(signs: Signs) -> Support | None:
    data = signs.data
    if not signs.is_starved or data is None or not signs.has_never_delivered:
        return None
    for worker in signs.living_workers:
        owned, read = _samples_owned(worker), signs.samples_read_by(worker)
        if read is None or not 0 < owned < data.batch_size or read < AGAIN * owned:
            continue
        return Support(
            f"a worker reads the same few samples again and again; a batch takes {data.batch_size}",
            "fewer workers, a smaller batch, or more and evener shards: tarmac preflight counts them",
            {"seen": f"{counted(owned, 'sample')} of its own, read {read // owned:,} times over"},
            {"worker": worker.pid, "shard": Path(worker.passed[0].path).name},
        )
    return None


def _samples_owned(worker: ObservedProcess) -> int:
    return sum(tar.samples_before + tar.samples for tar in worker.passed)


def _workers_own_enough(signs: Signs) -> str | None:
    least = min(map(_samples_owned, signs.living_workers), default=0)
    if signs.data is None or not signs.living_workers or least < signs.data.batch_size:
        return None
    return f"every worker has {least:,} samples or more; a batch takes {signs.data.batch_size}"


def _poison(signs: Signs) -> Support | None:
    """Find a file of one sample that is read again and again, while nothing is delivered."""
    if not signs.is_starved or signs.keeps_what_it_reads:
        return None
    for worker in signs.living_workers:
        paths = {path for path, _ in worker.places}
        read, size_read = worker.grown("read_bytes") or 0, max((at for _, at in worker.places), default=0)
        if len(paths) != 1 or worker.passed or read < max(AGAIN * size_read, MOVED_BYTES):
            continue
        file = os.path.basename(paths.pop())
        if file.endswith(MANY_SAMPLES):
            continue
        return Support(
            f"worker {worker.pid} reads one file again and again and gets no sample out of it",
            f"look at {file}; a loader should give a sample up after its first failure",
            {"file": file, "read": f"{size(read)} in {worker.seconds:.0f} s"},
            {"worker": worker.pid, "file": file},
        )
    return None


def _many_files_are_read(signs: Signs) -> str | None:
    files = {path for one in signs.living_workers for path, _ in one.places}
    return f"{len(files)} files are read" if len(files) > len(signs.living_workers) > 0 else None


def _dead(signs: Signs) -> list[ObservedProcess]:
    return [one for one in signs.seen.of("worker") if one.last is None and one.exit_code]


def _killed(signs: Signs) -> Support | None:
    dead = [one for one in _dead(signs) if one.signal in KILLS]
    if not dead:
        return None
    one, name = dead[0], signal.Signals(dead[0].signal).name
    records = [record for record in signs.seen.kernel if f" {one.pid} " in f"{record} "]
    if records:
        remedy = "fewer workers or a smaller prefetch; tarmac preflight gives the largest settings that fit"
    elif signs.seen.kernel:
        remedy = "find out who sent the signal: the kernel's log records no lack of memory"
    else:
        remedy = "look for an out-of-memory kill (dmesg); fewer workers or a smaller prefetch need less"
    by = "by the kernel, for memory" if records else f"by {name}"
    return Support(
        f"{counted(len(dead), 'worker')} of rank {one.rank} killed {by}",
        remedy,
        {"worker": one.pid, "signal": name, "kernel": next(iter(records), None)},
        {"rank": one.rank, "worker": one.pid},
    )


def _workers_live(signs: Signs) -> str | None:
    living = signs.living_workers
    return f"all {len(living)} workers live" if living and not _dead(signs) else None


def _crashed(signs: Signs) -> Support | None:
    dead = [one for one in _dead(signs) if one.signal not in KILLS]
    if not dead:
        return None
    one = dead[0]
    how = signal.Signals(one.signal).name if one.signal else f"exit code {one.exit_code >> 8}"
    record = next((record for record in signs.seen.kernel if f"[{one.pid}]" in record), None)
    return Support(
        f"{counted(len(dead), 'worker')} of rank {one.rank} crashed ({how})",
        "set PYTHONFAULTHANDLER=1 and start it again: the log then names the line that crashes",
        {"worker": one.pid, "how": how, "kernel": record},
        {"rank": one.rank, "worker": one.pid},
    )


def _looping(signs: Signs) -> Support | None:
    """Find workers that compute all the time, read nothing and yield nothing. Whether they ever will, nobody
    can see from outside, so it is a warning."""
    busy = [one for one in signs.living_workers if one.share("runs") >= STEADY and not signs.moves(one)]
    if not signs.is_starved or not busy or len(busy) + len(signs.idle_workers) < len(signs.living_workers):
        return None
    call = next((call for one in busy if (call := signs.own_call(one)) is not None), None)
    cpu_s = max(one.last.cpu_s for one in busy if one.last is not None)
    one, more = (
        "computes all the time, reads nothing and yields nothing",
        "compute all the time, read nothing and yield nothing",
    )
    return Support(
        _of(len(busy), signs, one, more) + (f", in {call}" if call else ""),
        "look at that call: a loop without an end, or work that belongs before the training",
        {"stack": call, "computed": f"{format_duration(cpu_s)} since its start"},
        {"worker": busy[0].pid},
    )


LOADING = (
    Cause("worker.killed", "error", _killed, (_workers_live,)),
    Cause("worker.crashed", "error", _crashed, (_workers_live,)),
    Cause(
        "filter.spinning",
        "error",
        _spinning,
        (_some_samples_pass, _bytes_are_delivered, workers_are_served, _workers_read_nothing),
        yields_to=("sample.poison",),
    ),
    Cause("worker.starved", "error", _starved, (_workers_own_enough,)),
    Cause("sample.poison", "error", _poison, (_batches_come, _many_files_are_read)),
    Cause(
        "shuffle.filling",
        "warning",
        _filling,
        (_buffers_are_full, _batches_come, _workers_read_nothing),
        yields_to=("worker.starved",),
    ),
    Cause(
        "worker.looping",
        "warning",
        _looping,
        (_batches_come, workers_are_served, workers_compute_nothing),
        yields_to=("decode.slow", "sample.poison"),
    ),
    Cause("worker.deadlock", "error", _deadlock, (_batches_come, _all_workers_work, workers_are_served)),
)
