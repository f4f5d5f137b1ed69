"""The gatherer as other processes deal with it: start it, and see how far it is. Does not import wandb.

The gatherer is a process of its own because wandb may block and its death must cost nobody anything.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3
from pydantic import BaseModel

from tasks.core.errors import TarmacError
from tasks.core.files import read_json
from tasks.core.lock import Holder, Lease, holder_of
from tasks.core.process import Identity, child_environment, kill_tree
from tasks.core.units import shorten
from tasks.evaluation import results
from tasks.evaluation.best import BestCheckpoint, standing
from tasks.evaluation.expected import expected_of
from tasks.evaluation.results import EvaluationResult
from tasks.runs import metrics
from tasks.runs.folder import RunFolder
from tasks.runs.ledger import Key
from tasks.runs.lives import recorded_lives
from tasks.runs.metrics import finite
from tasks.supervision.evaluating.result_files import result_of
from tasks.supervision.status import config_of
from tasks.supervision.tracking import wandb_file
from tasks.supervision.tracking.tracker import clause_of
from tasks.supervision.tracking.wandb_run import end_old_core

HTTP_TIMEOUT_S = 5
POLL_S = 0.2
PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
DIGEST_DIGITS = 12
SYNC_ERROR = "wandb: ERROR"
KEPT = (
    "WANDB_API_KEY",
    "WANDB_BASE_URL",
    "WANDB_ENTITY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "WANDB_CREDENTIALS_FILE",
)
"""The user's server and account. Any other WANDB_ variable would change what this run is."""


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with no WANDB_ variable but the user's account, and a time limit on every request."""
    kept = {name: value for name, value in base.items() if not name.startswith("WANDB_") or name in KEPT}
    return {**kept, "WANDB_HTTP_TIMEOUT": str(HTTP_TIMEOUT_S), "WANDB_ERROR_REPORTING": "false"}


def start_gatherer(run: RunFolder) -> subprocess.Popen[bytes]:
    """Start the gatherer in a session of its own; it waits its turn when another one is at work."""
    run.wandb.mkdir(exist_ok=True)
    with run.gatherer_log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tasks.supervision.tracking.gatherer", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(child_environment()),
            start_new_session=True,
        )


class GathererKeeper:
    """Has a gatherer at work for as long as `keep` is called; one that dies is started again.

    The pause between two starts doubles from PAUSE_S up to LONGEST_PAUSE_S; a gatherer that lived longer than
    that has done its work, and the next pause is short again.
    """

    def __init__(self, run: RunFolder, is_wanted: bool) -> None:
        self._run = run
        self._is_wanted = is_wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._started = -LONGEST_PAUSE_S
        self._pause_s = PAUSE_S

    def keep(self) -> None:
        """Start a gatherer unless one of this keeper's lives."""
        if not self._is_wanted or (self._process is not None and self._process.poll() is None):
            return
        since_s = time.monotonic() - self._started
        if self._process is not None and since_s < self._pause_s:
            return
        doubled = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._pause_s = PAUSE_S if self._process is None or since_s > LONGEST_PAUSE_S else doubled
        self._started = time.monotonic()
        self._process = start_gatherer(self._run)

    def end(self) -> None:
        """End this keeper's gatherer, which would stay as long as the run has an agent."""
        if self._process is not None and self._process.poll() is None:
            kill_tree(Identity.of(self._process.pid))
            self._process.wait()


class FoundResult(NamedTuple):
    """An evaluation's result, and the first digits of the BLAKE3 of its content."""

    digest: str
    result: EvaluationResult


def results_of(run: RunFolder) -> dict[Key, FoundResult]:
    """Return every evaluation result by step and task, in that order; `faults` names files that hold none."""
    found = (result_of(path) for path in results.files_of(run))
    by_key = {(one.step, one.task): FoundResult(_digest(one), one) for one in found if one is not None}
    return dict(sorted(by_key.items()))


def _digest(content: BaseModel) -> str:
    return blake3(content.model_dump_json().encode()).hexdigest()[:DIGEST_DIGITS]


class ForeignSummary(NamedTuple):
    """The metrics that another program wrote for a step without evaluations of the run, in nanoVLM's form."""

    step: int
    digest: str
    metrics: Mapping[str, float | None]


