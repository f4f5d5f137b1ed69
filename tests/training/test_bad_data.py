"""Samples that go bad under a training: it says which, does without them, or never meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.commands.status import status as status_command
from tasks.core.errors import DataError
from tasks.core.files import read_lines
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.index import read_index
from tasks.dataset.version.quarantine import Quarantined
from tasks.dataset.version.tables import read_table
from tasks.loader.bad import BadSampleError
from tasks.reporting.report import is_current, write_report
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tests.training.helpers import make_run, model_bytes, rows, train_here

STEPS = 12
IN_ORDER = (
    f"train.steps={STEPS}",
    "train.checkpoint_every=4",
    "evaluate.every=4",
    "train.log_every=1",
    "loader.shuffle=none",
)
REPLACE = "loader.on_bad=replace"


@pytest.fixture
def dataset(digits_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the digits that a test may harm."""
    copy = tmp_path / "dataset"
    shutil.copytree(digits_dataset, copy, symlinks=True)
    return copy


def flip(dataset: Path, split: str, row: int) -> Quarantined:
    """Change a bit of the caption of a sample; its place."""
    version = versions.resolve(dataset)
    index = read_index(version, split)[row]
    shard = f"{split}/{int(index['shard']):06d}.tar"
    content = bytearray((version / shard).read_bytes())
    span = slice(int(index["offset"]), int(index["offset"] + index["length"]))
    content[content.index(b".txt", span.start) - span.start + span.start + 512] ^= 0x80
    (version / shard).unlink()  # it is a hard link
    (version / shard).write_bytes(content)
    return entries(version, split, [row])[0]


def entries(version: Path, split: str, rows: list[int]) -> list[Quarantined]:
    table = read_table(version / "samples" / f"{split}.parquet").take(rows).to_pylist()
    places = [(f"{split}/{row['shard']:06d}.tar", row["key"]) for row in table]
    return [Quarantined(version.name, split, *place, "member.checksum") for place in places]


def replaced_lines(run: RunFolder) -> list[dict[str, Any]]:
    return read_lines(run.replaced())[0]


def test_raise_ends_the_training_and_names_it(dataset: Path, tmp_path: Path) -> None:
    bad = flip(dataset, "train", 5 * 32 + 7)
    run = make_run(dataset, tmp_path, *IN_ORDER)
    with pytest.raises(BadSampleError) as caught:
        train_here(run)
    defect = caught.value.defect
    assert (defect.shard, defect.key, defect.member) == (bad.shard, bad.key, "txt")
    version = versions.resolve(dataset)
    assert f"`tarmac repair {version}`" in str(caught.value), "which need not be the current one"
    assert list(rows(run, "train")) == [1, 2, 3, 4, 5], "the step before it is the last"
    assert not run.replaced().exists()


def test_replace_goes_on_and_tells(dataset: Path, tmp_path: Path) -> None:
    first, second = flip(dataset, "train", 7), flip(dataset, "train", 5 * 32 + 7)
    run = make_run(dataset, tmp_path, *IN_ORDER, REPLACE, workers=1)
    assert train_here(run) == STEPS
    lines = replaced_lines(run)
    assert [(line["step"], line["position"], line["key"]) for line in lines] == [
        (1, 7, first.key),
        (6, 167, second.key),
    ]
    assert lines[1] | {"at": 0, "stand_in": ""} == {
        **{
            "step": 6,
            "position": 167,
            "split": "train",
            "shard": second.shard,
            "row": 167,
            "key": second.key,
        },
        **{"member": "txt", "reason": "member.checksum", "stand_in": "", "at": 0},
    }
    assert all(line["stand_in"].startswith("digit_") for line in lines)
    counts = [row["data/replaced"] for row in rows(run, "train").values()]
    assert counts == [1] * 5 + [2] * 7


@pytest.mark.proof
def test_steps_that_are_done_again_tell_nothing_twice(dataset: Path, tmp_path: Path) -> None:
    for row in (7, 5 * 32 + 7, 10 * 32 + 1):
        flip(dataset, "train", row)
    run = make_run(dataset, tmp_path, *IN_ORDER, REPLACE)
    train_here(run)
    before, weights, counts = run.replaced().read_bytes(), model_bytes(run, STEPS), rows(run, "train")
    for checkpoint in list_checkpoints(run):
        if checkpoint.step > 4:
            shutil.rmtree(checkpoint.path)
    run.metrics.unlink()
    with run.replaced().open("a") as file:
        file.write('{"step": 11, "posi')  # as a killed writer leaves it
    assert train_here(run) == STEPS
    assert run.replaced().read_bytes().startswith(before)
    assert [line["position"] for line in replaced_lines(run)] == [7, 167, 321]
    assert model_bytes(run, STEPS) == weights
    for step, row in rows(run, "train").items():
        assert row["data/replaced"] == counts[step]["data/replaced"]


