"""The judgement of somebody's training command: does every worker of every rank get a batch?

Pure: from the command's data arguments, what its tars hold, and what its own pipeline made of samples of each
kind, to findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.diagnosis.foreign import cost, members, shares
from tasks.diagnosis.foreign.case import Case


def judge_command(case: Case) -> list[Finding]:
    """Every cause for which a worker gets no batch, or the run is another than was meant."""
    missing = list(_missing(case))
    if any(one.severity == "error" for one in missing):
        return missing  # what the other rules would say of no shard at all is no advice
    return [*missing, *members.judge_members(case), *shares.judge_shares(case), *cost.judge_cost(case)]


def ruled_out(case: Case, findings: Sequence[Finding]) -> Iterator[Mapping[str, Any]]:
    """What people suspect in such cases, and the figure that says it is not that."""
    codes = {one.code for one in findings}
    if "shuffle.warmup" not in codes and (seconds := cost.fill_s(case)) is not None:
        filled = f"each worker's shuffle buffer would fill in {max(seconds, 0.1):.1f} s"
        yield {"code": "shuffle.warmup", "evidence": filled}
    if not codes & {"shards.too_few", "worker.starved"} and not case.data.is_resampled:
        tars = counted(len(case.survey.locations), "shard")
        yield {"code": "shards.too_few", "evidence": f"{tars} for {counted(case.workers, 'worker')}"}


def _missing(case: Case) -> Iterator[Finding]:
    gone = [one for one in case.survey.tars.values() if one.damage and not one.looked_at]
    if not gone:
        return
    pattern = case.data.tars or ""
    wild = "; the trainer expands {000000..000017} and no *" if "*" in pattern else ""
    yield Finding(
        code="shard.missing",
        severity="error" if len(gone) == len(case.survey.tars) else "warning",
        remedy=f"give shards that are there{wild}",
        where={"shard": gone[0].location},
        evidence={
            "problem": f"{counted(len(gone), 'shard')} cannot be read; the trainer passes over them",
            "first": f"{gone[0].location}: {gone[0].damage}",
        },
    )
