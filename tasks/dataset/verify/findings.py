"""Verify's faults and their remedies: few of each kind are listed, and what was ruled out is recorded.

A fault carries a `Fix`, a value that code can compare. `verifier` turns it into words, and a command where
there is one, because the words depend on where the tars lie and who made them. Names
and keys come from the data, so every character that would act on a terminal is shown as an escape.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal

from tasks.core.findings import Finding
from tasks.core.units import counted, shorten

Level = Literal["quick", "default", "full"]
LISTED = 1000
"""Findings of one kind that are listed for a shard; the last one counts the rest."""
MOST = 10_000
"""Findings of one kind in all; once they are listed, each further shard lists at most FEW."""
FEW = 5
LEFT = "and_more_of_its_kind"
DIGITS = 12
"""Digits of a checksum that a message shows."""
LONGEST = 300
"""Characters of a name or a piece of evidence that are shown."""


class Fix(Enum):
    """What helps against a fault."""

    SHARD = "make the tar again"
    TABLE = "make a file beside the tars again"
    SEAL = "make build.json again, which a repair needs for all other files"
    RIGHTS = "give the right to read"


REPAIR = {
    Fix.SHARD: "tarmac repair DATASET makes this shard again from the source; all others stay as they are",
    Fix.TABLE: "tarmac repair DATASET makes it again from the source; only what is damaged is redone",
    Fix.SEAL: "tarmac repair DATASET --config CONFIG writes it again, by the config of the dataset",
}
RESEND = (
    "delete it in the bucket, and mirror.json in the dataset's folder, then build again: what is missing is "
    "sent again"
)
REINDEX = (
    "others wrote these tars: put the one that was indexed back where it lay, or run `tarmac index` again; "
    "`tarmac repair DATASET --quarantine` leaves bad samples out"
)
AGAIN = (
    "fetch it again from where it came; a build from these tars (source kind: shards) drops bad samples and "
    "lists them"
)
FOREIGN = {
    "sample.split_members": "nothing is lost: pack it again sorted by name, so that the members of a sample "
    "stand together (tar --sort=name -cf TAR FOLDER)",
    "sample.duplicate_key": "if each tar numbers its keys anew, these are different samples: a build from "
    "these tars (source kind: shards) takes all with key: place",
}
"""What helps against a fault of tars that others wrote, unless it is AGAIN."""
RIGHTS = (
    "give yourself the right to read it (chmod u+rX, or ask its owner), then verify again: until then nobody "
    "knows whether it is sound"
)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong; `fix` is text where the words do not depend on where the tars lie."""

    code: str
    where: Mapping[str, Any]
    fix: Fix | str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None

    @property
    def left(self) -> int:
        """How many further faults of the same code it counts."""
        return int(self.evidence.get(LEFT, 0))


def fault(code: str, where: Mapping[str, Any], fix: Fix | str = Fix.SHARD, /, **evidence: Any) -> Fault:
    return Fault(code, _shown(where), fix, _shown(evidence))


def shard_place(shard: str) -> dict[str, Any]:
    """Where a shard is: its split, which is its folder, if it has one, and its name."""
    split = shard.rpartition("/")[0]
    return {"split": split, "shard": shard} if split else {"shard": shard}


def file_fault(file: str, problem: str, fix: Fix | str = Fix.TABLE) -> Fault:
    """A fault of a file beside the tars, which may belong to a split: `samples/val.parquet`,
    `val/sizes.json`."""
    folder, _, name = file.rpartition("/")
    split = name.rpartition(".")[0] if folder in ("samples", "index") else folder
    where = {"split": split, "file": file} if split else {"file": file}
    code = "index.mismatch" if folder == "index" else "manifest.invalid"
    return fault(code, where, fix, problem=problem)


def _shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) if isinstance(value, str) else value for name, value in facts.items()}


def plain(text: str) -> str:
    """The text on one line, without characters that act on a terminal or that cannot be encoded."""
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
            for char in text[: LONGEST + 1]
        )
    return shorten(text, LONGEST)


def weight(finding: Finding) -> int:
    """How many findings this one stands for: itself, and the further ones that it counts."""
    return 1 + int(finding.evidence.get(LEFT, 0))


