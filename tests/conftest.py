"""What many tests share: the digits, raw and built once a session."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from flows.operate import start
from tasks.core.config import load_config
from tasks.core.engines import map_groups
from tasks.core.schema import Config, recipes
from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.dataset.building.conversion import convert
from tasks.dataset.version import versions
from tasks.loader import forkserver

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # read when torch is imported: no spinning on shared cores
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).parents[1]
STARTS_LOADERS = {"loader", "training", "diagnosis"}
FIRST = (
    *(f"system/test_{name}.py" for name in ("taking_up", "control", "automations", "runs", "outages")),
    *("stalls/", "system/test_several_ranks.py"),
    *("pipeline/", "supervision/", "training/", "dataset/verify/test_matrix.py"),
)
"""What takes longest starts first, so that at the end no process is left alone with it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files keep their tests together and in order; `-n` deals them out in this order."""

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        return next((place for place, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the forkserver for loader workers where any will be: a process has but one, and after one that
    was started for a build every loader worker imports torch anew."""
    folders = {item.path.relative_to(ROOT / "tests").parts[0] for item in session.items}
    if folders & STARTS_LOADERS:
        forkserver.start_forkserver(
            "tasks.dataset.building.conversion.preload", *sorted(recipes.modules().values())
        )


def map_in_process(
    function: Callable[[Any], Any], items: Iterable[Any], engines: Any, **options: Any
) -> Iterator[Any]:
    """Map as `map_groups` does, but run the work of a single local worker in the test's own process."""
    settings = engines.for_build()
    if settings.kind != "local" or settings.workers != 1:
        yield from map_groups(function, items, engines, **options)
        return
    convert.converter.cache_clear()
    try:
        yield from map(function, items)
    finally:
        convert.converter.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def convert_here() -> Iterator[None]:
    """Half of the time of a small build goes into starting its worker; builds with two workers have real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "map_groups", map_in_process)
        yield


@pytest.fixture(scope="session", autouse=True)
def run_flows_elsewhere() -> Iterator[None]:
    """A flow leaves its server and its log handlers in its process, where the tests after it would find them."""

    def refuse(flow_module: str) -> NoReturn:
        pytest.fail(f"run {flow_module} in a process of its own, by tests.flows.test_cli.tarmac")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "_prepare", refuse)
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that the first process of a session to need it has filled; nobody may change it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Path(f"{folder}.made")
        if not made.exists():
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


@pytest.fixture(scope="session")
def raw_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example's PNG files and its caption table."""
    folder = made_once(
        tmp_path_factory, "raw", lambda place: examples.write_example("digits", place / "digits")
    )
    return folder / "digits"


def digits_config(raw: Path, folder: Path, *overrides: str) -> Config:
    """configs/digits-clip.yaml over `raw`, with its outputs in `folder`."""
    paths = [
        f"dataset.source.path={raw}/captions.csv",
        f"dataset.output={folder}/data",
        f"runs={folder}/runs",
    ]
    return load_config(ROOT / "configs/digits-clip.yaml", [*paths, *overrides])


@pytest.fixture(scope="session")
def digits_dataset(raw_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built and published digits."""

    def make(folder: Path) -> None:
        config = digits_config(raw_digits, folder)
        versions.publish(config.dataset.output, build(config).version, keep=3)

    return digits_config(raw_digits, made_once(tmp_path_factory, "digits", make)).dataset.output
