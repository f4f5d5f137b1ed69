"""The front door: reads the command line, calls the command, and words every mistake in one line.

Nothing heavy is imported here: flows, torch and Prefect come in with the command that needs them.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import NoReturn

from tasks.core.errors import TarmacError, UsageError

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk or its rights refuse, which is nobody's defect."""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("the whole pipeline: build, tune, train, evaluate, report", "CONFIG --set --fresh"),
    "init": ("look at raw data and write a commented config for it", "DATA --out"),
    "plan": ("what a run would do, and what is up to date; writes nothing", "CONFIG --set"),
    "build": (
        "raw data to verified shards with a manifest",
        "CONFIG --set --rehash --accept-loss --shard --no-wait",
    ),
    "train": ("train and evaluate on a built dataset", "CONFIG --set --fresh"),
    "evaluate": ("complete a run's evaluations, or do one again", "RUN --step --task --runs"),
    "verify": ("is a dataset sound?", "SHARDS --quick --full"),
    "repair": (
        "make a damaged dataset sound again, from its source",
        "DATASET --config --quick --full --quarantine",
    ),
    "look": ("a page of its faults, samples, rejects and histograms", "DATASET --quick --full --out"),
    "versions": ("a dataset's history: list, rollback VERSION, prune", "DATASET ACTION VERSION --keep"),
    "bench": ("measure loader settings and choose", "CONFIG --set"),
    "status": ("what runs, what needs you", "--runs"),
    "cancel": ("stop a run at its next step, with a checkpoint", "RUN --runs"),
    "gather": ("results into the wandb run, now or late", "RUN --sync --runs"),
    "report": ("write a run's report again", "RUN --runs"),
    "example": ("write a small raw dataset to start from", "NAME PATH"),
    "schema": ("the config's JSON Schema, for editors", ""),
    "deploy": ("register flows and schedules with a Prefect server", "CONFIGS"),
}
"""Each command: what it is for, and its arguments out of ARGUMENTS."""

ON_DATASETS = ("init", "plan", "build", "verify", "repair", "look", "versions", "example", "schema")
"""The code of these is `flows.datasets:<name>`, that of the others `flows.commands:<name>`."""

