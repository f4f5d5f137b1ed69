"""The entry point: reads the command line, calls the command, and reports every mistake in one line.

Nothing heavy is imported here. Each command is registered by its import path, and imports torch or Prefect
only when it is called, so the help of all commands costs no more than the modules that hold them.
"""

from __future__ import annotations

import errno
import io
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import Any, Literal, get_args, get_origin

from cyclopts import UNSET, App, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from tasks.core import screen
from tasks.core.errors import TarmacError, UsageError, instead

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a disk or its permissions, which are no defect of Tarmac."""

COMMANDS = {
    "Begin": (
        "flows.commands.projects:example",
        "flows.commands.projects:init",
        "flows.commands.plan:plan",
        "flows.commands.projects:explain",
        "flows.commands.projects:schema",
        "flows.commands.weights:fetch",
    ),
    "Pipeline": (
        "flows.commands.training:run",
        "flows.commands.datasets:build",
        "flows.commands.training:bench",
        "flows.commands.training:train",
        "flows.commands.evaluation:evaluate",
    ),
    "Datasets": (
        "flows.commands.soundness:verify",
        "flows.commands.soundness:repair",
        "flows.commands.soundness:look",
        "flows.commands.lookup:rejects",
        "flows.commands.lookup:trace",
        "flows.commands.versions:versions",
        "flows.commands.datasets:index",
        "flows.commands.datasets:reinforce",
        "flows.commands.scoring:score",
    ),
    "Runs": (
        "flows.commands.status:status",
        "flows.commands.runs:logs",
        "flows.commands.runs:cancel",
        "flows.commands.runs:resume",
        "flows.commands.gather:gather",
        "flows.commands.runs:report",
        "flows.commands.comparing:compare",
        "flows.commands.weights:export",
        "flows.commands.runs:forget",
    ),
    "Diagnosis": (
        "flows.commands.diagnosis:preflight",
        "flows.commands.diagnosis:doctor",
        "flows.commands.diagnosis:watch",
    ),
    "Prefect": ("flows.commands.operations:up", "flows.commands.operations:deploy"),
}
"""The function of each command, by the group that `tarmac --help` lists it in."""

DOING = {
    "example": "writing",
    "init": "looking at",
    "explain": "collecting the keys of a config",
    "schema": "collecting the keys of a config",
    "look": "looking at",
    "versions": "looking at",
    "index": "looking at",
    "rejects": "looking at",
    "trace": "looking for",
    "verify": "looking at",
    "repair": "looking at",
    "status": "looking at the runs",
    "compare": "looking at",
    "export": "reading",
    "doctor": "starting to examine",
    "watch": "starting",
    "preflight": "reading",
    "up": "starting a Prefect server",
    "deploy": "reading the configs",
    **dict.fromkeys(("plan", "fetch", "run", "build", "bench", "train", "reinforce", "score"), "reading"),
    **dict.fromkeys(("evaluate", "logs", "cancel", "resume", "gather", "report", "forget"), "looking at"),
}
"""What a command does first, before its first argument, as the first line says."""

NAMES = tuple(path.rpartition(":")[2] for paths in COMMANDS.values() for path in paths)

PACKAGES = {
    "train": "torch torchvision open_clip huggingface_hub webdataset safetensors sklearn submitit",
    "prefect": "prefect httpx",
    "wandb": "wandb",
    "vlm": "transformers",
}
EXTRAS = {package: extra for extra, packages in PACKAGES.items() for package in packages.split()}
"""The extra that installs each package."""


def _build_app() -> App:
    options = Group("Options", sort_key=len(COMMANDS))
    app = App(
        "tarmac",
        help="From raw files to an evaluated model, without a silent stall.",
        usage="Usage: tarmac COMMAND [ARGUMENTS] [OPTIONS]",
        version=_version,
        help_format="plaintext",
        group_parameters=options,
        default_parameter=Parameter(negative=(), show_default=False),
        config=_refuse_empty,
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for flag in ("--help", "--version"):
        app[flag].group = (options,)
    for place, (title, paths) in enumerate(COMMANDS.items()):
        group = Group(title, sort_key=place)
        for path in paths:
            name = path.rpartition(":")[2]
            app.command(path, name=name, group=group, sort_key=NAMES.index(name))
    return app


@cache
def _offer_completion() -> None:
    """Add `--install-completion`: to import its modules takes longer than to verify a small dataset."""
    app.register_install_completion_command(help="Install the completion of commands for your shell.")
    app["--install-completion"].group = app["--help"].group


def _version() -> str:
    import tarmac

    return f"tarmac {tarmac.version()}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (0 success, 1 failure, 2 usage, 130 interrupted)."""
    words = list(sys.argv[1:] if argv is None else argv)
    ours = list(takewhile(lambda word: word != "--", words))  # the rest belongs to another program
    as_json = "--json" in ours
    _replace_unprintable()
    try:
        return _call(words)
    except CycloptsError as error:
        command = " ".join(("tarmac", *(error.command_chain or ())))
        problem, fix = _problem(error)
        return _fail(as_json, f"{command}: {problem}; {fix or f'see {command} --help'}", 2)
    except TarmacError as error:
        return _fail(as_json, _naming_config(str(error), ours), error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(missing)
        if extra is None:
            raise
        command = next(word for word in ours if word in NAMES)
        return _fail(as_json, f"tarmac {command} needs {missing}: pip install 'tarmac[{extra}]'", 2)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only break the clean-up
        again = "the same command without --fresh goes on with the present run"
        fix = again if "--fresh" in ours else "the same command goes on with it"
        return _fail(as_json, f"interrupted; what is done stays, and {fix}", INTERRUPTED, "\n")
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            return 1
        if isinstance(error, OSError) and error.errno in REFUSED:
            where = f"{error.filename}: " if error.filename is not None else ""
            is_full = error.errno in FULL
            fix = "make room and run it again" if is_full else "check its permissions and its disk"
            return _fail(as_json, f"{where}{error.strerror}; {fix}", 1)
        if as_json:  # a program that parses the output finds an object, and a person the traceback
            _fail(as_json, f"{type(error).__name__}: {error}", 1)
        raise


def _call(words: Sequence[str]) -> int:
    words = words or ("--help",)  # as cargo, docker and gh do: who types no command wants to see them
    ours = list(takewhile(lambda word: word != "--", words))
    if words[0] in DOING and not set(ours) & set(app.help_flags):
        first = next((word for word in words[1:] if not word.startswith("-")), "")
        screen.passing(f"{DOING[words[0]]} {first}".rstrip())  # before imports that take a second
    if words[0] not in NAMES:
        _offer_completion()
    if words[0] in app.help_flags:
        app.resolved_commands()  # the list shows the first line of each command's docstring
    try:
        code = app(words)
    finally:
        screen.end_passing()
    sys.stdout.flush()  # here, where a closed pipe is not a traceback
    return code if isinstance(code, int) else 0


def _naming_config(message: str, words: Sequence[str]) -> str:
    """Return an error's message in which commands that are suggested name the config of this one."""
    config = next((word for word in words[1:] if word.endswith((".yaml", ".yml"))), None)
    if config is None or " CONFIG" not in message:
        return message
    from flows.commands.output import with_config

    pairs = pairwise(words)
    return with_config(message, config, [change for option, change in pairs if option == "--set"])


def _fail(as_json: bool, message: str, code: int, mark: str = "✗ ") -> int:
    """Report why the command has failed; returns its exit code."""
    screen.end_passing()
    if as_json:
        sys.stdout.write(json.dumps({"ok": False, "findings": [], "error": message}) + "\n")
    else:
        sys.stderr.write(f"{mark}{message}\n")
    return code


def _reader_is_gone() -> bool:
    """Whether nobody reads standard output any more, as after `| head`."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _replace_unprintable() -> None:
    """Print a question mark for what a terminal that is not UTF-8 cannot show, such as ✓."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _refuse_empty(app: App, commands: Sequence[str], arguments: ArgumentCollection) -> None:
    """Raise UsageError for an argument that is an empty string, as an unset shell variable gives it: it would
    be taken for the working directory."""
    for argument in arguments:
        if any(token.value == "" and token.implicit_value is UNSET for token in argument.tokens):
            command = " ".join(("tarmac", *commands))
            raise UsageError(f"{command}: {_shown_name(argument)} is empty; see {command} --help")


def _problem(error: CycloptsError) -> tuple[str, str | None]:
    """Return what is wrong with a command line, and the fix if there is a better one than the help."""
    match error:
        case UnknownCommandError(unused_tokens=[word, *_]) if word.startswith("-"):
            return f"unknown option {word}; options come after the command", None
        case UnknownCommandError(unused_tokens=[word, *_]):
            return f"no command is named {word!r}", instead(word, NAMES)
        case UnknownOptionError():
            option = (error.token.keyword or error.token.value).partition("=")[0]
            known = [name for argument in error.argument_collection for name in argument.names]
            return f"unknown option {option}", _nearest(option, known)
        case MissingArgumentError(argument=argument) if argument is not None:
            is_option = argument.name.startswith("-")
            return f"{_shown_name(argument)} {'needs a value' if is_option else 'is missing'}", None
        case CoercionError(argument=argument, token=token) if argument is not None and token is not None:
            return _wrong_value(f"{_shown_name(argument)}: {token.value!r}", token.value, error.target_type)
        case UnusedCliTokensError(unused_tokens=[first, *_] as words):
            if all(map(os.path.exists, words)):
                problem = f"takes one path and got {len(words)} more, from {first} on"
                return problem, "quote the pattern, as in 'data/*.tar', or the shell takes it apart"
            return f"{first!r} is one argument too many", None
        case RepeatArgumentError(token=token):
            return f"{token.keyword} is given twice", None
    return " ".join(str(error).split()).rstrip("."), None


def _wrong_value(given: str, value: str, wanted: Any) -> tuple[str, str | None]:
    if get_origin(wanted) is Literal:
        choices = [str(choice) for choice in get_args(wanted)]
        return f"{given} is none of {', '.join(choices)}", _nearest(value, choices)
    kinds = {int: "not a whole number", float: "not a number", bool: "too much: the option takes no value"}
    return f"{given} is {kinds.get(wanted, 'not a value that it takes')}", None


def _nearest(word: str, known: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else None


def _shown_name(argument: Any) -> str:
    """Return `--step` for an option, `CONFIG` for an argument without a name on the command line."""
    name: str = argument.name
    return name if name.startswith("-") else name.upper()


app = _build_app()

if __name__ == "__main__":
    sys.exit(main())
