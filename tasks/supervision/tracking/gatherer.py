"""The only writer to a run's trackers: reads `metrics.jsonl` and evaluation results, logs each row once.

The trackers' files are the ledger: a gatherer starts by reading the uids that they hold and logs only others,
so one that was killed at any moment is simply started again. A row with a null, for a number that was not
finite, is logged again once one without is there: the later row of a uid counts. The gatherer stays as long
as the run's agent, and reads back what it wrote before it marks the gathering complete. While wandb's server
cannot be used, rows wait where the run keeps them, and the next try brings them all.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import TarmacError
from tasks.core.files import digest, write_json
from tasks.core.lock import Held, Lease
from tasks.runs import metrics, record
from tasks.runs.folder import RunFolder
from tasks.runs.goodput import add_up
from tasks.runs.jobs import agent_is_alive
from tasks.runs.lives import recorded_lives
from tasks.supervision.status import config_of, pause_after
from tasks.supervision.tracking import gathering
from tasks.supervision.tracking.lineage import lineage_of, weights_of
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
from tasks.supervision.tracking.tracker import Tracker, TrackerUnreachable
from tasks.supervision.tracking.wandb_run import Mode, WandbRun, end_old_core

POLL_S = 0.5
WAIT_S = 60.0
"""How long to wait for another gatherer to leave; that one does the work then."""
RETRY_S, LONGEST_RETRY_S, NO_MORE = 15.0, 300.0, 0.0
"""The pause after the first failed try to reach the server, which doubles; and what stands for no further
try."""
REST_TIMEOUT_S = 30.0
"""How long the upload of what an online run has left behind may take at its end."""
logger = logging.getLogger(__name__)


def evaluation_rows(run: RunFolder) -> list[dict[str, Any]]:
    """Return one row per evaluation result.

    Its uid names the result, so an evaluation that is done again has a row of its own, which wandb's summary
    shows because it comes last.
    """
    rows = []
    for (step, task), found in gathering.results_of(run).items():
        kind = f"eval/{task}"
        values = {f"{kind}/{name}": value for name, value in metrics.finite(found.result.metrics).items()}
        traced = {f"{kind}/weights": weights} if (weights := weights_of(run, step)) else {}
        rows.append(metrics.make_row(metrics.EVAL_AXIS, step, f"{kind}:{found.digest}", {**values, **traced}))
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


def goodput_rows(run: RunFolder) -> list[dict[str, Any]]:
    """Return a row at the end of each life of the training: where all of its time went until then."""
    state = record.load_record(run)
    ended = [recorded_lives(run, number) for number in range(1, len(state.attempts) + 1)]
    rows = []
    for number, lives in enumerate(ended, 1):
        for count, life in enumerate(lives, 1):
            found = add_up(state.attempts[:number], [*ended[: number - 1], lives[:count]])
            if found is not None:
                names = {name: f"goodput/{name.replace(' ', '_')}_s" for name in found.spent}
                spent = {names[name]: seconds for name, seconds in found.spent.items()}
                values = {"goodput/share": found.share(), **spent}
                kind = f"goodput:{number}.{count}"
                rows.append(metrics.make_row(metrics.TRAIN_AXIS, life.step, kind, values))
    return rows


class Delivery:
    """The way of a run's rows into one tracker."""

    def __init__(self, run: RunFolder, tracker: Tracker) -> None:
        self._run = run
        self.tracker = tracker
        self._logged = tracker.recorded()
        self._offset = 0

    def bring(self, others: Iterable[dict[str, Any]]) -> None:
        """Log the rows that `metrics.jsonl` has got since the last call, and those of `others` that are
        new."""
        rows, self._offset = metrics.read_metrics(self._run.metrics, self._offset)
        for row in [*rows, *others]:
            uid, is_whole = row["uid"], None not in row.values()
            if not self._logged.get(uid, False) and (uid not in self._logged or is_whole):
                self.tracker.log(row)
                self._logged[uid] = is_whole
        self.tracker.flush()

    def close(self) -> str | None:
        """End the tracker and read back what its files hold; TarmacError when a row is missing there.

        Returns why what it logged online is not uploaded; None when it is.
        """
        failure = self.tracker.close()
        if missing := self._logged.items() - self.tracker.recorded().items():
            raise TarmacError(
                f"{len(missing)} rows did not reach the tracker's files in {self._run.path}; run again"
            )
        return failure


class Outage(NamedTuple):
    """Why the wandb server could not be used, and after which pause to try again; NO_MORE for never."""

    why: str
    pause_s: float

    @property
    def is_final(self) -> bool:
        return self.pause_s == NO_MORE


