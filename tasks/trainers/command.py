"""Parses a command line that starts a training into launcher, interpreter, program and options.

Nothing is run for it: the version of a trainer is read from the metadata beside its interpreter. So a parsed
command serves both before a training starts and for the `cmdline` of a process that hangs.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_RANKS = ("--nproc_per_node", "--nproc-per-node", "--num_processes", "--num-processes")
_NODES = ("--nnodes", "--num_machines", "--num-machines")
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_LAUNCHING_PROGRAMS = ("torchrun", "accelerate", "deepspeed")
_OPTIONS_WITHOUT_VALUE = frozenset({"--standalone", "--no_python", "--no-python", "--multi_gpu", "--use_env"})
SEPARATOR = "--"
LARGEST_SCRIPT = 1 << 20


@dataclass(frozen=True)
class Command:
    """The command of a training. Where Python runs it, `module` or `script` is what Python runs.

    `ranks` is the number of training processes that the launcher starts on all nodes. `is_counted` is False
    where the command leaves the number to the launcher, as with `--nproc_per_node gpu`. `words` are all words
    of the command, `arguments` the words behind the module or script, without the `--` that keeps a launcher
    from reading them.
    """

    words: tuple[str, ...]
    folder: Path
    python: str = ""
    module: str = ""
    script: str = ""
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    is_launched: bool = False
    is_counted: bool = True

    @classmethod
    def of(cls, words: Sequence[str], folder: Path | None = None) -> Command:
        """Parse the words of a command, from a shell or from /proc/PID/cmdline, which runs in `folder`.

        Words before the interpreter (`env A=b`, `srun`, `nohup`, `uv run`) are skipped.
        """
        whole = cls(tuple(words), folder or Path.cwd())
        for place, word in enumerate(words):
            name, rest = os.path.basename(word), list(words[place + 1 :])
            if name in _LAUNCHING_PROGRAMS:
                beside = os.path.join(os.path.dirname(word), "python") if os.sep in word else "python"
                return whole._launched(beside, rest)
            if _PYTHON.fullmatch(name):
                is_module, program, arguments = _program(rest)
                if is_module and program in LAUNCHERS:
                    return whole._launched(word, arguments)
                module, script = (program, "") if is_module else ("", program)
                return replace(whole, python=word, module=module, script=script, arguments=tuple(arguments))
        start = next((n for n, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), 0)
        return replace(whole, script="".join(words[start : start + 1]), arguments=tuple(words[start + 1 :]))

    def _launched(self, python: str, words: Sequence[str]) -> Command:
        """Return the command with the program that a launcher starts, by the words behind the launcher."""
        ranks, is_counted, rest = _behind_launcher(words)
        starts_python = bool(rest) and _PYTHON.fullmatch(os.path.basename(rest[0])) is not None
        inner = Command.of(rest if starts_python else [python, *rest], self.folder)
        arguments = inner.arguments[1:] if inner.arguments[:1] == (SEPARATOR,) else inner.arguments
        inner = replace(inner, words=self.words, arguments=arguments)
        return replace(inner, ranks=ranks, is_launched=True, is_counted=is_counted)

    def having(self, options: Sequence[str]) -> list[str]:
        """Return all words with these options appended. With a launcher, a `--` separates them, because it
        would take the program's `--logs` for an abbreviation of its own `--logs-specs`."""
        given = len(self.words) - len(self.arguments)
        if not self.is_launched or self.words[given - 1] == SEPARATOR:
            return [*self.words, *options]
        return [*self.words[:given], SEPARATOR, *self.arguments, *options]

    @property
    def program(self) -> str:
        """The module, or the file name of the script."""
        return self.module or os.path.basename(self.script)

    def option(self, *names: str) -> str | None:
        """Return the last value of an option, or None where it is not given."""
        value = None
        for place, word in enumerate(self.arguments):
            name, sign, given = word.partition("=")
            if name in names and sign:
                value = given
            elif word in names and place + 1 < len(self.arguments):
                value = self.arguments[place + 1]
        return value

    def values(self, name: str) -> list[str]:
        """Return the values of an option that takes several, up to the next option."""
        if name not in self.arguments:
            return []
        behind = self.arguments[self.arguments.index(name) + 1 :]
        return list(takewhile(lambda word: not word.startswith("-"), behind))

    def number(self, *names: str, default: float) -> float:
        """Return the value of an option as a number, or the default where it is not given or not a number."""
        try:
            return float(self.option(*names) or default)
        except ValueError:
            return default

    def has(self, *names: str) -> bool:
        """Return whether one of these options is given."""
        return any(word.partition("=")[0] in names for word in self.arguments)

    def path(self, text: str) -> Path:
        """Return a path relative to the folder that the command runs in."""
        return self.folder / text

    @cached_property
    def interpreter(self) -> str:
        """The file of the interpreter, or "" where it is not found."""
        if os.sep in self.python:
            return str(self.path(self.python))
        return shutil.which(self.python or "python") or ""

    @cached_property
    def packages(self) -> tuple[Path, ...]:
        """The folders in which the command's interpreter looks for packages, without running it."""
        found = [self.folder, self.folder / "src"]
        found += [self.path(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        prefix = Path(os.path.abspath(self.interpreter)).parent.parent if self.interpreter else None
        if prefix == Path(sys.prefix):  # not by the file, as all environments link to the same one
            found += [Path(one) for one in sys.path if one]
        elif prefix is not None:
            found += [*prefix.glob("lib/python3*/*-packages"), *prefix.glob("local/lib/python3*/*-packages")]
        return tuple(dict.fromkeys(found))

    def version(self, distribution: str) -> str | None:
        """Return the version of a package that the interpreter would import, or None without it."""
        folders = [str(folder) for folder in self.packages]
        found = importlib.metadata.distributions(name=distribution, path=folders)
        return next((one.version for one in found), None)

    def source(self, file: str) -> Path | None:
        """Return a file of an installed package, such as `open_clip_train/data.py`, or None."""
        return next((path for folder in self.packages if (path := folder / file).is_file()), None)

    @cached_property
    def text(self) -> str:
        """The source of the script; "" for a module and for a script that cannot be read."""
        try:
            with self.path(self.script).open("rb") as file:
                return file.read(LARGEST_SCRIPT).decode(errors="replace") if self.script else ""
        except OSError:
            return ""


def _program(words: Sequence[str]) -> tuple[bool, str, list[str]]:
    """Return whether Python runs a module, the module or script ("" for `-c`), and the words behind."""
    place = 0
    while place < len(words) and words[place] != "-c":
        word = words[place]
        if word == "-m":
            return True, "".join(words[place + 1 : place + 2]), list(words[place + 2 :])
        if not word.startswith("-"):
            return False, word, list(words[place + 1 :])
        place += 2 if word in ("-X", "-W") else 1
    return False, "", []


def _behind_launcher(words: Sequence[str]) -> tuple[int, bool, list[str]]:
    """Return the number of ranks on all nodes, whether the launcher's options give it as a number, and the
    words of the program that it launches."""
    counts, is_counted = dict.fromkeys((_RANKS, _NODES), 1), True
    place = 1 if words[:1] == ["launch"] else 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-m", "--module"):
        name, sign, value = words[place].partition("=")
        if not sign and name not in _OPTIONS_WITHOUT_VALUE and place + 1 < len(words):
            value, place = words[place + 1], place + 1
        for names in counts:
            if name in names and value.isdigit():
                counts[names] = int(value)
            elif name in names:
                is_counted = False
        place += 1
    launched = list(words[place:])
    if launched[:1] == ["--module"]:
        launched[0] = "-m"
    return counts[_RANKS] * counts[_NODES], is_counted, launched
