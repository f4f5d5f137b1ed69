"""The suite knows every benchmark, its page is made of the kept figures, and the harness counts and compares rightly."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import page, results
from tests.benchmarks.harness import (
    Absent,
    Benchmark,
    Case,
    Column,
    Command,
    Failed,
    Figures,
    Promise,
    Setup,
    call,
    measure,
    quicker,
    round_number,
    share,
    times,
)
from tests.benchmarks.suite import APART, SUITE, load

FOLDER = Path(__file__).parent
PRINTS = "import os; print('noise'); print({}, 2.0)"


def numbered(offset: float) -> dict[str, float]:
    return {"n": offset + round_number()}


def process(code: str, *keys: str) -> Command:
    return Command([sys.executable, "-c", code], keys)


def benchmark(cases: object, **more: object) -> Benchmark:
    return Benchmark("made", "Made", "For a test.", lambda setup: cases, (Column("n", "n"),), **more)  # type: ignore


def test_every_benchmark_is_in_the_suite_or_set_apart() -> None:
    files = {path.stem for path in FOLDER.glob("bench_*.py")}
    assert files - APART.keys() == {*SUITE.values()}
    defined = {module: {one.name for one in load_module(module).BENCHMARKS} for module in {*SUITE.values()}}
    assert defined == {module: {name for name in SUITE if SUITE[name] == module} for module in defined}


def load_module(name: str):  # type: ignore[no-untyped-def]
    import importlib

    return importlib.import_module(f"tests.benchmarks.{name}")


def test_the_page_and_its_pictures_show_the_kept_figures() -> None:
    """`python -m tests.benchmarks --page` writes them again."""
    everything = [load(name) for name in SUITE]
    assert page.PAGE.read_text(encoding="utf-8") == page.page(everything, results.KEPT)
    drawn = page.pictures(everything, results.KEPT)
    assert {path.name: path.read_text() for path in (page.PAGE.parent / "benchmarks").glob("*.svg")} == drawn


def test_promises_stand_as_they_are_decided_by_the_kept_figures() -> None:
    for name in SUITE:
        for title, case in results.read(results.KEPT, name).items():
            figures = Figures(case["rows"], case.get("ranges", {}))
            decided = [promise.verdict(title, figures) for promise in load(name).promises]
            assert [one for one in decided if one] == case["promises"], (name, title)


def test_medians_and_ranges_come_from_processes_of_their_own(tmp_path: Path) -> None:
    contestants = {
        "ours": call(numbered, 10),
        "theirs": process(PRINTS.format("os.environ['TARMAC_BENCH_ROUND']"), "n", "m"),
    }
    (found,) = measure(benchmark([Case("one", contestants)], rounds=3), False, lambda line: None)
    assert found.figures.medians == {"ours": {"n": 11}, "theirs": {"n": 1.0, "m": 2.0}}
    assert found.figures.ranges["ours"] == {"n": [10, 12]}
    assert (found.rounds, found.is_warm) == (3, True)
    (quick,) = measure(benchmark([Case("one", contestants)]), True, lambda line: None)
    assert (quick.rounds, quick.is_warm, quick.figures.medians["ours"]) == (1, False, {"n": 10})


def test_who_is_absent_is_left_out_and_who_fails_ends_it(tmp_path: Path) -> None:
    def away() -> dict[str, float]:
        raise Absent("no device")

    (found,) = measure(
        benchmark([Case("one", {"ours": call(numbered, 0), "far": away})]), True, lambda line: None
    )
    assert found.left_out == {"far": "no device"} and [*found.figures.medians] == ["ours"]
    with pytest.raises(Absent, match="without far: no device"):
        list(measure(benchmark([Case("one", {"far": away})]), True, lambda line: None))
    with pytest.raises(Failed, match="ended with 3"):
        list(
            measure(
                benchmark([Case("one", {"ours": process("raise SystemExit(3)", "n")})]),
                True,
                lambda line: None,
            )
        )


def test_promises_compare_rates_times_and_shares() -> None:
    figures = Figures(
        {"a": {"rate": 30.0, "s": 2.0}, "b": {"rate": 10.0, "s": 5.0}, "c": {"rate": 20.0, "s": 4.0}}, {}
    )
    assert times("rate", "a", "b", "c", "gone")(figures) == 1.5
    assert quicker("s", "a", "b", "c")(figures) == 2.0
    assert share("s", "a", "b", "c")(figures) == 0.5
    promise = Promise("rate", times("rate", "a", "b"), "at least", 3.1, cases=("one",))
    verdict = promise.verdict("one", figures)
    assert verdict is not None and verdict["figure"] == 3.0 and not verdict["kept"]
    assert promise.verdict("another", figures) is None
    assert Promise("rate", times("rate", "a", "gone"), "at least", 1).verdict("one", figures) is None


def test_a_quick_run_makes_no_environment_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.benchmarks.harness.is_made", lambda name: False)
    monkeypatch.setattr("tests.benchmarks.harness.LASTING", tmp_path / "lasting")
    setup = Setup(tmp_path, True)
    with pytest.raises(Absent, match="environment loaders"):
        setup.peer("loaders", "loader_peers")()
    made = setup.lasting("things", lambda folder: (folder / "one").touch())
    assert made.parent == tmp_path and (made / "one").exists() and not (tmp_path / "lasting").exists()
    kept = Setup(tmp_path, False).lasting("things", lambda folder: (folder / "one").touch())
    assert kept == tmp_path / "lasting" / "things"
    assert Setup(tmp_path, True).lasting("things", lambda folder: pytest.fail("made twice")) == kept


def test_all_are_run_and_errors_alone_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = Promise("rate", lambda figures: figures.medians["ours"]["n"], "at least", 99)
    fails = [Case("one", {"ours": process("raise SystemExit(3)", "n")})]
    made = {
        "good": benchmark([Case("one", {"ours": call(numbered, 1)})], promises=(missed,)),
        "bad": benchmark(fails),
        "gone": benchmark([]),
    }
    monkeypatch.setattr(command, "SUITE", dict.fromkeys(made, ""))
    monkeypatch.setattr(command, "load", lambda name: made[name])
    monkeypatch.setattr(results, "QUICK", tmp_path / "quick")
    monkeypatch.setattr(page, "QUICK_PAGE", tmp_path / "quick.md")
    kept = {path: path.read_bytes() for path in results.KEPT.iterdir()}
    assert command.main(["--quick", "good"]) == 0
    assert "promised" not in capsys.readouterr().out, "the figures of a quick run mean nothing"
    assert "| ours | 1.0 |" in (tmp_path / "quick.md").read_text()
    assert command.main(["--quick"]) == 1
    said = capsys.readouterr().out
    assert "[3/3] gone" in said and "error   bad" in said
    assert command.main(["nothing"]) == 2
    assert {path: path.read_bytes() for path in results.KEPT.iterdir()} == kept
    monkeypatch.setattr(results, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    assert command.main(["gone", "good"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^missed  made, one: rate: 3, promised at least 99$", said, re.MULTILINE)
    assert "[1/2] gone: was not measured before" in said
