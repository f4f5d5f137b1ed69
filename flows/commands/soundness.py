"""The commands on the soundness of a dataset: `verify` judges it, `repair` mends it, `look` shows it."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.commands.arguments import AsJson, DatasetFolder, Full, Level, Quick, level_of
from flows.commands.output import answer, note, print_json, print_result, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.findings import Report
from tasks.core.units import counted, format_duration, near

if TYPE_CHECKING:
    from tasks.dataset.preview import WrittenPage
    from tasks.dataset.repair.run import Repaired

SHOWN = 20
"""At most this many lines of a kind are shown; the rest is counted."""
SHOWN_PER_SHARD = 5
"""At most this many of them are of one shard, so that the first shard does not take all the room."""
WAYS = {"converted": "converted again", "joined": "put together again", "renamed": "renamed back"}
"""The words for what a repair did to a shard, in its summary."""


def verify(
    dataset: Annotated[
        str,
        Parameter(help="The folder of a dataset or version; or any tars: a folder, a quoted pattern, s3://."),
    ],
    /,
    *,
    quick: Quick = False,
    full: Full = False,
    as_json: AsJson = False,
) -> int:
    """Check a dataset, or anybody's WebDataset tars, for damage.

    By default every byte is compared with its checksum. All damage is
    reported, and the exit code is then 1.

    For example:
      tarmac verify data/digits
      tarmac verify '/data/laion/{00000..00412}.tar' --full
    """
    from tasks.dataset.verify.verifier import verify as examine

    level = level_of(quick, full)
    began = time.monotonic()
    with screen.running("verify") as progress:
        report = examine(dataset, level, progress)
    took = format_duration(time.monotonic() - began)
    lines = report_lines(report, _shown_place(dataset), level, took)
    return answer(as_json, report.to_json, lines, report.ok)


def report_lines(report: Report, name: str, level: str, took: str) -> Iterator[str]:
    """Yield the report for a person; `name` is that of the data that was checked."""
    from tasks.dataset.verify.findings import LEFT, weight

    listed, shown, found = Counter[str](), Counter[str](), Counter[str]()
    per_place = Counter[tuple[str, str]]()
    for finding in report.findings:
        code, place = finding.code, str(finding.where.get("shard", finding.where.get("file")))
        listed[code] += 1
        found[code] += weight(finding)  # one finding may stand for further ones of its kind
        if shown[code] < SHOWN and per_place[code, place] < SHOWN_PER_SHARD:
            shown[code] += 1
            per_place[code, place] += 1
            evidence = {name: value for name, value in finding.evidence.items() if name != LEFT}
            yield from replace(finding, evidence=evidence).lines()
    for code, count in found.items():
        if count > shown[code]:
            where = "all" if listed[code] == count else f"{listed[code]:,} of {count:,}"
            yield f"… {code}: {count - shown[code]:,} more; --json lists {where}"
    if report.ok:
        yield f"✓ {name} is sound at level {level}, {took}"
        if report.not_seen:
            yield f"  not looked at: {'; '.join(report.not_seen)}"
        return
    shards = {finding.where["shard"] for finding in report.findings if "shard" in finding.where}
    within = f" in {counted(len(shards), 'shard')}" if shards else ""
    yield f"✗ {counted(found.total(), 'finding')}{within}, {took}"
    for command in dict.fromkeys(finding.command for finding in report.findings if finding.command):
        yield f"  next: {command}"


def _shown_place(place: str) -> str:
    """Return what was checked: the version of a dataset, or an address without its secrets."""
    from tasks.core.stores import is_remote, redact
    from tasks.dataset.version.layout import resolve

    if is_remote(place):
        return redact(place)
    try:
        return str(resolve(Path(place)))
    except UsageError:
        return place


def look(
    dataset: DatasetFolder,
    /,
    *,
    quick: Quick = False,
    full: Full = False,
    out: Annotated[Path | None, Parameter(help="Where to write the page (default: beside the data).")] = None,
    load: Annotated[
        bool,
        Parameter(help="Only print Python that loads it in webdataset, PyTorch and Hugging Face datasets."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Write a page of a dataset's faults, quality, samples, rejects and distributions.

    The version is verified first, and assessed if it was not yet. The page is
    written whatever the result, and the exit code is 1 when verify finds a fault
    or a held-out split has leaked.

    For example:
      tarmac look data/digits
      tarmac look data/digits --full --out look.html
      tarmac look data/digits --load
    """
    if load and (quick or full or out is not None):
        raise UsageError("--load: stands alone; leave out --quick, --full and --out")
    if load:
        return _show_loading(Path(dataset), as_json)
    from tasks.core.tokens import caption_counter
    from tasks.dataset.preview import Checked, page_path, version_at, write_look
    from tasks.dataset.verify.verifier import verify as examine

    level = level_of(quick, full)
    version = version_at(Path(dataset))
    page = out or page_path(version)
    with screen.running("verify") as progress:
        report = examine(version, level, progress)
    checked = Checked(report, level, time.time(), shlex.quote(dataset))
    try:
        with screen.running("look") as progress:
            made = write_look(
                version, page, count_tokens=caption_counter(), progress=progress, checked=checked
            )
    except OSError as error:
        raise UsageError(f"--out: {page} cannot be written ({error.strerror}); give another PATH") from None
    judged = replace(report, findings=[*report.findings, *made.findings])
    if as_json:
        facts = {"look": str(page), "version": version.name, "shown": made.shown, "faulty": made.faulty}
        judged_by = {"leak_budget": made.terms.leak_budget, "batch_size": made.terms.batch_size}
        print_json({**judged.to_json(), **facts, "judged_by": judged_by})
    else:
        say(str(page))
        for line in _doubts(report, made, shlex.quote(dataset)):
            note(line)
    return 0 if judged.ok else 1


