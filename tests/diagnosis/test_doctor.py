"""`tarmac doctor` as its user meets it: on a process, on a log, and where tracing is denied."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from html import unescape
from pathlib import Path

import psutil
import pytest

from tasks.core.errors import UsageError
from tasks.diagnosis import examination
from tasks.diagnosis.observation.record import Observation
from tasks.diagnosis.verdicts import judge
from tests.diagnosis.test_verdicts import observation

TARMAC = Path(sys.executable).with_name("tarmac")


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TARMAC, "doctor", *words], cwd=cwd, capture_output=True, text=True, check=False)


def examined(seen: Observation) -> examination.Examination:
    return examination.Examination("process 7", "7", judge(seen), seen, 0.0)


def test_the_screen_says_what_how_it_is_known_what_not_and_what_to_do() -> None:
    lines = list(examination.text_of(examined(observation("no-caption-member-resampled"))))
    assert lines[0].startswith(
        "VERDICT  filter.spinning: 2 workers read and drop everything (no caption (txt))"
    )
    text = "\n".join(lines)
    for words in (
        "waits for the DataLoader's queue",
        "0 batches",
        "samples pass; they have jpg json paug.json",
    ):
        assert words in text
    assert "RULED OUT" in text and "shuffle.filling (" in text and "worker.deadlock (" in text
    assert "FIX        kill -INT" in text and "tarmac preflight -- " in text


def test_the_page_holds_the_evidence_and_no_home_folder(tmp_path: Path) -> None:
    done = examined(observation("wandb-hung-server-at-init"))
    examination.save_doctor_page(done, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "tracker.blocked" in page and "Stack of" in page and "<script" not in page
    assert f'"{Path.home()}/' not in page


def test_the_page_has_the_command_by_itself_and_tells_the_workers_apart(tmp_path: Path) -> None:
    done = examined(observation("no-caption-member-resampled"))
    examination.save_doctor_page(done, tmp_path / "page.html")
    page = unescape((tmp_path / "page.html").read_text())
    (finding,) = done.verdict.report.findings
    assert finding.command is not None
    remedy = finding.remedy[0].upper() + finding.remedy[1:]
    assert f'<pre class="wraps">{finding.command}</pre>\n<p class="remedy">{remedy}.</p>' in page
    assert {"<td>rank 0</td>", "<td>worker 0 of rank 0</td>", "<td>worker 1 of rank 0</td>"} <= set(
        re.findall(r"<td>(?:rank|worker) [^<]*</td>", page)
    )


def test_a_log_that_states_its_cause_is_enough(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\nRuntimeError: DataLoader worker (pid 41) is killed by signal: Killed.\n")
    done = run("--log", "train.log", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 1 and [one["code"] for one in report["findings"]] == ["worker.killed"]
    page = Path(report["page"])
    assert page.parent == Path(tempfile.gettempdir()) and page.exists(), "not among the trainer's files"
    page.unlink()
    (tmp_path / "runs").mkdir()
    done = run("--log", "train.log", cwd=tmp_path)
    assert "SAVED      runs/doctor-train.html (redacted;" in done.stdout
    assert (tmp_path / "runs/doctor-train.html").exists()


def test_a_log_that_states_no_cause_is_unknown_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\nstep 2\n")
    done = run("--log", "train.log", cwd=tmp_path)
    assert done.returncode == 0 and "unknown" in done.stdout and "--pid" in done.stdout


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda.oom"),
        ("OSError: [Errno 24] Too many open files: 'x'", "fds.too_few"),
        ("AssertionError: number of shards must be >= total workers", "shards.too_few"),
        ("ValueError: you need to add an explicit nodesplitter to your input pipeline", "version.webdataset"),
        (
            "KeyError: Caught KeyError in DataLoader worker process 0.\nKeyError: 'fname'",
            "version.webdataset",
        ),
        ("ERROR: Unexpected segmentation fault encountered in worker.\nlost sys.stderr", "worker.crashed"),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared "
            "memory (shm).",
            "shm.too_small",
        ),
        ("[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "collective.desync"),
    ],
)
def test_what_libraries_print_is_understood(line: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"starting\n{line}\n")
    assert [one.code for one in examination.examine_log(tmp_path / "log").verdict.report.findings] == [code]


def test_a_process_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match="there is no process"):
        examination.examine_process(2**22 - 1)


def test_a_sleeping_process_is_no_error_and_not_explained(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        began = time.monotonic()
        done = examination.examine_process(sleeper.pid, seconds=1.0)
        assert time.monotonic() - began < 30
    finally:
        sleeper.kill()
        sleeper.wait()
    assert [one.code for one in done.verdict.report.findings] == ["unknown"] and done.verdict.report.ok


def test_a_watch_is_named_and_its_command_judged(tmp_path: Path) -> None:
    """The watch itself sleeps, as does the relay of its output; the command computes."""
    work = [sys.executable, "-S", "-c", "print('begun', flush=True)\nwhile True: pass"]
    watch = subprocess.Popen([TARMAC, "watch", "--", *work], cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert watch.stdout is not None and watch.stdout.readline() == b"begun\n"
        done = examination.examine_process(watch.pid, seconds=0.5)
        (command,) = [one for one in psutil.Process(watch.pid).children() if "-S" in one.cmdline()[:2]]
    finally:
        for one in psutil.Process(watch.pid).children():
            one.kill()
        watch.wait()
        watch.stdout.close()
    assert done.verdict.state == "works" and done.subject == f"process {command.pid}"
    about = f"process {watch.pid} is tarmac watch; this is about its command, process {command.pid}"
    assert next(examination.text_of(done)).split(maxsplit=1) == ["WATCH", about]
    examination.save_doctor_page(done, tmp_path / "page.html")
    assert about[1:] in (tmp_path / "page.html").read_text()


def test_nothing_to_examine_is_one_line(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--pid PID" in done.stderr
