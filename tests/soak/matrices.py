"""The pages of docs/matrices: what was injected, and what Tarmac and others made of it. `make matrices` writes them.

    python -m tests.soak.matrices            asks the readers and runs the tests of injected faults, then writes
    python -m tests.soak.matrices render     only writes both pages of what is kept

Stalls are not produced anew, because that takes an hour: `python -m tests.soak.verdicts` and `tests.stalls.record`
keep what was said of each, and when. The faults of processes, disks and servers are injected by tests; their outcome is
read from the report that pytest writes, so nothing is stated here that a test did not decide.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from tests.benchmarks.results import commit, machine
from tests.conftest import ROOT
from tests.soak import faults, verdicts
from tests.soak.faults import FaultAnswer
from tests.stalls.record import RECORDS

KEPT = Path(__file__).with_name("matrices.json")
PAGES = ROOT / "docs/matrices"


class FaultTest(NamedTuple):
    """A fault that a test injects for real, and what must come of it."""

    fault: str
    promise: str
    test: str


# fmt: off
TESTS = (
    FaultTest("a build is killed by SIGKILL at random moments", "the next one goes on, and makes the same bytes",
              "tests/dataset/building/test_interrupted.py::test_sigkill_at_random_moments_leaves_no_trace"),
    FaultTest("a staged shard of a killed build is damaged", "it is made again",
              "tests/dataset/building/test_interrupted.py::test_a_staged_shard_that_is_damaged_is_made_again"),
    FaultTest("the disk fills while a dataset is built", "one line names the disk; with room, the build goes on",
              "tests/system/test_full_disk.py::test_a_full_disk_stops_the_build_and_costs_nothing"),
    FaultTest("the disk fills beside a version", "the version stays sound and current",
              "tests/system/test_full_disk.py::test_the_version_before_is_not_touched"),
    FaultTest("a tenth of all addresses hangs", "the build waits once, not for each",
              "tests/dataset/building/test_addresses.py::test_a_tenth_of_hanging_addresses_costs_one_wait_and_not_one_each"),
    FaultTest("a shard is lost or cut", "the next build makes it again",
              "tests/dataset/building/test_build.py::test_a_lost_or_cut_shard_is_made_again"),
    FaultTest("a loader worker kills itself", "the training ends at once, and names the worker",
              "tests/loader/test_workers.py::test_a_worker_that_kills_itself_is_named"),
    FaultTest("the training process is killed", "its loader workers end",
              "tests/loader/test_workers.py::test_workers_end_when_the_training_process_is_killed"),
    FaultTest("a server of shards fails", "the error has its address",
              "tests/loader/test_remote.py::test_a_server_that_fails_is_an_error_with_its_address"),
    FaultTest("a server of shards fails for a moment", "it is asked again, and nothing is lost",
              "tests/loader/test_remote.py::test_a_fault_that_passes_is_tried_again"),
    FaultTest("a node's disk has no room for copies of shards", "it costs speed alone",
              "tests/loader/test_staging.py::test_a_disk_without_room_costs_speed_alone"),
    FaultTest("a run's agent is killed by SIGKILL", "its training ends, and the next call goes on",
              "tests/supervision/test_agent.py::test_sigkill_of_the_agent_ends_its_training_and_the_next_call_goes_on"),
    FaultTest("agent, training and evaluations are all killed", "the same command ends as if nothing had been",
              "tests/supervision/test_agent.py::test_sigkill_of_everything_then_again_ends_the_same"),
    FaultTest("a rank crashes in C", "its line of Python is named",
              "tests/supervision/test_endings.py::test_a_rank_that_crashes_in_c_names_its_python_line"),
    FaultTest("the disk fills while checkpoints are written", "the run says so",
              "tests/supervision/test_endings.py::test_a_full_disk_is_said"),
    FaultTest("a rank of several is killed", "the others end",
              "tests/training/test_several_ranks.py::test_a_killed_rank_ends_the_others"),
    FaultTest("Prefect's server hangs", "neither progress nor cancelling waits for it",
              "tests/test_stage.py::test_a_server_that_hangs_holds_up_neither_progress_nor_cancel"),
    FaultTest("Prefect's server is gone", "the work goes on",
              "tests/test_stage.py::test_a_server_that_is_gone_does_not_end_the_work"),
    FaultTest("a worker of a Slurm job is killed", "it is replaced within its job",
              "tests/system/test_slurm_build.py::test_a_killed_worker_is_replaced_within_its_job"),
    FaultTest("a job of a Slurm array is cancelled", "another does its items",
              "tests/system/test_slurm_build.py::test_a_cancelled_job_is_done_again_by_another"),
    FaultTest("work kills each worker that takes it, on Slurm", "the map ends, with the reason",
              "tests/system/test_slurm_build.py::test_work_that_kills_every_worker_ends_with_a_reason"),
    FaultTest("a worker of Dask is killed", "its items are done again",
              "tests/system/test_dask_build.py::test_a_killed_workers_items_are_done_again"),
    FaultTest("Dask's scheduler dies", "the map ends, with the reason",
              "tests/system/test_dask_build.py::test_a_scheduler_that_dies"),
)
# fmt: on


def run_tests() -> None:
    """Run all of them, and keep what pytest reports of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist",
            "loadfile",
            f"--junitxml={report}",
        ]
        subprocess.run([*words, *(one.test for one in TESTS)], cwd=ROOT)
        outcomes = read_report(report)
    about = {"date": date.today().isoformat(), "commit": commit(), "machine": machine()}
    lines = ",\n".join(f"{json.dumps(test)}: {json.dumps(found)}" for test, found in outcomes.items())
    stalls = json.dumps(dated(verdicts.RESULTS))
    text = f'{{"about": {json.dumps(about)},\n"verdicts": {stalls},\n"tests": {{\n{lines}\n}}}}\n'
    KEPT.write_text(text)