def _show_loading(place: Path, as_json: bool) -> int:
    """Print the lines that load a dataset's current version, or a version."""
    from tasks.dataset.preview import version_at
    from tasks.dataset.version.layout import CURRENT, is_version
    from tasks.dataset.version.snippets import loading_snippets

    version = version_at(place)
    programs = loading_snippets(place if is_version(place) else place / CURRENT)
    if as_json:
        return print_result(version=version.name, programs=programs)
    return say("\n".join(f"# {name}\n{program}" for name, program in programs.items()).rstrip())


def _doubts(report: Report, made: WrittenPage, dataset: str) -> Iterator[str]:
    """Yield what a page shows that needs attention."""
    from tasks.dataset.preview import summary

    if not report.ok:
        yield f"✗ {summary(report)}"
        yield f"  next: {made.next}"
    elif made.faulty:
        yield f"! {made.faulty} of {made.shown} samples cannot be shown whole"
        yield f"  next: tarmac verify {dataset} --full"
    yield from (finding.line for finding in made.findings if finding.severity == "error")
    if warnings := sum(finding.severity == "warning" for finding in made.findings):
        yield f"! {counted(warnings, 'warning')} about what the samples are worth: see the tab Quality"
    if made.findings:
        yield f"  judged by {made.terms}; tarmac build CONFIG judges by its config"


