"""The gatherer seen from outside: how far it is, and starting it. Does not import wandb.

The gatherer is a process of its own because wandb may block and its death must cost nobody anything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from tasks.core.child import LAST_LINES
from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import read_json
from tasks.core.lock import Lease, holder_of
from tasks.core.process import Identity, child_environment, kill_tree
from tasks.evaluation import results
from tasks.evaluation.best import BestCheckpoint, standing
from tasks.evaluation.expected import expected
from tasks.evaluation.results import EvaluationResult
from tasks.runs import metrics
from tasks.runs.folder import RunFolder
from tasks.runs.ledger import Key
from tasks.runs.metrics import finite
from tasks.supervision.status import config_of
from tasks.supervision.tracking import wandb_file
from tasks.supervision.tracking.tracker import end_old_core

HTTP_TIMEOUT_S = 5
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
"""Where and who the user is. Any other WANDB_ variable would change what this run is."""


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with no WANDB_ variable but the user's account, and a bound on every request."""
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
        """Start a gatherer if none of this keeper's lives."""
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
    """Every evaluation result by step and task, in that order; `faults` names the files that hold none."""
    found = {}
    for path in results.files_of(run):
        one = _found(path, path.stat().st_mtime_ns)
        if isinstance(one, FoundResult):
            found[one.result.step, one.result.task] = one
    return dict(sorted(found.items()))


@lru_cache(maxsize=4096)
def _found(path: Path, modified_ns: int) -> FoundResult | str:
    result = results.examine_result(path)
    return result if isinstance(result, str) else FoundResult(_short(result.model_dump_json()), result)


def _short(text: str) -> str:
    return blake3(text.encode()).hexdigest()[:DIGEST_DIGITS]


class ForeignSummary(NamedTuple):
    """What another program says of a step that the run's own evaluations leave out, in nanoVLM's form."""

    step: int
    digest: str
    metrics: Mapping[str, float | None]


def summaries_of_others(run: RunFolder) -> list[ForeignSummary]:
    """Every sound `eval_results/step_N.json` of a step at which the config has nothing evaluated."""
    ours = {step for step, _ in expected(config_of(run))}
    found = []
    for path in sorted(run.eval_results.glob("step_*.json")):
        summary = results.examine_summary(path)
        if not isinstance(summary, str) and summary.global_step not in ours and summary.results:
            values = {name: finite(value) for name, value in summary.results.items()}
            found.append(ForeignSummary(summary.global_step, _short(summary.model_dump_json()), values))
    return found


def faults(run: RunFolder) -> list[str]:
    """A line for each file and each row in the run's folder that is not gathered, and why."""
    summaries = sorted(run.eval_results.glob("step_*.json"))
    found = [
        *((path, results.examine_result(path)) for path in results.files_of(run)),
        *((path, results.examine_summary(path)) for path in summaries),
        *(
            (path, "it was no result and is moved aside")
            for path in run.path.glob(f"eval*/**/*{results.ASIDE}")
        ),
    ]
    bad = [f"{path.relative_to(run.path)}: {why}" for path, why in found if isinstance(why, str)]
    return [*bad, *metrics.faults(run.metrics)]


def inputs(run: RunFolder) -> dict[str, object]:
    """What there is to gather, as the marker of a complete gathering names it."""
    size = run.metrics.stat().st_size if run.metrics.exists() else 0
    evaluations = [[step, task, found.digest] for (step, task), found in results_of(run).items()]
    evaluations += [[other.step, run.eval_results.name, other.digest] for other in summaries_of_others(run)]
    chosen = chosen_by_metric(run)
    best = {} if chosen is None else {"best": [chosen.step, chosen.metric, chosen.value]}
    return {"metrics_bytes": size, "evaluations": evaluations, **best}


def chosen_by_metric(run: RunFolder) -> BestCheckpoint | None:
    """The run's best checkpoint where a metric of its evaluations has chosen it."""
    config = config_of(run)
    asked = config.evaluate is not None and config.evaluate.best is not None
    found = standing(run, config) if asked else None
    return None if found is None or found.awaited else found


def is_complete(run: RunFolder) -> bool:
    """Whether all that there is now is in the wandb run's files, gathered in the mode of the config."""
    marker = _marker(run)
    return marker.get("inputs") == inputs(run) and marker.get("mode") == config_of(run).track.mode


