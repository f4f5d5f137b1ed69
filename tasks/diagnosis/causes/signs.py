"""Draws statements about a training from an Observation: who waits for whom, what was read and delivered.

Each property is one plain statement, computed once and used by all causes. The thresholds stand here with
their reasons. A statement that cannot be drawn is None or False, whichever supports no cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.diagnosis.observation.record import Observation, ObservedProcess, SampleKind
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import DataArguments, Progress, Trainer

POLLS = ("poll_schedule_timeout", "do_poll", "do_sys_poll", "do_select", "ep_poll")
LOCKS = ("futex_",)
DISKS = (
    "D:",
    "folio_wait",
    "wait_on_page",
    "io_schedule",
    "__wait_on_buffer",
    "request_wait_answer",
    "fuse_",
    "nfs",
    "rpc_wait",
    "ceph",
    "cl_sync_io",
)
SOCKETS = ("wait_woken", "sk_wait_data", "sk_stream_wait", "inet_", "tcp_", "unix_stream", "unix_wait")
PIPES = ("pipe_read", "anon_pipe_read", "pipe_write", "anon_pipe_write", "wait_for_partner", "fifo_open")
DELIVERED_BYTES = 256
"""The smallest batch that a worker hands over has more bytes, even where its tensors go by shared memory."""
MOVED_BYTES = 1 << 16
STEADY = 0.8
"""The share of glances that counts as "all the time": a process wakes for moments even while it waits."""
LOADER_CALLS = ("_try_get_data", "_get_data", "_next_data")
COLLECTIVE_CALLS = ("distributed_c10d.py", "all_reduce", "barrier", "monitored_barrier", "_allgather")


@dataclass(frozen=True)
class Filtered:
    """The result of the trainer's filter on the samples that the readers have just passed."""

    samples: int
    refused: int
    why: str | None
    members: Sequence[str]
    shard: str

    @property
    def drops_all(self) -> bool:
        return self.refused == self.samples


