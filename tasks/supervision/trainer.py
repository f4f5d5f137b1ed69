"""The training process as its agent holds it: started behind a gate, recorded, ended with its group.

The process is a session of its own. Its standard input is a pipe that only the agent holds: when the agent
dies in whatever way, the pipe closes and the training ends itself. Nothing runs before its identity is on
disk: a gate of one line waits for a byte from the agent and only then becomes the training (exec keeps pid
and start time), so a later agent always knows whom to look for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from tasks.core.files import read_json, write_json
from tasks.core.process import Identity, kill_tree
from tasks.core.schema import Train
from tasks.runs.environment import rank_environment
from tasks.runs.folder import RunFolder

GATE = "import os, sys\nif os.read(0, 1): os.execv(sys.argv[1], sys.argv[1:])"
GRACE_S = 5.0


def rank_command(run: RunFolder) -> list[str]:
    """The command line of the training process."""
    return [sys.executable, "-m", "tasks.training.rank", str(run.path)]


@dataclass(frozen=True)
class Rank:
    """A running training process."""

    process: subprocess.Popen[bytes]
    identity: Identity

    def wait(self, timeout_s: float) -> int | None:
        """The exit code (negative: signal) as soon as it ends; None after `timeout_s`."""
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End it and its workers, by force if needed.

        Only `wait` may reap it: a Popen whose child somebody else has reaped reports exit code 0.
        """
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            if self.wait(GRACE_S) is not None:
                return


def start(run: RunFolder, number: int, train: Train) -> Rank:
    """Start the training of attempt `number`."""
    log = run.rank_log(number)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", GATE, *rank_command(run)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=rank_environment(train),
            start_new_session=True,
        )
    rank = Rank(process, Identity.of(process.pid))
    write_json(run.rank_identity(number), rank.identity.to_json())
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already, which waiting for it will show
        process.stdin.write(b"g")
        process.stdin.flush()
    return rank


def end_survivors(run: RunFolder) -> list[Identity]:
    """End every training process that an earlier agent left alive; returns those that were."""
    ended = []
    for path in sorted(run.attempts.glob("*/rank_*.json")):
        identity = Identity.from_json(read_json(path))
        if identity.is_alive():
            kill_tree(identity, GRACE_S)
            ended.append(identity)
    return ended
