"""Rows survive what happens to their writer, and no step is there twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tasks.runs import metrics
from tasks.runs.metrics import MetricsWriter, make_row

WRITER = """
import sys
from pathlib import Path
from tasks.runs.metrics import MetricsWriter, make_row
writer = MetricsWriter(Path(sys.argv[1]))
for step in range(1, 10**7):
    writer.append(make_row("train/step", step, "train", {"train/loss": 1.0}))
"""


def test_a_row_carries_its_place_and_nan_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append(make_row("train/step", 5, "val", {"val/loss": float("nan"), "more": [float("inf"), 1.5]}))
    (row,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert abs(row.pop("t") - time.time()) < 60
    assert row == {"uid": "train/step:5:val", "train/step": 5, "val/loss": None, "more": [None, 1.5]}


def test_steps_done_again_after_a_resume_are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for first, loss in ((1, 0.5), (3, 0.7)):
        writer = MetricsWriter(path)
        for step in range(first, first + 4):
            writer.append(make_row("train/step", step, "train", {"train/loss": loss}))
    rows, _ = metrics.read_metrics(path)
    assert [(row["train/step"], row["train/loss"]) for row in rows] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.5),
        (4, 0.5),
        (5, 0.7),
        (6, 0.7),
    ]
    assert metrics.last_step(path) == 6
    assert metrics.last_step(path, "val") == 0


def test_a_row_that_was_not_finite_gives_way_to_one_that_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [make_row("train/step", 1, "train", {"train/loss": loss}) for loss in (float("nan"), 0.5, 0.7)]
    assert [MetricsWriter(path).append(row) for row in rows] == [True, True, False]
    (row,) = metrics.read_metrics(path)[0]
    assert row["train/loss"] == 0.5


def test_a_torn_last_line_is_written_again_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsWriter(path).append(make_row("train/step", 1, "train", {"train/loss": 1.0}))
    with path.open("a") as file:
        file.write('{"uid": "train/step:2:train", "tra')
    assert metrics.last_step(path) == 1
    assert MetricsWriter(path).append(make_row("train/step", 2, "train", {"train/loss": 2.0}))
    assert [row["train/loss"] for row in metrics.read_metrics(path)[0]] == [1.0, 2.0]


def test_sigkill_of_the_writer_leaves_rows_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    while not path.exists() or path.stat().st_size < 20_000:
        time.sleep(0.01)
    process.kill()
    process.wait()
    steps = [row["train/step"] for row in metrics.read_metrics(path)[0]]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 100


def test_the_tail_is_whole_rows_and_reading_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in range(1, 101):
        writer.append(make_row("train/step", step, "train", {}))
    assert [row["train/step"] for row in metrics.tail(path, 200)][-1] == 100
    assert 0 < len(metrics.tail(path, 200)) < 5
    rows, offset = metrics.read_metrics(path)
    writer.append(make_row("train/step", 101, "train", {}))
    more, _ = metrics.read_metrics(path, offset)
    assert (len(rows), [row["train/step"] for row in more]) == (100, [101])
    assert metrics.tail(tmp_path / "none.jsonl") == []


def test_rows_of_other_programs_are_taken_or_named(tmp_path: Path) -> None:
    """Of two rows with one uid in one read the first stands, and JSON's NaN is null."""
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"uid": "train/step:1:train", "train/step": 1, "train/loss": 0.5}',
        '{"uid": "train/step:1:train", "train/step": 1, "train/loss": 0.7}',
        '{"uid": "train/step:2:train", "train/step": 2, "train/loss": NaN}',
        '{"uid": 7, "train/step": 3, "train/loss": 0.1}',
        '{"train/step": 4, "train/loss": 0.1}',
        '{"uid": "train/step:5:train", "train/loss": 0.1}',
        '{"uid": "train/step:6:train", "train/step": 6, "train/loss": "high"}',
        '{"uid": "train/step:7:train", "tra',
        "[8]",
        '{"uid": "mine", "train/step": 9, "custom": 1}',
        '{"uid": "nowhere", "custom": 1}',
        '{"uid": "half", "train/step": 1.5, "custom": 1}',
        '{"uid": "unknown", "eval/step": null, "custom": 1}',
        '{"uid": "train/step:10:train", "train/step": 10, "train/loss": true}',
        f'{{"uid": "train/step:11:train", "train/step": 11, "train/loss": 1{"0" * 400}}}',
        '{"uid": "train/step:12:train", "train/step": 12, "train/loss": 1e999}',
        "",
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    rows, _ = metrics.read_metrics(path)
    assert [(row["train/step"], row.get("train/loss")) for row in rows] == [
        (1, 0.5),
        (2, None),
        (9, None),
        (12, None),
    ]
    assert metrics.last_step(path) == 12 and len(metrics.rows_of(rows, "train")) == 3
    assert metrics.faults(path) == [
        "metrics.jsonl line 2: its uid 'train/step:1:train' is that of line 1, which counts",
        "metrics.jsonl line 4: its uid is 7, which is no text",
        "metrics.jsonl line 5: it has no uid",
        "metrics.jsonl line 6: train/step is None, but its uid is 'train/step:5:train'",
        'metrics.jsonl line 7: train/loss is "high", which is no number',
        "metrics.jsonl line 8: it is torn",
        "metrics.jsonl line 9: it is no JSON object",
        "metrics.jsonl line 11: it has neither train/step nor eval/step",
        "metrics.jsonl line 12: train/step is 1.5, which is no step",
        "metrics.jsonl line 13: eval/step is null, which is no step",
        "metrics.jsonl line 14: train/loss is true, which is no number",
        f"metrics.jsonl line 15: train/loss is {metrics._brief(10**400)}, which is no number",
        "metrics.jsonl line 3 and 1 further line hold a number that is not finite; it is null",
    ]
