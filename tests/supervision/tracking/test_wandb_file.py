"""The reader of `.wandb` files against files of the real client, whole and torn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.supervision.tracking import wandb_file

RECORD_EXIT = 18
"""The field of the record that `finish()` writes last."""

WRITER = """
import sys, wandb
settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True)
run = wandb.init(project="p", id="abc", dir=sys.argv[1], mode="offline", config={"lr": 0.5}, settings=settings)
run.define_metric("train/step")
run.define_metric("train/*", step_metric="train/step")
for step in range(400):
    run.log({"uid": f"train/step:{step}:train", "train/step": step, "train/text": "x" * 300, "train/loss": None})
run.log({"long": "y" * 100_000})
run.finish()
wandb.teardown()
"""

ORACLE = """
import json, sys
from wandb.proto import wandb_internal_pb2
from tasks.supervision.tracking import wandb_file
data = open(sys.argv[1], "rb").read()
kinds = []
for record in wandb_file.records(data):
    message = wandb_internal_pb2.Record()
    message.ParseFromString(record)
    if message.WhichOneof("record_type") == "history":
        kinds.append({item.key or "/".join(item.nested_key): json.loads(item.value_json)
                      for item in message.history.item})
print(json.dumps(kinds))
"""


def is_finished(path: Path) -> bool:
    """Whether the run of a `.wandb` file ended with `finish()`; its writer may also have been killed."""
    read = map(wandb_file.fields, wandb_file.records(path.read_bytes()))
    return any(number == RECORD_EXIT for record in read for number, _ in record)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One real file of 400 rows that span several blocks, and a row longer than a block."""
    folder = tmp_path_factory.mktemp("wandb_file")
    subprocess.run([sys.executable, "-c", WRITER, str(folder)], check=True, timeout=60)
    (path,) = wandb_file.files_of(folder / "wandb")
    return path


def test_every_row_comes_back(written: Path) -> None:
    found = wandb_file.read_wandb_file(written)
    assert written.name == "run-abc.wandb" and is_finished(written)
    assert found.config["lr"] == 0.5
    assert found.axes["train/*"] == "train/step"
    assert [row.get("train/step") for row in found.rows[:400]] == list(range(400))
    assert found.rows[7] == {
        "uid": "train/step:7:train",
        "train/step": 7,
        "train/text": "x" * 300,
        "train/loss": None,
    }
    assert found.rows[400] == {"long": "y" * 100_000}
    assert found.next_step == 401


def test_wandbs_own_messages_say_the_same(written: Path) -> None:
    command = [sys.executable, "-c", ORACLE, str(written)]
    oracle = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in oracle]
    assert rows == wandb_file.read_wandb_file(written).rows


@pytest.mark.parametrize("lost_bytes", [1, 50, 40_000, 120_000])
def test_a_torn_file_gives_what_stands_before_the_tear(
    written: Path, tmp_path: Path, lost_bytes: int
) -> None:
    torn = tmp_path / "torn.wandb"
    torn.write_bytes(written.read_bytes()[:-lost_bytes])
    found = wandb_file.read_wandb_file(torn)
    assert not is_finished(torn)
    steps = [row["train/step"] for row in found.rows if "train/step" in row]
    assert steps == list(range(len(steps))) and len(steps) > 50


@pytest.mark.parametrize("lost_bytes", [0, 1, 50, 40_000, 100_050, 120_000])
def test_a_torn_record_is_cut_off_and_nothing_else(written: Path, tmp_path: Path, lost_bytes: int) -> None:
    torn = tmp_path / "torn.wandb"
    data = written.read_bytes()
    torn.write_bytes(data[: len(data) - lost_bytes])
    rows = wandb_file.read_wandb_file(torn).rows
    wandb_file.cut_torn_end(torn)
    assert data.startswith(torn.read_bytes()) and wandb_file.read_wandb_file(torn).rows == rows
    once = torn.read_bytes()
    wandb_file.cut_torn_end(torn)
    assert torn.read_bytes() == once
    assert (len(once) == len(data)) == (lost_bytes == 0)


def test_a_damaged_record_is_not_cut_off(written: Path, tmp_path: Path) -> None:
    data = bytearray(written.read_bytes())
    data[60_000] ^= 0xFF
    damaged = tmp_path / "damaged.wandb"
    damaged.write_bytes(data)
    wandb_file.cut_torn_end(damaged)
    assert damaged.read_bytes() == data


def test_a_damaged_record_ends_the_reading(written: Path, tmp_path: Path) -> None:
    data = bytearray(written.read_bytes())
    data[60_000] ^= 0xFF
    damaged = tmp_path / "damaged.wandb"
    damaged.write_bytes(data)
    assert 50 < len(wandb_file.read_wandb_file(damaged).rows) < 400


def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.wandb"
    other.write_bytes(b"PK\x03\x04 this is something else")
    with pytest.raises(ValueError, match=r"no \.wandb file"):
        wandb_file.read_wandb_file(other)
    assert wandb_file.rows_of(tmp_path) == []
