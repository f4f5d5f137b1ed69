"""Any program as an evaluation: it gets a checkpoint and the name of a file, into which it writes its
figures.

The program runs beside the training, so the launcher's variables for the training's ranks are removed: a
program that finds RANK and WORLD_SIZE would wait for ranks that do not exist.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json
from tasks.core.process import users_environment
from tasks.evaluation.contract import EvaluationOutcome, Evaluator, Subject
from tasks.models import hub
from tasks.models.recipes import Capability

SHOWN_LINES = 3
"""How many of a failed program's last lines its error repeats."""
LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
LAUNCHER_PREFIXES = ("MASTER_", "TORCHELASTIC_", "SLURM_CPU_BIND", "PMI", "OMPI_", "TARMAC_")
OF_ONE_SLURM_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS")
"""Source: the variables that lmms-eval removes for its jobs, entrypoints/job_scheduler.py."""


class CommandEvaluator(Evaluator):
    """The arguments of a task of kind `command`."""

    needs: ClassVar[frozenset[Capability]] = frozenset()
    judges_samples: ClassVar[bool] = False

    command: Annotated[list[str], Field(min_length=1)]
    """The program and its arguments, without a shell. `{checkpoint}` is the checkpoint's folder, `{run}` the
    run's, `{step}` its step, and `{output}` the JSON file to write: an object of numbers by name, or one with
    `metrics` and, where it is known, `samples`."""

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return the numbers that the program wrote; DataError with its last lines where it fails or writes
        none."""
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "output.json")
            place = subject.place()
            values = {
                "checkpoint": str(place.checkpoint),
                "run": str(place.run),
                "step": str(place.step),
                "output": str(output),
            }
            run_program([fill_in(part, values) for part in self.command])
            return outcome_of(output, self.command[0])


def run_program(command: Sequence[str], changes: Mapping[str, str] | None = None) -> None:
    """Run a program to its end, with its output in this job's log.

    Raises UsageError where it cannot be started, DataError where its exit code is not 0.
    """
    last_lines: list[str] = []
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment(), **(changes or {})},
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                os.write(2, line.encode(errors="replace"))
                last_lines = [*last_lines[1 - SHOWN_LINES :], line.strip()]
    except (FileNotFoundError, PermissionError) as error:
        raise UsageError(f"evaluate.tasks: {command[0]} cannot be started: {error.strerror}") from None
    if process.returncode:
        shown = " | ".join(last_lines) or "it printed nothing"
        raise DataError(f"{command[0]} ended with exit code {process.returncode}: {shown}")


def environment() -> dict[str, str]:
    """Return the user's environment without a launcher's variables for one rank among several, and
    without the variable that keeps the training from asking the hub: what a program downloads was not
    fetched ahead."""
    ours = (hub.OFFLINE,) if hub.OURS in os.environ else ()
    return {
        name: value
        for name, value in users_environment().items()
        if name not in (*LAUNCHERS, *OF_ONE_SLURM_TASK, *ours) and not name.startswith(LAUNCHER_PREFIXES)
    }


def fill_in(part: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of one argument; other braces stay."""
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", value)
    return part


def outcome_of(output: Path, program: str) -> EvaluationOutcome:
    try:
        content: Any = read_json(output)
    except FileNotFoundError:
        raise DataError(
            f"{program} succeeded but wrote no {{output}}; have it write its figures there"
        ) from None
    except ValueError as error:
        raise DataError(f"{program} wrote no JSON into {{output}}: {error}") from error
    table = content.get("metrics", content) if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table:
        raise DataError(f"{program} wrote no object of numbers into {{output}}")
    wrong = next((name for name, value in table.items() if not _is_number(value)), None)
    if wrong is not None:
        raise DataError(f"{program} wrote {table[wrong]!r} as {wrong!r}, which is not a finite number")
    samples = content.get("samples", 0) if table is not content else 0
    return EvaluationOutcome({str(name): float(value) for name, value in table.items()}, "", int(samples))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
