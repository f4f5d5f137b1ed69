"""Runs a Dockerfile without Docker: each of its stages is a clean root of Debian in which its steps are done.

It knows the instructions that deploy/Dockerfile has and refuses any other. What it cannot show is how Docker itself
caches, labels and starts an image.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from tests.system.clean_root import CleanRoot, Ended, clean_root

AS_IN_THE_IMAGE = "python3 -m venv /usr/local"
"""Debian's own Python has neither `python` nor a pip that installs; python:3.11-slim has both in /usr/local/bin."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, lines joined and comments left out."""
    plain = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", plain).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


@dataclass
class Stage:
    """What the steps so far have made: a root, and how its processes are started."""

    root: CleanRoot
    folder: str = "/"
    user: str = "0:0"
    arguments: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)

    def run(self, words: list[str], user: str | None = None, **env: str) -> Ended:
        """Run a command as a container of the stage does; `user` and `env` are those of `docker run`."""
        uid, gid = (user or self.user).split(":")
        accounts = [line.split(":") for line in (self.root.folder / "etc/passwd").read_text().splitlines()]
        home = next((account[5] for account in accounts if account[2] == uid), "/")
        known = {**self.arguments, **self.env, "HOME": home, **env}
        settings = [f"{name}={value}" for name, value in known.items()]
        become = ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "env", *settings, *words]
        return self.root.run(shlex.join(become), folder=self.folder)

    def contain(self, *words: str, user: str | None = None, **env: str) -> Ended:
        """`docker run IMAGE WORDS`; without words the image's own command."""
        return self.run([*self.entrypoint, *(words or self.command)], user, **env)


class Image:
    """The last stage of a Dockerfile, and the others by name, as long as the roots are open."""

    def __init__(self, file: Path, context: Path, roots: ExitStack, **build_arguments: str) -> None:
        self.stages: dict[str, Stage] = {}
        self._context, self._given = context, build_arguments
        for word, rest in instructions(file.read_text()):
            if word == "FROM":
                _, _, name = rest.partition(" AS ")
                self.last = Stage(roots.enter_context(clean_root()))
                self.stages[name] = self.last
                made = self.last.root.run(AS_IN_THE_IMAGE)
                assert made.code == 0, made.output
                self.last.env["PATH"] = "/usr/local/bin:" + self.last.root.env["PATH"]
            else:
                self.do(self.last, word, rest)

    def do(self, stage: Stage, word: str, rest: str) -> None:
        """Do one instruction."""
        if word == "RUN":
            done = stage.run(["/bin/sh", "-c", rest])
            assert done.code == 0, f"RUN {rest}\n{done.output}"
        elif word == "COPY":
            self._copy(stage, rest.split())
        elif word == "ARG":
            name, _, default = rest.partition("=")
            stage.arguments[name] = self._given.get(name, default.strip('"'))
        elif word in ("ENV", "LABEL"):
            kept = stage.env if word == "ENV" else stage.labels
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                kept[name] = Template(value).substitute(stage.arguments | stage.env)
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root.folder / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        elif word == "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        elif word == "CMD":
            stage.command = json.loads(rest)
        else:
            raise ValueError(f"{word} is not among the instructions that are done here: {rest}")

    def _copy(self, stage: Stage, words: list[str]) -> None:
        *sources, place = words
        source = self._context
        if sources[0].startswith("--from="):
            source = self.stages[sources.pop(0).removeprefix("--from=")].root.folder
        for name in sources:
            path = source / name.lstrip("/")
            inside = f"{stage.folder}/{place}" if not place.startswith("/") else place
            stage.root.put(path, f"{inside}{path.name}" if inside.endswith("/") else inside)
