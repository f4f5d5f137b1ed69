"""The user of Hugging Face: datasets that `datasets` has saved, read by Tarmac, and what it builds read again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.dataset.raw import png
from tests.system.first_days.person import Person

pytestmark = pytest.mark.system
NAMES = ["cat", "dog", "hen"]
EXPECTED = {
    "webdataset, in order": r"^\d{4}\S* \['json', 'png', 'txt'\]$",
    "PyTorch, at random by the index": r"^40 \['json', 'png', 'txt'\]$",
    "Hugging Face datasets": r"'__key__'.*'png'|'png'.*'__key__'",
}
"""What the lines print that load the dataset in another library."""


def saved(folder: Path) -> None:
    """Pictures with a ClassLabel and splits of their own, by `save_to_disk` and as the Parquet of the hub."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image

    features = Features({"image": Image(), "label": ClassLabel(names=NAMES)})

    def rows(*numbers: int) -> Any:
        images = [{"bytes": png(n, 32), "path": f"{n:04d}.png"} for n in range(*numbers)]
        return Dataset.from_dict({"image": images, "label": [n % 3 for n in range(*numbers)]}, features)

    pets = DatasetDict({"train": rows(40), "test": rows(40, 52)})
    pets.save_to_disk(folder / "saved")
    (folder / "hub/data").mkdir(parents=True)
    for number in range(2):
        path = folder / f"hub/data/train-0000{number}-of-00002.parquet"
        pets["train"].shard(2, number).to_parquet(path)
    pets["test"].to_parquet(folder / "hub/data/test-00000-of-00001.parquet")


@pytest.mark.proof
def test_what_datasets_saved_is_built_and_loaded_again(person: Person) -> None:
    saved(person.folder)
    for name, path in (
        ("saved", "saved/{test,train}/data-00000-of-00001.arrow"),
        ("hub", "hub/data/*.parquet"),
    ):
        found = person.types("init", name)
        for says in (
            f"path      {path}: {2 if name == 'saved' else 3} tables, 52 rows; columns image, label",
            "fields    the tables are named after splits",
            "image     image: the images themselves",
            "caption   label: no column holds captions, so the class will do",
            "label     label: 3 values, ",
        ):
            assert says in found
    assert "reads 3 containers in order" in person.types("plan", "configs/hub.yaml")

    built = person.types("build", "configs/saved.yaml")
    assert "52 read = 52 accepted" in built
    assert "  test     12 samples in " in built and "  train    40 samples in " in built
    (loads,) = re.findall(r"in Python: tarmac (look data/saved --load)\n", built)
    _, *parts = re.split(r"^# (.*)\n", person.types(*loads.split()), flags=re.M)
    programs = dict(zip(parts[::2], parts[1::2], strict=True))
    assert programs.keys() == EXPECTED.keys()
    for name, program in programs.items():
        assert re.search(EXPECTED[name], person.runs(program).strip()), name
    for split, count in (("train", 40), ("test", 12)):
        samples = person.samples(split, "data/saved")
        labels = [json.loads(one["json"])["label"] for one in samples]
        assert [one["txt"].decode() for one in samples] == [f"a photo of a {label}" for label in labels]
        assert (len(samples), set(labels)) == (count, set(NAMES))

    torn = person.folder / "hub/data/train-00001-of-00002.parquet"
    os.truncate(torn, torn.stat().st_size // 2)
    why = "is no Parquet file, or was cut: the mark of its end is missing; copy it again\n"
    unused = "! data/train-00001-of-00002.parquet is not used, as it cannot be read: it "
    assert unused + why in person.types("init", "hub", "--out", "other.yaml")
    assert person.types("plan", "configs/hub.yaml", expecting=1) == f"✗ {torn} {why}"