def dated(path: Path) -> dict[str, str]:
    """When, and in which commit, a kept file was last changed, and its digest."""
    words = ["git", "-C", str(ROOT), "log", "-1", "--format=%as %h", "--abbrev=8", "--", str(path)]
    day, made = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return {"date": day, "commit": made, "blake3": blake3(path.read_bytes()).hexdigest()}


def read_report(report: Path) -> dict[str, dict[str, Any]]:
    """By test: how many of its cases passed, failed and were skipped, their seconds, and why one was skipped."""
    found: dict[str, dict[str, Any]] = {
        one.test: {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "reason": ""} for one in TESTS
    }
    for case in ET.parse(report).iter("testcase"):
        name = (case.get("name") or "").partition("[")[0]
        test = f"{(case.get('classname') or '').replace('.', '/')}.py::{name}"
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped":
                outcome, reason = "skipped", child.get("message") or ""
        row = found[test]
        row[outcome] += 1
        row["seconds"] = round(row["seconds"] + float(case.get("time") or 0), 1)
        row["reason"] = reason or row["reason"]
    return found


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:]])


def answers() -> list[FaultAnswer]:
    return [FaultAnswer(**one) for one in json.loads(faults.RESULTS.read_text())["answers"]]


def readers_table() -> str:
    """Rows are faults, columns are readers."""
    found = {(one.fault, one.reader): one for one in answers()}
    rows = [[fault, *(cell(found[fault, reader]) for reader in faults.READERS)] for fault in faults.FAULTS]
    return table(["fault", *faults.READERS], rows)


def checkers_table() -> str:
    found = {(one.fault, one.reader): one for one in answers()}
    rows = [[fault, *(seen(found[fault, checker]) for checker in faults.CHECKERS)] for fault in faults.FAULTS]
    return table(["fault", *(f"`{checker}`" for checker in faults.CHECKERS)], rows)


def seen(one: FaultAnswer) -> str:
    if not one.is_stopped:
        return "sound" if one.fault == "nothing" else "**not seen**"
    return f"found, names the {one.named}" if one.named else "found, not where"


def cell(one: FaultAnswer) -> str:
    """What a reader did, as a person would put it."""
    if one.is_stopped:
        return f"stops, names the {one.named}" if one.named else "stops, not where"
    harm = {"lost": one.lost, "wrong": one.wrong, "twice": one.twice}
    told = ", ".join(f"{count} {what}" for what, count in harm.items() if count)
    if not told:
        return "all 100"
    return f"{told}; names the {one.named}" if one.named else f"**{told}, in silence**"


def score_table() -> str:
    """How often each reader did what, over all faults."""
    counts: dict[str, Counter[str]] = {reader: Counter() for reader in faults.READERS}
    for one in answers():
        if one.reader in counts and one.fault != "nothing":
            counts[one.reader][one.verdict] += 1
    kinds = ("named", "stopped", "told", "silent", "whole")
    headings = [
        "",
        "stops, and names it",
        "stops, not where",
        "goes on, and names it",
        "goes on in silence",
        "unharmed",
    ]
    return table(
        headings, [[reader, *(str(count[one]) for one in kinds)] for reader, count in counts.items()]
    )


NOT_RUN = "No outcome is kept yet: `make matrices` runs these tests and writes what came of them."


