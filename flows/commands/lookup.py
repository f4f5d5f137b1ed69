"""The commands that look single samples up: `rejects` lists those that could not be taken, `trace` follows
one from its raw file to what evaluations said about it, and back."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import RUNS, AsJson, RunsFolder
from flows.commands.output import print_result, say
from tasks.core import screen
from tasks.core.errors import DataError, UsageError
from tasks.core.units import SPACE, count, counted, near, number, size
from tasks.dataset.version.layout import CURRENT, is_version

if TYPE_CHECKING:
    from tasks.dataset.trace import NameMatches, TracedReject, TracedSample
    from tasks.evaluation.judgements import RunJudgements
    from tasks.runs.folder import RunFolder

DATA = Path("data")
"""The folder in which a dataset is looked for if none is named."""
NAMED = 3
"""Names in a message, copies and predictions on the screen; --json has more."""
COLUMNS = ("reason", "source", "original_key", "detail")
"""The columns of a reject in the order in which they are printed."""
WIDEST = 60
"""A longer cell pushes the rest of its line to the right, and not all lines."""


def rejects(
    dataset: Annotated[
        Path, Parameter(help="The folder of a dataset or version, or the rejects.parquet of a stopped build.")
    ],
    /,
    *,
    reason: Annotated[
        str | None, Parameter(help="Only those of this reason, such as image.undecodable.")
    ] = None,
    as_csv: Annotated[bool, Parameter("--csv", help="Print CSV with a header, for other programs.")] = False,
    as_json: AsJson = False,
) -> int:
    """List the raw samples that a build rejected, with their places and reasons.

    Those of private data are listed too: the list stays in your terminal.

    For example:
      tarmac rejects data/digits
      tarmac rejects data/digits --reason image.undecodable --csv
    """
    if as_csv and as_json:
        raise UsageError("--csv, --json: choose one")
    path = _table_at(dataset)
    counts: Counter[str] = Counter(row["reason"] for row in _rows_of(path, ("reason",)))
    if reason is not None and reason not in counts:
        there = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common()) or "none"
        raise UsageError(f"--reason: no sample was rejected as {reason!r}; there are: {there}")
    if as_json:
        return print_result(rejects=list(_rows_of(path, COLUMNS, reason)))
    if as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_rows_of(path, COLUMNS, reason))
        return 0
    shown = counts if reason is None else {reason: counts[reason]}
    for line in _lines_of_rejects(path, shown, reason):
        say(line)
    return 0


def _table_at(place: Path) -> Path:
    from tasks.dataset.preview import version_at
    from tasks.dataset.version.layout import REJECTS
    from tasks.dataset.version.manifest import require_known_format

    if place.name == REJECTS:
        return place
    version = version_at(place)
    require_known_format(version)
    return version / REJECTS


def _rows_of(path: Path, columns: Sequence[str], reason: str | None = None) -> Iterator[dict[str, Any]]:
    from tasks.dataset.version.tables import read_pieces

    rows = (row for piece in read_pieces(path, columns) for row in piece.to_pylist())
    return rows if reason is None else (row for row in rows if row["reason"] == reason)


def _lines_of_rejects(path: Path, counts: Mapping[str, int], reason: str | None) -> Iterator[str]:
    """Yield a table of the rejects, the number of each reason first; the table is read twice, so that its
    columns stand below each other whatever its length."""
    from tasks.dataset.verify.findings import plain

    if not counts:
        yield "no sample was rejected"
        return
    listed = ", ".join(f"{count:,} {name}" for name, count in Counter(counts).most_common())
    yield f"{counted(sum(counts.values()), 'reject')}: {listed}"

    def cells() -> Iterator[list[str]]:
        yield [name.replace("_", " ").upper() for name in COLUMNS]
        for row in _rows_of(path, COLUMNS, reason):
            yield [plain(row[name] or "") for name in COLUMNS]

    widths = [0] * len(COLUMNS)
    for row in cells():
        widths = [max(width, min(len(cell), WIDEST)) for width, cell in zip(widths, row, strict=True)]
    for row in cells():
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def trace(
    key: Annotated[
        str,
        Parameter(help="A key, a file's path or a place such as captions.csv:17, or the beginning of one."),
    ],
    place: Annotated[
        str | None,
        Parameter(help="A dataset, a version or a run (default: the only dataset of the runs here)."),
    ] = None,
    /,
    *,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> int:
    """Show where a sample came from, where it is, and what became of it.

    It names the raw file and line, the shard and the offset, what was measured,
    copies in the dataset, and rejects. With a run it also shows what each
    evaluation said about the sample.

    For example:
      tarmac trace digit_1453 data/digits
      tarmac trace captions.csv:17 data/digits
      tarmac trace digit_1453 2e94
    """
    from tasks.dataset.trace import find_name, trace_sample
    from tasks.dataset.version.manifest import read_manifest
    from tasks.evaluation.judgements import judgements_of

    run, versions = _places(place, runs)
    for version in versions:
        manifest, is_private = read_manifest(version), _is_private(version)
        matches = find_name(version, list(manifest.splits), key)
        if matches.count:
            break
    if not matches.count or not _is_clear(matches, is_private):
        raise UsageError(_why_unclear(key, version, list(manifest.splits), matches, is_private))
    with screen.running("trace") as progress:
        samples = [trace_sample(version, manifest, one, is_private, progress) for one in matches.samples]
    rejects = [replace(one, detail="") if is_private else one for one in matches.rejects]
    said = [judgements_of(run, version.name, one.key) for one in samples] if run else []
    if as_json:
        return print_result(
            version=version.name,
            samples=[asdict(one) for one in samples],
            rejects=list(map(asdict, rejects)),
            more=matches.more,
            run=run.name if run else None,
            evaluations=[one.to_json() for one in said],
        )
    lines = [*_trace_lines(samples, rejects, matches.more, version)]
    for one, judged in zip(samples, said, strict=run is not None):
        lines += _judgement_lines(one, judged)
    return say("\n".join(lines))


def _is_clear(matches: NameMatches, is_private: bool) -> bool:
    """Whether a name that fits something may be answered: of private data only the whole name of one sample,
    since any answer names the keys of what it fits."""
    return matches.is_whole and matches.count == 1 if is_private else matches.is_whole or matches.count == 1


def _places(place: str | None, runs: Path) -> tuple[RunFolder | None, list[Path]]:
    """Return the run that a place stands for, if it is one, and the versions to look in; UsageError."""
    from tasks.dataset.preview import version_at
    from tasks.runs.data import version_path
    from tasks.runs.folder import RunFolder, find
    from tasks.runs.record import load_record

    place = _only_dataset(runs) if place is None else place
    if Path(place).exists() and not RunFolder(Path(place)).record.is_file():
        return None, [version_at(Path(place)).resolve()]
    try:
        run = find(runs, place)
    except UsageError as error:
        raise UsageError(f"PLACE: {place} is no folder of a dataset; {error}") from None
    found = {ref.version: version_path(ref) for ref in load_record(run).data}
    there = [path.resolve() for path in found.values() if is_version(path)]
    if not there:
        gone = ", ".join(found)
        raise UsageError(f"PLACE: the data of {run.name} is gone (version {gone}); give a dataset")
    return run, there


def _only_dataset(runs: Path) -> str:
    """Return the one dataset that is known here: of the runs, and in `data`; UsageError for several."""
    from tasks.runs.folder import list_runs
    from tasks.runs.record import load_record

    known: dict[Path, None] = {}
    for run in list_runs(runs):
        with suppress(DataError):
            known |= dict.fromkeys(Path(ref.dataset).resolve() for ref in load_record(run).data)
    known |= dict.fromkeys(path.parent.resolve() for path in sorted(DATA.glob(f"*/{CURRENT}")))
    if len(known) != 1:
        there = ", ".join(near(path) for path in known) or f"none in {DATA}, and none of a run in {runs}"
        raise UsageError(f"PLACE is missing: give a dataset or a run; there are: {there}")
    return near(next(iter(known)))


def _is_private(version: Path) -> bool:
    """Whether the data may be private: it is unless build.json records that it is not."""
    from tasks.dataset.version.build_info import read_build_info

    try:
        return read_build_info(version).private
    except DataError:
        return True


def _why_unclear(
    key: str, version: Path, splits: Sequence[str], matches: NameMatches, is_private: bool
) -> str:
    """Return why no one sample is meant, and names that may be, but none of private data."""
    from tasks.dataset.trace import nearest_names
    from tasks.dataset.verify.findings import plain
    from tasks.dataset.version.tables import read_origins

    if matches.count and is_private:
        fits = f"fits or begins {counted(matches.count, 'name')}"
        return f"KEY: {key!r} {fits}; of private data give the whole key of one sample"
    if matches.count:
        names = [read_origins(version, one.split, [one.row])[one.row].key for one in matches.samples[:NAMED]]
        names += [one.original_key for one in matches.rejects[: NAMED - len(names)]]
        listed = f"{', '.join(map(plain, names))}{', …' if matches.count > NAMED else ''}"
        return f"KEY: {key!r} begins {count(matches.count)} names: {listed}; give more of it"
    close = [] if is_private else nearest_names(version, splits, key)
    fix = (
        f"did you mean {' or '.join(map(plain, close))}?"
        if close
        else "give its key, its path or its place in a table"
    )
    return f"KEY: no sample or reject of version {version.name} is named {key!r}; {fix}"


def _trace_lines(
    samples: Sequence[TracedSample], rejects: Sequence[TracedReject], more: int, version: Path
) -> Iterator[str]:
    from tasks.dataset.verify.findings import plain

    for one in samples:
        if one is not samples[0]:
            yield ""
        yield f"{one.key}  {one.split}, sample {count(one.row + 1)}  version {version.name}"
        yield from (f"  {name:<10} {plain(text)}" for name, text in _facts_of(one).items() if text)
    for reject in rejects:
        yield f"✗ rejected as {reject.reason}: {plain(reject.original_key)}"
        facts = {"source": reject.source, "file": reject.file, "detail": reject.detail}
        yield from (f"  {name:<10} {plain(text)}" for name, text in facts.items() if text)
    if more:
        yield f"and {count(more)} more; give the key of one"


def _facts_of(one: TracedSample) -> dict[str, str]:
    """Return the facts of a sample as texts, by name."""
    measured = ", ".join(
        f"{name} {number(value) if isinstance(value, float) else value}"
        for name, value in one.measured.items()
    )
    members = ", ".join(f"{name} {size(length).replace(SPACE, ' ')}" for name, length in one.members.items())
    copies = ", ".join(
        f"{copy.key} ({copy.split}, {'equal' if copy.is_exact else 'nearly equal'}, {copy.source})"
        for copy in one.copies[:NAMED]
    )
    by_split = ", ".join(f"{count(number_of)} in {split}" for split, number_of in one.copies_by_split.items())
    return {
        "source": one.source,
        "original": "" if one.original_key == one.key else one.original_key,
        "group": one.group,
        "shard": f"{one.shard} at byte {count(one.offset)}, {count(one.bytes)} bytes",
        "members": one.problem or members,
        "text": one.caption,
        "measured": measured,
        "copies": f"{by_split}{': ' if copies else ''}{copies}" if by_split else "",
        "quarantine": one.quarantined and f"left out by readers: {one.quarantined}",
    }


def _judgement_lines(one: TracedSample, said: RunJudgements) -> Iterator[str]:
    """Yield what each evaluation said about a sample, and why others said nothing."""
    from tasks.dataset.verify.findings import plain

    for judged in said.judgements:
        word = {True: "✓ right", False: "✗ wrong", None: "·"}[judged.is_right]
        figures = ", ".join(f"{name} {value:g}" for name, value in judged.figures.items())
        item = f" {judged.item}" if judged.item else ""
        yield f"  {judged.task:<10} step {count(judged.step)}{item}: {word}  {figures}"
        for prediction in judged.predictions[:NAMED]:
            asked = f"{plain(prediction.question)} " if prediction.question else ""
            yield f"             {asked}says {plain(prediction.predicted)!r}, is {plain(prediction.label)!r}"
    if not said.judgements and said.elsewhere:
        yield f"  evaluated  by none of {counted(len(said.elsewhere), 'evaluation')}: it is in {one.split}"
    if said.unrecorded:
        named = ", ".join(sorted({task for _, task in said.unrecorded}))
        yield f"  evaluated  without a record of single samples: {named}"
