"""The judgement of tars without a manifest: their names, their ends, and what they hold."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tasks.core.stores import StoreUnreachable, is_remote
from tasks.core.units import counted
from tasks.dataset.tar.format import BLOCK, END, LFS_POINTER
from tasks.dataset.tar.gunzip import ZIPPED
from tasks.dataset.tar.siblings import stated_samples
from tasks.dataset.verify.examination import ShardExamination
from tasks.dataset.verify.findings import AGAIN, Coverage, Fault, fault, plain, shard_place
from tasks.dataset.verify.place import ShardLocation, dataset_of, is_current
from tasks.dataset.verify.seals import MOST_JSON
from tasks.dataset.verify.tars import (
    compression_unread,
    ends,
    hole_faults,
    kept_store,
    missing,
    shut_splits,
    split_query,
    unread,
)
from tasks.dataset.version.layout import MANIFEST

SIZES = "sizes.json"
GZIP = b"\x1f\x8b\x08"
"""How a gzip file begins: RFC 1952, 2.3.1."""
NO_MANIFEST = "changed bytes: no manifest says what they were"
FETCH = "fetch it from where the others came, or name the tars without it"
UNKNOWN_LOSS = "no file beside it records how many samples it held"
MOST_VERSIONS = 3
"""How many versions are named."""


def examine_foreign_tars(place: ShardLocation, outcome: ShardExamination) -> Coverage:
    """Find everything that is wrong with the tars, and return what was examined."""
    sizes = TarSizes(place, outcome.faults)
    shut = shut_splits(place.folder, place.tars) if place.is_folder else {}
    outcome.faults += [*shut.values(), *_name_faults(place, sizes)]
    readable = {}
    for name, found in _ends(place, [name for name in place.tars if name.rpartition("/")[0] not in shut]):
        outcome.faults += [] if found is None else [found]
        if compression_unread(name) is None and (found is None or found.code != "shard.missing"):
            readable[name] = place.tars[name]
    if outcome.level != "quick":
        from tasks.dataset.verify.scan import ShardTask

        tasks = (ShardTask(place.folder, name, decodes=outcome.level == "full") for name in readable)
        for result in outcome.examine(tasks, readable):
            outcome.take(result)
        outcome.finish()
    cut = {one.where["shard"] for one in outcome.faults if one.code == "shard.truncated"}
    outcome.faults += _count_faults(outcome.counts, sizes.samples, cut)
    outcome.faults[:] = [_with_loss(one, place, sizes) for one in outcome.faults]
    return Coverage(
        outcome.level,
        shards=len(place.tars),
        samples=sum(outcome.counts.values()),
        undecoded=outcome.undecoded,
        zipped=sum(name.endswith(ZIPPED) for name in readable) if outcome.level == "quick" else 0,
        unseen=[*(f"what {name} says: its form is not known" for name in sizes.strange), *_unseen(place)],
    )


class TarSizes:
    """The number of samples of each tar by the `sizes.json` files beside the tars; a torn file is a fault."""

    def __init__(self, place: ShardLocation, faults: list[Fault]) -> None:
        self.samples: dict[str, int] = {}
        self.folders: set[str] = set()
        """The folders that have a `sizes.json`."""
        self.strange: list[str] = []
        """Files of an unknown form."""
        store, query = kept_store(place.folder), split_query(place.folder)[1]
        for folder in sorted({name.rpartition("/")[0] for name in (*place.tars, *place.absent)}):
            below = f"{folder}/" if folder else ""
            where = {"split": folder, "file": below + SIZES} if folder else {"file": SIZES}
            try:
                content = json.loads(store.read(below + SIZES + query, MOST_JSON))
            except (FileNotFoundError, PermissionError):
                continue  # a bucket may refuse access to what does not exist
            except StoreUnreachable:
                raise
            except (OSError, ValueError, RecursionError) as error:
                problem = "it is no JSON"
                if isinstance(error, OSError):
                    problem = f"unreadable: {error.strerror or error}"
                faults.append(fault("manifest.invalid", where, AGAIN, problem=problem))
                continue
            if _is_sizes(content):
                self.folders.add(folder)
                self.samples.update({below + name: count for name, count in content.items()})
            else:
                self.strange.append(below + SIZES)


def _is_sizes(content: Any) -> bool:
    """Whether it is the form that loaders of tars read: `{"000000.tar": 1000}`."""
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(
            name.endswith((".tar", *ZIPPED)) and "/" not in name and type(count) is int and count >= 0
            for name, count in content.items()
        )
    )


def _name_faults(place: ShardLocation, sizes: TarSizes) -> Iterator[Fault]:
    """Tars that are missing by a pattern, by their numbers or by `sizes.json`, and tars that are too many."""
    absent = dict.fromkeys(place.absent, "the pattern names it")
    if place.is_folder:
        absent |= {name: f"{SIZES} names it" for name in sizes.samples if name not in place.tars}
    for name, why in absent.items():
        yield missing(place.folder, name, FETCH, problem=why)
    if not place.is_folder:
        return
    remedy = "fetch it, or where none is meant to be there, name the tars by a pattern such as FOLDER/*.tar"
    yield from hole_faults([name for name in place.tars if not _is_listed(name, sizes)], remedy)
    for name in place.tars:
        if _is_listed(name, sizes) and name not in sizes.samples:
            remedy = f"move it away, or add it to {SIZES}"
            yield fault("shard.extra", shard_place(name), remedy, problem=f"{SIZES} does not name it")


def _is_listed(name: str, sizes: TarSizes) -> bool:
    """Whether the tar's folder has a file that lists its tars."""
    return name.rpartition("/")[0] in sizes.folders


