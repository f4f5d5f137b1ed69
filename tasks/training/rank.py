"""`python -m tasks.training.rank RUN_FOLDER`: one rank's process, started by the run's agent.

It ends with exit code 0 when it reached the last step or obeyed `stop`, else with the error's code and one
line on standard error. When its standard input is a pipe that closes, its starter is gone, and it leaves at
once: a training nobody watches would hold the cores and race with its own successor. That tears nothing, as
every file appears by rename. A rank that an agent holds ignores SIGTERM, which Slurm sends to every process
of a job that it ends: the agent gets it too, and asks for a checkpoint.

torch is imported late: it then reads the numbers of threads from the environment, and the loader's forkserver
is forked off as soon as the imports are done.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from tasks.core import config as configs
from tasks.core.errors import OtherRankError, TarmacError
from tasks.core.process import explain_itself
from tasks.loader import forkserver
from tasks.loader.settings import read_settings
from tasks.models import late, recipes
from tasks.runs.environment import Meeting, agent_of
from tasks.runs.folder import RunFolder
from tasks.runs.phases import PhaseWriter

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Train the run in the folder given; return the exit code."""
    leave_with_starter()
    explain_itself()
    if agent_of(os.environ) is not None:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # so does the loader's forkserver, which is a fork of it
    rank, meeting = int(os.environ.get("RANK", "0")), Meeting.of(os.environ)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tasks").setLevel(logging.INFO)
    try:
        run_rank(RunFolder(Path(arguments[0])), rank)
    except Exception as error:
        if meeting is not None and not isinstance(error, OtherRankError):
            meeting.has_failed(rank)
        if not isinstance(error, TarmacError):
            logger.exception("an error that Tarmac does not expect")
            return 1
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def run_rank(run: RunFolder, rank: int = 0) -> None:
    """Train the run in its folder, as the rank of this number."""
    phases = PhaseWriter(run, rank)
    phases.set("start", 0)
    config = configs.reload(run.config)
    settings = read_settings(run.loader)
    # Once anything else runs on the machine, such as an evaluation, threads that spin while they wait for
    # each other take the core from the very one they wait for; a step then takes over ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if config.train is not None and not config.train.compile:
        late.put_off_compiler()
    if config.train is not None and settings.workers:
        forkserver.fork(recipes.module_of(config.train))
    from tasks.training import devices
    from tasks.training.loop import options_of, train
    from tasks.training.ranks import joined

    device = devices.choose(options_of(run, config))
    with joined(shards=config.engine.train.shard) as ranks, devices.forms_demanded():
        train(run, config, settings, phases, device, ranks)


def leave_with_starter(last_act: Callable[[], None] = lambda: None) -> None:
    """End this process, after `last_act`, once its standard input is closed, if that is a pipe."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return

    def wait() -> None:
        while os.read(0, 1 << 12):
            continue
        last_act()
        os._exit(1)

    threading.Thread(target=wait, name="leave-with-starter", daemon=True).start()


def leave(exit_code: int) -> NoReturn:
    """End this process without Python's own shutdown; after a failure at once.

    gloo's threads may still be at work then, or wait for ranks that are gone: now and then the shutdown meets
    them and aborts, and its signal would be taken for the cause.
    """
    if exit_code == 0:
        atexit._run_exitfuncs()  # which end the processes that it started
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
