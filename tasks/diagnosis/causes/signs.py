"""Draws statements about a training from an Observation: who waits for whom, what was read and delivered.

Each property is one plain statement, computed once and used by all causes. The thresholds stand here with
their reasons. A statement that cannot be drawn is None or False, whichever supports no cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from tasks.diagnosis.observation.record import Observation, ObservedProcess, SampleKind
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tasks.trainers.contract import DataArguments, Progress, Trainer

POLLS = ("poll_schedule_timeout", "do_poll", "do_sys_poll", "do_select", "ep_poll", "do_epoll_wait")
EVENT_LOOPS = ("ep_poll", "do_epoll_wait")
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
ACCEPTS = ("inet_csk_accept", "unix_accept", "__skb_wait_for_more_packets")
"""A thread that waits for somebody to connect to it: it wakes nobody of its own process."""
PIPES = ("pipe_read", "anon_pipe_read", "pipe_write", "anon_pipe_write", "wait_for_partner", "fifo_open")
DELIVERED_BYTES = 256
"""The smallest batch that a worker hands over has more bytes, even where its tensors go by shared memory."""
MOVED_BYTES = 1 << 16
SOME_CPU_S = 0.03
"""CPU time of a rank between the looks: a rank that waits for an answer uses none, one that gets the answer
piece by piece does."""
KEPT = 0.1
"""A buffer of undecoded samples keeps all bytes read, minus the members that no stage asks for."""
SOME_WAKES = 3
SERVED_DISKS = ("request_wait_answer", "fuse_", "D:request_wait_answer", "D:fuse_")
"""File systems of a program or a server, each of whose answers wakes the thread that waits for it."""
STEADY = 0.8
"""The share of glances that counts as "all the time": a process wakes for moments even while it waits."""
LONG_S = 20.0
"""A stall that a shorter look could take for a pause is certain after this time without any movement."""
LOADER_CALLS = ("_try_get_data", "_get_data", "_next_data")
COLLECTIVE_CALLS = ("distributed_c10d.py", "torch/distributed/utils.py", "torch/nn/parallel/distributed.py")
BACKWARD_CALLS = ("torch/autograd/",)
"""Gradients are exchanged within the backward pass, by threads that have no Python stack."""
MEETING_CALLS = ("init_process_group", "_new_process_group", "rendezvous", "_store_based_barrier", "TCPStore")
"""Calls in which a rank waits for the others to join, before any collective."""
TRACKER_CALLS = ("wandb/", "mlflow/", "comet_ml/", "trackio/", "neptune/", "tensorboardX/")
TORCH_CALLS = ("torch/", "threading.py", "multiprocessing/", "contextlib.py")
LIBRARY_CALLS = ("torch/", "threading.py", "multiprocessing/", "contextlib.py", "queue.py", "selectors.py",
                 "socket.py", "ssl.py", "subprocess.py", "concurrent/", "asyncio/", "logging/__init__.py",
                 "importlib", "runpy.py", "tqdm/")  # fmt: skip
"""Files of Python and torch, whose calls say how a process waits; the first other call says where."""


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
        """The rank that the others wait for: one that a signal has stopped, else one that waits for data,
        else one that is in no collective; the first of several."""
        return min(
            self.ranks,
            key=lambda rank: (
                not _is_stopped(rank),
                not self.waits_for_data(rank),
                self.in_collective(rank) or rank.last is None,
            ),
            default=None,
        )

    @property
    def is_main_waited_for(self) -> bool:
        """Whether other ranks wait in a collective, in which `main` is not."""
        return any(map(self.in_collective, self.ranks)) and not (self.main and self.in_collective(self.main))

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
    def helpers(self) -> list[ObservedProcess]:
        """The living processes that the workers of `main` have started, such as `curl`."""
        rank = self.main.rank if self.main is not None else None
        return [one for one in self.seen.of("helper") if one.rank == rank and one.last is not None]

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
        """Whether a signal or a debugger had stopped all of it, or all of its workers, at both looks."""
        living = [rank for rank in self.ranks if rank.last is not None]
        if not living:
            return False
        return all(map(_is_stopped, living)) or (bool(self.workers) and all(map(_is_stopped, self.workers)))

    @property
    def paused_ranks(self) -> list[ObservedProcess]:
        """The ranks that a signal has stopped while others go on."""
        return [] if self.is_paused else [rank for rank in self.ranks if _is_stopped(rank)]

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
        """Return whether a process reads on."""
        return len(set(process.places)) > 1 or (process.grown("read_bytes") or 0) >= MOVED_BYTES

    def receives(self, process: ObservedProcess) -> bool:
        """Return whether data arrives over the network: by the counters of the connections, and where the
        kernel gives none, because what arrives is written, kept or computed with."""
        counted = [link.received_bytes for link in process.connections if link.received_bytes is not None]
        if counted:
            return any(counted)
        if process.first is None or process.last is None:
            return False
        moved = max(process.grown("read_bytes") or 0, process.grown("written_bytes") or 0)
        kept = process.last.resident_bytes - process.first.resident_bytes
        return max(moved, kept) >= MOVED_BYTES or process.last.cpu_s - process.first.cpu_s > SOME_CPU_S

    def sends(self, process: ObservedProcess) -> bool:
        """Return whether the peers of the process take data from it."""
        return any(link.sent_bytes for link in process.connections)

    def writes(self, process: ObservedProcess) -> bool:
        """Return whether a process writes on: within one long write, only the page cache and the waking of
        its thread show that."""
        wakes = process.grown("switches") or 0
        to_disk = (process.grown("dirtied_bytes") or 0) > 0
        to_others = process.share(*PIPES, *SERVED_DISKS) >= 0.5 and wakes >= SOME_WAKES
        return to_disk or to_others or (process.grown("written_bytes") or 0) >= MOVED_BYTES

    def is_certain(self, *quiet_s: float | None) -> bool:
        """Return whether the standstill has lasted for LONG_S, by the look itself or by one of these
        times."""
        return max(self.seen.seconds, *(one or 0.0 for one in quiet_s)) >= LONG_S

    @cached_property
    def last_link(self) -> ObservedProcess | None:
        """The last of the chain of those who wait for each other: the rank, its worker, the worker's
        helper."""
        link = self.main
        if link is not None and self.waits_for_data(link):
            busy = [one for one in self.living_workers if one not in self.idle_workers]
            link = next(iter(busy or self.living_workers), link)
        helpers = [one for one in self.helpers if link is not None and one.parent == link.pid]
        return next(iter(helpers), link)

    @property
    def log_lines(self) -> Sequence[str]:
        return self.seen.log.lines if self.seen.log is not None else ()

    @property
    def log_quiet_s(self) -> float | None:
        return self.seen.log.quiet_s if self.seen.log is not None else None

    @cached_property
    def kinds(self) -> list[tuple[str, SampleKind]]:
        """The kinds of samples that the readers have passed, each with its tar."""
        return [(tar.path, kind) for one in self.readers for tar in one.passed for kind in tar.kinds]

    @property
    def undecodable(self) -> tuple[int, int]:
        """The images just passed whose header cannot be read, and all that were tried."""
        kinds = [kind for _, kind in self.kinds]
        return sum(kind.undecodable for kind in kinds), sum(kind.images for kind in kinds)

    @property
    def keeps_what_it_reads(self) -> bool:
        """Whether the readers' memory grows by what they read, as it does while a buffer fills up."""
        looks = [
            (one.first, one.last) for one in self.readers if one.first is not None and one.last is not None
        ]
        kept = sum(last.resident_bytes - first.resident_bytes for first, last in looks)
        return self.read_bytes is not None and kept >= max(KEPT * self.read_bytes, MOVED_BYTES)

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
        return [found for line in self.log_lines if (found := self.trainer.progress(line)) is not None]

    @property
    def goes_on(self) -> bool:
        """Whether the log, which shows progress, was written during the observation.

        One look at the stacks of ranks that train finds them apart as well: one in the exchange of a step,
        another just before it.
        """
        log = self.seen.log
        return log is not None and log.quiet_s < self.seen.seconds and bool(self.progress)

    def calls(self, process: ObservedProcess, *names: str) -> str | None:
        """Return the innermost call of the stack that contains one of these names, or None."""
        return next((call for call in process.stack or () if any(name in call for name in names)), None)

    def sleeping_ranks(self) -> Iterator[ObservedProcess]:
        """Yield the ranks that wait, and not for data."""
        return (one for one in self.ranks if self.sleeps(one) and not self.waits_for_data(one))

    def in_collective(self, rank: ObservedProcess) -> bool:
        """Return whether a rank is in a collective: by its innermost calls that are torch's, because a
        forward pass of DDP calls the user's code as well."""
        inner = list(takewhile(lambda call: any(name in call for name in TORCH_CALLS), rank.stack or ()))
        if any(name in call for call in inner for name in MEETING_CALLS):
            return False
        names = (*COLLECTIVE_CALLS, *(BACKWARD_CALLS if len(self.ranks) > 1 and self.sleeps(rank) else ()))
        return any(name in call for call in inner for name in names)

    def own_call(self, process: ObservedProcess) -> str | None:
        """Return the innermost call of a process that is neither Python's nor torch's."""
        return own_call(process.stack or ())


def own_call(calls: Sequence[str]) -> str | None:
    """Return the innermost of these calls that is neither Python's nor torch's. What is below the loop of a
    forked worker is its parent's."""
    own = takewhile(lambda call: "_worker_loop" not in call, calls)
    return next((call for call in own if not any(name in call for name in LIBRARY_CALLS)), None)


def _is_stopped(process: ObservedProcess) -> bool:
    return all(look is not None and look.state in "Tt" for look in (process.first, process.last))
