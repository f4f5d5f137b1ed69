"""`tarmac verify`: judges a dataset, a version or tars, and says what is wrong and what to do about it."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flows.output import print_json, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.findings import Finding, Report
from tasks.core.stores import is_remote, redact
from tasks.core.units import counted, format_duration

SHOWN = 20
"""Findings of a code; the rest is counted."""
SHOWN_OF_A_SHARD = 5
"""Of these, so that the first shard does not take all the room."""


def verify(arguments: Namespace) -> int:
    """Exit code 1 when there are findings."""
    from tasks.dataset.verify.run import verify as judge

    if arguments.quick and arguments.full:
        raise UsageError("--quick, --full: choose one")
    level = "quick" if arguments.quick else "full" if arguments.full else "default"
    began = time.monotonic()
    with screen.running("verify") as progress:
        report = judge(arguments.shards, level, progress)  # type: ignore[arg-type]
    if arguments.json:
        print_json(report.to_json())
    else:
        took = format_duration(time.monotonic() - began)
        say("\n".join(lines(report, _named(arguments.shards), level, took)))
    return 0 if report.ok else 1


def lines(report: Report, name: str, level: str, took: str) -> Iterator[str]:
    """The report for a person; `name` is that of what was judged."""
    shown: Counter[str] = Counter()
    of_place: Counter[tuple[str, str]] = Counter()
    for finding in report.findings:
        place = finding.code, str(finding.where.get("shard", finding.where.get("file")))
        if shown[finding.code] < SHOWN and of_place[place] < SHOWN_OF_A_SHARD:
            shown[finding.code] += 1
            of_place[place] += 1
            yield from _alone(finding).lines()
    yield from _left_out(report, shown)
    if report.ok:
        yield f"✓ {name} is sound at level {level}, {took}"
        if report.not_seen:
            yield f"  not looked at: {'; '.join(report.not_seen)}"
        return
    yield f"✗ {_summary(report)}, {took}"
    for command in dict.fromkeys(finding.command for finding in report.findings if finding.command):
        yield f"  next: {command}"


def _alone(finding: Finding) -> Finding:
    """Without the number of those that it counts."""
    from tasks.dataset.verify.reporting import LEFT

    return replace(
        finding, evidence={name: value for name, value in finding.evidence.items() if name != LEFT}
    )


def _left_out(report: Report, shown: Counter[str]) -> Iterator[str]:
    """Of each code how many more there are than were shown, and where these are."""
    from tasks.dataset.verify.reporting import weight

    listed: Counter[str] = Counter(finding.code for finding in report.findings)
    found: Counter[str] = Counter()
    for finding in report.findings:
        found[finding.code] += weight(finding)
    for code, count in found.items():
        if count > shown[code]:
            where = "all" if listed[code] == count else f"{listed[code]:,} of {count:,}"
            yield f"… {code}: {count - shown[code]:,} more; --json lists {where}"


def _summary(report: Report) -> str:
    from tasks.dataset.verify.reporting import weight

    shards = {finding.where["shard"] for finding in report.findings if "shard" in finding.where}
    findings = counted(sum(map(weight, report.findings)), "finding")
    return f"{findings} in {counted(len(shards), 'shard')}" if shards else findings


def _named(place: str) -> str:
    """What was judged: of a dataset the version, of an address no more than may be told."""
    from tasks.dataset import versions

    if is_remote(place):
        return redact(place)
    try:
        return str(versions.resolve(Path(place)))
    except UsageError:
        return place
