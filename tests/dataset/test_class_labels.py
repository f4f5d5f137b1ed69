"""Tables of Hugging Face's datasets: an image and a `ClassLabel`, in files that are named after their splits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.commands.plan import training_left
from tasks.core.config import load_config
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.init import config_text, survey
from tasks.dataset.sources.tabular import open_table
from tasks.dataset.version import versions
from tasks.dataset.version.manifest import read_manifest
from tasks.loader.indexed import IndexedReader
from tasks.reporting.report import write_report
from tasks.runs.plan import plan
from tests.dataset import raw

NAMES = ["cat", "dog", "tall ship"]
TRAIN = "{recipe: clip, model: {name: tarmac/digits}, batch_size: 4, steps: 5, lr: 0.1, checkpoint_every: 5}"


def write_tables(folder: Path, names: Sequence[str] | None, caption: str = "") -> None:
    """As `datasets` writes them: 30 rows to train on, 12 to test; with the classes' names in the schema."""
    feature = {"names": names, "_type": "ClassLabel"}
    about = {"info": {"features": {"label": feature, "image": {"_type": "Image"}}}}
    metadata = {"huggingface": json.dumps(about)} if names else None
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    folder.mkdir()
    for split, rows in (("train", range(30)), ("test", range(30, 42))):
        columns = {
            "image": pa.array([{"bytes": raw.png(n), "path": None} for n in rows], image),
            "label": pa.array([n % 3 for n in rows], pa.int64()),
        }
        if caption:
            columns["text"] = pa.array([f"{caption} {n + 100}" for n in rows])
        table = pa.table(columns).replace_schema_metadata(metadata)
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def test_names_of_classes_and_splits_come_from_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "pets", NAMES)
    Path("pets.yaml").write_text(config_text(survey("pets")))
    config = load_config(Path("pets.yaml"))
    version = build(config).version
    splits = read_manifest(version).splits
    assert {name: split.samples for name, split in splits.items()} == {"train": 30, "test": 12}
    for split, count in (("train", 30), ("test", 12)):
        reader = IndexedReader(version, split)
        for members in (reader.read(row).members for row in range(count)):
            fields = json.loads(bytes(members["json"]))
            assert fields["label"] in NAMES and fields["split"] == split
            assert bytes(members["txt"]).decode() == f"a photo of a {fields['label']}"
    left = training_left(config, None)
    assert left is not None and left.doubts == ()


CLASS = {"names": NAMES, "_type": "ClassLabel"}
TEXT = {"dtype": "string", "_type": "Value"}


@pytest.mark.parametrize(
    "about",
    [
        {"label": CLASS, "captions": [TEXT], "tags": [CLASS]},
        {
            "label": CLASS,
            "captions": {"feature": TEXT, "_type": "List"},
            "tags": {"feature": CLASS, "_type": "List"},
        },
        {"tags": {"feature": CLASS, "length": -1, "_type": "Sequence"}, "label": CLASS, "other": "strange"},
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_names_are_read_beside_columns_of_any_form(kind: str, about: Any, tmp_path: Path) -> None:
    """Older versions of `datasets` wrote a list as a JSON list of one feature."""
    columns = {"label": [1, 0, -1], "captions": [["a"], [], ["b", "c"]], "tags": [[2, 0], None, [-1]]}
    table = pa.table(columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": about}})}
    )
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    rows = [row.fields for row in open_table(path, "dataset.source.path").rows]
    assert [row["label"] for row in rows] == ["dog", "cat", None]
    assert [row["tags"] for row in rows] == [["tall ship", "cat"], None, [None]]
    assert [row["captions"] for row in rows] == columns["captions"]


def config_of(folder: Path, *overrides: str) -> Config:
    (folder / "numbers.yaml").write_text(f"""
name: numbers
runs: {folder}/runs
dataset:
  output: {folder}/data
  modality: image_text
  source: {{kind: table, path: {folder}/pets, image: image, caption: text}}
train: {TRAIN}
evaluate: {{every: 5, tasks: [zero_shot]}}
""")
    return load_config(folder / "numbers.yaml", overrides)


def test_numbers_for_classes_are_doubted_in_plan_and_report(tmp_path: Path) -> None:
    write_tables(tmp_path / "pets", None, caption="an animal, picture no.")
    config = config_of(tmp_path)
    doubt = "evaluate.tasks: zero_shot: the classes of 'label' are numbers that no caption contains"
    before = training_left(config, None)
    assert before is not None and any(one.startswith(doubt) for one in before.doubts)
    version = build(config).version
    versions.publish(config.dataset.output, version, keep=3)
    after = training_left(config, version.name)
    assert after is not None and any(one.startswith(doubt) for one in after.doubts)
    page = write_report(plan(config, version)).read_text(encoding="utf-8")
    assert "The classes are numbers" in page


def test_an_expression_that_does_not_fit_a_table_is_named(tmp_path: Path) -> None:
    write_tables(tmp_path / "pets", NAMES, caption="an animal")
    for field, pattern, says in (
        ("split", "(train)-", r"fields\.split: '\(train\)-' does not fit .*test-00000-of-00001\.parquet"),
        ("label", "(train|test)-", r"fields\.label: .* has a column 'label' itself; rename the field"),
    ):
        config = config_of(tmp_path, f"dataset.source.fields={{{field}: '{pattern}'}}")
        with pytest.raises(UsageError, match=says):
            build(config)
