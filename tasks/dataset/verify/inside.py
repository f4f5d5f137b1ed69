"""The inside of one shard: its checksum, its structure, and its samples against index, tables and rules.

One pass over the bytes. Only where the shard is not as it was built are its samples read a second time, to
compare each with its checksum in the index.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from tasks.core.stores import Unreachable
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.verify.collected import Collected
from tasks.dataset.verify.decoding import Decoder
from tasks.dataset.verify.faults import REMAKE
from tasks.dataset.verify.judging import Keys, faults_of_keys, faults_of_sets, keys_of, kinds_of
from tasks.dataset.verify.members import Members
from tasks.dataset.verify.place import opened
from tasks.dataset.verify.reader import Reader
from tasks.dataset.verify.records import BadSample, Inside, Kind, SampleFault, Task
from tasks.dataset.verify.rows import Rows
from tasks.dataset.verify.spans import Spans, differing
from tasks.dataset.verify.walk import Walk
from tasks.dataset.verify.whole import REPLACE, Look, faults_of_shard

__all__ = ["BadSample", "Inside", "Kind", "SampleFault", "Task", "inspect"]


def inspect(task: Task) -> Inside:
    """Read one shard from its first byte to its last; for what data may hold it never raises.

    Unreachable when a remote store does not answer: that is no shard's fault.
    """
    with _without_warnings() if task.decodes else contextlib.nullcontext():
        return _inspect(task)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """What decoders have to say is told as a fault or not at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _inspect(task: Task) -> Inside:
    spans = Spans.of(task.index)
    decoder = Decoder(task.modality) if task.decodes else None
    look = _look(task, spans, decoder)
    if look is None:
        return Inside(task.name)  # the look at the files has reported it
    keys = keys_of(look.samples)
    lost = range(0) if spans is None else spans.lost(look.end)
    rows = [] if spans is None else _differing(task, look, spans, lost.start)
    modality = MODALITIES.get(task.modality or "")
    return Inside(
        task.name,
        look.blake3,
        look.size_bytes,
        list(faults_of_shard(task, look, spans, keys, rows)),
        _faults_of_samples(task, look, spans, keys, rows),
        keys.hashes,
        {} if modality else kinds_of(look.samples, keys),
        frozenset(decoder.undecoded if decoder else ()),
        lost,
    )


def _look(task: Task, spans: Spans | None, decoder: Decoder | None) -> Look | None:
    """The pass over the bytes; None where there is no such file."""
    samples = Collected()
    is_own = task.expected is not None
    reader = walk = None
    try:
        with opened(task.folder, task.name) as file:
            reader = Reader(file)
            members = Members(reader, is_own, decoder is not None, spans.end if spans else 0)
            walk = Walk(members, spans.starts if spans else (), is_own)
            samples.add_all(walk, decoder)
            blake3, size_bytes = reader.finish()
            return Look(samples, blake3, size_bytes, walk.cut, walk.first_gap, walk.gaps)
    except FileNotFoundError:
        return None
    except Unreachable:
        raise
    except OSError as error:
        at = reader.offset if reader else 0
        place = f" at byte {at:,}" if at else ""
        problem = f"unreadable{place}: {error.strerror or error}"
        return Look(samples, None, at, error=problem, is_forbidden=isinstance(error, PermissionError))


def _differing(task: Task, look: Look, spans: Spans, count: int) -> list[int]:
    """The rows whose bytes are not those that the index was made of, as far as that is in doubt."""
    if look.is_as_expected(task) and task.is_confirmed:
        return []
    with contextlib.suppress(OSError), opened(task.folder, task.name) as file:
        return list(differing(file, spans, count))
    return []


def _faults_of_samples(
    task: Task, look: Look, spans: Spans | None, keys: Keys, differ: list[int]
) -> list[SampleFault]:
    """All of them, sample by sample."""
    samples = look.samples
    modality = MODALITIES.get(task.modality or "")
    noted = [*samples.noted, *faults_of_keys(samples, keys), *faults_of_sets(samples, modality, keys)]
    if not (noted or differ or not _agree(task, look, spans)):
        return []
    rows = Rows(task, spans, samples)
    found = [*rows.of_differing(differ, look.is_as_expected(task)), *rows.of_keys(set(differ))]
    places = [fault.row or 0 for fault in found]
    remedy = REMAKE if task.expected else REPLACE
    for one in noted:
        row, key = rows.of(one.number)
        found.append(SampleFault(one.code, key, one.member, one.remedy or remedy, one.evidence, row))
        places.append(one.number if row is None else row)
    return [found[number] for number in sorted(range(len(found)), key=places.__getitem__)]


def _agree(task: Task, look: Look, spans: Spans | None) -> bool:
    """Whether the keys in the tar are, one by one, those of the table."""
    if task.keys is None or spans is None:
        return True
    is_one_each = len(task.keys) == len(look.samples.keys)
    return is_one_each and b"\0".join(look.samples.keys) == "\0".join(task.keys).encode()
