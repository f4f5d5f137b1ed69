"""Read the content of a run's folder once for the report. Missing or torn files are recorded, never raised.

A report is needed most when something went wrong, so every file is read on its own: a broken one costs only
the part of the page that depends on it, and the reason is shown to the reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tasks.core import config, quarantine_file
from tasks.core.errors import TarmacError, first_line
from tasks.core.files import blake3_file, digest, read_lines
from tasks.core.schema import Config
from tasks.evaluation import results
from tasks.evaluation.best import BestCheckpoint, standing
from tasks.evaluation.condition import (
    EvaluationStatus,
    RunCondition,
    entry_of,
    standing_step,
    still_wanted,
)
from tasks.evaluation.expected import WantedEvaluation, wanted_of
from tasks.evaluation.results import EvaluationResult
from tasks.loader.settings import LoaderSettings, read_settings
from tasks.runs import ledger, metrics, phases, record
from tasks.runs.folder import RunFolder
from tasks.runs.followed import ORIGIN, Origin, origins_of
from tasks.runs.goodput import Goodput, goodput_of
from tasks.runs.jobs import agent_is_alive
from tasks.runs.phases import Phase
from tasks.runs.record import RunRecord

Value = TypeVar("Value")


@dataclass(frozen=True)
class RunContents:
    """The content of a run's folder. A missing part is None or empty; `unreadable` has the reason."""

    run: RunFolder
    record: RunRecord | None = None
    config: Config | None = None
    config_text: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    loader: LoaderSettings | None = None
    results: list[EvaluationResult] = field(default_factory=list)
    ledger: Mapping[ledger.Key, ledger.LedgerEntry] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    replaced: list[dict[str, Any]] = field(default_factory=list)
    """The lines of every rank on bad samples that it replaced."""
    quarantined: list[quarantine_file.Quarantined] = field(default_factory=list)
    """The samples that the run left out from its start."""
    best: BestCheckpoint | None = None
    """The checkpoint that `checkpoints/best` points at."""
    last_checkpoint: int = 0
    phase: Phase | None = None
    """What the first rank last reported."""
    agent_is_alive: bool = True
    """Whether somebody works on the run, or will once his job has begun."""
    goodput: Goodput | None = None
    origins: Mapping[int, Origin] = field(default_factory=dict)
    """The checkpoints of another trainer that the run has taken, by step."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The reason by file, relative to the run's folder, why it could not be read."""

    @property
    def follows(self) -> str | None:
        """The folder or checkpoint of another trainer that the run follows; None where it trains."""
        return None if self.record is None else self.record.identity.get("follows")

    @property
    def best_step(self) -> int | None:
        return None if self.best is None else self.best.step

    @property
    def condition(self) -> RunCondition | None:
        """What is to be reported about the run, wherever that is; None without its record."""
        if self.record is None:
            return None
        checkpoints = [self.last_checkpoint] if self.last_checkpoint else []
        none: dict[str, Any] = {}
        row = next((row for row in reversed(self.rows) if "train/loss" in row), none)
        step = standing_step(self.record, self.phase, checkpoints, row)
        steps = self.record.identity.get("steps") if self.follows is None else step
        return RunCondition(
            self.run, self.record, self.agent_is_alive, step, int(steps or 0), self._evaluations(self.record)
        )

    @property
    def word(self) -> str | None:
        """The run's state in a word."""
        return None if self.condition is None else self.condition.word

    def _evaluations(self, known: RunRecord) -> list[EvaluationStatus]:
        """Where each evaluation stands that the config asks for; without it, each that has had a job."""
        there = {(result.step, result.task) for result in self.results}
        if self.config is None:
            wanted = [WantedEvaluation(one.step, one.task, one.uid) for one in self.ledger.values()]
        elif self.config.train is None or self.config.train.steps is None:
            return []
        else:
            wanted = wanted_of(self.run.id, self.config, self.origins if self.follows is not None else None)
        return [
            EvaluationStatus(want.step, want.task, entry_of(want, self.ledger), want.key in there)
            for want in still_wanted(wanted, known, self.last_checkpoint)
        ]

    @property
    def private(self) -> bool:
        """Whether the page shows no samples; a config that cannot be read might have required that."""
        return self.config is None or self.config.dataset.private


def collect(run: RunFolder, metrics_too: bool = True) -> RunContents:
    """Read everything that the report needs from the folder; the metrics, which may be long, only
    on request."""
    unreadable: dict[str, str] = {}

    def attempt(path: Path, read: Callable[[Path], Value]) -> Value | None:
        if not path.exists():
            return None  # tasks.reporting.notes reports required files by name
        try:
            return read(path)
        except (TarmacError, OSError, ValueError) as error:
            unreadable[str(path.relative_to(run.path))] = first_line(error)
            return None

    alive = attempt(run.record, lambda _: agent_is_alive(run))  # first: what it then wrote is in the rest
    now = time.time() if alive else None
    settings = attempt(run.config, config.reload)
    read_results = [attempt(path, _read_result) for path in results.files_of(run)]
    names = [path.name.removeprefix("step_") for path in run.checkpoints.glob("step_*")]
    known = attempt(run.record, lambda _: record.load_record(run))
    return RunContents(
        run=run,
        record=known,
        config=settings,
        config_text=attempt(run.config, lambda path: path.read_text("utf-8", "replace")) or "",
        rows=(attempt(run.metrics, lambda path: metrics.read_metrics(path)[0]) or []) if metrics_too else [],
        loader=attempt(run.loader, read_settings),
        results=[result for result in read_results if result is not None],
        ledger=ledger.fold(attempt(run.ledger, ledger.read_ledger) or []),
        findings=attempt(run.findings, _lines) or [],
        replaced=[line for path in run.all_replaced() for line in attempt(path, _lines) or []],
        quarantined=attempt(run.quarantine, quarantine_file.read_quarantine) or [],
        best=attempt(run.best, lambda _: standing(run, settings)) if settings is not None else None,
        origins=origins_of(run),
        last_checkpoint=max((int(name) for name in names if name.isdecimal()), default=0),
        goodput=attempt(run.attempts, lambda _: goodput_of(run, known, now)) if known is not None else None,
        phase=phases.read_phase(run.phase()),
        agent_is_alive=bool(alive),
        unreadable=unreadable,
    )


def inputs_digest(run: RunFolder) -> str:
    """Hash all files that a report is made from, with BLAKE3; this is cheap beside making one."""
    files = [run.record, run.config, run.loader, run.metrics, run.ledger, run.findings]
    files += [
        run.quarantine,
        *run.all_replaced(),
        *sorted(run.attempts.glob("*/lives.jsonl")),
        *sorted(run.checkpoints.glob(f"step_*/{ORIGIN}")),
        *sorted(run.evaluations.glob("step_*/*.json")),
    ]
    contents = {str(path.relative_to(run.path)): blake3_file(path) for path in files if path.is_file()}
    best = run.best.resolve().name if run.best.exists() else None
    return digest({"files": contents, "best": best, **({"abandoned": True} if _is_abandoned(run) else {})})


def _is_abandoned(run: RunFolder) -> bool:
    try:
        return record.load_record(run).is_abandoned(agent_is_alive(run))
    except TarmacError:
        return False


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_lines(path)[0]


def _read_result(path: Path) -> EvaluationResult:
    result = results.examine_result(path)
    if isinstance(result, str):
        raise ValueError(result)
    return result