def summaries_of_others(run: RunFolder) -> list[ForeignSummary]:
    """Return every sound `eval_results/step_N.json` of a step at which the config evaluates nothing."""
    ours = {step for step, _ in expected_of(run, config_of(run))}
    found = []
    for path in sorted(run.eval_results.glob("step_*.json")):
        summary = results.examine_summary(path)
        if not isinstance(summary, str) and summary.global_step not in ours and summary.results:
            values = {name: finite(value) for name, value in summary.results.items()}
            found.append(ForeignSummary(summary.global_step, _digest(summary), values))
    return found


def faults(run: RunFolder) -> list[str]:
    """Return a line for each file, row and number in the run's folder that is not gathered as it is, and
    why."""
    found = [
        *((path, _fault_of(results.examine_result(path))) for path in results.files_of(run)),
        *((path, _fault_of_summary(run, path)) for path in sorted(run.eval_results.glob("step_*.json"))),
        *((path, "it lies in no folder step_<N>") for path in sorted(run.evaluations.glob("*.json"))),
        *((path, "its name is not step_<N>.json") for path in _misnamed(run)),
        *(
            (path, "it was no result and is moved aside")
            for path in run.path.glob(f"eval*/**/*{results.ASIDE}")
        ),
    ]
    bad = [f"{path.relative_to(run.path)}: {why}" for path, why in found if why is not None]
    return [*bad, *metrics.faults(run.metrics)]


def _fault_of(found: EvaluationResult | str) -> str | None:
    if isinstance(found, str):
        return found
    not_finite = [name for name, value in found.metrics.items() if not math.isfinite(value)]
    return f"metrics.{', metrics.'.join(not_finite)}: not finite, so it is null" if not_finite else None


def _fault_of_summary(run: RunFolder, path: Path) -> str | None:
    found = results.examine_summary(path)
    if isinstance(found, str):
        return found
    ours = {step for step, _ in expected_of(run, config_of(run))}
    return "results: is empty" if not found.results and found.global_step not in ours else None


def _misnamed(run: RunFolder) -> list[Path]:
    return sorted(set(run.eval_results.glob("*.json")) - set(run.eval_results.glob("step_*.json")))


def inputs(run: RunFolder) -> dict[str, object]:
    """Return a description of all that there is to gather, for the marker of a complete gathering."""
    size = run.metrics.stat().st_size if run.metrics.exists() else 0
    evaluations = [[step, task, found.digest] for (step, task), found in results_of(run).items()]
    evaluations += [[other.step, run.eval_results.name, other.digest] for other in summaries_of_others(run)]
    chosen = chosen_by_metric(run)
    best = {} if chosen is None else {"best": [chosen.step, chosen.metric, chosen.value]}
    attempts = [int(path.parent.name) for path in run.attempts.glob("*/lives.jsonl")]
    lives = sum(len(recorded_lives(run, number)) for number in attempts)
    return {"metrics_bytes": size, "evaluations": evaluations, "lives": lives, **best}


def chosen_by_metric(run: RunFolder) -> BestCheckpoint | None:
    """Return the run's best checkpoint where a metric of its evaluations has chosen it."""
    config = config_of(run)
    asked = config.evaluate is not None and config.evaluate.best is not None
    found = standing(run, config) if asked else None
    return None if found is None or found.awaited else found


def is_complete(run: RunFolder) -> bool:
    """Whether the trackers' files hold all that there is now, gathered as the config has it."""
    marker, track = _marker(run), config_of(run).track
    asked = (track.tracker, track.mode)
    return marker.get("inputs") == inputs(run) and (marker.get("tracker"), marker.get("mode")) == asked


def _marker(run: RunFolder) -> dict[str, object]:
    try:
        return dict(read_json(run.gathered))
    except (OSError, ValueError):
        return {}


def not_uploaded(run: RunFolder) -> list[Path]:
    """Return the `.wandb` files, oldest first, whose upload nobody has confirmed."""
    files = wandb_file.files_of(run.wandb)
    return [path for path in files if not wandb_file.synced_of(path).exists() and wandb_file.has_rows(path)]


def url(run: RunFolder) -> str | None:
    """Return the address of the wandb run's page; None where nothing is gathered online yet."""
    found = _marker(run).get("url")
    return None if found is None else str(found)


