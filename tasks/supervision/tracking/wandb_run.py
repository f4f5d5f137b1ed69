"""The wandb run of a run folder, and every bound that keeps it from blocking. Imported by the gatherer only.

Measured (wandb 0.31): without these bounds `init` takes 91 s on a dead server and `finish` never returns. So
`init` and every request (`gathering.environment`) have a time limit, `finish` runs beside a deadline, and
the helper process `wandb-core`, which writes the file, is ended afterwards. By itself wandb begins `_step` at
0 in every file of a run, and the server keeps one row per `_step`; so each row is given one that rises over
all files. The number has no other meaning, because each family of metrics has an axis of its own.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import psutil

from tasks.core.errors import TarmacError
from tasks.core.files import read_json, write_json
from tasks.core.process import Identity, kill_tree
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import EVAL_AXIS, TRAIN_AXIS
from tasks.supervision.tracking import wandb_file
from tasks.supervision.tracking.tracker import TrackerUnreachable, clause_of

INIT_TIMEOUT_S = 15
FINISH_TIMEOUT_S = 30.0
FLUSH_INTERVAL_S = 1.0
ON_DISK_TIMEOUT_S = 15.0
FATAL = "ERROR+4"
"""The level at which `wandb-core` logs that it gives up an upload, which `finish` does not report."""
AXES = {
    "train/*": TRAIN_AXIS,
    "val/*": TRAIN_AXIS,
    "data/*": TRAIN_AXIS,
    "system/*": TRAIN_AXIS,
    "eval/*": EVAL_AXIS,
    "best/*": EVAL_AXIS,
    "goodput/*": TRAIN_AXIS,
}
SETTINGS = {
    "console": "off",
    "silent": True,
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": FLUSH_INTERVAL_S,
}
Mode = Literal["offline", "online"]
logger = logging.getLogger(__name__)


def end_old_core(run: RunFolder) -> None:
    """End the `wandb-core` that a killed gatherer left behind, before anybody reads what it writes."""
    try:
        core = Identity.from_json(read_json(run.wandb_core))
    except FileNotFoundError:
        return
    kill_tree(core, grace_s=1.0)
    run.wandb_core.unlink()


class WandbRun:
    """The wandb run of a run folder: a tracker that opens it with the first row."""

    def __init__(
        self, run: RunFolder, mode: Mode, project: str, facts: Callable[[], Mapping[str, Any]]
    ) -> None:
        """`facts` are asked for the wandb run's config when it is opened."""
        self._run_folder = run
        self._mode = mode
        self._project = project
        self._facts = facts
        self._next_step = 0
        self._logged: set[str] = set()
        self._run: Any = None
        self._cores: list[Identity] = []
        self._is_finished = False

    def recorded(self) -> dict[str, bool]:
        rows, self._next_step = wandb_file.read_all(self._run_folder.wandb)
        found: dict[str, bool] = {}
        for row in rows:
            uid = str(row.get("uid"))
            found[uid] = found.get(uid, False) or None not in row.values()
        return found

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand a row over; it is in the file within FLUSH_INTERVAL_S.

        The first row opens the wandb run. TrackerUnreachable when the mode is online and wandb cannot be used
        so. TarmacError when it cannot be opened offline either, or is not installed.
        """
        if self._run is None:
            self._open()
        self._run.log(dict(row), step=self._next_step, commit=True)
        self._next_step += 1
        self._logged.add(row["uid"])

    def flush(self) -> None:
        """`wandb-core` writes by itself."""

    @property
    def url(self) -> str | None:
        return str(self._run.url) if self._run is not None and self._run.url else None

    def close(self) -> str | None:
        """Finish, within FINISH_TIMEOUT_S, and end `wandb-core`.

        Returns why an online run's file is not uploaded; marks a file that is.
        """
        if self._run is None:
            return None
        self._wait_until_on_disk()
        thread = threading.Thread(target=self._finish, name="wandb-finish", daemon=True)
        thread.start()
        thread.join(FINISH_TIMEOUT_S)
        self._end_core()
        if self._mode == "offline":
            return None
        if not self._is_finished:
            return f"the server did not confirm the upload within {FINISH_TIMEOUT_S:.0f} s"
        settings = self._run.settings
        given_up = _given_up(Path(settings.log_internal))
        if given_up is None:
            wandb_file.synced_of(Path(settings.sync_file)).touch()
        return given_up

    def _open(self) -> None:
        """Open it with rows counted from above all that are there already.

        The library does not require wandb, hence the late import.
        """
        try:
            self._wandb = wandb = importlib.import_module("wandb")
        except ModuleNotFoundError:
            raise TarmacError(
                "track.tracker: wandb is not installed; install tarmac[wandb], or choose tensorboard"
            ) from None
        settings = wandb.Settings(**SETTINGS, init_timeout=INIT_TIMEOUT_S)
        wandb.setup(settings)
        run = self._run_folder
        self._cores = [Identity.of(child.pid) for child in psutil.Process().children()]
        for core in self._cores:
            write_json(run.wandb_core, core.to_json())
        try:
            self._run = wandb.init(
                dir=str(run.path),
                id=record.load_record(run).wandb_id or run.id,
                name=run.name,
                project=self._project,
                mode=self._mode,
                resume="allow",  # without it, syncing a second file of the run overwrites the first
                config=dict(self._facts()),
                settings=settings,
            )
        except wandb.errors.Error as error:
            self._end_core()
            logger.warning("wandb.init: %s", " ".join(str(error).split()))
            if self._mode == "online":
                raise TrackerUnreachable(clause_of(str(error))) from None
            why = " ".join(str(error).split())
            raise TarmacError(f"wandb cannot open run {run.name}: {why}") from None
        # The server may have rows that a killed gatherer's file has lost, and wandb drops rows of past steps.
        self._next_step = max(self._next_step, self._run.starting_step)
        for axis in sorted(set(AXES.values())):
            self._run.define_metric(axis)
        for pattern, axis in AXES.items():
            self._run.define_metric(pattern, step_metric=axis)
        self._run.define_metric("val/loss", step_metric=TRAIN_AXIS, summary="min")

    def _wait_until_on_disk(self) -> None:
        """Wait for every row to be in the file before an online `finish`, which a dead server can cut
        short."""
        deadline = time.monotonic() + ON_DISK_TIMEOUT_S
        while self._mode == "online" and self._logged - self.recorded().keys():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)

    def _finish(self) -> None:
        self._run.finish()
        self._wandb.teardown()
        self._is_finished = True

    def _end_core(self) -> None:
        for core in self._cores:
            kill_tree(core, grace_s=1.0)
        self._run_folder.wandb_core.unlink(missing_ok=True)


def _given_up(log: Path) -> str | None:
    """Why `wandb-core` gave up an upload, according to its log; None when it did not."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if f'"level":"{FATAL}"' in line:
            return clause_of(str(json.loads(line)["msg"]))
    return None
