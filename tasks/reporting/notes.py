"""Notes that a reader needs before the figures: failures, findings, lost evaluations, missing parts.

All functions are pure, from the evidence to notes, the gravest first. For a private dataset free text is
withheld, because the reason of a failure may quote a sample's key or its caption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.core.units import counted
from tasks.reporting.evidence import RunContents
from tasks.runs.data import version_path

Tone = Literal["bad", "warn", ""]
SIGNS: Mapping[Tone, str] = {"bad": "✗", "warn": "!", "": "·"}
TONES: Mapping[str, Tone] = {"error": "bad", "warning": "warn"}
MOST = 40
MOST_NAMED = 4
WITHHELD = "The dataset is private, so details are only in {file} of the run's folder."


@dataclass(frozen=True)
class Note:
    """A note: its heading `kind`, its lines, and the command that helps."""

    tone: Tone
    kind: str
    lines: tuple[str, ...] = ()
    command: str | None = None

    @property
    def sign(self) -> str:
        return SIGNS[self.tone]


def notes(evidence: RunContents, more: Sequence[Note] = ()) -> list[Note]:
    """Return all notes, with `more` from elsewhere, the gravest first and otherwise in the order of the
    pipeline."""
    every = [
        *_state(evidence),
        *_followed(evidence),
        *_findings(evidence),
        *_evaluations(evidence),
        *_replaced(evidence),
        *(
            Note("bad", f"{file} cannot be read", _free_text(reason, evidence, file))
            for file, reason in evidence.unreadable.items()
        ),
        *_missing(evidence),
        *more,
    ]
    every.sort(key=lambda note: list(SIGNS).index(note.tone))
    if len(every) <= MOST:
        return every
    return [*every[:MOST], Note("", f"{counted(len(every) - MOST, 'more note')}, no graver than these")]


def _state(evidence: RunContents) -> Iterator[Note]:
    record = evidence.record
    if record is None:
        if "run.json" not in evidence.unreadable:
            yield Note("bad", "The run's record is missing", ("run.json identifies the run.",))
        return
    condition = evidence.condition
    assert condition is not None  # there is a record
    reason = (
        (condition.reason,) if condition.is_abandoned else _free_text(record.reason, evidence, "run.json")
    )
    lines = (*reason, f"Logs: attempts/{max(record.trained, 1)}/logs.")
    if condition.has_failed:
        kind = f"The run {'failed' if condition.state == 'failed' else 'is stalled'}"
        yield Note("bad", kind, lines, condition.next_command)
    elif record.stopped_early:
        yield Note("", "The training was stopped early by a rule", reason)
    elif condition.state == "cancelled":
        yield Note("warn", "The run was cancelled before its last step", lines, condition.next_command)
    elif condition.state != "succeeded":
        yield Note("", f"The run is not over: {condition.word}", ("This page shows its progress.",))


def _followed(evidence: RunContents) -> Iterator[Note]:
    if evidence.follows is not None:
        kind = "These are checkpoints of another trainer"
        yield Note("", kind, ("Whether it has trained on the evaluated samples is not known here.",))


def _findings(evidence: RunContents) -> Iterator[Note]:
    trained = evidence.record.trained if evidence.record is not None else 0
    for finding in evidence.findings:
        is_earlier = isinstance(finding.get("attempt"), int) and finding["attempt"] < trained
        if is_earlier and finding.get("by") != "training":
            continue  # a later attempt got past it
        severity = str(finding.get("severity", "info"))
        tone = TONES.get(severity, "")
        kind = f"{finding.get('code', 'unknown')} ({severity})"
        if evidence.private:
            yield Note(tone, kind, (WITHHELD.format(file="findings.jsonl"),))
            continue
        where, found = (_pairs(finding.get(name)) for name in ("where", "evidence"))
        lines, command = (where, found, str(finding.get("remedy") or "")), finding.get("command")
        yield Note(tone, kind, tuple(line for line in lines if line), str(command) if command else None)


def _replaced(evidence: RunContents) -> Iterator[Note]:
    """Note the bad samples that the training replaced, with the first of them by shard and key."""
    if not evidence.replaced:
        return
    places = dict.fromkeys(
        f"{line.get('shard')}, key {line.get('key') or 'unknown'} ({line.get('reason')})"
        for line in evidence.replaced
    )
    file = "replaced.rank_*.jsonl"
    data = evidence.record.data if evidence.record is not None else []
    samples, times = counted(len(places), "bad sample"), len(evidence.replaced)
    yield Note(
        "warn",
        f"{samples} replaced while training, {times:,} times in all",
        (WITHHELD.format(file=file),) if evidence.private else first_of(list(places), file),
        f"tarmac repair {version_path(data[0])}" if data else None,
    )


def _evaluations(evidence: RunContents) -> Iterator[Note]:
    """Note every evaluation without a result, or with only one from before it was requested again, with the
    reason in the ledger."""
    condition = evidence.condition
    if condition is None:
        return
    lost, to_come = condition.lost, []
    for one in condition.evaluations:
        where, command = f"{one.task} at step {one.step:,}", one.command(evidence.run)
        if one in lost:
            how = "failed" if one.state == "failed" else "lost"
            reason = _free_text(one.reason, evidence, "ledger.jsonl")
            yield Note("bad", f"Evaluation {how}: {where}", reason, command)
        elif one.state in ("submitted", "running") and evidence.agent_is_alive:
            yield Note("", f"Evaluation under way: {where}", (f"Its job is {one.state}.",))
        elif not one.is_done and one.step <= evidence.last_checkpoint:
            yield Note(
                "warn",
                f"Evaluation not {'started' if one.entry is None else 'finished'}: {where}",
                command=command,
            )
        elif not one.is_done:
            to_come.append(where)
    if to_come:
        named = ", ".join([*to_come[:MOST_NAMED], *(["…"] if len(to_come) > MOST_NAMED else [])])
        kind = f"{counted(len(to_come), 'evaluation')} to come"
        yield Note("", kind, (f"Training has not reached {named}",))


def _missing(evidence: RunContents) -> Iterator[Note]:
    if evidence.config is None and "config.yaml" not in evidence.unreadable:
        lines = ("Samples are not shown, because it might declare them private.",)
        yield Note("warn", "The run's config is missing", lines)
    if evidence.loader is None and "loader.json" not in evidence.unreadable:
        yield Note("warn", "The loader's settings are missing", ("loader.json does not exist.",))
    if not evidence.rows and evidence.follows is None and "metrics.jsonl" not in evidence.unreadable:
        yield Note("warn", "No training metrics yet", ("metrics.jsonl has no rows.",))


def first_of(places: Sequence[str], file: str) -> tuple[str, ...]:
    """Return the first few places, and how many more the file lists."""
    left = len(places) - MOST_NAMED
    return (*places[:MOST_NAMED], *([f"and {left:,} more, in {file}"] if left > 0 else []))


def _free_text(text: str, evidence: RunContents, file: str) -> tuple[str, ...]:
    if not text:
        return ()
    return (WITHHELD.format(file=file),) if evidence.private else (text,)


def _pairs(values: Any) -> str:
    if not isinstance(values, dict):
        return ""
    return ", ".join(str(value) if key == "what" else f"{key} {value}" for key, value in values.items())
