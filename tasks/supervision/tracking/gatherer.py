"""The only writer of a run's wandb run: reads `metrics.jsonl` and evaluation results, logs each row once.

The `.wandb` files are the ledger: a gatherer starts by reading the uids that they hold and logs only others,
so one that was killed at any moment is simply started again. A row with a null, for a number that was not
finite, is logged again once one without is there: the later row of a uid counts. The gatherer stays as long
as the run's agent, and reads back what it wrote before it marks the gathering complete.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.errors import TarmacError
from tasks.core.files import digest, read_json, write_json
from tasks.core.lock import Held, Lease
from tasks.runs import metrics, record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import agent_is_alive
from tasks.supervision.status import config_of, pause_after
from tasks.supervision.tracking import gathering, wandb_file
from tasks.supervision.tracking.tracker import Mode, Tracker, TrackerUnreachable, end_old_core

POLL_S = 0.5
WAIT_S = 60.0
"""How long to wait for another gatherer to leave; that one does the work then."""
ON_DISK_TIMEOUT_S = 15.0
logger = logging.getLogger(__name__)


def facts_of(run: RunFolder) -> dict[str, Any]:
    """Return the wandb run's config: the run's identity and, as `data/…`, the counts of its data."""
    state = record.load_record(run)
    facts: dict[str, Any] = {"name": state.name, **state.identity}
    for ref in state.data:
        manifest = version_path(ref) / "manifest.json"
        if manifest.exists():
            counts = read_json(manifest)
            facts.update({f"data/{key}": counts[key] for key in ("read", "accepted", "filtered", "splits")})
            facts["data/rejects"] = sum(counts["rejects"].values())
    return facts


def evaluation_rows(run: RunFolder) -> list[dict[str, Any]]:
    """Return one row per evaluation result.

    Its uid names the result, so an evaluation that is done again has a row of its own, which wandb's summary
    shows because it comes last.
    """
    rows = []
    for (step, task), found in gathering.results_of(run).items():
        kind = f"eval/{task}"
        values = {f"{kind}/{name}": value for name, value in metrics.finite(found.result.metrics).items()}
        rows.append(metrics.make_row(metrics.EVAL_AXIS, step, f"{kind}:{found.digest}", values))
    for other in gathering.summaries_of_others(run):
        values = {f"eval/{name}": value for name, value in other.metrics.items()}
        rows.append(metrics.make_row(metrics.EVAL_AXIS, other.step, f"eval:{other.digest}", values))
    return rows


def best_rows(run: RunFolder, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row of the best checkpoint, where a metric chose it.

    Its uid names all that was there to choose by, so the choice that holds last is the last row, which
    wandb's summary shows.
    """
    chosen = gathering.chosen_by_metric(run)
    if chosen is None:
        return []
    values = {"best/step": chosen.step, f"best/{chosen.metric}": chosen.value}
    kind = f"best:{digest([inputs['evaluations'], chosen.step, chosen.value])[: gathering.DIGEST_DIGITS]}"
    return [metrics.make_row(metrics.EVAL_AXIS, chosen.step, kind, values)]


class Gatherer:
    """The gathering of one run by one process."""

    def __init__(self, run: RunFolder, mode: Mode) -> None:
        self._run = run
        self._mode = mode
        self._logged, self._next_step = self._on_disk()
        self._offset = 0
        self._tracker: Tracker | None = None

    def follow(self) -> dict[str, Any]:
        """Log what comes until the run's agent is gone; return what was there to gather at the end."""
        began = time.monotonic()
        while True:
            is_settled = not agent_is_alive(self._run)
            inputs = gathering.inputs(self._run)
            rows, self._offset = metrics.read_metrics(self._run.metrics, self._offset)
            for row in [*rows, *evaluation_rows(self._run), *best_rows(self._run, inputs)]:
                self._log(row)
            if is_settled:
                return inputs
            time.sleep(pause_after(time.monotonic() - began, POLL_S))

    def close(self) -> str | None:
        """Finish the wandb run and read back what it holds; TarmacError when a row is missing there.

        Returns why what it logged online is not uploaded; None when it is.
        """
        failure = None
        if self._tracker is not None:
            self._wait_until_on_disk()
            failure = self._tracker.close()
        missing = self._missing()
        if missing:
            raise TarmacError(
                f"{len(missing)} rows did not reach the .wandb files in {self._run.wandb}; run again"
            )
        return failure

    @property
    def url(self) -> str | None:
        """The address of the wandb run's page; None for one that is offline, or has nothing yet."""
        return None if self._tracker is None else self._tracker.url

    def _log(self, row: dict[str, Any]) -> None:
        uid, is_whole = row["uid"], None not in row.values()
        if self._logged.get(uid, False) or (uid in self._logged and not is_whole):
            return
        if self._tracker is None:
            project = config_of(self._run).track.project
            self._tracker = Tracker(self._run, self._mode, project, facts_of(self._run), self._next_step)
        self._tracker.log(row)
        self._logged[uid] = is_whole

    def _on_disk(self) -> tuple[dict[str, bool], int]:
        """The uids in the files, each with whether one of its rows has no null; and the next step."""
        rows, next_step = wandb_file.read_all(self._run.wandb)
        found: dict[str, bool] = {}
        for row in rows:
            uid = str(row.get("uid"))
            found[uid] = found.get(uid, False) or None not in row.values()
        return found, next_step

    def _missing(self) -> set[tuple[str, bool]]:
        return self._logged.items() - self._on_disk()[0].items()

    def _wait_until_on_disk(self) -> None:
        """Wait for every row to be in the file before an online `finish`, which a dead server can cut
        short."""
        deadline = time.monotonic() + ON_DISK_TIMEOUT_S
        while self._mode == "online" and self._missing() and time.monotonic() < deadline:
            time.sleep(0.1)


def gather_run(run: RunFolder, wanted: Mode, fallback: str | None) -> None:
    """Gather until the run's agent is gone, then mark the gathering complete."""
    end_old_core(run)
    gatherer = Gatherer(run, "offline" if fallback is not None else wanted)
    inputs = gatherer.follow()
    failure = gatherer.close()
    marker = {
        "inputs": inputs,
        "mode": wanted,
        "not_uploaded": fallback or failure,
        "url": gatherer.url or gathering.url(run),
        "at": time.time(),
    }
    write_json(run.gathered, marker)


def main(run_folder: str, fallback: str | None = None) -> int:
    """Gather one run. `fallback` is why an online gathering goes on offline."""
    run = RunFolder(Path(run_folder))
    wanted = config_of(run).track.mode
    if wanted == "disabled":
        return 0
    lease = Lease(run.gatherer_lease)
    try:
        lease.wait(WAIT_S)
    except Held as held:
        logger.info("another gatherer is at work: %s", held)
        return 0
    try:
        gather_run(run, wanted, fallback)
    except TrackerUnreachable as error:
        logger.warning(
            "wandb cannot be used online, so the files stay here until `tarmac gather --sync`: %s", error
        )
        fallback = str(error)
    except TarmacError as error:
        logger.error("%s", error)
        return 1
    else:
        return 0
    finally:
        lease.release()
    # A process in which wandb failed to open a run cannot open it again, so a fresh one goes on. Its
    # environment loses WANDB_SERVICE, by which it would look for the `wandb-core` that is gone.
    command = [sys.executable, "-m", "tasks.supervision.tracking.gatherer", run_folder, fallback]
    os.execve(sys.executable, command, gathering.environment(os.environ))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sys.exit(main(*sys.argv[1:3]))
