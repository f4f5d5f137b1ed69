"""What a benchmark is, and how each is measured.

A benchmark is an entry with its cases, its contestants (ours first), its promises and the columns of its table. The
harness measures all of them alike: every measurement is a process of its own, the contestants take turns, the first
round only warms the page cache and the compiled modules, and what is kept are medians with the lowest and the highest.
The price is that a contestant pays its imports in each round, so a benchmark takes minutes.

A module `bench_X` has its experiment and `BENCHMARKS`; `python -m tests.benchmarks` runs them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from tests.system.foreign_env import foreign_env, is_made

HERE = Path(__file__).parent
LASTING = Path(tempfile.gettempdir()) / "tarmac-bench"
"""Where `Setup.lasting` keeps inputs."""
ROUND = "TARMAC_BENCH_ROUND"
"""The variable in a contestant's environment that counts the rounds; what draws numbers takes it as its seed."""
LIMIT_S = 1800
"""A measurement that takes longer has failed."""
WHOLE = ",.0f"
"""How large numbers are written; those below ten get a digit more."""
CALL = (
    "import importlib, json, sys; module, name, given = sys.argv[1:]; "
    "found = getattr(importlib.import_module(module), name)(*json.loads(given)); print(); print(json.dumps(found))"
)
T = TypeVar("T")
Row = Mapping[str, float]
"""What one measurement gives: values by the keys of columns."""
Contestant = Callable[[], Row]


class Absent(Exception):
    """Why something cannot be measured here: a device, a program or an environment is missing. It is no error."""


class Failed(Exception):
    """A contestant ended with an error, or gave what was not to be measured."""


