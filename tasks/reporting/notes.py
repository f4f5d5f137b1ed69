"""What a reader must know before the figures: failures, findings, lost evaluations, parts that are missing.

Pure: from the evidence to notes, the gravest first. For a private dataset free text is withheld, because the
reason of a failure may quote a sample's key or its caption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.evaluation.expected import expected
from tasks.reporting.evidence import RunContents
from tasks.runs.data import version_path
from tasks.runs.ledger import Key, LedgerEntry

Tone = Literal["bad", "warn", ""]
SIGNS: Mapping[Tone, str] = {"bad": "✗", "warn": "!", "": "·"}
TONES: Mapping[str, Tone] = {"error": "bad", "warning": "warn"}
MOST = 40
MOST_NAMED = 4
WITHHELD = "The dataset is private, so details stay in {file} of the run's folder."


@dataclass(frozen=True)
class Note:
    """One thing to know: what kind, in which words, and the command that mends it."""

    tone: Tone
    kind: str
    lines: tuple[str, ...] = ()
    command: str | None = None

    @property
    def sign(self) -> str:
        return SIGNS[self.tone]


def notes(evidence: RunContents, more: Sequence[Note] = ()) -> list[Note]:
    """Every note with `more` from elsewhere, the gravest first and otherwise in the order of the pipeline."""
    every = [
        *_state(evidence),
        *_findings(evidence),
        *_evaluations(evidence),
        *_replaced(evidence),
        *_unreadable(evidence),
        *_missing(evidence),
        *more,
    ]
    order: list[Tone] = ["bad", "warn", ""]
    every.sort(key=lambda note: order.index(note.tone))
    left = len(every) - MOST
    return (
        every
        if left <= 0
        else [*every[:MOST], Note("", f"{counted(left, 'more note')}, no graver than these")]
    )


def _state(evidence: RunContents) -> Iterator[Note]:
    record = evidence.record
    if record is None:
        if "run.json" not in evidence.unreadable:
            yield Note("bad", "The run's record is missing", ("run.json says what the run was.",))
        return
    said = _free_text(record.reason, evidence, "run.json")
    logs = f"Logs: attempts/{max(record.trained, 1)}/logs. The same command again resumes the run."
    if record.state in ("failed", "stalled"):
        yield Note("bad", f"The run {'failed' if record.state == 'failed' else 'is stalled'}", (*said, logs))
    elif record.state == "cancelled":
        yield Note("warn", "The run was cancelled before its last step", (*said, logs))
    elif record.state != "succeeded":
        yield Note("", f"The run is not over: {record.state}", ("This page shows how far it is.",))


def _findings(evidence: RunContents) -> Iterator[Note]:
    trained = evidence.record.trained if evidence.record is not None else 0
    for finding in evidence.findings:
        if isinstance(finding.get("attempt"), int) and finding["attempt"] < trained:
            continue  # a later training got past it
        severity = str(finding.get("severity", "info"))
        tone = TONES.get(severity, "")
        kind = f"{finding.get('code', 'unknown')} ({severity})"
        if evidence.private:
            yield Note(tone, kind, (WITHHELD.format(file="findings.jsonl"),))
            continue
        lines = (
            _pairs(finding.get("where")),
            _pairs(finding.get("evidence")),
            str(finding.get("remedy") or ""),
        )
        command = finding.get("command")
        yield Note(tone, kind, tuple(line for line in lines if line), str(command) if command else None)


def _replaced(evidence: RunContents) -> Iterator[Note]:
    """The bad samples that the training did without, and the first places of them."""
    if not evidence.replaced:
        return
    places = dict.fromkeys(
        f"{line.get('shard')}, key {line.get('key') or 'unknown'} ({line.get('reason')})"
        for line in evidence.replaced
    )
    file = "replaced.rank_*.jsonl"
    data = evidence.record.data if evidence.record is not None else []
    times = len(evidence.replaced)
    yield Note(
        "warn",
        f"{counted(len(places), 'bad sample')} replaced while training, {times:,} times in all",
        (WITHHELD.format(file=file),) if evidence.private else first_of(list(places), file),
        f"tarmac repair {version_path(data[0])}" if data else None,
    )


def _evaluations(evidence: RunContents) -> Iterator[Note]:
    """Every evaluation that should have a result and has none, or only one from before it was asked for
    again, with the reason that the ledger gives."""
    there = {(result.step, result.task) for result in evidence.results}
    in_vain = {key for key, entry in evidence.ledger.items() if entry.state in ("failed", "lost")}
    to_come: list[str] = []
    for key in sorted(({*_expected(evidence.config), *evidence.ledger} - there) | in_vain):
        step, task = key
        entry = evidence.ledger.get(key)
        where = f"{task} at step {step:,}"
        command = f"tarmac evaluate {evidence.run.handle} --step {step} --task {task}"
        if entry is not None and entry.is_final:
            how = "failed" if entry.state == "failed" else "lost"
            yield Note(
                "bad",
                f"Evaluation {how}: {where}",
                _free_text(_lost(entry), evidence, "ledger.jsonl"),
                command,
            )
        elif entry is not None:
            yield Note("", f"Evaluation under way: {where}", (f"Its job is {entry.state}.",))
        elif step <= evidence.last_checkpoint:
            yield Note("warn", f"Evaluation not started: {where}", command=command)
        else:
            to_come.append(where)
    if to_come:
        named = ", ".join([*to_come[:MOST_NAMED], *(["…"] if len(to_come) > MOST_NAMED else [])])
        yield Note(
            "", f"{counted(len(to_come), 'evaluation')} to come", (f"Training has not reached {named}",)
        )


def _expected(config: Config | None) -> list[Key]:
    """What the config asks for; nothing while its steps are not known."""
    are_known = config is not None and config.train is not None and config.train.steps is not None
    return expected(config) if config is not None and are_known else []


def _lost(entry: LedgerEntry) -> str:
    if entry.state == "done":
        return "The ledger says done, but its result file is not there or cannot be read."
    return entry.reason or "No reason was recorded."


def _unreadable(evidence: RunContents) -> Iterator[Note]:
    for file, reason in evidence.unreadable.items():
        yield Note("bad", f"{file} cannot be read", _free_text(reason, evidence, file))


def _missing(evidence: RunContents) -> Iterator[Note]:
    if evidence.config is None and "config.yaml" not in evidence.unreadable:
        lines = ("Samples are left out, because it might have said that they are private.",)
        yield Note("warn", "The run's config is missing", lines)
    if evidence.loader is None and "loader.json" not in evidence.unreadable:
        yield Note("warn", "The loader's settings are missing", ("loader.json is not there.",))
    if not evidence.rows and "metrics.jsonl" not in evidence.unreadable:
        yield Note("warn", "No training metrics yet", ("metrics.jsonl has no rows.",))


def first_of(places: Sequence[str], file: str) -> tuple[str, ...]:
    """The first few of these, and how many more the file lists."""
    left = len(places) - MOST_NAMED
    return (*places[:MOST_NAMED], *([f"and {left:,} more, in {file}"] if left > 0 else []))


def _free_text(text: str, evidence: RunContents, file: str) -> tuple[str, ...]:
    if not text:
        return ()
    return (WITHHELD.format(file=file),) if evidence.private else (text,)


def _pairs(values: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items()) if isinstance(values, dict) else ""