def test_more_than_the_budget_is_an_error_that_says_where_to_look(dataset: Path, tmp_path: Path) -> None:
    version = versions.resolve(dataset)
    (version / "train/000000.tar").unlink()
    run = make_run(dataset, tmp_path, *IN_ORDER, REPLACE)
    samples = versions.read_manifest(version).splits["train"].samples
    most = samples // 100
    with pytest.raises(DataError) as caught:
        train_here(run)
    assert f"32 samples of an epoch are bad, and loader.bad_budget lets {most} be" in str(caught.value)
    assert str(run.replaced()) in str(caught.value) and f"tarmac verify {version}" in str(caught.value)
    assert len(replaced_lines(run)) == 32 and {line["reason"] for line in replaced_lines(run)} == {
        "shard.missing"
    }
    with pytest.raises(DataError, match="lets"):
        train_here(run)
    assert len(replaced_lines(run)) == 32
    generous = make_run(dataset, tmp_path, *IN_ORDER, REPLACE, "loader.bad_budget=0.5")
    assert generous == run, "it is the same run, which goes on"
    assert train_here(run) == STEPS


@pytest.mark.proof
def test_validation_leaves_a_bad_sample_out_or_ends_it(
    dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = flip(dataset, "val", 3)
    strict = make_run(dataset, tmp_path / "a", *IN_ORDER)
    with pytest.raises(BadSampleError, match=bad.key):
        train_here(strict)
    assert [checkpoint.step for checkpoint in list_checkpoints(strict)] == [4], "its steps are kept"
    lenient = make_run(dataset, tmp_path / "b", *IN_ORDER, REPLACE)
    assert train_here(lenient) == STEPS
    assert caplog.text.count(f"left out: {bad.shard} row 3, key '{bad.key}', member txt") == 3
    assert not lenient.replaced().exists(), "nothing of the training was replaced"
    assert rows(lenient, "train")[STEPS]["data/replaced"] == 0


def test_a_held_out_split_of_which_nothing_is_left_shows_at_once(dataset: Path, tmp_path: Path) -> None:
    version = versions.resolve(dataset)
    samples = versions.read_manifest(version).splits["val"].samples
    quarantine.add(dataset, entries(version, "val", list(range(samples))))
    run = make_run(dataset, tmp_path, *IN_ORDER)
    with pytest.raises(DataError, match=f"all {samples} samples of split val are left out"):
        train_here(run)
    assert not rows(run, "train"), "it trained first"


@pytest.mark.parametrize("reader", ["indexed", pytest.param("streaming", marks=pytest.mark.proof)])
def test_what_is_in_quarantine_is_never_read(dataset: Path, tmp_path: Path, reader: str) -> None:
    """A shard that is gone, all of whose samples are listed; the run goes by its own copy of the list."""
    version = versions.resolve(dataset)
    (version / "train/000000.tar").unlink()
    sizes = json.loads((version / "train/sizes.json").read_bytes())
    gone = entries(version, "train", list(range(sizes["000000.tar"])))
    bad = flip(dataset, "val", 3)
    quarantine.add(dataset, [*gone, bad])
    run = make_run(dataset, tmp_path, *IN_ORDER, f"loader.reader={reader}")
    quarantine.remove(dataset, [*gone, bad])
    assert train_here(run) == STEPS


def test_status_and_report_tell_of_replaced_samples(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = flip(dataset, "train", 7)
    version = versions.resolve(dataset)
    run = make_run(dataset, tmp_path, *IN_ORDER, REPLACE)
    train_here(run)
    assert status_command(runs=run.path.parent) == 0
    assert "  1 replacement of bad samples\n" in capsys.readouterr().out
    write_report(run)
    page = run.report.read_text()
    assert "1 bad sample replaced while training" in page and bad.key in page
    assert f"tarmac repair {version}" in page and is_current(run)
    run.replaced(1).write_text(run.replaced().read_text())
    assert not is_current(run)
