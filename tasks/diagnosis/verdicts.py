"""Judges an Observation: which causes it supports, which it refutes, and what could not be observed.

The judgement is a pure function, so that each rule is tested on recorded observations in milliseconds. A
cause is reported only where everything that it needs was observed. A stall that no cause explains is
`unknown`, because a wrong cause is worse than none.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from tasks.core.findings import Finding, Report
from tasks.core.units import counted
from tasks.diagnosis.causes.cause import Cause
from tasks.diagnosis.causes.loading import LOADING
from tasks.diagnosis.causes.printed import findings_in
from tasks.diagnosis.causes.ranks import RANKS
from tasks.diagnosis.causes.signs import DISKS, LOCKS, POLLS, Signs
from tasks.diagnosis.causes.throughput import THROUGHPUT
from tasks.diagnosis.causes.waiting import WAITING
from tasks.diagnosis.observation.record import Log, Observation
from tasks.trainers.contract import Trainer

MOST_STATES = 4
State = Literal["gone", "paused", "works", "stalled", "unclear"]
CAUSES: tuple[Cause, ...] = (*RANKS, *LOADING, *THROUGHPUT, *WAITING)
ERROR_LINE = re.compile(r"^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Warning)\b")
ALIVE = frozenset({"loss.nonfinite", "sample.poison", "json.conflict"})
"""The causes that a log can state about a living training; other messages are about an ended one."""


@dataclass(frozen=True)
class Verdict:
    """The state of a training in a word, a sentence for people, and the report."""

    state: State
    sentence: str
    report: Report

    def to_json(self) -> dict[str, Any]:
        return {**self.report.to_json(), "state": self.state, "verdict": self.sentence}


def judge(seen: Observation) -> Verdict:
    """Return what the Observation proves about its training."""
    signs = Signs(seen)
    if signs.is_gone:
        evidence = {"what": f"process {seen.pid} is not there any more"}
        remedy = "see the end of its log: tarmac doctor --log FILE"
        gone = Finding("process.gone", "error", remedy, evidence=evidence)
        findings = [*_printed(signs, is_over=True), gone]
        return Verdict("gone", sentence_of(findings[0]), Report(findings, [], list(seen.not_seen)))
    if signs.is_paused:
        stopped = [one for one in seen.processes if one.last is not None and one.last.state in "Tt"]
        fix = "kill -CONT " + " ".join(str(one.pid) for one in stopped)
        sentence = f"paused by a signal (state T); nothing is wrong. Let it go on: {fix}"
        return Verdict("paused", sentence, Report(not_seen=list(seen.not_seen)))
    supported = [(cause, support) for cause in CAUSES if (support := cause.supports(signs)) is not None]
    codes = {cause.code for cause, _ in supported}
    findings = [cause.finding(support) for cause, support in supported if codes.isdisjoint(cause.yields_to)]
    found = {finding.code for finding in findings}
    findings += [one for one in _printed(signs) if one.code in ALIVE and one.code not in found]
    found = {finding.code for finding in findings}
    ruled_out = [
        {"code": cause.code, "evidence": why}
        for cause in CAUSES
        if cause.code not in found and (why := cause.refuted_by(signs)) is not None
    ]
    state = _state(signs, findings)
    if not findings:
        findings = _computing(signs) if state == "works" else [_unknown(signs)]
    sentence = sentence_of(findings[0]) if findings else "it works: nothing holds it up"
    return Verdict(state, sentence, Report(findings, ruled_out, list(seen.not_seen)))


def sentence_of(finding: Finding) -> str:
    """Return a finding in one sentence, with its code."""
    return f"{finding.code}: {finding.evidence['what']}"


def judge_log(log: Log, trainer: Trainer) -> Verdict:
    """Return what a log alone proves, and what it only suggests."""
    findings = list(findings_in(log.lines, trainer, is_over=True))
    state: State = "gone" if findings else "unclear"
    if not findings:
        last = log.lines[-1] if log.lines else "it is empty"
        evidence = {"what": f"the log states no cause; its last line: {last.strip()[:160]}"}
        remedy = "tarmac doctor --pid PID while it hangs shows what the log does not"
        findings = [Finding("unknown", "warning", remedy, evidence=evidence)]
    report = Report(findings, [], ["the process (only its log was given)"])
    return Verdict(state, sentence_of(findings[0]), report)


def _state(signs: Signs, findings: list[Finding]) -> State:
    if any(finding.severity == "error" for finding in findings):
        return "stalled"
    if findings:
        return "works"
    main = signs.main
    # Without stacks, a rank that computes may be what others wait for, or wait itself in a collective.
    is_plain = main is not None and (main.stack is not None or all(map(signs.runs, signs.ranks)))
    runs = main is not None and signs.runs(main) and not signs.in_collective(main) and is_plain
    if runs or (main is not None and signs.is_delivered):
        return "works"
    log = signs.seen.log
    is_fresh = log is not None and log.quiet_s < signs.seen.seconds and bool(log.lines)
    steps = is_fresh and log is not None and signs.trainer.progress(log.lines[-1]) is not None
    return "works" if (signs.gpu_percent or 0) >= 10 or steps else "unclear"


def _printed(signs: Signs, *, is_over: bool = False) -> list[Finding]:
    log = signs.seen.log
    return [] if log is None else list(findings_in(log.lines, signs.trainer, is_over=is_over))


def _computing(signs: Signs) -> list[Finding]:
    """Report that nothing but its own work holds the training up, where that shows."""
    main = signs.main
    if main is None or not signs.runs(main) or not (signs.is_served or signs.progress):
        return []
    if any(one.share(*DISKS) >= 0.3 for one in signs.readers) or not all(map(signs.runs, signs.ranks)):
        return []
    evidence = {
        "what": "it computes, and nothing holds it up",
        "main": f"runs {main.share('runs'):.0%} of the time, {main.cpu:.1f} cores",
        **({"workers": "wait to be asked for more"} if signs.is_served else {}),
    }
    remedy = "nothing to mend; a faster device or a smaller model is faster"
    return [Finding("compute.bound", "info", remedy, evidence=evidence)]


def _unknown(signs: Signs) -> Finding:
    """Report the last link of the chain from the rank over its worker to the worker's helper: who waits, in
    what and for whom."""
    if stopped := signs.stopped_workers:  # nothing shows who stopped them, or why
        pids, workers = " ".join(str(one.pid) for one in stopped), len(signs.living_workers)
        what = f"{len(stopped)} of {counted(workers, 'loader worker')} stopped by a signal (state T): {pids}"
        return Finding("unknown", "warning", f"kill -CONT {pids} lets them go on", evidence={"what": what})
    link = signs.last_link
    if link is None:
        nothing = {"what": "it waits for what nothing here explains"}
        return Finding("unknown", "warning", "run it under tarmac watch to see more", evidence=nothing)
    who = f"{link.role} {link.rank if link.role == 'rank' else link.pid}"
    waits = Counter(link.waits or {"unseen": 1})
    doing = "computes" if signs.runs(link) else f"waits ({waits.most_common(1)[0][0]})"
    call = signs.own_call(link) or next(iter(link.stack or ()), None)
    error = next((line for line in reversed(signs.log_lines) if ERROR_LINE.match(line)), None)
    evidence = {
        "what": f"{who} {doing}" + (f" in {call}" if call else "") + ", and nothing here explains why",
        **({"while": "the other ranks wait for it in a collective"} if signs.is_main_waited_for else {}),
        **({"stack": call} if call else {}),
        **({"connection": f"{at.remote}, {at.state}"} if (at := next(iter(link.connections), None)) else {}),
        **({"log": error.strip()[:160]} if error else {}),
    }
    remedy = "see what that call waits for" if call else "run it as root or under tarmac watch to see stacks"
    return Finding("unknown", "warning", remedy, evidence=evidence)


def is_certain(seen: Observation) -> bool:
    """Return whether a longer look could not change the verdict: nothing that only stands still for a moment
    looks like its causes."""
    signs = Signs(seen)
    if signs.is_gone or signs.is_paused:
        return True
    supports = (cause.supports(signs) for cause in CAUSES)
    is_open = any(support is not None and support.may_be_a_pause for support in supports)
    return not is_open or signs.is_certain(signs.log_quiet_s)


def facts_of(seen: Observation) -> list[tuple[str, str]]:
    """Describe for people what the rank and its workers did: a name and a line each."""
    signs = Signs(seen)
    main = signs.main
    if main is None or main.last is None:
        return []
    doing = f"waits ({', '.join(list(main.waits or {})[:2])})"
    if signs.is_waiting_for_data:
        doing = "waits for the DataLoader's queue"
    elif signs.runs(main):
        doing = "computes"
    gpu = f"; GPU {signs.gpu_percent:.0f} %" if signs.gpu_percent is not None else ""
    facts = [(f"main {main.pid}", doing + gpu)]
    if workers := signs.living_workers:
        numbers = {
            "work": sum(signs.moves(one) or signs.runs(one) for one in workers),
            "wait to be asked": sum(one.share(*POLLS) > 0.5 and not signs.moves(one) for one in workers),
            "wait for a lock": sum(one.share(*LOCKS) > 0.5 for one in workers),
        }
        parts = [f"{number} {activity}" for activity, number in numbers.items() if number]
        facts.append((f"{len(workers)} workers", ", ".join(parts)))
    for state in seen.states[:MOST_STATES]:
        place = f" {state.shard}" if state.shard else ""
        counts = f"{state.read:,} samples read, {state.delivered:,} delivered"
        facts.append((f"worker {state.worker}", f"{state.stage}{place} for {state.since_s:.0f} s; {counts}"))
    if seen.log is not None and seen.log.lines:
        facts.append(("log", f"quiet for {seen.log.quiet_s:.0f} s; {seen.log.lines[-1].strip()[:120]}"))
    return facts
