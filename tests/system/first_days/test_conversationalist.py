"""The conversationalist: conversations about images in the forms in which people publish them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dataset import raw
from tests.system.first_days.person import Person

pytestmark = pytest.mark.system


@pytest.mark.proof
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


def llava(folder: Path) -> None:
    """Write LLaVA's array with its images in a folder of their own, of which the last one is missing."""
    (folder / "images/coco").mkdir(parents=True)
    rows = []
    for n in range(25):
        turns = [("human", f"<image>\nWhat is number {n}?"), ("gpt", f"It is {n}.")]
        said = [{"from": speaker, "value": text} for speaker, text in turns]
        rows.append({"id": str(n), "image": f"coco/{n}.png", "conversations": said})
        if n < 24:
            (folder / f"images/coco/{n}.png").write_bytes(raw.png(n, 24))
    (folder / "llava.json").write_text(json.dumps(rows, indent=1))


def test_llava_with_an_image_that_is_missing(person: Person) -> None:
    llava(person.folder / "raw")
    last, seventh = "llava.json:25", "llava.json:8"
    found = person.types("init", "raw")
    assert "path      raw/llava.json: 25 conversations in 1 file; columns id, image, conversations" in found
    assert "root      raw/images: 19 of 20 looked at are there, and 0 below the table's folder" in found
    assert "texts     conversations: a list of {from, value} as LLaVA and ShareGPT write, in pairs" in found
    missing = f"member.missing   {last}: no such file: 'raw/images/coco/24.png'"
    assert f"1 of 20 samples tried: {missing}" in person.types("plan", "configs/raw.yaml")

    built = person.types("build", "configs/raw.yaml")
    assert "25 read = 24 accepted + 0 filtered + 1 rejected (4.0%, budget 5.0%)" in built
    listed = person.types("rejects", "data/raw")
    assert re.search(rf"member\.missing  {last} .*no such file: 'raw/images/coco/24\.png'", listed)
    traced = person.types("trace", seventh, "data/raw")
    assert f"  source     {seventh}\n" in traced and "  text       <image> What is number 7?\n" in traced


def test_openais_messages_with_what_is_wrong_in_them(person: Person) -> None:
    """A conversation that begins with its answer, an image that is not there, and a line that was cut."""
    folder = person.folder / "raw"
    folder.mkdir()
    lines = []
    for n in range(24):
        url = f"data:image/png;base64,{base64.b64encode(raw.png(n, 24)).decode()}"
        image = {"type": "image_url", "image_url": {"url": "pictures/9.png" if n == 9 else url}}
        asked = {"role": "user", "content": [{"type": "text", "text": f"What is {n}?"}, image]}
        answered = {"role": "assistant", "content": f"Thing {n}."}
        spoken = [answered] if n == 4 else [{"role": "system", "content": "Be brief."}, asked, answered]
        lines.append(json.dumps({"messages": spoken}))
    lines.insert(10, lines[0][:40])
    (folder / "train.jsonl").write_text("\n".join(lines))
    found = person.types("init", "raw")
    assert "path      raw: 25 conversations in 1 file; columns messages" in found
    assert "images    they stand in the messages, as data: URIs" in found
    assert "texts     messages: a list of {role, content} as OpenAI and transformers write" in found
    assert "23 with a system message; 1 whose turns do not alternate, which are rejected" in found
    planned = person.types("plan", "configs/raw.yaml", expecting=1)
    assert "the build would stop: 3 of the 20 samples tried are rejected" in planned
    for reason, detail in (
        ("chat.turns", "train.jsonl:5: turn 1 is the assistant's, but the user begins: remove it"),
        ("member.missing", "train.jsonl:10: no such file: 'pictures/9.png'"),
        ("source.unreadable", "train.jsonl:11: no valid JSON"),
    ):
        assert f"1 of 20 samples tried: {reason}   {detail}" in planned
