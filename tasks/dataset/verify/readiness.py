"""May a version be trained on? It is sound, or all that is bad in it is set aside in the quarantine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tasks.core.findings import Report
from tasks.core.screen import Progress, no_progress
from tasks.dataset import quarantine
from tasks.dataset.verify.run import BadSample, verify


def judge(version: Path, progress: Progress = no_progress) -> Report:
    """Verify's report on the version's folder, at the default level. Findings are warnings where every sample
    that is bad is set aside, because training leaves those out. Errors as `verify`; DataError for a torn
    quarantine."""
    bad: list[BadSample] = []
    report = verify(version, "default", progress, on_bad=bad.append)
    if report.ok:
        return report
    listed = quarantine.read(quarantine.home(version) / quarantine.NAME)
    aside = {(one.shard, one.key) for one in quarantine.of_version(version, listed)}
    shards = {one.shard for one in bad if (one.shard, one.key) in aside}
    are_aside = all((one.shard, one.key) in aside for one in bad)
    if not are_aside or any(found.where.get("shard") not in shards for found in report.findings):
        return report
    return replace(report, findings=[replace(found, severity="warning") for found in report.findings])
