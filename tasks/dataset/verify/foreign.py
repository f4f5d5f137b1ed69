"""Tars that nobody has a manifest of: what their names, their ends and a `sizes.json` beside them show."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.core.findings import Finding
from tasks.core.stores import Unreachable
from tasks.dataset.tar.writer import BLOCK, END
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.faults import AGAIN, FETCH, fault, where
from tasks.dataset.verify.files import in_its_place, shut_faults, shut_in, unread
from tasks.dataset.verify.locate import Place
from tasks.dataset.verify.place import ZIPPED, compression_unread, ends
from tasks.dataset.verify.recorded import read_json, told
from tasks.dataset.verify.whole import REPLACE

SIZES = "sizes.json"
GZIP = b"\x1f\x8b\x08"
"""How a file in gzip begins: RFC 1952, 2.3.1."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Sizes:
    """The samples of each tar by the `sizes.json` files, and the names of files whose form nobody knows."""

    samples: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    strange: list[str] = field(default_factory=list)


def name_faults(place: Place, sizes: Sizes) -> Iterator[Finding]:
    """Tars that should be there, by a pattern, by their numbers or by `sizes.json`; and those that should
    not."""
    absent = dict.fromkeys(place.absent, "the pattern names it")
    if place.is_folder:
        absent |= {name: f"{SIZES} names it" for name in sizes.samples if name not in place.tars}
    for name, why in absent.items():
        evidence = {"problem": why, **in_its_place(place.folder, name)}
        yield fault("shard.missing", FETCH, where(name), **evidence)
    if place.is_folder:
        remedy = (
            "fetch it, or where none is meant to be there, name the tars by a pattern such as FOLDER/*.tar"
        )
        counted = [name for name in place.tars if name.rpartition("/")[0] not in sizes.folders]
        yield from hole_faults(counted, remedy)
    for name in place.tars if place.is_folder else ():
        if name.rpartition("/")[0] in sizes.folders and name not in sizes.samples:
            remedy = f"move it away, or add it to {SIZES}"
            yield fault("shard.extra", remedy, where(name), problem=f"{SIZES} does not name it")


def hole_faults(names: Iterable[str], remedy: str) -> Iterator[Finding]:
    for name in holes(names):
        problem = "its number is left out, while those around it are there"
        yield fault("shard.missing", remedy, where(name), problem=problem)


def holes(names: Iterable[str]) -> list[str]:
    """The names left out of consecutive numbers: `0.tar`, `1.tar`, `3.tar` lack `2.tar`.

    Numbers of which fewer than half are there are taken for names that only look like numbers.
    """
    groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for name in names:
        for found in _DIGITS.finditer(name, name.rfind("/") + 1):
            groups[name[: found.start()], name[found.end() :]][int(found[0])] = found[0]
    known = set(names)
    lacking = set()
    for (before, after), members in groups.items():
        first, last = min(members), max(members)
        left_out = last - first + 1 - len(members)
        if not 0 < left_out <= len(members):
            continue
        width = max((len(text) for text in members.values() if text.startswith("0")), default=0)
        lacking |= {f"{before}{n:0{width}d}{after}" for n in range(first, last) if n not in members}
    return sorted(lacking - known)


def end_faults(place: Place) -> Iterator[Finding]:
    """Tars that are cut, by their size and their last bytes; those in other compressions cannot be judged."""
    found = list(shut_faults(place.folder, place.tars)) if place.is_folder else []
    yield from found
    shut, plain = shut_in(found), []
    for name in place.tars:
        if name.rpartition("/")[0] in shut:
            continue
        kind = compression_unread(name)
        if kind is not None:
            problem = f"it is compressed by {kind}, so nobody has looked into it"
            remedy = "decompress it and verify again; loaders of tars read none, or gzip"
            yield fault("shard.checksum", remedy, where(name), problem=problem)
        else:
            plain.append(name)
    for name, end in ends(place.folder, plain, len(END)):
        if isinstance(end, OSError):
            yield unread(place.folder, name, end, FETCH)
        elif name.endswith(ZIPPED):
            yield from _gzip_faults(name, end)
        elif end != END or max(place.tars[name], 0) % BLOCK:
            problem = "it does not end in two zero blocks"
            yield fault("shard.truncated", AGAIN, where(name), problem=problem, bytes=place.tars[name])


def _gzip_faults(name: str, start: bytes) -> Iterator[Finding]:
    if not start:
        yield fault("shard.truncated", AGAIN, where(name), bytes=0)
    elif not start.startswith(GZIP):
        problem = "its name says gzip, but it does not begin as gzip does"
        yield fault("shard.checksum", AGAIN, where(name), problem=problem)


def read_sizes(files: Beside, place: Place, findings: list[Finding]) -> Sizes:
    """What the `sizes.json` beside the tars say; a torn one is a finding."""
    sizes = Sizes()
    for folder in sorted({name.rpartition("/")[0] for name in (*place.tars, *place.absent)}):
        below = f"{folder}/" if folder else ""
        try:
            content = read_json(files, below + SIZES)
        except (FileNotFoundError, PermissionError):
            continue  # a bucket may refuse what is not there
        except Unreachable:
            raise
        except (OSError, ValueError) as error:
            problem = told(error) if isinstance(error, OSError) else f"no JSON: {error}"
            at = {"split": folder, "file": below + SIZES} if folder else {"file": SIZES}
            findings.append(fault("manifest.invalid", AGAIN, at, problem=problem))
            continue
        if _is_sizes(content):
            sizes.folders.add(folder)
            sizes.samples.update({below + name: count for name, count in content.items()})
        else:
            sizes.strange.append(below + SIZES)
    return sizes


def _is_sizes(content: Any) -> bool:
    """Whether it is the form that loaders of tars read: `{"000000.tar": 1000}`."""
    if not isinstance(content, Mapping) or not content:
        return False
    return all(
        name.endswith((".tar", *ZIPPED)) and "/" not in name and type(count) is int and count >= 0
        for name, count in content.items()
    )


def count_faults(
    counts: Mapping[str, int], stated: Mapping[str, int], findings: Iterable[Finding], by: str
) -> Iterator[Finding]:
    """Tars without any sample, or with another number of them than is `stated`, by whatever file; not those
    of which it is known that they are cut."""
    cut = {found.where.get("shard") for found in findings if found.code == "shard.truncated"}
    for name, samples in counts.items():
        expected = stated.get(name)
        if name in cut:
            continue
        if expected is not None and samples != expected:
            yield fault("shard.count", REPLACE, where(name), samples=samples, expected=expected, by=by)
        elif samples == 0:
            yield fault("shard.count", REPLACE, where(name), samples=0, problem="it holds no sample")