def upload(run: RunFolder) -> str | None:
    """Return the command that uploads the remaining files, and why an online run has any.

    None when all are uploaded, or there is no wandb run.
    """
    track = config_of(run).track
    if not track.has_wandb or not not_uploaded(run):
        return None
    command = f"tarmac gather {run.handle} --sync"
    if track.mode == "offline":
        return command
    return f"offline, {_marker(run).get('not_uploaded') or 'a part was gathered so'}; {command}"


def accompany(run: RunFolder) -> None:
    """Have a gatherer at work on a run whose agent lives; it stays as long as the agent."""
    if _living_gatherer(run) is None:
        start_gatherer(run)


def complete(run: RunFolder, timeout_s: float = 120.0) -> None:
    """Have everything gathered that there is, starting gatherers as needed.

    A gatherer that lives already is waited for. It stays as long as the run's agent, so the caller makes sure
    that this is about to leave. TarmacError after `timeout_s`, or when a gatherer fails.
    """
    deadline = time.monotonic() + timeout_s
    while not is_complete(run):
        if (other := _living_gatherer(run)) is not None:
            if time.monotonic() > deadline:
                raise TarmacError(f"it is being gathered by {other} for over {timeout_s:.0f} s")
            time.sleep(POLL_S)
            continue
        process = start_gatherer(run)
        try:
            code = process.wait(timeout=max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise TarmacError(
                f"gathering took longer than {timeout_s:.0f} s and goes on as process "
                f"{process.pid}; log: {run.gatherer_log}"
            ) from None
        if code != 0:
            lines = run.gatherer_log.read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
            raise TarmacError(f"the gatherer failed: {shorten(last)}; log: {run.gatherer_log}")


def _living_gatherer(run: RunFolder) -> Holder | None:
    """The process that gathers the run now; None where a gatherer is to be started."""
    holder = holder_of(run.gatherer_lease)
    return holder if holder is not None and holder.is_alive() else None


def sync(run: RunFolder, timeout_s: float = 300.0) -> int:
    """Upload the files that are not uploaded yet, and return how many.

    TarmacError, in one line, when the server did not accept a file within `timeout_s` in all; Held while a
    gatherer writes.
    """
    with Lease(run.gatherer_lease):
        end_old_core(run)
        try:
            return upload_files(run, timeout_s)
        except TarmacError as error:
            raise TarmacError(f"not uploaded, {error}; check WANDB_BASE_URL and `wandb login`") from None


def upload_files(run: RunFolder, timeout_s: float) -> int:
    """The same for a caller who holds the gatherer's lease; the TarmacError is only the reason.

    Goes through `wandb sync`, a file at a time and the oldest first, so that rows of a later file follow
    those of an earlier one. Where an online run has brought a part of a file to the server, those rows may be
    there twice; their uids show it.
    """
    deadline = time.monotonic() + timeout_s
    left = not_uploaded(run)
    for path in left:
        wandb_file.cut_torn_end(path)
        said = _sync_one(path, max(deadline - time.monotonic(), 1.0))
        if not wandb_file.synced_of(path).exists():
            raise TarmacError(clause_of(said) if said else "the server did not confirm it in time")
    return len(left)


def _sync_one(path: Path, timeout_s: float) -> str:
    """Run `wandb sync` on a file and return the errors that it printed, or its last line; nothing where it
    was killed because it took too long. The gatherer's log gets all of it.

    It marks a file as synced even where the server refused the rows, and reports that by an error line only.
    """
    folder = path.parent.parent
    with (folder / "gatherer.log").open("ab+") as printed:
        begin = printed.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-m", "wandb", "sync", "--include-online", str(path.parent)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            env={**environment(child_environment()), "WANDB_DIR": str(folder.parent)},
            start_new_session=True,
        )
        identity = Identity.of(process.pid)
        is_late = False
        try:
            process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            kill_tree(identity, grace_s=1.0)
            process.wait()
            is_late = True
        printed.seek(begin)
        lines = printed.read().decode(errors="replace").splitlines()
    if any(line.startswith(SYNC_ERROR) for line in lines):
        wandb_file.synced_of(path).unlink(missing_ok=True)
    errors = [line for line in lines if "error" in line.lower()]
    return "" if is_late else " ".join(errors or lines[-1:] or ["wandb sync printed nothing"])