@dataclass(frozen=True)
class Command:
    """A process of its own. Its last line is a JSON object, or numbers that `keys` name."""

    words: Sequence[object]
    keys: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def __call__(self) -> Row:
        last = self.output().rstrip().rpartition("\n")[2]
        values = json.loads(last) if last[:1] in ("{", "[") else [float(word) for word in last.split()]
        return values if isinstance(values, dict) else dict(zip(self.keys, values, strict=True))

    def output(self) -> str:
        words = [str(word) for word in self.words]
        try:
            done = subprocess.run(
                words,
                env={**os.environ, **self.env},
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words)[:200]} took longer than {LIMIT_S} s") from None
        if done.returncode:
            raise Failed(f"{' '.join(words)[:200]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def then(self, change: Callable[[Row], Row]) -> Contestant:
        """This command, with its row made into another."""
        return lambda: change(self())


def call(function: Callable[..., Row], *arguments: Any, env: Mapping[str, str] | None = None) -> Command:
    """A function of this project in a process of its own, which has no main module that workers would import anew."""
    given = json.dumps(arguments, default=str)
    return Command([sys.executable, "-c", CALL, function.__module__, function.__name__, given], env=env or {})


class Setup:
    """What the cases of a benchmark are made with: sizes, a temporary folder, and the environments of peers."""

    def __init__(self, folder: Path, is_quick: bool) -> None:
        self.folder, self.is_quick = folder, is_quick

    def sized(self, usual: T, quick: T) -> T:
        return quick if self.is_quick else usual

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def lasting(self, name: str, make: Callable[[Path], object]) -> Path:
        """A folder that is made once, since that takes longer than to measure; a quick run leaves none behind."""
        folder = LASTING / name
        if (folder / "ready").exists():
            return folder
        if self.is_quick:
            folder = self.new_folder()
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        make(folder)
        (folder / "ready").touch()
        return folder

    def python(self, environment: str) -> Path:
        """The interpreter of a peer's environment, which a quick run does not make."""
        if self.is_quick and not is_made(environment):
            raise Absent(f"its environment {environment} is not made yet; a full run makes it")
        return foreign_env(environment) / "python"

    def peer(self, environment: str, *words: object, keys: Sequence[str] = (), **more: Any) -> Contestant:
        """A command for the interpreter of a peer's environment; a word that names a module here is its script."""
        try:
            python = self.python(environment)
        except Absent as reason:
            return _absent(reason)
        first = HERE / f"{words[0]}.py"
        script = [first, *words[1:]] if first.exists() else words
        return Command([python, *script], keys, **more)


def _absent(reason: Absent) -> Contestant:
    def raises() -> Row:
        raise reason

    return raises


class Figures(NamedTuple):
    """What was measured of a case: by contestant and key the medians, and the lowest and highest."""

    medians: Mapping[str, Row]
    ranges: Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Promise:
    """A limit of a figure. `text` names the figure, for which a KeyError says that a contestant is missing."""

    text: str
    figure: Callable[[Figures], float]
    sense: Literal["at least", "at most"]
    limit: float
    cases: Sequence[str] = ()
    """The cases it holds for; all unless given."""
    unit: str = ""

    def verdict(self, case: str, figures: Figures) -> dict[str, Any] | None:
        """What is kept of it; None where it says nothing of the case or nobody to compare with was measured."""
        if self.cases and case not in self.cases:
            return None
        try:
            figure = self.figure(figures)
        except KeyError:
            return None
        is_kept = figure >= self.limit if self.sense == "at least" else figure <= self.limit
        found = {"text": self.text, "figure": rounded(figure), "sense": self.sense, "limit": self.limit}
        return found | ({"unit": self.unit} if self.unit else {}) | {"kept": is_kept}


def value(name: str, key: str) -> Callable[[Figures], float]:
    return lambda figures: figures.medians[name][key]


def times(key: str, ours: str, *theirs: str) -> Callable[[Figures], float]:
    """Our rate over that of the best of these."""
    return lambda figures: figures.medians[ours][key] / max(_present(figures, key, theirs))


def quicker(key: str, ours: str, *theirs: str) -> Callable[[Figures], float]:
    """How many times as long the quickest of these takes as we do."""
    return lambda figures: min(_present(figures, key, theirs)) / figures.medians[ours][key]


def share(key: str, ours: str, *theirs: str) -> Callable[[Figures], float]:
    """Our time, or memory, over the least of these."""
    return lambda figures: figures.medians[ours][key] / min(_present(figures, key, theirs))


def _present(figures: Figures, key: str, names: Iterable[str]) -> list[float]:
    found = [figures.medians[name][key] for name in names if name in figures.medians]
    if not found:
        raise KeyError(key)
    return found


class Column(NamedTuple):
    """What a table shows: the key of a row, its heading, and how its values are written."""

    key: str
    heading: str
    form: str = WHOLE


@dataclass(frozen=True)
class Case:
    """Contestants by name, ours first, that are measured under the same circumstances."""

    name: str
    contestants: Mapping[str, Contestant]


@dataclass(frozen=True)
class Benchmark:
    """An entry of the suite; `name` is that of its figures' file."""

    name: str
    title: str
    text: str
    cases: Callable[[Setup], Iterable[Case]]
    columns: Sequence[Column]
    promises: Sequence[Promise] = ()
    packages: Sequence[str] = ()
    environments: Sequence[str] = ()
    ratio: str | None = None
    """The key by which the page sets the first row against each other."""
    is_time: bool = False
    is_transposed: bool = False
    """Contestants are the columns of the page's table, the keys of their rows its lines."""
    plot: str | None = None
    """The key of which the page shows bars."""
    rounds: int = 5
    is_warm: bool = True
    """The first round is not counted: it warms the page cache and whatever else."""
    average: Literal["median", "mean"] = "median"


@dataclass(frozen=True)
class Measured:
    """A case and how it was measured."""

    case: str
    figures: Figures
    rounds: int
    is_warm: bool
    load: tuple[float, float]
    """Before the first and after the last measurement."""
    seconds: float
    left_out: Mapping[str, str]


def measure(benchmark: Benchmark, is_quick: bool, say: Callable[[str], None]) -> Iterator[Measured]:
    """Measure case after case; raises Absent where the benchmark has nothing to do here, and Failed."""
    with tempfile.TemporaryDirectory(prefix="tarmac-bench-", ignore_cleanup_errors=True) as place:
        cases = iter(benchmark.cases(Setup(Path(place), is_quick)))
        began = time.monotonic()
        try:
            for case in cases:
                yield _measured(benchmark, case, is_quick, began, say)
                began = time.monotonic()  # what prepares a case counts, so that the next run can be foreseen
        finally:
            if close := getattr(cases, "close", None):
                close()


def _measured(
    benchmark: Benchmark, case: Case, is_quick: bool, began: float, say: Callable[[str], None]
) -> Measured:
    rounds = 1 if is_quick else benchmark.rounds
    is_warm = benchmark.is_warm and not is_quick
    before, left_out = os.getloadavg()[0], {}
    taken: dict[str, list[Row]] = {name: [] for name in case.contestants}
    for number in range(-is_warm, rounds):
        started = time.monotonic()
        for name in [*taken][:: -1 if number % 2 else 1]:
            os.sync()  # what one has left to be written must not burden the next
            try:
                with _environment(ROUND, str(max(number, 0))):
                    row = case.contestants[name]()
            except Absent as reason:
                left_out[name] = str(reason)
                del taken[name]
                continue
            if number >= 0:
                taken[name].append(row)
        left_s = (time.monotonic() - started) * (rounds - 1 - number)
        say(f"  {case.name}: round {number + 1} of {rounds}" + (f", {spoken(left_s)} left" if left_s else ""))
    if not taken:
        raise Absent("; ".join(f"without {name}: {reason}" for name, reason in left_out.items()))
    shown = [name for name in case.contestants if name in taken]
    figures = Figures(
        {name: middles(taken[name], benchmark.average) for name in shown},
        {name: extremes(taken[name]) for name in shown} if rounds > 1 else {},
    )
    load = (round(before, 1), round(os.getloadavg()[0], 1))
    return Measured(case.name, figures, rounds, is_warm, load, time.monotonic() - began, left_out)


def middles(rows: Sequence[Row], average: str) -> Row:
    middle = getattr(statistics, average)
    return {key: rounded(middle([row[key] for row in rows])) for key in rows[0]}


def extremes(rows: Sequence[Row]) -> dict[str, Sequence[float]]:
    return {key: [rounded(pick(row[key] for row in rows)) for pick in (min, max)] for key in rows[0]}


def rounded(number: float) -> float:
    """Three decimals, and of what is small four digits."""
    return round(number, 3) if abs(number) >= 1 else float(f"{number:.4g}")


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)  # of quick benchmarks two are measured at once


def round_number() -> int:
    return int(os.environ.get(ROUND, "0"))


def spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
