"""The examination of many shards on every core, and its result: faults, and bad samples.

BLAKE3 releases the interpreter to other threads. Following a tar's headers and decoding do not, so they run
in processes where there is enough of them to be worth the start. Only the results of a few shards are held at
a time.

The keys of examined shards go to a temporary database, which shows what only all shards together can show:
keys that are in several of them, and members that nearly all samples have. SQLite keeps it in memory until it
outgrows the cache, then in a file that no other process sees and that vanishes with this one.
"""

from __future__ import annotations

import heapq
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasks.core.files import disk_full_as_error
from tasks.core.process import available_cores
from tasks.core.screen import Progress
from tasks.core.stores import is_remote
from tasks.core.threads import map_in_threads
from tasks.dataset.verify.findings import Fault, Level, fault, shard_place, shortened
from tasks.dataset.verify.tars import attempt, blake3_of

if TYPE_CHECKING:
    from tasks.dataset.verify.scan import ShardTask
    from tasks.dataset.verify.shard import ShardResult

WORTH_PROCESSES_BYTES: dict[Level, int] = {"default": 5_000_000_000, "full": 100_000_000}
"""Below this size, starting worker processes (0.7 s) costs more than it saves; decoding is the slowest."""
WORTH_SHARING_BYTES = 16_000_000
"""Below this size, the threads that share a file cost more than they save."""
REQUESTS = 4
"""At least this many remote shards are read at the same time."""
SHARE = 0.9
"""A member that this share of the samples has is required where no modality names the required ones."""
IMAGE = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "heic", "ppm"})
MOST_SETS = 10_000
"""Sets of members that are distinguished; of any further set, only members that a tenth of the samples have
count."""
MOST_MEMBERS = 100_000


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be trusted, and the code of the first thing that is wrong with it."""

    split: str
    shard: str
    key: str
    reason: str


OnBad = Callable[[BadSample], None]


class ShardExamination:
    """Examines shards at a level, reports the progress, and takes the results in any order."""

    def __init__(
        self, level: Level, progress: Progress, on_bad: OnBad | None = None, known: Collection[str] = ()
    ) -> None:
        self.level = level
        self.known = frozenset(known)
        """The tars of a version that were found sound before."""
        self.faults: list[Fault] = []
        self.blake3: dict[str, str] = {}
        """The BLAKE3 of each tar that was read."""
        self.counts: dict[str, int] = {}
        """The number of samples of each tar that was examined to its end."""
        self.undecoded: set[str] = set()
        self.keys = SampleKeys()
        self._progress = progress
        self._on_bad = on_bad
        self._listed: Counter[str] = Counter()

    @property
    def wants_bad_samples(self) -> bool:
        return self._on_bad is not None

    def hash_all(self, folder: str, sizes: Mapping[str, int]) -> None:
        """Take the BLAKE3 of each file that can be read, the largest first; StoreUnreachable."""
        cores = available_cores()
        threads = max(cores, REQUESTS) if is_remote(folder) else cores
        shared = frozenset[str]() if is_remote(folder) else shared_by_cores(sizes, cores)
        each = -(-cores // max(len(shared), 1))  # they are left together at the end

        def digest_of(name: str) -> tuple[str, str | OSError]:
            return name, attempt(blake3_of, folder, name, each if name in shared else 1)

        names = sorted(sizes, key=lambda name: -sizes[name])
        found = (
            map_in_threads(digest_of, names, threads, in_order=False)
            if threads > 1
            else map(digest_of, names)
        )
        for done, (name, digest) in enumerate(found, 1):
            if isinstance(digest, str):
                self.blake3[name] = digest
            self._progress(done, len(sizes), "shards")

    def examine(self, tasks: Iterator[ShardTask], sizes: Mapping[str, int]) -> Iterator[ShardResult]:
        """Examine the shards of the tasks, whose sizes are given by name; the results come in any order."""
        # what is not needed where the seals prove all shards
        from tasks.core.engines.local import map_here
        from tasks.dataset.verify.shard import check_shard

        cores = available_cores()
        if cores > 1 and sum(sizes.values()) >= WORTH_PROCESSES_BYTES[self.level]:
            results: Iterable[ShardResult] = map_here(check_shard, tasks, cores)
        elif cores > 1 and self.level != "full":
            results = map_in_threads(check_shard, tasks, max(cores, REQUESTS))
        else:
            results = map(check_shard, tasks)
        for done, result in enumerate(results, 1):
            yield result
            self._progress(done, len(sizes), "shards")

    def take(self, result: ShardResult) -> None:
        """Record the result of a shard."""
        self.undecoded |= result.undecoded
        if result.blake3 is not None:
            self.blake3[result.name] = result.blake3
        if result.is_read:
            self.counts[result.name] = len(result.keys)
        self._list(result.faults)
        for key, reason in result.bad.items():
            self.bad(result.name, key, reason)
        self.keys.add(result.name, result.keys, result.bad)

    def bad(self, shard: str, key: str, reason: str) -> None:
        if self._on_bad is not None:
            self._on_bad(BadSample(shard.rpartition("/")[0], shard, key, reason))

    def finish(self) -> None:
        """Add the faults that show only after all shards have been examined."""
        for found in (self.keys.lacking(), self.keys.duplicates()):
            for _, group in groupby(found, key=attrgetter("shard")):
                self._list(self._reported(group))

    def _reported(self, found: Iterable[KeyFault]) -> Iterator[Fault]:
        for one in found:
            if not one.is_known:
                self.bad(one.shard, one.key, one.fault.code)
            yield one.fault

    def _list(self, faults: Iterable[Fault]) -> None:
        """Take the faults of one shard, as far as there is room for them."""
        listed = shortened(faults, self._listed)
        self._listed.update(one.code for one in listed)
        self.faults += listed

    def close(self) -> None:
        self.keys.close()


def shared_by_cores(sizes: Mapping[str, int], cores: int) -> frozenset[str]:
    """The files that would still be read when other cores have nothing left, if one core read each file, the
    largest first: five equal ones on two cores leave one of these idle at the end."""
    share, ends = sum(sizes.values()) / cores, [0] * cores
    found = set()
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        end = heapq.heapreplace(ends, ends[0] + sizes[name]) + sizes[name]
        if end > share and sizes[name] >= WORTH_SHARING_BYTES:
            found.add(name)
    return frozenset(found)


class KeyFault(NamedTuple):
    """A fault of a sample; `is_known` when something else is wrong with this sample."""

    shard: str
    key: str
    fault: Fault
    is_known: bool


class SampleKeys:
    """Takes the keys of one shard after the other, in any order; DataError when the disk is full."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE shards (number INTEGER PRIMARY KEY, name BLOB)")
        self._database.execute("CREATE TABLE samples (key BLOB, shard INTEGER, roles INTEGER, known INTEGER)")
        self._database.execute("BEGIN")
        self._shards = 0
        self._numbers: dict[frozenset[str], int] = {}
        self._counts: Counter[int] = Counter()
        self._have: Counter[str] = Counter()
        self._images: set[str] = set()

    def add(self, shard: str, keys: Mapping[str, tuple[str, ...] | None], known: Collection[str]) -> None:
        """Take a shard's keys, each with its members, or with None where these are not known or do not count;
        `known` are the keys of samples with a fault that was reported."""
        number, self._shards = self._shards, self._shards + 1
        counts = Counter(keys.values())
        roles = {one: -1 if one is None else self._number(one, count) for one, count in counts.items()}
        rows = ((_encoded(key), number, roles[members], key in known) for key, members in keys.items())
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._database.execute("INSERT INTO shards VALUES (?, ?)", (number, _encoded(shard)))
            self._database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)

    def _number(self, suffixes: tuple[str, ...], count: int) -> int:
        """The number of a set of members, in which all kinds of images count as one."""
        images = {suffix for suffix in suffixes if suffix.lower() in IMAGE}
        roles = frozenset("image" if suffix in images else suffix for suffix in suffixes)
        self._images |= images
        for role in roles:
            if role in self._have or len(self._have) < MOST_MEMBERS:
                self._have[role] += count
        if roles not in self._numbers and len(self._numbers) >= MOST_SETS:
            roles = roles & {role for role, have in self._have.items() if have >= self._counts.total() / 10}
        number = self._numbers.setdefault(roles, len(self._numbers))
        self._counts[number] += count
        return number

    def duplicates(self) -> Iterator[KeyFault]:
        """Each further shard of a key, in order; the key belongs to the first shard by name."""
        if self._shards < 2:
            return
        named = "samples JOIN shards ON number = shard"
        query = (
            f"SELECT name, key, first, known FROM {named} JOIN "
            f"(SELECT key, min(name) AS first FROM {named} GROUP BY key HAVING count(*) > 1) USING (key) "
            "WHERE name > first ORDER BY name, key"
        )
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._database.execute("CREATE INDEX by_key ON samples (key, shard)")
            for name, key, first, known in self._database.execute(query):
                yield _key_fault("sample.duplicate_key", name, key, known, also_in=_decoded(first))

    def lacking(self) -> Iterator[KeyFault]:
        """The samples that lack a member which nearly all others have, shard by shard."""
        total = self._counts.total()
        required = sorted(role for role, count in self._have.items() if count >= SHARE * total)
        lacking = {
            number: (" ".join(sorted(roles)), [member for member in required if member not in roles])
            for roles, number in self._numbers.items()
            if not roles.issuperset(required)
        }
        self._database.execute("CREATE TEMP TABLE lacking (roles INTEGER PRIMARY KEY)")
        self._database.executemany("INSERT INTO lacking VALUES (?)", ((number,) for number in lacking))
        query = (
            "SELECT name, key, roles, known FROM samples JOIN shards ON number = shard "
            "WHERE roles IN (SELECT roles FROM lacking) ORDER BY name, samples.rowid"
        )
        for name, key, number, known in self._database.execute(query):
            there, members = lacking[number]
            for member in members:
                kinds = "|".join(sorted(self._images)) if member == "image" else member
                share = f"{self._have[member]:,} of {total:,} samples have it"
                yield _key_fault("sample.missing_member", name, key, known, kinds, there=there, problem=share)
                known = True

    def close(self) -> None:
        self._database.close()


def _key_fault(
    code: str, shard: bytes, key: bytes, known: int, member: str = "", **evidence: str
) -> KeyFault:
    name, decoded = _decoded(shard), _decoded(key)
    where = {**shard_place(name), "key": decoded, **({"member": member} if member else {})}
    return KeyFault(name, decoded, fault(code, where, **evidence), bool(known))


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _decoded(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
