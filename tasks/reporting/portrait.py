"""The description of a run in its report: what determined its weights, when and where it was started.

All functions are pure. The facts come from `identity` in run.json, on which the weights depend; a missing
field is left out.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tasks.core.units import count, counted, duration, percent, when
from tasks.runs.folder import RunFolder
from tasks.runs.followed import Origin
from tasks.runs.record import Attempt, RunRecord

MARKS: Mapping[str, tuple[str, str]] = {
    "succeeded": ("good", "✓"),
    "failed": ("bad", "✗"),
    "stalled": ("bad", "✗"),
    "cancelled": ("warn", "!"),
}
"""Tone and sign by state; a run in any other state is still going on."""
OF_TRAINING = ("seed", "steps", "batch_size", "lr", "weight_decay", "threads", "shuffle")
"""What a run that follows another trainer does not know of the training."""
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Portrait:
    """The part of the page about the run itself."""

    id: str
    name: str
    folder: str
    state: str = "unknown"
    summary: str = "Its record, run.json, is missing."
    steps: int | None = None
    facts: Pairs = ()
    attempts: Sequence[Attempt] = ()
    versions: Pairs = ()

    @property
    def tone(self) -> str:
        return MARKS.get(self.state, ("", "·"))[0]

    @property
    def sign(self) -> str:
        return MARKS.get(self.state, ("", "·"))[1]


def portrait(
    run: RunFolder,
    record: RunRecord | None,
    origins: Mapping[int, Origin] | None = None,
    state: str | None = None,
) -> Portrait:
    """Describe a run in the given `state`, by default that of its record, and which checkpoints of another
    trainer it has taken, by step; without its record only its folder's name is known."""
    if record is None:
        return Portrait(run.id, run.name, run.name)
    last = record.attempts[-1] if record.attempts else None
    steps = record.identity.get("steps") if "follows" not in record.identity else None
    return Portrait(
        id=record.id,
        name=record.name,
        folder=run.name,
        state=state or record.state,
        summary=_summary(record),
        steps=steps if isinstance(steps, int) else None,
        facts=_facts(record, origins or {}),
        attempts=record.attempts,
        versions=sorted(last.versions.items()) if last else [],
    )


def _summary(record: RunRecord) -> str:
    fields = record.identity
    parts = [_model(fields)]
    steps, batch_size = fields.get("steps"), fields.get("batch_size")
    if "follows" in fields:
        parts.append(f"checkpoints of {fields['follows']}")
    elif isinstance(steps, int) and isinstance(batch_size, int):
        parts.append(f"{counted(steps, 'step')} of {counted(batch_size, 'sample')}")
    lasted = [attempt.ended - attempt.started for attempt in record.attempts if attempt.ended is not None]
    if lasted:
        parts.append(f"ran {duration(sum(lasted))} in {counted(len(record.attempts), 'attempt')}")
    if record.attempts:
        parts.append(when(record.attempts[0].started))
    return ", ".join(part for part in parts if part)


def _facts(record: RunRecord, origins: Mapping[int, Origin]) -> Pairs:
    fields = record.identity
    if "follows" in fields:  # what trained them is not known
        fields = {name: value for name, value in fields.items() if name not in OF_TRAINING}
    last = record.attempts[-1] if record.attempts else None
    weighted = len(record.data) > 1
    data = [
        f"{ref.dataset}, version {ref.version}" + (f", weight {ref.weight:g}" if weighted else "")
        for ref in record.data
    ]
    facts = [
        ("Run", record.id),
        ("Model", _model(fields)),
        ("Follows", _text(fields, "follows")),
        ("Checkpoints", ", ".join(f"{one.path.name} as step {step:,}" for step, one in origins.items())),
        ("Data", "; ".join(data)),
        ("Seed", _text(fields, "seed")),
        ("Steps", _text(fields, "steps")),
        ("Batch", _text(fields, "batch_size", "{} samples per step")),
        ("Learning rate", _learning_rate(fields)),
        ("Weight decay", _text(fields, "weight_decay")),
        ("Precision", _text(fields, "precision")),
        ("CPU threads", _text(fields, "threads")),
        ("Shuffle", _text(fields, "shuffle")),
        ("Identity", _text(fields, "digest")),
        ("Code", last.code_digest if last else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _model(fields: Mapping[str, Any]) -> str:
    model = fields.get("model")
    if not isinstance(model, dict):
        return str(fields.get("recipe", ""))
    named = [str(model["name"])] if "name" in model else []
    named += [f"{key} {_flow(value)}" for key, value in model.items() if key != "name"]
    return f"{fields.get('recipe', 'model')}: {', '.join(named)}"


def _flow(value: Any) -> str:
    """Format a value of the config on one line: words as a command, other values as in YAML."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    if not isinstance(value, list | dict):
        return str(value)
    return str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)).strip()


def _learning_rate(fields: Mapping[str, Any]) -> str:
    rate, warmup = fields.get("lr"), fields.get("warmup")
    if isinstance(rate, dict):
        return ", ".join(f"{part} {value:g}" for part, value in rate.items())
    if not isinstance(rate, int | float):
        return str(rate or "")
    then = "constant" if fields.get("schedule") == "constant" else "falling as a cosine"
    if not warmup or not isinstance(warmup, int | float):
        return f"{rate:g}, {then}"
    steps = f"{count(warmup)} steps" if warmup >= 1 else f"{percent(warmup)} of the steps"
    return f"{rate:g} after a warm-up of {steps}, then {then}"


def _text(fields: Mapping[str, Any], key: str, words: str = "{}") -> str:
    return words.format(fields[key]) if fields.get(key) is not None else ""
