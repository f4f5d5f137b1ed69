"""What pages show exists: commands and their options, keys of configs, Python, and the paths of this repository."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import NAMES, app
from flows.config_keys import find_keys
from tasks.core.config import load_config
from tasks.core.errors import UsageError
from tests.docs.pages import INLINE, PAGES, ROOT, Block, blocks, prose, text_of

COMMAND = re.compile(r"(?:^|(?<=[;&|(`] )|(?<=\$ )|(?<=\$\())tarmac +(?P<rest>[^\n;|&]*)", re.M)
MENTIONED = re.compile(r"\btarmac (?P<rest>(?:" + "|".join(NAMES) + r")\b[^\n;|&]*)")
TODAY = [page for page in PAGES if page != "CHANGELOG.md"]
"""The pages that state what is; the changelog also states what was."""
OPTION = re.compile(r"--?[A-Za-z][\w-]*")
OF_REPOSITORY = re.compile(r"(?<![\w/.-])(?:tests|tasks|flows)/[\w*{},./-]*[\w*/]")
MODULE = re.compile(r"\bpython3? -m ((?:tests|tasks|flows)(?:\.\w+)+)")
SHELL = ("", "bash", "sh", "console", "text")
PARENTS = ("", "dataset.", "dataset.source.", "train.", "engine.")
"""Blocks that a fragment of a config may be a part of."""


@cache
def options(command: str) -> frozenset[str]:
    """What a command takes by name, as cyclopts knows it."""
    known = {name for argument in app[command].assemble_argument_collection() for name in argument.names}
    return frozenset(known) | {"--help", "-h"}


def unknown(rest: str) -> list[str]:
    """What of a command line, after `tarmac`, does not exist."""
    own = re.split(r"\s--(?:\s|$)|\s{2,}|\s#|→", rest)[0]
    try:
        words = shlex.split(own)
    except ValueError:  # a quotation that ends outside of the code
        words = own.split()
    if not words or words[0].isupper() or words[0].startswith(("-", "…", "[")):
        return [
            word
            for word in words[:1]
            if OPTION.fullmatch(word) and word not in {"--install-completion", "--version", "--help"}
        ]
    command, *given = words
    if command not in NAMES:
        return [command]
    named = (word.strip("[]().,:").partition("=")[0] for word in given)
    return [f"{command} {word}" for word in named if OPTION.fullmatch(word) and word not in options(command)]


def commands(page: str) -> Iterator[str]:
    """What follows `tarmac` wherever a page shows a command."""
    for block in (one for one in blocks(*SHELL) if one.page == page):
        text = block.text.replace("\\\n", " ")
        yield from (found["rest"] for rule in (COMMAND, MENTIONED) for found in rule.finditer(text))
    for code in (found[2] for found in INLINE.finditer(prose(page))):
        yield from (found["rest"] for found in COMMAND.finditer(" ".join(code.split())))


@pytest.mark.parametrize("page", TODAY)
def test_each_command_exists_with_its_options(page: str) -> None:
    assert [problem for rest in commands(page) for problem in unknown(rest)] == []


def test_a_command_or_an_option_that_does_not_exist_is_found() -> None:
    assert unknown("doctr --pid 5") == ["doctr"]
    assert unknown("doctor --pdi 5 -- python --lr 3") == ["doctor --pdi"]
    assert unknown("doctor --pid 5") == []
    assert len({rest.split()[0] for page in PAGES for rest in commands(page) if rest.split()}) > 20


def addresses(value: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of a config's values; `kind` is a value, not a block."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}"
            yield from addresses(inner, f"{prefix}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from addresses(inner, prefix)


def parts(text: str) -> Iterator[dict[str, Any]]:
    """The blocks of a fragment one by one, for a page shows several values of one key in one fragment."""
    text = re.sub(r",? *(?:\.\.\.|…)(?=[}\]])", "", re.sub(r"^ *(?:\.\.\.|…)\n", "", text, flags=re.M))
    for part in re.split(r"^(?=[^\s#])", text, flags=re.M):
        value = yaml.safe_load(part)
        if isinstance(value, dict):
            yield value


def is_known(address: str) -> bool:
    """Whether a config has this key; those of a `filter` are the fields of the samples."""
    address = re.sub(r"\bfilter\..*", "filter", address)
    for parent in PARENTS:
        with suppress(UsageError):
            return bool(find_keys(parent + address))
    return False


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_each_key_of_a_config_exists(block: Block, tmp_path: Path) -> None:
    fragments = list(parts(block.text))
    assert fragments, "no YAML"
    if {"name", "dataset"} <= {key for one in fragments for key in one}:
        (tmp_path / "config.yaml").write_text(block.text)
        load_config(tmp_path / "config.yaml")
    else:
        assert [key for one in fragments for key in addresses(one) if not is_known(key)] == []


def test_a_key_that_does_not_exist_is_found() -> None:
    assert not is_known("engine.build.jobz") and is_known("engine.build.jobs")


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_its_imports_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] in ("tasks", "flows"):
                module = import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
            else:
                assert find_spec(node.module), node.module
        elif isinstance(node, ast.Import):
            assert [alias.name for alias in node.names if not find_spec(alias.name)] == []


@pytest.mark.parametrize("page", TODAY)
def test_each_path_of_the_repository_exists(page: str) -> None:
    text = text_of(page)
    missing = [name for name in MODULE.findall(text) if not find_spec(name)]
    for path in OF_REPOSITORY.findall(text):
        if not (ROOT / path).exists() and not any(ROOT.glob(path)):
            missing.append(path)
    assert missing == []