def tests_table() -> str:
    kept = json.loads(KEPT.read_text())["tests"]
    if not kept:
        return table(["fault", "what must come of it"], [[one.fault, one.promise] for one in TESTS])
    rows = []
    for one in TESTS:
        row, name = kept[one.test], one.test.partition("::")[2]
        rows.append(
            [
                one.fault,
                one.promise,
                outcome_of(row),
                f"{row['seconds']:.0f}",
                f"[`{name}`](../../{one.test.partition('::')[0]})",
            ]
        )
    return table(["fault", "what must come of it", "outcome", "s", "test"], rows)


def outcome_of(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"**failed** in {row['failed']} of {row['failed'] + row['passed']}"
    if not row["passed"]:
        return f"skipped: {row['reason']}" if row["skipped"] else "**not run**"
    return "kept" if row["passed"] == 1 else f"kept, {row['passed']} of {row['passed']}"


def stalls_table() -> str:
    """A row for each stall: what doctor said, with stacks and without, and where py-spy shows the rank."""
    frames = dict(innermost())
    rows = []
    for row in verdicts.kept():
        if row.table != "stuck" or not row.code:
            continue
        name = row.name.removesuffix(verdicts.HELD_OUT)
        traced = f"`{row.said}`, {row.after:.0f} s" if row.score == 1 else f"**{row.said or 'nothing'}**"
        untraced = {1: "the same", 0: "unknown", -1: "**wrong**", None: "by its log"}[row.untraced]
        frame = frames.get(row.name)
        rows.append(
            [f"*{name}*" if name != row.name else name, traced, untraced, f"`{frame}`" if frame else ""]
        )
    return table(["stall", "`tarmac doctor`", "without stacks", "`py-spy dump`: the rank waits in"], rows)


def innermost() -> Iterator[tuple[str, str]]:
    """By stall: the innermost frame of its rank, which is all that a stack shows of the cause."""
    for path in sorted(RECORDS.glob("*.json")):
        seen_ = json.loads(path.read_text())
        ranks = [one for one in seen_["processes"] if one["role"] == "rank" and one["stack"]]
        if seen_["codes"] and ranks:
            yield seen_["name"], ranks[0]["stack"][0].replace("|", " ")


def frames_table() -> str:
    """How many stalls share a frame: a frame that stands for several causes names none of them."""
    causes: dict[str, set[str]] = {}
    frames = dict(innermost())
    for row in verdicts.kept():
        if frame := frames.get(row.name):
            causes.setdefault(frame, set()).add(row.code)
    often = Counter(frames.values())
    rows = [
        [f"`{frame}`", str(count), str(len(causes.get(frame, ())))] for frame, count in often.most_common(5)
    ]
    return table(["frame", "stalls", "causes"], rows)


def about_readers() -> str:
    kept = json.loads(faults.RESULTS.read_text())["about"]
    numbers = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    return f"Measured on {kept['date']} at commit {kept['commit']}, {kept['machine']}; {numbers}."


def about_tests() -> str:
    kept = json.loads(KEPT.read_text())["about"]
    if not kept:
        return NOT_RUN
    return f"The tests ran on {kept['date']} at commit {kept['commit']}, {kept['machine']}."


def about_stalls() -> str:
    kept = json.loads(KEPT.read_text())["verdicts"]
    rows = [row for row in verdicts.kept() if row.table == "stuck"]
    ill = [row for row in rows if row.code]
    named, traced = sum(row.score == 1 for row in ill), [row for row in ill if row.untraced is not None]
    doubted = sum(row.score != 1 for row in rows if not row.code)
    return (
        f"{named} of {len(ill)} stalls are named, and {doubted} of {len(rows) - len(ill)} healthy trainings doubted. Of "
        f"{len(traced)} that live,\na doctor without stacks names {sum(row.untraced == 1 for row in traced)}. The verdicts "
        f"were kept on {kept['date']}, in commit {kept['commit']}."
    )


BLOCKS = {
    "faults.md": {
        "scores": score_table,
        "readers": readers_table,
        "checkers": checkers_table,
        "measured": about_readers,
        "tests": tests_table,
        "ran": about_tests,
    },
    "stalls.md": {"counted": about_stalls, "stalls": stalls_table, "frames": frames_table},
}
"""By page: what stands between its markers."""


def page(name: str, written: str) -> str:
    """A page with its blocks as the kept answers have them."""
    for block, made in BLOCKS[name].items():
        begin, end = f"<!-- {block}: make matrices -->\n", f"<!-- end of {block} -->"
        before, rest = written.split(begin)
        written = before + begin + "\n" + made() + "\n\n" + end + rest.split(end)[1]
    return written


def main(*words: str) -> None:
    if words != ("render",):
        faults.main()
        run_tests()
    for name in BLOCKS:
        path = PAGES / name
        path.write_text(page(name, path.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
