"""The conversationalist: conversations about images in the forms in which people publish them."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dataset import raw
from tests.system.first_days.person import Person

pytestmark = pytest.mark.system


def test_the_rows_of_the_real_cauldron(person: Person) -> None:
    """The conversationalist: rows as the_cauldron publishes them, whose turns name their source."""
    picture = raw.png(1, side=40)
    rows = [
        {
            "images": [{"bytes": picture, "path": None}],
            "texts": [{"user": f"What is number {n}?", "assistant": f"It is {n}.", "source": "TQA"}],
        }
        for n in range(60)
    ]
    (person.folder / "raw").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), person.folder / "raw" / "train-00000-of-00001.parquet")
    assert "60 conversations" in person.types("init", "raw")
    assert "60 read = 60 accepted" in person.types("build", "configs/raw.yaml")
    person.types("verify", "data/raw")
    (turn,) = json.loads(person.samples("train")[0]["json"])["messages"]
    assert turn["source"] == "TQA"
