"""From an Observation to a report: the causes that it supports and refutes, and what it could not see.

Pure, so that each rule is tested on recorded observations in milliseconds. A cause is reported only where all
that it needs was seen; a stall that none explains is `unknown`, because a wrong cause is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tasks.core.findings import Finding, Report
from tasks.core.units import counted
from tasks.diagnosis.causes.cause import Cause
from tasks.diagnosis.causes.loading import LOADING
from tasks.diagnosis.causes.printed import findings_in
from tasks.diagnosis.causes.signs import DISKS, LOCKS, POLLS, Signs
from tasks.diagnosis.causes.waiting import WAITING
from tasks.diagnosis.observation.record import Log, Observation, ObservedProcess
from tasks.trainers.contract import Trainer

MOST_STATES = 4
State = Literal["gone", "paused", "works", "stalled", "unclear"]
CAUSES: tuple[Cause, ...] = (*LOADING, *WAITING)
ALIVE = frozenset({"loss.nonfinite", "sample.poison", "json.conflict"})
"""What a log says of a training that still lives; its other messages are about one that has ended."""


@dataclass(frozen=True)
class Verdict:
    """`state` in a word, `sentence` for people, and the report."""

    state: State
    sentence: str
    report: Report

    def to_json(self) -> dict[str, Any]:
        return {**self.report.to_json(), "state": self.state, "verdict": self.sentence}


def judge(seen: Observation) -> Verdict:
    """What the Observation proves of its training."""
    signs = Signs(seen)
    if signs.is_gone:
        return _gone(signs)
    if signs.is_paused:
        stopped = [one for one in seen.processes if one.last is not None and one.last.state in "Tt"]
        fix = "kill -CONT " + " ".join(str(one.pid) for one in stopped)
        sentence = f"paused by a signal (state T); nothing is wrong. Let it go on: {fix}"
        return Verdict("paused", sentence, Report(not_seen=list(seen.not_seen)))
    supported = [(cause, support) for cause in CAUSES if (support := cause.supports(signs)) is not None]
    findings = [cause.finding(support) for cause, support in supported]
    found = {finding.code for finding in findings}
    findings += [one for one in _printed(signs) if one.code in ALIVE and one.code not in found]
    found = {finding.code for finding in findings}
    ruled_out = [
        {"code": cause.code, "evidence": why}
        for cause in CAUSES
        if cause.code not in found and (why := cause.refuted_by(signs)) is not None
    ]
    state = _state(signs, findings)
    if state == "works" and not findings:
        findings = _computing(signs)
    if state == "unclear":
        findings = [*findings, _unknown(signs)]
    return Verdict(state, _sentence(state, findings, signs), Report(findings, ruled_out, list(seen.not_seen)))


def judge_log(log: Log, trainer: Trainer) -> Verdict:
    """What a log alone proves, and what it only suggests."""
    findings = list(findings_in(log.lines, trainer, is_over=True))
    state: State = "gone" if findings else "unclear"
    not_seen = ["the process (only its log was given)"]
    if not findings:
        last = log.lines[-1] if log.lines else "it is empty"
        what = f"the log states no cause; its last line: {last.strip()[:160]}"
        remedy = "tarmac doctor --pid PID while it hangs sees what the log does not say"
        findings = [Finding("unknown", "warning", remedy, evidence={"what": what})]
    return Verdict(
        state, f"{findings[0].code}: {findings[0].evidence['what']}", Report(findings, [], not_seen)
    )


def _state(signs: Signs, findings: list[Finding]) -> State:
    if any(finding.severity == "error" for finding in findings):
        return "stalled"
    if findings:
        return "works"
    main = signs.main
    if main is not None and (signs.runs(main) or signs.is_delivered):
        return "works"
    log = signs.seen.log
    is_fresh = log is not None and log.quiet_s < signs.seen.seconds and bool(log.lines)
    steps = is_fresh and log is not None and signs.trainer.progress(log.lines[-1]) is not None
    return "works" if (signs.gpu_percent or 0) >= 10 or steps else "unclear"


def _gone(signs: Signs) -> Verdict:
    seen = signs.seen
    causes = list(_printed(signs, is_over=True))
    what = f"process {seen.pid} is not there any more"
    gone = Finding(
        "process.gone", "error", "see the end of its log: tarmac doctor --log FILE", evidence={"what": what}
    )
    findings = [*causes, gone]
    return Verdict(
        "gone",
        f"{findings[0].code}: {findings[0].evidence['what']}",
        Report(findings, [], list(seen.not_seen)),
    )


def _printed(signs: Signs, *, is_over: bool = False) -> list[Finding]:
    log = signs.seen.log
    return [] if log is None else list(findings_in(log.lines, signs.trainer, is_over=is_over))


def _computing(signs: Signs) -> list[Finding]:
    """That the training is held up by nothing but its own work, where that shows."""
    main = signs.main
    if main is None or not signs.runs(main) or not (signs.is_served or signs.progress):
        return []
    if any(one.share(*DISKS) >= 0.3 for one in signs.readers):
        return []
    evidence = {
        "what": "it computes, and nothing holds it up",
        "main": f"runs {main.share('runs'):.0%} of the time, {main.cpu:.1f} cores",
        **({"workers": "wait to be asked for more"} if signs.is_served else {}),
    }
    return [
        Finding(
            "compute.bound",
            "info",
            "nothing to mend; a faster device or a smaller model is faster",
            evidence=evidence,
        )
    ]


def _unknown(signs: Signs) -> Finding:
    if stopped := signs.stopped_workers:
        return _stopped(stopped, len(signs.living_workers))
    main = signs.main
    waits = next(iter(main.waits or {}), "unseen") if main is not None else "unseen"
    place = next(iter((main.stack if main is not None else None) or ()), None)
    remedy = (
        "run it as root or under tarmac watch to see stacks" if place is None else "see where it waits, below"
    )
    what = f"it waits ({waits}) for what nothing here explains"
    return Finding(
        "unknown", "warning", remedy, evidence={"what": what, **({"stack": place} if place else {})}
    )


def _stopped(stopped: list[ObservedProcess], workers: int) -> Finding:
    """Workers that do not answer; nothing says who stopped them, or why."""
    pids = " ".join(str(one.pid) for one in stopped)
    what = f"{len(stopped)} of {counted(workers, 'loader worker')} stopped by a signal (state T): {pids}"
    return Finding("unknown", "warning", f"kill -CONT {pids} lets them go on", evidence={"what": what})


def _sentence(state: State, findings: list[Finding], signs: Signs) -> str:
    if findings:
        return f"{findings[0].code}: {findings[0].evidence['what']}"
    return "it works: nothing holds it up" if state == "works" else "nothing was found"


def facts_of(seen: Observation) -> list[tuple[str, str]]:
    """What the rank and its workers did, for people: a name and a line each."""
    signs = Signs(seen)
    main = signs.main
    if main is None or main.last is None:
        return []
    doing = (
        "waits for the DataLoader's queue"
        if signs.is_waiting_for_data
        else "computes"
        if signs.runs(main)
        else f"waits ({', '.join(list(main.waits or {})[:2])})"
    )
    gpu = f"; GPU {signs.gpu_percent:.0f} %" if signs.gpu_percent is not None else ""
    facts = [(f"main {main.pid}", doing + gpu)]
    awake = sum(1 for one in signs.living_workers if signs.moves(one) or signs.runs(one))
    asleep = [one for one in signs.living_workers if one.share(*LOCKS) > 0.5]
    idle = sum(1 for one in signs.living_workers if one.share(*POLLS) > 0.5 and not signs.moves(one))
    if signs.living_workers:
        parts = [f"{awake} work", f"{idle} wait to be asked", f"{len(asleep)} wait for a lock"]
        facts.append(
            (f"{len(signs.living_workers)} workers", ", ".join(part for part in parts if part[0] != "0"))
        )
    for state in seen.states[:MOST_STATES]:
        place = f" {state.shard}" if state.shard else ""
        counts = f"{state.read:,} samples read, {state.delivered:,} delivered"
        facts.append((f"worker {state.worker}", f"{state.stage}{place} for {state.since_s:.0f} s; {counts}"))
    if seen.log is not None and seen.log.lines:
        facts.append(("log", f"quiet for {seen.log.quiet_s:.0f} s; {seen.log.lines[-1].strip()[:120]}"))
    return facts