def shortened(faults: Iterable[Fault], listed: Mapping[str, int] = MappingProxyType({})) -> list[Fault]:
    """The faults of one shard that are listed; the last of each kind says how many more there are.

    `listed` counts, by code, what other shards have listed already.
    """
    kept: dict[str, list[Fault]] = defaultdict(list)
    left: Counter[str] = Counter()
    for one in faults:
        left[one.code] += one.left
        if len(kept[one.code]) < (LISTED if listed.get(one.code, 0) < MOST else FEW):
            kept[one.code].append(one)
        else:
            left[one.code] += 1
    for code, count in left.items():
        if count:
            last = kept[code][-1]
            kept[code][-1] = replace(last, evidence={**last.evidence, LEFT: count})
    return [one for some in kept.values() for one in some]


@dataclass(frozen=True)
class Coverage:
    """How much was examined: the shards that were looked for, and the samples in those that were read.

    `sealed` counts the files beside the tars that are as they were built. `has_digests` means that every tar
    was compared with its BLAKE3, `has_sizes` that it was compared with its size. `undecoded` holds the ends
    of suffixes that no decoder knows, `zipped` counts gzip files that were not unpacked, and `unseen` lists
    what else was not examined, in words.
    """

    level: Level
    shards: int
    samples: int = 0
    sealed: int = 0
    splits: int = 0
    has_sizes: bool = False
    has_digests: bool = False
    undecoded: Collection[str] = ()
    zipped: int = 0
    unseen: Collection[str] = ()


NOT_READ = "the bytes within the shards"
NOT_DECODED = "whether members decode"
BY_EXAMINATION = ("sample.split_members", "sample.missing_member", "member.empty", "member.unsafe")


def ruled_out(coverage: Coverage, faults: Collection[Fault]) -> list[Mapping[str, str]]:
    """Every code that was looked for and not found, with the evidence."""
    codes = {one.code for one in faults}
    if any(one.fix is Fix.RIGHTS and one.code == "shard.checksum" for one in faults):
        codes |= {"shard.missing", "shard.extra", "shard.truncated"}
    return [{"code": code, "evidence": text} for code, text in _evidence(coverage) if code not in codes]


def _evidence(coverage: Coverage) -> Iterator[tuple[str, str]]:
    if not coverage.shards:
        return
    every = f"{coverage.shards:,} of {counted(coverage.shards, 'shard')}"
    if coverage.sealed:
        yield "manifest.invalid", f"{counted(coverage.sealed, 'file')} beside the tars, as they were built"
        yield "index.mismatch", f"the index of {counted(coverage.splits, 'split')}, as it was built"
    yield "shard.missing", f"{every} there"
    if coverage.has_sizes:
        yield "shard.extra", "no other tar beside them"
    if not coverage.zipped:
        size = "have their size and " if coverage.has_sizes else ""
        yield "shard.truncated", f"{every} {size}end in two zero blocks"
    if coverage.level == "quick":
        return
    samples = counted(coverage.samples, "sample")
    if coverage.has_digests:
        yield "shard.checksum", f"{every} have the BLAKE3 that they were built with"
        yield "member.checksum", f"{samples} are as they were built"
    yield "sample.duplicate_key", f"{samples}, no key twice"
    for code in BY_EXAMINATION:
        yield (
            code,
            f"{samples} {'are as they were checked and built' if coverage.has_digests else 'looked at'}",
        )
    if coverage.level == "full" and not coverage.undecoded:
        yield "member.undecodable", f"every member of {samples} decodes"


def not_seen(coverage: Coverage) -> list[str]:
    """What this level did not examine, in words."""
    unseen = list(coverage.unseen)
    if coverage.level == "quick":
        count = coverage.zipped
        zipped = [f"whether {counted(count, 'gzip file')} can be unpacked whole"] if count else []
        return [NOT_READ, NOT_DECODED, *zipped, *unseen]
    if coverage.level == "default":
        return [NOT_DECODED, *unseen]
    if coverage.undecoded:
        suffixes = ", ".join(sorted(coverage.undecoded)[:12])
        unseen.append(f"{NOT_DECODED} that end in {suffixes}: no decoder knows these")
    return unseen