def _ends(place: ShardLocation, names: list[str]) -> Iterator[tuple[str, Fault | None]]:
    """Each tar with what its size and last bytes show; tars in other compressions cannot be examined."""
    for name in names:
        kind = compression_unread(name)
        if kind is not None:
            problem = f"it is compressed by {kind}, so verify cannot look into it"
            remedy = "decompress it and verify again; loaders of tars read plain tars or gzip"
            yield name, fault("shard.checksum", shard_place(name), remedy, problem=problem)
    readable = [name for name in names if compression_unread(name) is None]
    for name, end in ends(place.folder, readable, len(END)):
        if isinstance(end, OSError):
            yield name, unread(place.folder, name, end, FETCH)
        else:
            yield name, _end_fault(name, end, place.tars[name])


def _end_fault(name: str, end: bytes, size_bytes: int) -> Fault | None:
    """What the last bytes of a tar, or the first of a gzip file, show."""
    at = shard_place(name)
    if name.endswith(ZIPPED):
        if not end:
            return fault("shard.truncated", at, bytes=0)
        problem = "its name says gzip, but it does not begin as gzip does"
        return None if end.startswith(GZIP) else fault("shard.checksum", at, problem=problem)
    if end == END and max(size_bytes, 0) % BLOCK == 0:
        return None
    if b"\nsize " in end and 0 < size_bytes < BLOCK:
        fix = "run git lfs pull where it was cloned"
        return fault("shard.truncated", at, fix, problem=f"it is {LFS_POINTER}", bytes=size_bytes)
    return fault("shard.truncated", at, problem="it does not end in two zero blocks", bytes=size_bytes)


def _count_faults(
    counts: Mapping[str, int], stated: Mapping[str, int], cut: Collection[str]
) -> Iterator[Fault]:
    """Whole tars without any sample, or with another number of samples than `sizes.json` states."""
    for name, samples in counts.items():
        expected = stated.get(name)
        if name in cut:
            continue
        if expected is not None and samples != expected:
            evidence = {"samples": samples, "expected": expected, "by": SIZES}
            yield fault("shard.count", shard_place(name), **evidence)
        elif samples == 0:
            yield fault("shard.count", shard_place(name), samples=0, problem="it holds no sample")


def _with_loss(one: Fault, place: ShardLocation, sizes: TarSizes) -> Fault:
    """Add to the fault of a cut tar how many samples it has lost, by the files beside it."""
    shard = str(one.where.get("shard"))
    if one.code != "shard.truncated" or shard not in place.tars:
        return one
    known = (sizes.samples[shard], SIZES) if shard in sizes.samples else None
    known = known or stated_samples(kept_store(place.folder), shard, split_query(place.folder)[1])
    if known is None:
        return replace(one, evidence={**one.evidence, "lost_samples": "unknown", "why": UNKNOWN_LOSS})
    whole = one.evidence.get("whole_samples")
    there = {"written_samples": known[0], "by": known[1]}
    lost = {} if whole is None else {"lost_samples": max(known[0] - int(whole), 0)}
    return replace(one, evidence={**one.evidence, **lost, **there})


def _unseen(place: ShardLocation) -> Iterator[str]:
    """What only a manifest would show, and where such a manifest lies if the tars are part of a version."""
    yield NO_MANIFEST
    if is_remote(place.folder):
        return
    folders = dict.fromkeys(os.path.dirname(os.path.join(place.folder, name)) for name in place.tars)
    above = dict.fromkeys(os.path.dirname(os.path.realpath(folder)) for folder in folders)
    found = [folder for folder in above if os.path.lexists(os.path.join(folder, MANIFEST))]
    for version in found[:MOST_VERSIONS]:
        known = dataset_of(version) if is_current(dataset_of(version), version) else version
        command = f"tarmac verify {shlex.quote(plain(known))} compares them with its manifest"
        yield f"these lie in version {plain(os.path.basename(version))}; {command}"
    if len(found) > MOST_VERSIONS:
        yield f"others lie in {counted(len(found) - MOST_VERSIONS, 'more version')}"