class Signs:
    """The statements about one Observation. They are about the rank `main`."""

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.command = Command.of(seen.command, Path(seen.folder or "."))
        self.trainer: Trainer = recognise(self.command, seen.trainer)

    @cached_property
    def ranks(self) -> list[ObservedProcess]:
        return sorted(self.seen.of("rank"), key=lambda one: one.rank)

    @cached_property
    def main(self) -> ObservedProcess | None:
        """The rank that waits for data, if any, as all others then wait for it; else the first rank."""
        return next((one for one in self.ranks if self.waits_for_data(one)), next(iter(self.ranks), None))

    @property
    def workers(self) -> list[ObservedProcess]:
        return self.seen.workers_of(self.main) if self.main is not None else []

    @property
    def living_workers(self) -> list[ObservedProcess]:
        return [one for one in self.workers if one.last is not None]

    @property
    def stopped_workers(self) -> list[ObservedProcess]:
        """The workers that a signal has stopped, while the rank and others go on."""
        return [one for one in self.living_workers if _is_stopped(one)]

    @property
    def readers(self) -> list[ObservedProcess]:
        """The processes that read the data: the workers, or the rank itself where it has none."""
        return self.living_workers or ([self.main] if self.main is not None and self.main.last else [])

    @cached_property
    def data(self) -> DataArguments | None:
        return self.trainer.data(self.command)

    @property
    def is_gone(self) -> bool:
        return not any(one.last is not None for one in self.ranks)

    @property
    def is_paused(self) -> bool:
        """Whether a signal or a debugger had stopped it at both looks."""
        if self.main is None:
            return False
        return _is_stopped(self.main) or (bool(self.workers) and all(map(_is_stopped, self.workers)))

    def runs(self, process: ObservedProcess) -> bool:
        """Return whether a process computes often, also where it gets little of the cores."""
        return process.share("runs") >= 0.3 or process.cpu >= 0.3

    def sleeps(self, process: ObservedProcess) -> bool:
        """Return whether a process waits all the time."""
        return process.last is not None and process.share("runs") < 0.1 and process.cpu < 0.05

    def waits_for_data(self, rank: ObservedProcess) -> bool:
        """Return whether the rank waits at its DataLoader's queue, by its stack or else by the form of such a
        wait.

        The queue is a pipe, which the main thread or the thread that pins memory polls.
        """
        if rank.last is None:
            return False
        if rank.stack:
            return any(name in call for call in rank.stack for name in LOADER_CALLS)
        if not self.seen.workers_of(rank) or not self.sleeps(rank):
            return False
        polls = [one for one in rank.last.threads if (one.wait or "").startswith(POLLS[:4])]
        return rank.share(*POLLS[:4]) >= STEADY or (rank.share(*LOCKS) >= STEADY and bool(polls))

    @cached_property
    def is_waiting_for_data(self) -> bool:
        return self.main is not None and self.waits_for_data(self.main)

    @cached_property
    def delivered_bytes(self) -> int | None:
        """The bytes that the rank received between the looks, without tensors in shared memory; None if not
        observed."""
        return self.main.grown("read_bytes") if self.main is not None and self.living_workers else None

    @property
    def is_delivered(self) -> bool:
        return self.delivered_bytes is not None and self.delivered_bytes >= DELIVERED_BYTES

    @property
    def is_starved(self) -> bool:
        """Whether the rank waits for data and none came."""
        return self.is_waiting_for_data and self.delivered_bytes is not None and not self.is_delivered

    @cached_property
    def read_bytes(self) -> int | None:
        """The bytes that all readers together read between the looks; None if not observed."""
        grown = [one.grown("read_bytes") for one in self.readers]
        return None if not grown or None in grown else sum(one for one in grown if one is not None)

    @property
    def read_rate(self) -> float | None:
        """The bytes per second of all readers together."""
        seconds = max((one.seconds for one in self.readers), default=0.0)
        return self.read_bytes / seconds if self.read_bytes is not None and seconds else None

    @property
    def advances(self) -> bool:
        """Whether every reader reads on."""
        return bool(self.readers) and all(map(self.moves, self.readers))

    def moves(self, process: ObservedProcess) -> bool:
        return len(set(process.places)) > 1 or (process.grown("read_bytes") or 0) >= MOVED_BYTES

    @cached_property
    def kinds(self) -> list[tuple[str, SampleKind]]:
        """The kinds of samples that the readers have passed, each with its tar."""
        return [(tar.path, kind) for one in self.readers for tar in one.passed for kind in tar.kinds]

    @property
    def pixels(self) -> int:
        """The pixels of the largest image just passed, else of the largest in the first shard."""
        first = self.seen.shard.kinds if self.seen.shard is not None else ()
        kinds = [kind for _, kind in self.kinds] or first
        return max((kind.pixels or 0 for kind in kinds), default=0)

    @cached_property
    def filtered(self) -> Filtered | None:
        """The result of the trainer's filter on the passed samples; None without samples or filter."""
        if not self.kinds or not self.trainer.rules(self.command):
            return None
        judged = [(kind, path, self.trainer.refusal(self.command, kind.members)) for path, kind in self.kinds]
        refused = [one for one in judged if one[2] is not None]
        kind, path, why = max(refused or judged, key=lambda one: one[0].samples)
        total, dropped = (sum(one.samples for one, _, _ in some) for some in (judged, refused))
        return Filtered(total, dropped, why, kind.members, path)

    @cached_property
    def sample_bytes(self) -> float | None:
        """The bytes of a sample in the tars, with headers and padding, by the samples just passed."""
        tars = [tar for one in self.readers for tar in one.passed if tar.samples]
        samples = sum(tar.samples for tar in tars)
        return sum(tar.stop - tar.start for tar in tars) / samples if samples else None

    def samples_read_by(self, worker: ObservedProcess) -> int | None:
        """Return the samples that a worker has read since its start, by its bytes; None if not observed."""
        total = worker.last.read_bytes if worker.last is not None else None
        return int(total / self.sample_bytes) if total is not None and self.sample_bytes else None

    @cached_property
    def samples_read(self) -> int | None:
        """The samples of the worker that has read least; None unless all were observed."""
        counts = [self.samples_read_by(one) for one in self.living_workers]
        return None if None in counts else min((one for one in counts if one is not None), default=None)

    @property
    def has_never_delivered(self) -> bool:
        """Whether no worker has written anything since its start, so that no batch ever came."""
        written = [one.last.written_bytes for one in self.living_workers if one.last is not None]
        return bool(written) and all(total is not None and total < DELIVERED_BYTES for total in written)

    @property
    def idle_workers(self) -> list[ObservedProcess]:
        """The workers that wait to be asked for more, as they have delivered all that was asked for."""
        return [one for one in self.living_workers if one.share(*POLLS) >= STEADY and not self.moves(one)]

    @property
    def is_served(self) -> bool:
        """Whether the loader has done its part: there are workers, and all of them wait to be asked."""
        return bool(self.living_workers) and len(self.idle_workers) == len(self.living_workers)

    @property
    def gpu_percent(self) -> float | None:
        return max((gpu.used_percent for gpu in self.seen.gpus), default=0.0) if self.seen.gpus else None

    @cached_property
    def progress(self) -> list[Progress]:
        """The progress in the log's last lines, in order."""
        lines = self.seen.log.lines if self.seen.log is not None else ()
        return [found for line in lines if (found := self.trainer.progress(line)) is not None]

    def calls(self, process: ObservedProcess, *names: str) -> str | None:
        """Return the innermost call of the stack that contains one of these names, or None."""
        return next((call for call in process.stack or () if any(name in call for name in names)), None)

    def sleeping_ranks(self) -> Iterator[ObservedProcess]:
        """Yield the ranks that wait, and not for data."""
        return (one for one in self.ranks if self.sleeps(one) and not self.waits_for_data(one))

    def in_collective(self, rank: ObservedProcess) -> bool:
        return self.calls(rank, *COLLECTIVE_CALLS) is not None


def _is_stopped(process: ObservedProcess) -> bool:
    return all(look is not None and look.state in "Tt" for look in (process.first, process.last))
