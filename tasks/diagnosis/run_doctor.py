"""Examines a run of Tarmac's, alive or dead, by its folder.

Its processes are observed like any others. Its loader workers write their state to files of the run's folder,
so this needs no permission to trace. Where another trainer's command trains, that trainer's rules apply. For
a run that is over, or lives on another machine, the records of its agent are shown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tasks.core import config as configs
from tasks.core.errors import first_line
from tasks.core.files import read_json
from tasks.core.findings import MARKS, Finding, Report
from tasks.core.process import Identity
from tasks.diagnosis.examination import Examination
from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.observe import SECONDS, observe
from tasks.diagnosis.observation.record import KeptState, Observation
from tasks.diagnosis.verdicts import Verdict, is_certain, judge, sentence_of
from tasks.loader import worker_state
from tasks.models.recipes import options_type
from tasks.runs import phases, record
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import agent_is_alive
from tasks.runs.plan import command_to_resume
from tasks.runs.record import RunRecord
from tasks.runs.run_findings import findings_of


def examine_run(run: RunFolder, seconds: float = SECONDS) -> Examination:
    """Examine a run of Tarmac's: its processes where they live here, else the records of its agent."""
    number = len(record.load_record(run).attempts)
    identities = [
        Identity.from_json(read_json(path)) for path in sorted(run.attempt(number).glob("rank_*.json"))
    ]
    alive = [identity.pid for identity in identities if identity.is_alive()]
    if not alive:
        return _from_records(run, number, identities)
    train = configs.reload(run.config).train
    external = train if train is not None and options_type(train.recipe).is_external else None
    trainer = None
    if external is not None:  # each rank has started the command, which is the one to observe
        alive = [next(iter(procfs.family(pid)[1:]), pid) for pid in alive]
        trainer = external.model.get("trainer")
    seen = observe(alive[0], seconds, run.rank_log(number), alive[1:], trainer, is_certain)
    seen = replace(seen, states=_states(run))
    verdict = judge(seen)
    if external is not None:  # commands about the run and its config replace those about the bare command
        command = f"tarmac cancel {run.handle}; tarmac preflight {run.config}"
        found = verdict.report.findings
        findings = [replace(one, command=command) if one.command is not None else one for one in found]
        verdict = replace(verdict, report=replace(verdict.report, findings=findings))
    return Examination(f"run {run.name}", run.name, verdict, seen, seen.at)


def _states(run: RunFolder) -> list[KeptState]:
    """Return the states of the living loader workers."""
    now = time.time()
    return [
        KeptState(
            rank=one.rank,
            worker=one.worker,
            pid=one.identity.pid,
            stage=one.stage.label,
            since_s=round(max(now - one.since, 0.0), 1),
            shard=one.shard,
            read=one.read,
            dropped=one.dropped,
            delivered=one.delivered,
        )
        for one in worker_state.read_all(run.workers)
        if one.identity.is_alive()
    ]


def _from_records(run: RunFolder, number: int, identities: Sequence[Identity]) -> Examination:
    """Return the agent's records of an attempt that is over, or that runs where this machine cannot look.

    A run that counts as under way, but on which nobody works any more, is reported as gone."""
    is_at_work = agent_is_alive(run)  # comes first, so that the record holds all that an ended agent wrote
    state = record.load_record(run)
    findings = sorted(map(_worded, findings_of(run, number)), key=lambda one: list(MARKS).index(one.severity))
    is_under_way = state.state in record.UNDER_WAY
    unseen = [one.host for one in identities if not one.is_visible and is_under_way]
    not_seen = [f"its processes (they run on {unseen[0]})"] if unseen else []
    sentence = f"{state.state}: {state.reason}" if state.reason else f"{state.state}; nothing is wrong"
    if state.is_abandoned(is_at_work):
        gone = _gone(run, state, number)
        findings.append(gone)
        sentence = sentence_of(gone)
    elif is_under_way and not state.reason:
        ranks = "" if unseen else ", and no rank of it lives here now"
        sentence = f"{state.state}: its agent is at work{ranks}"
    elif not findings and state.state in ("failed", "stalled"):
        what = state.reason or "it ended, and its agent recorded no cause"
        findings = [Finding("unknown", "warning", "see its log", evidence={"what": what})]
    seen, unread = _stored(run.observation(number))
    not_seen += unread
    if (
        not state.reason
        and findings
        and findings[0].code != "process.gone"
        and findings[0].severity != "info"
    ):
        sentence = f"{state.state}, but {sentence_of(findings[0])}"
    verdict = Verdict("gone", sentence, Report(findings, [], not_seen))
    return Examination(f"run {run.name}", run.name, verdict, seen, time.time())


def _stored(path: Path) -> tuple[Observation | None, list[str]]:
    """Return the agent's last observation, if there is one, and what cannot be shown of it."""
    try:
        return Observation.from_json(read_json(path)), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [f"its processes when they stood still ({path.name}: {first_line(error)})"]


def _gone(run: RunFolder, state: RunRecord, number: int) -> Finding:
    """Report that a run which should be under way has no agent any more."""
    phase, log = phases.read_phase(run.phase()), run.rank_log(number)
    last = state.attempts[-1] if state.attempts else None
    agent = f"its agent (process {last.pid} on {last.host})" if last is not None else "its agent"
    at = "" if phase is None else f", at step {phase.step:,} of {state.identity['steps']:,}"
    evidence = {"what": f"{agent} is gone{at}, although the run is {state.state}: something killed it"}
    if log.exists():
        evidence["log"] = str(log)
    remedy, command = "it resumes from its newest checkpoint", command_to_resume(run)
    return Finding("process.gone", "error", remedy, evidence=evidence, command=command)


def _worded(finding: Finding) -> Finding:
    """Add the sentence of a verdict's finding to one of the agent's, from its last line or step."""
    if "what" in finding.evidence:
        return finding
    what = str(finding.evidence.get("last_line") or f"at step {finding.evidence.get('step', 0)}")
    return replace(finding, evidence={"what": what, **finding.evidence})