class Gatherer:
    """The gathering of one run by one process."""

    def __init__(self, run: RunFolder, outage: Outage | None) -> None:
        self._run = run
        self._is_final = outage is not None and outage.is_final
        self._pause_s = 0.0 if outage is None else outage.pause_s
        self.files = Delivery(run, TensorBoardFiles(run))
        self.wandb: Delivery | None = None
        track = config_of(run).track
        if track.has_wandb:
            mode: Mode = "online" if track.mode == "online" and not self._is_final else "offline"
            wandb = WandbRun(run, mode, track.project, lambda: lineage_of(run))
            self.wandb = Delivery(run, wandb)

    def follow(self) -> dict[str, Any]:
        """Log what comes until the run's agent is gone; return what was there to gather at the end.

        After an outage wandb gets its rows once the pause is over, or the agent is gone.
        """
        began = time.monotonic()
        while True:
            is_settled = self._is_final or not agent_is_alive(self._run)
            inputs = gathering.inputs(self._run)
            others = [*evaluation_rows(self._run), *best_rows(self._run, inputs), *goodput_rows(self._run)]
            self.files.bring(others)
            if self.wandb is not None and (is_settled or time.monotonic() - began >= self._pause_s):
                self.wandb.bring(others)
            if is_settled:
                return inputs
            time.sleep(pause_after(time.monotonic() - began, POLL_S))

    def close(self) -> str | None:
        """End the trackers; TarmacError when a row is missing in their files.

        Returns why what was logged online is not uploaded; None when it is.
        """
        self.files.close()
        return None if self.wandb is None else self.wandb.close()


def gather_run(run: RunFolder, outage: Outage | None) -> None:
    """Gather until the run's agent is gone, then mark the gathering complete."""
    end_old_core(run)
    gatherer = Gatherer(run, outage)
    inputs = gatherer.follow()
    failure = gatherer.close()
    track = config_of(run).track
    if outage is not None and outage.is_final:
        failure = outage.why
    elif track.mode == "online":
        failure = _upload_rest(run, failure)
    url = None if gatherer.wandb is None else gatherer.wandb.tracker.url
    marker = {
        "inputs": inputs,
        "tracker": track.tracker,
        "mode": track.mode,
        "not_uploaded": failure,
        "url": url or gathering.url(run),
        "at": time.time(),
    }
    write_json(run.gathered, marker)


def _upload_rest(run: RunFolder, failure: str | None) -> str | None:
    """Upload the files that a killed gatherer or an outage has left behind; return why some are left."""
    try:
        gathering.upload_files(run, REST_TIMEOUT_S)
    except TarmacError as error:
        logger.warning("%s", error)
        return failure or str(error)
    return None


def main(run_folder: str, why: str = "", pause_s: str = "0") -> int:
    """Gather one run. `why` is the outage after which this process goes on, `pause_s` the pause before the
    next try."""
    run = RunFolder(Path(run_folder))
    if config_of(run).track.mode == "disabled":
        return 0
    lease = Lease(run.gatherer_lease)
    try:
        lease.wait(WAIT_S)
    except Held as held:
        logger.info("another gatherer is at work: %s", held)
        return 0
    outage = Outage(why, float(pause_s)) if why else None
    try:
        gather_run(run, outage)
    except TrackerUnreachable as error:
        outage = _next_outage(run, outage, str(error))
    except TarmacError as error:
        logger.error("%s", error)
        return 1
    else:
        return 0
    finally:
        lease.release()
    # A process in which wandb failed to open a run cannot open it again, so a fresh one goes on. Its
    # environment loses WANDB_SERVICE, by which it would look for the `wandb-core` that is gone.
    module = "tasks.supervision.tracking.gatherer"
    command = [sys.executable, "-m", module, run_folder, outage.why, str(outage.pause_s)]
    os.execve(sys.executable, command, gathering.environment(os.environ))


def _next_outage(run: RunFolder, before: Outage | None, why: str) -> Outage:
    """Decide after a failed try when to make the next one; none is made once the run's agent is gone."""
    if not agent_is_alive(run):
        logger.warning("wandb cannot be used, so the files stay here until `tarmac gather --sync`: %s", why)
        return Outage(why, NO_MORE)
    pause_s = RETRY_S if before is None else min(2 * before.pause_s, LONGEST_RETRY_S)
    logger.warning("wandb cannot be used; the next try is in %.0f s: %s", pause_s, why)
    return Outage(why, pause_s)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sys.exit(main(*sys.argv[1:4]))
