"""The command `repair`: what was done to each shard, what could not be done and why, and the way on."""

from __future__ import annotations

import os
import shlex
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.output import print_json, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.findings import Finding
from tasks.core.units import counted, format_duration

SHOWN = 20
"""Lines of a kind; the rest is counted."""
WAYS = {"converted": "converted again", "joined": "put together again", "renamed": "renamed back"}


def repair(arguments: Namespace) -> int:
    """Make a damaged dataset sound again."""
    from tasks.core.config import load
    from tasks.dataset.repair.run import repair as mend

    if arguments.quick and arguments.full:
        raise UsageError("--quick, --full: choose one")
    level = "quick" if arguments.quick else "full" if arguments.full else "default"
    config = None if arguments.config is None else load(Path(arguments.config))
    began = time.monotonic()
    with screen.running("repair") as progress:
        done = mend(
            arguments.dataset,
            level,  # type: ignore[arg-type]
            progress,
            config=config,
            quarantines=arguments.quarantine,
        )
    if arguments.json:
        print_json(_as_json(done))
    else:
        say("\n".join(_lines(done, arguments, level, time.monotonic() - began)))
    return 0 if done.ok else 1


def _as_json(done: Any) -> dict[str, Any]:
    from dataclasses import asdict, replace

    # Where all is well what is left is of samples that training skips: no error any more.
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


def _lines(done: Any, arguments: Namespace, level: str, seconds: float) -> Iterator[str]:
    yield from _some([f"  {one.file:<24} {one.how}" for one in (*done.tables, *done.shards)], "repaired")
    yield from _some([f"  {name:<24} moved to {_near(path)}" for name, path in done.moved.items()], "moved")
    yield from _some([f"✗ {one.file:<24} {one.reason}" for one in done.failed], "not repaired")
    yield from _other_findings(done)
    if not done.ok:
        for remedy in dict.fromkeys(one.remedy for one in done.failed):
            yield f"    fix    {remedy.replace('DATASET', shlex.quote(arguments.dataset))}"
    if done.aside.released:
        was = "is sound again and was" if done.aside.released == 1 else "are sound again and were"
        yield f"  {counted(done.aside.released, 'sample')} {was} taken out of quarantine.jsonl"
    yield from _ends(done, arguments, level, format_duration(seconds))


def _ends(done: Any, arguments: Namespace, level: str, took: str) -> Iterator[str]:
    """The last lines: what was done, what was not, and what training makes of that."""
    name = done.version.name
    if done.tables or done.shards or done.moved:
        yield f"✓ repaired {_summary(done)}, {took}"
    elif not (done.failed or done.findings):
        yield f"✓ version {name} is sound at level {level}: nothing to repair, {took}"
        if done.not_seen:
            yield f"  not looked at: {'; '.join(done.not_seen)}"
    if done.failed:
        shards = sum(one.file.endswith(".tar") for one in done.failed)
        yield f"✗ {_counts(shards, len(done.failed) - shards)} of version {name} could not be repaired"
    elif not done.ok:
        yield f"✗ {counted(len(done.findings), 'finding')} left in version {name}"
    if arguments.quarantine and any(one.is_of_host for one in done.failed):
        yield "! no sample was set aside: what this machine could not read or write may be sound"
    if arguments.quarantine and done.aside.now:
        mark = "✓" if done.ok else "!"
        new = f", {done.aside.added:,} of them new" if done.aside.added != done.aside.now else ""
        skipped = counted(done.aside.now, "sample")
        yield f"{mark} training skips {skipped} of this version, set aside in quarantine.jsonl{new}"


def _near(path: Path) -> str:
    """The path as a person in this folder would type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _some(lines: Sequence[str], what: str) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"  and {len(lines) - SHOWN:,} more {what}"


def _other_findings(done: Any) -> Iterator[str]:
    """Those that no line has told yet."""
    told = {one.file for one in done.failed}
    rest: list[Finding] = [
        one for one in done.findings if not told & {one.where.get("shard"), one.where.get("file")}
    ]
    for finding in rest[:SHOWN]:
        yield from finding.lines()


def _summary(done: Any) -> str:
    """`3 shards of version 9c41: 2 converted again, 1 linked from version 77aa, all byte-identical`."""
    files = _counts(len(done.shards), len(done.tables)) if done.shards or done.tables else "no file"
    ways = Counter(WAYS.get(one.way, one.how) for one in done.shards)
    parts = [f"{count:,} {way}" for way, count in ways.items()]
    if done.moved:
        parts.append(f"{len(done.moved):,} extra moved away")
    told = f": {', '.join(parts)}" if parts else ""
    return f"{files} of version {done.version.name}{told}{', all byte-identical' if done.shards else ''}"


def _counts(shards: int, tables: int) -> str:
    parts = [counted(shards, "shard")] if shards else []
    parts += [counted(tables, "table")] if tables else []
    return " and ".join(parts)
