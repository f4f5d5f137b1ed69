"""Examines a process or a pasted log for `tarmac doctor`, and shows the result as text and as a page.

One redacted page of HTML holds the whole examination, so that a bug report carries the evidence and not a
guess.
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
from tasks.diagnosis import passage
from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.observe import LAST_WORDS, SECONDS, observe, read_log
from tasks.diagnosis.observation.record import Observation, ObservedProcess
from tasks.diagnosis.observation.redaction import redacted, without_home
from tasks.diagnosis.verdicts import Verdict, facts_of, is_certain, judge, judge_log
from tasks.trainers import GENERIC, TRAINERS
from tasks.trainers.contract import Trainer

LABEL, WIDTH = 11, 96


@dataclass(frozen=True)
class Examination:
    """The verdict about a subject, with `name` for files. `about` is a sentence for the case that another
    process was examined than the user asked for."""

    subject: str
    name: str
    verdict: Verdict
    observation: Observation | None
    at: float
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints and the page holds, without the name of the user's home."""
        observed = self.observation.to_json() if self.observation is not None else None
        more = {"subject": self.subject, "about": self.about, "observation": observed}
        whole = {**self.verdict.to_json(), **more}
        shown: dict[str, Any] = json.loads(without_home(json.dumps(whole)))
        return shown


def examine_process(pid: int, log: Path | None = None, seconds: float = SECONDS) -> Examination:
    """Observe a process for some seconds and judge it; for `tarmac watch`, the command that it watches.

    UsageError where there is neither the process nor a log.
    """
    if procfs.stat(pid) is None and log is None:
        raise UsageError(
            f"--pid: there is no process {pid}; what ended it is in its log: tarmac doctor --log FILE"
        )
    watched = passage.watched_command(pid)
    about = f"process {pid} is tarmac watch; this is about its command, process {watched}" if watched else ""
    seen = observe(watched or pid, seconds, log, is_enough=is_certain)
    return Examination(f"process {watched or pid}", str(pid), judge(seen), seen, seen.at, about)


def examine_log(path: Path) -> Examination:
    """Judge the log of a training. UsageError where the file cannot be read."""
    log = read_log(path, LAST_WORDS)
    if log is None:
        raise UsageError(f"--log: {path} cannot be read; give the file that the training printed to")
    verdict = judge_log(log, trainer_of_log(log.lines))
    return Examination(f"log {redacted(str(path))}", path.stem, verdict, None, time.time())


def trainer_of_log(lines: Sequence[str]) -> Trainer:
    """Return the trainer of most of the lines, the first among equals; GENERIC where none fits."""
    known = [one for one in TRAINERS if one is not GENERIC]
    counts = [sum(one.progress(line) is not None or one.failed(line) for line in lines) for one in known]
    return known[counts.index(max(counts))] if any(counts) else GENERIC


def text_of(done: Examination) -> Iterator[str]:
    """Yield the examination as the terminal shows it, without the place where it was saved."""
    verdict = done.verdict
    if done.about:
        yield f"{'WATCH':<{LABEL - 2}}{done.about}"
    first, *fixes = verdict_of(done)
    yield first
    findings, observation = verdict.report.findings, done.observation
    if observation is not None:
        yield f"EVIDENCE over {observation.seconds:.0f} s"
        for name, fact in facts_of(observation):
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
    """Return the first line and the last lines of the text: the verdict, and a fix for each cause."""
    fixes = [
        "\n           ".join(filter(None, [one.command, one.remedy])) for one in done.verdict.report.findings
    ]
    return [f"VERDICT  {done.verdict.sentence}", *(f"FIX        {fix}" for fix in fixes)]


def save_doctor_page(done: Examination, path: Path) -> None:
    """Write the page. UsageError where it cannot be written."""
    values: dict[str, Any] = {"facts": [], "processes": [], "roles": {}, "log": None, "observation": ""}
    if (observation := done.observation) is not None:
        values = {
            "facts": facts_of(observation),
            "processes": observation.processes,
            "roles": _roles(observation.processes),
            "log": observation.log,
            "observation": json.dumps(done.to_json()["observation"], indent=1),
        }
    page = pages.render(
        "diagnosis/doctor.html", done=done, verdict=done.verdict, written=time.time(), **values
    )
    write_page(page, path)


def write_page(page: str, path: Path) -> None:
    """Write a page to the path of `--out`. UsageError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, page)
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be written ({error.strerror}); give another PATH") from None


def _roles(processes: Sequence[ObservedProcess]) -> dict[int, str]:
    """Name the role of each process by its id: `rank 0`, `worker 1 of rank 0`."""
    alike: dict[tuple[str, int], list[int]] = {}
    for one in processes:
        alike.setdefault((one.role, one.rank), []).append(one.pid)
    return {
        pid: f"{role} {rank}" if role == "rank" else f"{role} {number} of rank {rank}"
        for (role, rank), pids in alike.items()
        for number, pid in enumerate(pids)
    }


def _wrapped(parts: list[str]) -> Iterator[str]:
    line = ""
    for part in parts:
        if line and len(line) + len(part) > WIDTH:
            yield line
            line = ""
        line += ("   " if line else "") + part
    if line:
        yield line
