"""`manifest.json`: what a version of a dataset holds.

Nothing in it depends on time, host, workers or path, so the same input gives the same file. The version is
named by the digest of this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import floor
from pathlib import Path
from typing import Literal

from blake3 import blake3

from tasks.core.errors import DataError
from tasks.core.units import counted
from tasks.dataset.version.layout import MANIFEST, NAME_DIGITS
from tasks.dataset.version.records import InvalidRecord, parse_record

FORMAT = "tarmac/1"
"""The format of a version that this Tarmac writes, and the only one that it reads."""
MOST_KINDS = 6
"""How many kinds of files a line names."""
THUMBNAILS, HIDDEN = "thumbnails in ", "hidden in "
"""The beginnings of the kinds of pictures that a system or a hidden folder holds."""
ROWS_OF = "rows of "
"""How a kind of `passed_over` begins that counts rows of a table, not files."""


@dataclass(frozen=True)
class SplitSummary:
    """The size of one split; `bytes` counts its tars."""

    shards: int
    samples: int
    bytes: int

    def __post_init__(self) -> None:
        require_counts({"shards": self.shards, "samples": self.samples, "bytes": self.bytes})


@dataclass(frozen=True)
class SourceSummary:
    """Where the samples came from: `digest` covers their keys and content, not times or paths."""

    kind: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The content of the file; read = accepted + filtered + rejected."""

    format: Literal["tarmac/1"]
    name: str
    modality: str
    digest: str
    """See `content_digest`."""
    splits: dict[str, SplitSummary]
    read: int
    accepted: int
    filtered: int
    rejects: dict[str, int]
    source: SourceSummary
    config_digest: str
    passed_over: dict[str, int] = field(default_factory=dict)
    """The number of files in the source's folders that no reader takes, by kind, and, as `rows of TABLE`, of
    reports without a volume; left out where there are none."""

    def __post_init__(self) -> None:
        own = {"read": self.read, "accepted": self.accepted, "filtered": self.filtered}
        require_counts({**self.rejects, **self.passed_over, **own})

    @property
    def rejected(self) -> int:
        return sum(self.rejects.values())

    @property
    def shards(self) -> int:
        return sum(split.shards for split in self.splits.values())

    def to_bytes(self) -> bytes:
        content = asdict(self)
        if not self.passed_over:
            del content["passed_over"]
        return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def require_counts(counts: Mapping[str, int]) -> None:
    """ValueError for a number below zero."""
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count:,}")


def passed_over_lines(kinds: Mapping[str, int], is_private: bool) -> list[str]:
    """`2 files passed over: 1 .pdf, 1 without suffix`, `12 thumbnails of a system passed over (@eaDir)`,
    `12 rows of reports.csv have no volume`; of private data without the kinds and names."""
    marks = (THUMBNAILS, HIDDEN, ROWS_OF)
    plain = {kind: number for kind, number in kinds.items() if not kind.startswith(marks)}
    lines = []
    if plain:
        line = f"{counted(sum(plain.values()), 'file')} passed over"
        lines.append(line if is_private else f"{line}: {_most(plain)}")
    for mark, what in ((THUMBNAILS, "thumbnail"), (HIDDEN, "hidden picture")):
        found = {kind.removeprefix(mark): number for kind, number in kinds.items() if kind.startswith(mark)}
        if found:
            of = " of a system" if mark == THUMBNAILS else ""
            line = f"{counted(sum(found.values()), what)}{of} passed over"
            names = next(iter(found)) if len(found) == 1 else _most(found)
            lines.append(line if is_private else f"{line} ({names})")
    for kind, number in kinds.items():
        if is_of_rows(kind):
            name = "the reports" if is_private else kind.removeprefix(ROWS_OF)
            verb = "has" if number == 1 else "have"
            lines.append(f"{counted(number, 'row')} of {name} {verb} no volume")
    return lines


def is_of_rows(kind: str) -> bool:
    """Whether a kind of what was passed over is a table's rows rather than files."""
    return kind.startswith(ROWS_OF)


def _most(kinds: Mapping[str, int]) -> str:
    ordered = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    named = [f"{number:,} {kind}" for kind, number in ordered[:MOST_KINDS]]
    rest = sum(number for _, number in ordered[MOST_KINDS:])
    return f"{', '.join(named)}{f' and {rest:,} of other kinds' if rest else ''}"


def content_digest(shards: Iterable[tuple[str, str]]) -> str:
    """BLAKE3 over the sorted lines `split/000000.tar blake3`, each ended by a newline."""
    lines = sorted(f"{name} {seal}\n" for name, seal in shards)
    return blake3("".join(lines).encode()).hexdigest()


def version_name(manifest: bytes) -> str:
    """The name of the version's folder: the first digits of the BLAKE3 of its manifest's bytes."""
    return blake3(manifest).hexdigest()[:NAME_DIGITS]


def read_manifest(version: Path) -> Manifest:
    """The version's manifest; DataError when it is missing, torn, or of a newer format."""
    path = version / MANIFEST
    try:
        return parse_record(Manifest, path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {version} is no version of a dataset") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except InvalidRecord as error:
        another = another_format(error.given) if error.field == "format" else None
        raise DataError(f"{path} {another or f'is damaged or newer than this program: {error}'}") from None


def another_format(given: object) -> str | None:
    """Explain that a version has a format of another Tarmac's, in words that go on from the file's name;
    None where `given`, the manifest's `format`, is this one's or none at all."""
    if given == FORMAT or not str(given).startswith("tarmac/"):
        return None
    return f"is of the newer format {str(given)[:40]}; this Tarmac reads {FORMAT}: update it"


def require_known_format(version: Path) -> None:
    """DataError for a version of another format, whose other files may mean something else than they do here.

    A manifest that is missing or torn says nothing about the format; verify reports it.
    """
    path = version / MANIFEST
    try:
        given = json.loads(path.read_bytes())["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    if (another := another_format(given)) is not None:
        raise DataError(f"{path} {another}")


def rejects_allowed(budget: float, read: int) -> int:
    """Return the number of rejects that the budget allows among `read` raw samples."""
    return floor(budget * read + 1e-9)
