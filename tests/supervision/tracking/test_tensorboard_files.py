"""The event files as TensorBoard itself reads them: each row once, in the order of steps, whatever came late."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tasks.runs import metrics
from tasks.runs.folder import RunFolder
from tasks.supervision.tracking import gathering
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
from tests.supervision import fakes
from tests.supervision.fakes import make_run
from tests.supervision.tracking.test_gatherer import write_rows

KEPT_ALL = {"scalars": 0}
WRITER = """
import sys
from pathlib import Path
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import make_row
from tasks.supervision.tracking.tensorboard_files import TensorBoardFiles
run = RunFolder(Path(sys.argv[1]))
files = TensorBoardFiles(run)
known = files.recorded()
print("begins", flush=True)
for number in range(10**6):
    step = number ^ 5  # late ones among them, which have the file written anew
    row = make_row("eval/step", step, "eval/zero_shot", {"eval/zero_shot/top1": step / 1000})
    if row["uid"] not in known:
        files.log(row)
        files.flush()
"""


def points(run: RunFolder, axis: str, name: str) -> list[tuple[int, float]]:
    if not (run.tensorboard / axis).exists():
        return []
    reader = EventAccumulator(str(run.tensorboard / axis), KEPT_ALL)
    reader.Reload()
    found = reader.Scalars(name) if name in reader.Tags()["scalars"] else []
    return [(point.step, point.value) for point in found]


def log(files: TensorBoardFiles, step: int, **values: Any) -> None:
    rows = {name.replace("_", "/"): value for name, value in values.items()}
    files.log(metrics.make_row("eval/step", step, "eval", rows))
    files.flush()


def test_rows_and_evaluations_lie_on_their_axes_also_without_wandb(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"tracker": "tensorboard"})
    write_rows(run, 1, 3)
    metrics.MetricsWriter(run.metrics).append(
        metrics.make_row("train/step", 3, "val", {"val/loss": math.nan})
    )
    for step in (40, 20):
        fakes.evaluate(run.path, step, "zero_shot")
    gathering.complete(run)
    assert points(run, "train", "train/loss") == [(1, 1.0), (2, 0.5), (3, float.fromhex("0x1.555556p-2"))]
    [(step, value)] = points(run, "train", "val/loss")
    assert step == 3 and math.isnan(value)
    assert [step for step, _ in points(run, "eval", "eval/zero_shot/top1")] == [20, 40]
    assert not list(run.wandb.glob("*run-*")) and gathering.is_complete(run)


def test_a_late_row_takes_its_place_also_in_a_reader_that_is_open(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    files = TensorBoardFiles(run)
    log(files, 40, eval_top1=0.5)
    reader = EventAccumulator(str(run.tensorboard / "eval"), KEPT_ALL)
    reader.Reload()
    for step, value in ((20, 0.25), (60, 0.75), (10, 0.125)):
        log(files, step, eval_top1=value)
    reader.Reload()
    found = [(point.step, point.value) for point in reader.Scalars("eval/top1")]
    assert found == points(run, "eval", "eval/top1") == [(10, 0.125), (20, 0.25), (40, 0.5), (60, 0.75)]


def test_a_row_that_was_not_finite_gives_way_to_one_that_is(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    files = TensorBoardFiles(run)
    log(files, 20, eval_top1=None)
    assert files.recorded() == {"eval/step:20:eval": False}
    log(files, 20, eval_top1=0.5)
    assert points(run, "eval", "eval/top1") == [(20, 0.5)]
    assert files.recorded() == {"eval/step:20:eval": True}


@pytest.mark.proof
def test_sigkill_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for pause_s in (0.0, 0.02, 0.1, 0.3, 0.5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(run.path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"begins\n"
        time.sleep(pause_s)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        uids = TensorBoardFiles(run).recorded()
        steps = sorted(int(uid.split(":")[1]) for uid in uids)
        assert [step for step, _ in points(run, "eval", "eval/zero_shot/top1")] == steps
        assert not steps or len(steps) + 5 >= steps[-1], "what was flushed is there"
    assert len(steps) > 10


def test_a_torn_end_and_a_file_that_was_replaced_are_cleared_away(tmp_path: Path) -> None:
    """As a node that fails leaves them, or a SIGKILL between the rename of a file and the end of the older."""
    run = RunFolder(tmp_path)
    files = TensorBoardFiles(run)
    for step in (1, 2, 3):
        log(files, step, eval_top1=step)
    [path] = (run.tensorboard / "eval").iterdir()
    before = path.read_bytes()
    os.truncate(path, len(before) - 3)
    replaced = path.with_name("events.out.tfevents.00000000000000000001.host")
    replaced.write_bytes(before)
    files = TensorBoardFiles(run)
    assert [uid.split(":")[1] for uid in files.recorded()] == ["1", "2"]
    for step in (3, 4):
        log(files, step, eval_top1=step)
    assert points(run, "eval", "eval/top1") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    log(files, 0, eval_top1=0.0)
    [path] = [one for one in (run.tensorboard / "eval").iterdir() if one.stat().st_size]
    assert replaced.stat().st_size == 0, "an open viewer goes on from it to the next file"
    os.utime(replaced, (0, 0))
    os.truncate(path, 5)
    log(TensorBoardFiles(run), 7, eval_top1=7)
    assert points(run, "eval", "eval/top1") == [(7, 7.0)] and not replaced.exists()


def test_a_row_without_numbers_is_there_too(tmp_path: Path) -> None:
    files = TensorBoardFiles(RunFolder(tmp_path))
    files.log({"uid": "empty", "train/step": 3})
    files.log({"uid": "words", "eval/step": 3, "eval/zero_shot/weights": "0a1b"})
    assert files.close() is None
    assert files.recorded() == {"empty": True, "words": True}
