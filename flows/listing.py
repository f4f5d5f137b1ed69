"""`tarmac status`: the runs that need somebody first, then those at work, then the rest in a line each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.units import counted, duration
from tasks.supervision.status import EvaluationStatus, RunStatus, list_status

RUNS = "runs"
"""Where runs lie unless told otherwise; before the first there is no such folder."""


def show(runs: Path, as_json: bool) -> int:
    """Print every run under `runs`; always exit code 0, because looking is not judging."""
    if runs.is_file() or (not runs.exists() and runs != Path(RUNS)):
        raise UsageError(f"--runs: there is no folder {runs}")
    found, unreadable = list_status(runs)
    if as_json:
        rows = [_row(one) for one in found]
        listed = {"ok": True, "findings": [], "runs": rows, "unreadable": dict(unreadable)}
        sys.stdout.write(json.dumps(listed) + "\n")
        return 0
    needing = [one for one in found if one.is_abandoned or one.state == "failed" or _lost(one)]
    working = [one for one in found if one not in needing and one.agent_is_alive]
    rest = [one for one in found if one not in needing and one not in working]
    lines = []
    for title, shown in (
        ("NEEDS YOU", [*map(_needs, needing), *([f"✗ {name}  {why}"] for name, why in unreadable.items())]),
        ("RUNNING", [*map(_works, working)]),
        ("RESTING", [*map(_works, rest)]),
    ):
        if shown:
            lines += [title, *(line for part in shown for line in part)]
    sys.stdout.write("\n".join(lines or [f"no runs in {runs}"]) + "\n")
    return 0


def _works(one: RunStatus) -> list[str]:
    loss = "" if one.loss is None else f"  loss {one.loss:.3f}"
    done = f"  {one.evaluations_done} of {len(one.evaluations)} evaluations" if one.evaluations else ""
    mark = "✓" if one.is_complete else " "
    replaced = f"  {counted(one.replaced, 'replacement')} of bad samples" if one.replaced else ""
    lines = [f"{mark} {one.run.name}  {one.state}  {one.step:,}/{one.steps:,}{loss}{done}{replaced}"]
    if one.silent_s and one.phase is not None:
        silent = f"it has said nothing for {duration(one.silent_s)}, in phase {one.phase.phase}"
        lines.append(f"  ! {silent}; log {one.log}")
    return lines


def _needs(one: RunStatus) -> list[str]:
    lines = []
    if one.is_abandoned:
        lines.append(
            f"✗ {one.run.name}  was {one.state}, but its agent is gone at step {one.step:,} of {one.steps:,}"
        )
        lines.append("    start it again, it resumes: tarmac run CONFIG")
    elif one.state == "failed":
        lines.append(f"✗ {one.run.name}  failed at step {one.step:,} of {one.steps:,}: {one.reason}")
        lines.append(f"    log {one.log}")
    for missing in _lost(one):
        reason = missing.entry.reason if missing.entry is not None else "never started"
        lines.append(
            f"✗ {one.run.name}  evaluation without a result: step {missing.step} {missing.task}: {reason}"
        )
        lines.append(f"    tarmac evaluate {one.run.handle} --step {missing.step} --task {missing.task}")
    return lines


def _lost(one: RunStatus) -> list[EvaluationStatus]:
    """Evaluations without a result that had their chance: tries used up, or the training succeeded."""
    return [
        missing
        for missing in one.evaluations_missing
        if missing.entry is not None or one.state == "succeeded"
    ]


def _row(one: RunStatus) -> dict[str, object]:
    return {
        "run": one.run.name,
        "id": one.run.id,
        "state": one.state,
        "reason": one.reason,
        "step": one.step,
        "steps": one.steps,
        "loss": one.loss,
        "replaced": one.replaced,
        "phase": one.phase.phase if one.phase is not None else None,
        "silent_s": round(one.silent_s, 1),
        "evaluations": len(one.evaluations),
        "evaluations_done": one.evaluations_done,
        "agent_is_alive": one.agent_is_alive,
    }