def _marker(run: RunFolder) -> dict[str, object]:
    try:
        return dict(read_json(run.gathered))
    except (OSError, ValueError):
        return {}


def not_uploaded(run: RunFolder) -> list[Path]:
    """The `.wandb` files, oldest first, of which nobody has confirmed that the server has them."""
    files = wandb_file.files_of(run.wandb)
    return [path for path in files if not wandb_file.synced_of(path).exists() and wandb_file.has_rows(path)]


def url(run: RunFolder) -> str | None:
    """The wandb run's page; None where nothing is gathered online yet."""
    found = _marker(run).get("url")
    return None if found is None else str(found)


def upload(run: RunFolder) -> str | None:
    """What uploads the files that are not uploaded, and why they are not where they should be; None when
    all are, or tracking is disabled."""
    mode = config_of(run).track.mode
    if mode == "disabled" or not not_uploaded(run):
        return None
    command = f"tarmac gather {run.handle} --sync"
    if mode == "offline":
        return command
    return f"offline: {_marker(run).get('not_uploaded') or 'a part was gathered so'}; upload: {command}"


def accompany(run: RunFolder) -> None:
    """Have a gatherer at work on a run whose agent lives; it stays as long as the agent.

    UsageError when tracking is disabled.
    """
    _require_tracking(run)
    holder = holder_of(run.gatherer_lease)
    if holder is None or not holder.is_alive():
        start_gatherer(run)


def complete(run: RunFolder, timeout_s: float = 120.0) -> None:
    """Have everything gathered that there is, starting gatherers as needed.

    Waits for the run's agent to leave, because a gatherer stays as long as it. TarmacError after `timeout_s`,
    or when a gatherer fails; UsageError when tracking is disabled.
    """
    _require_tracking(run)
    deadline = time.monotonic() + timeout_s
    while not is_complete(run):
        process = start_gatherer(run)
        try:
            code = process.wait(timeout=max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise TarmacError(
                f"gathering into wandb took longer than {timeout_s:.0f} s and goes on as process "
                f"{process.pid}; log: {run.gatherer_log}"
            ) from None
        if code != 0:
            tail = run.gatherer_log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise TarmacError("\n  ".join([f"the gatherer failed; {run.gatherer_log} ends:", *tail]))


def _require_tracking(run: RunFolder) -> None:
    if config_of(run).track.mode == "disabled":
        raise UsageError("track.mode: is disabled; set it to offline or online and start the run again")


def sync(run: RunFolder, timeout_s: float = 300.0) -> int:
    """Upload the files that are not uploaded yet, oldest first; returns how many.

    Goes through `wandb sync`, a file at a time, so that rows of a later file follow those of an earlier one.
    Rows of which an online run's file has brought some to the server may be there twice; their uids tell.
    TarmacError when the server did not take a file within `timeout_s` in all; Held while a gatherer writes.
    """
    deadline = time.monotonic() + timeout_s
    uploaded = 0
    with Lease(run.gatherer_lease):
        end_old_core(run)
        for path in not_uploaded(run):
            wandb_file.cut_torn_end(path)
            says = _sync_one(path, max(deadline - time.monotonic(), 1.0))
            if not wandb_file.synced_of(path).exists():
                raise TarmacError(
                    f"{path} was not uploaded; check WANDB_BASE_URL and `wandb login`, then run "
                    f"`tarmac gather {run.handle} --sync` again. wandb said:\n{says}"
                )
            uploaded += 1
    return uploaded


def _sync_one(path: Path, timeout_s: float) -> str:
    """The end of what `wandb sync` printed; its session is ended with it when it takes too long.

    It marks a file as synced even where the server refused the rows, and says so in an error only.
    """
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "wandb", "sync", "--include-online", str(path.parent)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            env={**environment(child_environment()), "WANDB_DIR": str(path.parent.parent.parent)},
            start_new_session=True,
        )
        identity = Identity.of(process.pid)
        try:
            process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            kill_tree(identity, grace_s=1.0)
            process.wait()
        printed.seek(0)
        lines = printed.read().decode(errors="replace").splitlines()
    if any(line.startswith(SYNC_ERROR) for line in lines):
        wandb_file.synced_of(path).unlink(missing_ok=True)
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:])