ARGUMENTS: dict[str, dict[str, object]] = {
    "CONFIG": {"metavar": "CONFIG", "help": "a config file, such as configs/digits-clip.yaml"},
    "CONFIGS": {
        "metavar": "CONFIG",
        "nargs": "*",
        "help": "configs to register; without one, deploy/prefect.yaml",
    },
    "DATA": {"metavar": "PATH", "help": "a folder, a table, or a pattern of files"},
    "ACTION": {
        "metavar": "ACTION",
        "nargs": "?",
        "choices": ("list", "rollback", "prune"),
        "default": "list",
        "help": "list (default), rollback or prune",
    },
    "VERSION": {"metavar": "VERSION", "nargs": "?", "help": "of rollback: the version, or its start"},
    "RUN": {"metavar": "RUN", "help": "a run's folder, or the start of its id or name"},
    "DATASET": {"metavar": "DATASET", "help": "a dataset's folder or a version's"},
    "SHARDS": {
        "metavar": "DATASET",
        "help": "a dataset's folder or a version's, or anybody's tars: a folder, a pattern, s3://",
    },
    "NAME": {"metavar": "NAME", "help": "digits, digits-chat, phantoms or reinforced"},
    "PATH": {"metavar": "PATH", "nargs": "?", "help": "where to; data/raw/NAME unless given"},
    "--set": {
        "metavar": "KEY=VALUE",
        "action": "append",
        "default": [],
        "help": "change a key of the config",
    },
    "--rehash": {
        "action": "store_true",
        "help": "compare the content of all raw files, not only size and time",
    },
    "--accept-loss": {
        "action": "store_true",
        "help": "take a version that has lost over 5 %% of the samples",
    },
    "--shard": {"metavar": "N", "default": "", "help": "convert this shard again: 7, or val/000003"},
    "--no-wait": {"action": "store_true", "help": "fail when somebody else is building the dataset"},
    "--keep": {"metavar": "N", "type": int, "help": "of prune: versions kept (default: 3)"},
    "--fresh": {"action": "store_true", "help": "start anew; the run that is there moves to runs/archive"},
    "--step": {
        "metavar": "N",
        "type": int,
        "help": "also do this step again, besides what is missing",
    },
    "--task": {"metavar": "T", "help": "also do this evaluation again"},
    "--runs": {"metavar": "FOLDER", "default": "runs", "help": "where run folders lie (default: runs)"},
    "--quick": {"action": "store_true", "help": "sizes, end blocks, counts and index only"},
    "--full": {"action": "store_true", "help": "decode and check every member too"},
    "--config": {"metavar": "CONFIG", "help": "the config it was built by, if build.json does not tell it"},
    "--quarantine": {
        "action": "store_true",
        "help": "let training skip the samples that stay bad",
    },
    "--out": {"metavar": "PATH", "help": "where to write it, instead of the usual place"},
    "--sync": {"action": "store_true", "help": "then upload the run's offline files to wandb"},
}


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UsageErrors, of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def parser() -> Parser:
    """The command line, from the two tables above."""
    top = Parser(prog="tarmac", description="From raw files to an evaluated model, without a silent stall.")
    top.add_argument("--version", action="version", version=f"tarmac {version('tarmac')}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, (purpose, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose)
        for argument in arguments.split():
            options = dict(ARGUMENTS[argument])
            if not argument.startswith("--"):
                argument = argument.lower()
            command.add_argument(argument, **options)  # type: ignore[arg-type]
        command.add_argument("--json", action="store_true", help="print one JSON object instead")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (0 success, 1 failure, 2 usage, 130 interrupted)."""
    words = sys.argv[1:] if argv is None else argv
    as_json = "--json" in words
    _print_anything()
    try:
        arguments = _parsed(words)
        home = "flows.datasets" if arguments.command in ON_DATASETS else "flows.commands"
        commands = importlib.import_module(home)
        return int(getattr(commands, arguments.command)(arguments))
    except TarmacError as error:
        return _failed(as_json, str(error), error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(missing)
        if extra is None:
            raise
        needs = f"tarmac {arguments.command} needs {missing}: pip install 'tarmac[{extra}]'"
        return _failed(as_json, needs, 2)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only break the tidying up
        again = "the same command without --fresh goes on with the run that is there"
        says = again if "--fresh" in words else "the same command goes on with it"
        return _failed(as_json, f"interrupted; what is done stays, and {says}", INTERRUPTED, "\n")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in REFUSED:
            return _failed(as_json, _refusal(error), 1)
        if as_json:  # whoever parses it finds an object, and a person the traceback
            _failed(as_json, f"{type(error).__name__}: {error}", 1)
        raise


def _refusal(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else ""
    fix = "make room and run it again" if error.errno in FULL else "mind its rights and its disk"
    return f"{where}{error.strerror}; {fix}"


def _print_anything() -> None:
    """What a terminal that is not UTF-8 cannot show, such as ✓, becomes a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _failed(as_json: bool, says: str, code: int, mark: str = "✗ ") -> int:
    """Tell why the command has failed; its exit code."""
    if as_json:
        sys.stdout.write(json.dumps({"ok": False, "findings": [], "error": says}) + "\n")
    else:
        sys.stderr.write(f"{mark}{says}\n")
    return code


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line; files in excess are those of a pattern that the shell took apart."""
    top = parser()
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(COMMANDS)}"
        raise UsageError(f"tarmac: no command is named {name!r}; {hint}")
    arguments, others = top.parse_known_args(words)
    if others and all(map(os.path.exists, others)):
        top.error(
            f"{arguments.command} takes one path and got {len(others)} more, from {others[0]} on: quote the "
            "pattern, as in 'data/*.tar', or the shell takes it apart"
        )
    command = f"tarmac {arguments.command}"
    if others:
        raise UsageError(f"{command}: unrecognized arguments: {' '.join(others)}; see {command} --help")
    for argument in COMMANDS[arguments.command][1].split():
        if getattr(arguments, argument.lower(), None) == "":
            raise UsageError(f"{command}: {ARGUMENTS[argument]['metavar']} is empty; see {command} --help")
    return arguments


EXTRAS = {
    **dict.fromkeys(
        ("torch", "torchvision", "open_clip", "webdataset", "safetensors", "sklearn", "submitit"), "train"
    ),
    **dict.fromkeys(("prefect", "httpx"), "prefect"),
    "wandb": "wandb",
}
"""Which extra brings which package."""

if __name__ == "__main__":
    sys.exit(main())