def repair(
    dataset: DatasetFolder,
    /,
    *,
    config: Annotated[
        Path | None, Parameter(help="The config that built it, if build.json no longer names the source.")
    ] = None,
    quick: Quick = False,
    full: Full = False,
    quarantine: Annotated[bool, Parameter(help="Let training skip the samples that stay bad.")] = False,
    shard: Annotated[
        list[str] | None,
        Parameter(
            metavar="NAME",
            help="Convert this shard again, even if it is sound: train/000007, val/3, or 7 for one of train. "
            "May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Make a damaged dataset sound again from its source.

    Only what is damaged is made again, and each shard is proven to be byte for
    byte as it was. The exit code is 1 when something could not be repaired.

    For example:
      tarmac repair data/digits
      tarmac repair data/digits --quarantine
      tarmac repair data/digits --shard 7
    """
    from tasks.core.config import load_config
    from tasks.dataset.repair.run import repair as mend

    level = level_of(quick, full)
    settings = None if config is None else load_config(config)
    began = time.monotonic()
    with screen.running("repair") as progress:
        done = mend(dataset, level, progress, config=settings, quarantines=quarantine, shards=shard or ())
    took = format_duration(time.monotonic() - began)
    lines = _repair_lines(done, dataset, level, quarantine, took)
    return answer(as_json, lambda: _repair_facts(done), lines, done.ok)


def _repair_facts(done: Repaired) -> dict[str, Any]:
    # If the repair succeeded, the remaining findings are about samples that training skips: no errors.
    left = [replace(one, severity="warning") for one in done.findings] if done.ok else done.findings
    return {
        "ok": done.ok,
        "findings": [asdict(finding) for finding in left],
        "version": done.version.name,
        "repaired": [{"shard": one.file, "how": one.way, "detail": one.how} for one in done.shards],
        "tables": [{"file": one.file, "how": one.how} for one in done.tables],
        "moved": {name: str(path) for name, path in done.moved.items()},
        "failed": [{"shard": one.file, "reason": one.reason, "remedy": one.remedy} for one in done.failed],
        "quarantined": done.aside.added,
        "released": done.aside.released,
        "skipped": done.aside.now,
        "not_seen": list(done.not_seen),
    }


def _repair_lines(done: Repaired, dataset: str, level: Level, quarantines: bool, took: str) -> Iterator[str]:
    for what, lines in {
        "repaired": [f"  {one.file:<24} {one.how}" for one in (*done.tables, *done.shards)],
        "moved": [f"  {name:<24} moved to {near(path)}" for name, path in done.moved.items()],
        "not repaired": [f"✗ {one.file:<24} {one.reason}" for one in done.failed],
    }.items():
        yield from lines[:SHOWN]
        if len(lines) > SHOWN:
            yield f"  and {len(lines) - SHOWN:,} more {what}"
    failed = {one.file for one in done.failed}
    others = [one for one in done.findings if not failed & {one.where.get("shard"), one.where.get("file")}]
    for finding in others[:SHOWN]:
        yield from finding.lines()
    if not done.ok:
        for remedy in dict.fromkeys(one.remedy for one in done.failed):
            yield f"    fix    {remedy.replace('DATASET', shlex.quote(dataset))}"
    if done.aside.released:
        was = "is sound again and was" if done.aside.released == 1 else "are sound again and were"
        yield f"  {counted(done.aside.released, 'sample')} {was} taken out of quarantine.jsonl"
    yield from _last_lines(done, level, quarantines, took)


def _last_lines(done: Repaired, level: Level, quarantines: bool, took: str) -> Iterator[str]:
    """Yield what was repaired, what was not, and what training skips."""
    name = done.version.name
    if done.tables or done.shards or done.moved:
        files = _files_counted(len(done.shards), len(done.tables)) or "no file"
        ways = Counter(WAYS.get(one.way, one.how) for one in done.shards)
        parts = [f"{count:,} {way}" for way, count in ways.items()]
        parts += [f"{len(done.moved):,} extra moved away"] if done.moved else []
        listed = f": {', '.join(parts)}" if parts else ""
        proven = ", all byte-identical" if done.shards else ""
        yield f"✓ repaired {files} of version {name}{listed}{proven}, {took}"
    elif not (done.failed or done.findings):
        yield f"✓ version {name} is sound at level {level}: nothing to repair, {took}"
        if done.not_seen:
            yield f"  not looked at: {'; '.join(done.not_seen)}"
    if done.failed:
        shards = sum(one.file.endswith(".tar") for one in done.failed)
        yield f"✗ {_files_counted(shards, len(done.failed) - shards)} of version {name} could not be repaired"
    elif not done.ok:
        yield f"✗ {counted(len(done.findings), 'finding')} left in version {name}"
    if quarantines and any(one.is_environment for one in done.failed):
        yield "! no sample was set aside: what this machine could not read or write may be sound"
    if quarantines and done.aside.now:
        mark = "✓" if done.ok else "!"
        new = f", {done.aside.added:,} of them new" if done.aside.added != done.aside.now else ""
        skipped = counted(done.aside.now, "sample")
        yield f"{mark} training skips {skipped} of this version, set aside in quarantine.jsonl{new}"


def _files_counted(shards: int, tables: int) -> str:
    """Return such as `2 shards and 1 table`; an empty text for none."""
    kinds = ((shards, "shard"), (tables, "table"))
    return " and ".join(counted(number, kind) for number, kind in kinds if number)
