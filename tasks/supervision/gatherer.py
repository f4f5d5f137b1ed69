"""The only writer of a run's wandb run: reads `metrics.jsonl` and evaluation results, logs each row once.

The `.wandb` files are the ledger: a gatherer starts by reading the uids that they hold and logs only others,
so one that was killed at any moment is simply started again. It stays as long as the run's agent, and what
it wrote is read back before it calls the gathering complete.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from tasks.core.errors import TarmacError
from tasks.core.files import read_json, write_json
from tasks.core.lock import Held, Lease
from tasks.runs import metrics, record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.supervision import gathering, wandb_file
from tasks.supervision.status import agent_is_alive, config_of
from tasks.supervision.tracker import Mode, Tracker, Unreachable, end_old_core

POLL_S = 0.5
WAIT_S = 60.0
"""How long to wait for another gatherer to leave; that one does the work then."""
ON_DISK_TIMEOUT_S = 15.0
logger = logging.getLogger(__name__)


def facts_of(run: RunFolder) -> dict[str, Any]:
    """The wandb run's config: the run's identity and, as `data/…`, the counts of its data."""
    state = record.load(run)
    facts: dict[str, Any] = {"name": state.name, **state.identity}
    for ref in state.data:
        manifest = version_path(ref) / "manifest.json"
        if manifest.exists():
            counts = read_json(manifest)
            facts.update({f"data/{key}": counts[key] for key in ("read", "accepted", "filtered", "splits")})
            facts["data/rejects"] = sum(counts["rejects"].values())
    return facts


def evaluation_rows(run: RunFolder) -> list[dict[str, Any]]:
    """A row an evaluation result. Its uid names the result, so that one that is done again has a row of its
    own, which stands in wandb's summary because it comes last."""
    rows = []
    for (step, task), found in gathering.results_of(run).items():
        kind = f"eval/{task}"
        values = {f"{kind}/{name}": value for name, value in metrics.finite(found.result.metrics).items()}
        rows.append(metrics.make_row(metrics.EVAL_AXIS, step, f"{kind}:{found.digest}", values))
    return rows


class Gatherer:
    """One gatherer's life."""

    def __init__(self, run: RunFolder, mode: Mode) -> None:
        self._run = run
        self._mode = mode
        self._seen = self._on_disk()
        self._offset = 0
        self._tracker: Tracker | None = None

    def follow(self) -> dict[str, Any]:
        """Log what comes until the run's agent is gone; returns what was there to gather at the end."""
        while True:
            is_settled = not agent_is_alive(self._run)
            inputs = gathering.inputs(self._run)
            rows, self._offset = metrics.read(self._run.metrics, self._offset)
            for row in [*rows, *evaluation_rows(self._run)]:
                self._log(row)
            if is_settled:
                return inputs
            time.sleep(POLL_S)

    def close(self) -> str | None:
        """Finish the wandb run and read back what it holds; TarmacError when a row is missing there.

        Returns why what it logged online is not uploaded; None when it is.
        """
        failure = None
        if self._tracker is not None:
            self._wait_until_on_disk()
            failure = self._tracker.close()
        missing = self._seen - self._on_disk()
        if missing:
            raise TarmacError(
                f"{len(missing)} rows did not reach the .wandb files in {self._run.wandb}; run again"
            )
        return failure

    def _log(self, row: dict[str, Any]) -> None:
        if row["uid"] in self._seen:
            return
        if self._tracker is None:
            project = config_of(self._run).track.project
            self._tracker = Tracker(self._run, self._mode, project, facts_of(self._run))
        self._tracker.log(row)
        self._seen.add(row["uid"])

    def _on_disk(self) -> set[str]:
        return {str(row.get("uid")) for row in wandb_file.rows_of(self._run.wandb)}

    def _wait_until_on_disk(self) -> None:
        """Before an online `finish`, which a dead server can cut short, see every row in the file."""
        deadline = time.monotonic() + ON_DISK_TIMEOUT_S
        while self._mode == "online" and self._seen - self._on_disk() and time.monotonic() < deadline:
            time.sleep(0.1)


def gather(run: RunFolder, wanted: Mode, fallback: str | None) -> None:
    """Gather until the run's agent is gone, then mark the gathering complete."""
    end_old_core(run)
    gatherer = Gatherer(run, "offline" if fallback is not None else wanted)
    inputs = gatherer.follow()
    failure = gatherer.close()
    marker = {"inputs": inputs, "mode": wanted, "not_uploaded": fallback or failure, "at": time.time()}
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
        gather(run, wanted, fallback)
    except Unreachable as error:
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
    command = [sys.executable, "-m", "tasks.supervision.gatherer", run_folder, fallback]
    os.execve(sys.executable, command, gathering.environment(os.environ))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sys.exit(main(*sys.argv[1:3]))
