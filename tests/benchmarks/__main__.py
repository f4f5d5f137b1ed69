"""Run benchmarks, keep what they measure, and report every promise.

    python -m tests.benchmarks [--quick] [NAME...]     all of the suite unless named
    python -m tests.benchmarks --list                  what there is, and how long it took
    python -m tests.benchmarks --page                  writes docs/benchmarks.md of the kept figures

It goes on after an error and ends with 1 then. A promise that is missed is a result and no error, and what needs a
device that is not here is a line.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.benchmarks import page, results
from tests.benchmarks.harness import Absent, Benchmark, Failed, measure, spoken
from tests.benchmarks.suite import SUITE, load

Say = Callable[[str], None]


def say(line: str = "") -> None:
    print(line, flush=True)


def run(benchmark: Benchmark, folder: Path, is_quick: bool, say: Say) -> list[str]:
    """The lines of its promises."""
    lines = []
    for measured in measure(benchmark, is_quick, say):
        case = results.keep(folder, benchmark, measured)
        say("\n".join(f"    {line}" for line in page.table(benchmark, case).splitlines()))
        for who, why in measured.left_out.items():
            say(f"    without {who}: {why}")
        for verdict in () if is_quick else case["promises"]:
            text, limit, figure, mark = page.said_of(verdict).split(" | ")
            mark = mark.strip("*")
            lines.append(f"{mark:6}  {benchmark.name}, {measured.case}: {text}: {figure}, promised {limit}")
            say(f"    {lines[-1]}")
    return lines


def attempt(name: str, folder: Path, is_quick: bool, say: Say) -> list[str]:
    """What the end of all has to tell of a benchmark: an error does not end the others."""
    try:
        return run(load(name), folder, is_quick, say)
    except Absent as reason:
        line = f"absent  {name}: {reason}"
        say(f"  {line}")
    except Failed as error:
        line = f"error   {name}: {str(error).splitlines()[0]}"
        say(f"  {error}")
    except Exception as error:  # noqa: BLE001 - the others are measured in any case
        line = f"error   {name}: {type(error).__name__}: {error}"
        say(traceback.format_exc())
    return [line]


def in_turn(names: Sequence[str]) -> Iterator[list[str]]:
    expected = {name: results.seconds_of(results.KEPT, name) for name in names}
    for place, name in enumerate(names, 1):
        took = f"took {spoken(expected[name])} last time" if expected[name] else "was not measured before"
        left = sum(expected[later] for later in names[place:])
        say(f"[{place}/{len(names)}] {name}: {took}" + (f"; then {spoken(left)} of others" if left else ""))
        yield attempt(name, results.KEPT, False, say)


def two_at_once(names: Sequence[str]) -> Iterator[list[str]]:
    """Quick ones: much of their time is the start of processes, and their figures mean nothing anyway."""
    for name in names:
        # Here, as some modules set how signals are handled, which is for the main thread alone. If one cannot
        # be loaded, its benchmark reports that.
        with suppress(Exception):
            load(name)
    outputs: dict[str, list[str]] = {name: [] for name in names}
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda name: attempt(name, results.QUICK, True, outputs[name].append), names)
        for place, (name, lines) in enumerate(zip(names, ends, strict=True), 1):
            say("\n".join([f"[{place}/{len(names)}] {name}", *outputs[name]]))
            yield lines


def run_all(names: Sequence[str], is_quick: bool) -> int:
    began = time.monotonic()
    ends = two_at_once(names) if is_quick else in_turn(names)
    lines = [line for of_one in ends for line in of_one]
    everything = [load(name) for name in SUITE]
    if is_quick:
        written = page.QUICK_PAGE
        page.write(everything, results.QUICK, written, page.QUICK_INTRODUCTION)
    else:
        written = page.PAGE
        page.write(everything, results.KEPT, written, page.INTRODUCTION)
    say(f"\n{len(names)} benchmarks in {spoken(time.monotonic() - began)}; {written}")
    for first_word in ("kept", "missed", "absent", "error"):
        for line in lines:
            if line.startswith(first_word):
                say(line)
    return int(any(line.startswith("error") for line in lines))


def main(arguments: Sequence[str]) -> int:
    options = {word for word in arguments if word.startswith("-")}
    names = [word for word in arguments if word not in options]
    unknown = [*(options - {"--quick", "--list", "--page"}), *(name for name in names if name not in SUITE)]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(SUITE)}", file=sys.stderr)
        return 2
    if "--list" in options:
        for name in SUITE:
            seconds = results.seconds_of(results.KEPT, name)
            known = (
                spoken(seconds) if seconds else "kept" if results.read(results.KEPT, name) else "never kept"
            )
            say(f"{name:16} {known:>12}  {load(name).title}")
        return 0
    if "--page" in options:
        page.write([load(name) for name in SUITE], results.KEPT, page.PAGE, page.INTRODUCTION)
        return 0
    return run_all(list(dict.fromkeys(names)) or list(SUITE), "--quick" in options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
