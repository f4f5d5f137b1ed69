"""A further node of a training: its keeper, and what the run's agent knows of it.

The agent starts `python -m tasks.supervision.ranks.other_node RUN ATTEMPT` on each further node of its Slurm
job, by srun, whose streams reach from node to node. The keeper reports the address of the agent's node, waits
for where the ranks meet, starts its ranks, and from then on writes a line of JSON about them every second;
the agent writes one back. Who hears nothing from the other for too long takes it for lost: the agent names
the node, and the keeper ends its ranks, as it does when its input closes. So no rank outlives the job's first
node, and a node that loses its power is known before Slurm notices.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.core import config as configs
from tasks.core.errors import TarmacError
from tasks.core.process import Identity
from tasks.runs import gpus
from tasks.runs.folder import RunFolder
from tasks.supervision.ranks.node_ranks import NodeRanks, RankState, Rendezvous, start_ranks

BEAT_S = 1.0
"""The pause between two lines, in both directions."""
SILENCE_S = 30.0
"""A node that says nothing for so long is lost."""
GREETING_S = 180.0
"""How long Slurm may take to start a keeper."""


class OtherNode:
    """A further node as the agent sees it: its keeper's process here is srun."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """`command` runs the keeper on that node, with its streams here; what it prints goes into `log`."""
        self.name, self._log = name, log
        self.address = ""
        """Of the agent's own node, as seen from there."""
        self._states: dict[int, RankState] = {}
        self._heard = time.monotonic()
        self._message: dict[str, Any] = {}
        self._writes = threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
            )
        threading.Thread(target=self._listen, name=f"hears-{name}", daemon=True).start()

    def greet(self, deadline: float) -> None:
        """Wait for the keeper's first line, until `deadline` of time.monotonic.

        TarmacError where it does not come, with the last line of what the keeper or srun printed.
        """
        while not self.address:
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = self._log.read_text(errors="replace").strip().splitlines()
                why = lines[-1] if lines else "it printed nothing"
                raise TarmacError(f"node {self.name} does not start its part of the training: {why}")
            time.sleep(0.05)

    def start(self, meets: Rendezvous, agent: Identity) -> None:
        """Have the keeper start its ranks, and send it a sign of life from then on."""
        self._states = dict.fromkeys(meets.ranks, RankState())
        self._heard = time.monotonic()
        ranks = [meets.ranks.start, meets.ranks.stop]
        self._write({"ranks": ranks, "count": meets.count, "port": meets.port, "agent": agent.to_json()})
        threading.Thread(target=self._beat, name=f"beats-{self.name}", daemon=True).start()

    def look(self) -> dict[int, RankState]:
        """Return what the keeper last said of its ranks; those that it cannot speak of any more are lost."""
        is_gone = self._process.poll() is not None or time.monotonic() - self._heard > SILENCE_S
        if not is_gone:
            return self._states
        return {
            rank: RankState(-signal.SIGKILL, lost_node=self.name) if state.exit_code is None else state
            for rank, state in self._states.items()
        }

    def end(self) -> None:
        """Have the ranks there ended by force."""
        self._write({"end": True})

    def kill(self) -> None:
        """End the keeper, and so its ranks, without waiting."""
        self._process.kill()

    def end_what_they_left(self) -> None:
        """Let the keeper go: it ends what its ranks left, and then itself."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=BEAT_S * 5)
        self._process.kill()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._writes, suppress(OSError, ValueError):  # closed: looking at it will show
            self._process.stdin.write(f"{json.dumps(message)}\n")
            self._process.stdin.flush()

    def _beat(self) -> None:
        while self._process.poll() is None:
            self._write({})
            time.sleep(BEAT_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                self._heard = time.monotonic()
                self.address = self.address or said["address"]
                for rank, (exit_code, is_stopped) in said.get("ranks", {}).items():
                    self._states[int(rank)] = RankState(exit_code, is_stopped)


class Keeper:
    """The keeper's side."""

    def __init__(self, run: RunFolder, number: int) -> None:
        self._run, self._number = run, number
        self._config = configs.reload(run.config)
        self._ranks: NodeRanks | None = None
        self._heard = time.monotonic()
        self._is_to_end = False
        self._begin = threading.Event()
        self._order: dict[str, Any] = {}

    def keep(self) -> None:
        """Keep this node's ranks from their start to their end, or to that of whoever listens."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all; the agent decides
        address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or socket.gethostbyname(socket.gethostname())
        threading.Thread(target=self._listen, name="hears-agent", daemon=True).start()
        while not self._begin.wait(BEAT_S):
            self._say(address)
        if self._is_to_end:
            return
        ranks = self._ranks_of(address)
        while not self._is_to_end and time.monotonic() - self._heard < SILENCE_S:
            self._say(address, ranks.look())
            time.sleep(BEAT_S)
        ranks.end()
        ranks.end_what_they_left()
        self._say(address, ranks.look())

    def _ranks_of(self, address: str) -> NodeRanks:
        engine, order = self._config.engine.train, self._order
        held: Sequence[int] = ()
        if engine.gpus is not None:
            found = gpus.take_gpus(gpus.visible_gpus(), engine.gpus, self._run.name)
            if isinstance(found, gpus.GpusInUse):
                raise TarmacError(str(found))
            gpus.restrict(found.names)
            held = found.descriptors
        meets = Rendezvous(range(*order["ranks"]), order["count"], order["port"], address)
        agent = Identity.from_json(order["agent"])
        return start_ranks(self._run, self._number, self._config, agent, meets, held)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._heard = time.monotonic()
            said = json.loads(line)
            if "ranks" in said:
                self._order = said
                self._begin.set()
            self._is_to_end = self._is_to_end or "end" in said
        self._is_to_end = True  # the agent is gone
        self._begin.set()

    @staticmethod
    def _say(address: str, states: dict[int, RankState] | None = None) -> None:
        ranks = {rank: (state.exit_code, state.is_stopped) for rank, state in (states or {}).items()}
        with suppress(OSError):
            sys.stdout.write(json.dumps({"address": address, "ranks": ranks}) + "\n")
            sys.stdout.flush()


def keeper_command(run: RunFolder, number: int) -> list[str]:
    """The command line of a keeper."""
    return [sys.executable, "-m", "tasks.supervision.ranks.other_node", str(run.path), str(number)]


def main(arguments: Sequence[str]) -> int:
    """Keep the ranks of a run's attempt on this node."""
    try:
        Keeper(RunFolder(Path(arguments[0])), int(arguments[1])).keep()
    except TarmacError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
