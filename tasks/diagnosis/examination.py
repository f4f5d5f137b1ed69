"""The examination behind `tarmac doctor`: of a process, or of a log that somebody pasted; its text and page.

One page of HTML holds all of it, redacted, so that a bug report carries the evidence and not a guess.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core import pages
from tasks.core.errors import UsageError
from tasks.core.files import write_atomic
from tasks.core.findings import Finding
from tasks.diagnosis import passage
from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.observe import SECONDS, observe, read_log
from tasks.diagnosis.observation.record import Observation, ObservedProcess
from tasks.diagnosis.observation.redaction import redacted, without_home
from tasks.diagnosis.verdicts import Verdict, facts_of, judge, judge_log
from tasks.trainers import GENERIC, TRAINERS
from tasks.trainers.contract import Trainer

LABEL = 11


@dataclass(frozen=True)
class Examination:
    """What was examined, in words and by a name fit for a file, and what came of it. `about` is a sentence on
    that, where it is not what was asked for."""

    subject: str
    name: str
    verdict: Verdict
    observation: Observation | None
    at: float
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints and the page holds; nothing in it names the user's home."""
        seen = self.observation.to_json() if self.observation is not None else None
        whole = {**self.verdict.to_json(), "subject": self.subject, "about": self.about, "observation": seen}
        shown: dict[str, Any] = json.loads(without_home(json.dumps(whole)))
        return shown


def examine_process(pid: int, log: Path | None = None, seconds: float = SECONDS) -> Examination:
    """Observe a process for some seconds and judge it; of `tarmac watch` the command that it watches.

    UsageError where there is none, nor a log.
    """
    if procfs.stat(pid) is None and log is None:
        raise UsageError(
            f"--pid: there is no process {pid}; what ended it is in its log: tarmac doctor --log FILE"
        )
    watched = passage.watched_command(pid)
    about = f"process {pid} is tarmac watch; this is about its command, process {watched}" if watched else ""
    seen = observe(watched or pid, seconds, log)
    return Examination(f"process {watched or pid}", str(pid), judge(seen), seen, seen.at, about)


def examine_log(path: Path) -> Examination:
    """Judge what a training has printed. UsageError where the file cannot be read."""
    log = read_log(path)
    if log is None:
        raise UsageError(f"--log: {path} cannot be read; give the file that the training printed to")
    trainer = trainer_of_log(log.lines)
    verdict = judge_log(log, trainer)
    return Examination(f"log {redacted(str(path))}", path.stem, verdict, None, time.time())


def trainer_of_log(lines: Sequence[str]) -> Trainer:
    """The trainer that most of the lines are of, the first among equals; GENERIC where none is."""
    counts = {one.name: sum(_is_of(one, line) for line in lines) for one in TRAINERS if one is not GENERIC}
    return max(
        (one for one in TRAINERS if counts.get(one.name)), key=lambda one: counts[one.name], default=GENERIC
    )


def _is_of(trainer: Trainer, line: str) -> bool:
    return trainer.progress(line) is not None or any(failure.search(line) for failure in trainer.failures)


def text_of(done: Examination) -> Iterator[str]:
    """The examination as the terminal shows it, without where it was saved."""
    verdict = done.verdict
    if done.about:
        yield f"{'WATCH':<{LABEL - 2}}{done.about}"
    said, *fixes = verdict_of(done)
    yield said
    findings, seen = verdict.report.findings, done.observation
    if seen is not None:
        yield f"EVIDENCE over {seen.seconds:.0f} s"
        for name, fact in facts_of(seen):
            yield f"  {name:<{LABEL}} {fact}"
    for place, finding in enumerate(findings):
        if place:
            yield f"ALSO     {finding.code}: {finding.evidence['what']}"
        for name, value in finding.evidence.items():
            if name != "what":
                yield f"  {name:<{LABEL}} {value}"
    ruled = [f"{one['code']} ({one['evidence']})" for one in verdict.report.ruled_out]
    for place, line in enumerate(_wrapped(ruled)):
        yield f"{'RULED OUT' if not place else '':<{LABEL - 1}} {line}"
    if verdict.report.not_seen:
        yield f"NOT SEEN   {'; '.join(verdict.report.not_seen)}"
    yield from fixes


def verdict_of(done: Examination) -> list[str]:
    """Its first line and its last ones: the verdict, and a fix for each cause."""
    findings = done.verdict.report.findings
    return [f"VERDICT  {done.verdict.sentence}", *(f"FIX        {fix_of(one)}" for one in findings)]


def fix_of(finding: Finding) -> str:
    return finding.remedy if finding.command is None else f"{finding.command}\n           {finding.remedy}"


def save_doctor_page(done: Examination, path: Path) -> None:
    """Write the page. UsageError where it cannot be written."""
    observation = done.observation
    page = pages.render(
        "diagnosis/doctor.html",
        done=done,
        verdict=done.verdict,
        facts=facts_of(observation) if observation is not None else [],
        processes=observation.processes if observation is not None else [],
        roles=_roles(observation.processes) if observation is not None else {},
        log=observation.log if observation is not None else None,
        observation=json.dumps(done.to_json()["observation"], indent=1) if observation is not None else "",
        written=time.time(),
    )
    try:
        write_atomic(path, page)
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be written ({error.strerror}); give another PATH") from None


def _roles(processes: Sequence[ObservedProcess]) -> dict[int, str]:
    """What each process is, by its id: `rank 0`, and `worker 1 of rank 0` where a rank has several."""
    alike: dict[tuple[str, int], list[int]] = {}
    for one in processes:
        alike.setdefault((one.role, one.rank), []).append(one.pid)
    return {
        pid: f"{role} {rank}" if role == "rank" else f"{role} {number} of rank {rank}"
        for (role, rank), pids in alike.items()
        for number, pid in enumerate(pids)
    }


def _wrapped(parts: list[str], width: int = 96) -> Iterator[str]:
    line = ""
    for part in parts:
        if line and len(line) + len(part) > width:
            yield line
            line = ""
        line += ("   " if line else "") + part
    if line:
        yield line
