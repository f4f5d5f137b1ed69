"""What `tarmac init` finds in tables of conversations."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.building.forecast import forecast
from tasks.dataset.init import config_text, survey
from tasks.dataset.preview.page import page_path, write_beside
from tasks.dataset.quality.verdict import Terms
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.versions import publish
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tests.dataset.init.kinds import config_of, taken, warnings
from tests.dataset.raw import chat, png
from tests.models.examples import train_block


def test_suggests_a_filter_from_the_ratings(tmp_path: Path) -> None:
    chat.make(tmp_path / "raw")
    seen = survey("raw")
    assert "# filter: {relevance: 3, formatting: 3}" in config_text(seen)
    assert "of those looked at relevance keeps 100" in config_text(seen)
    assert config_of(seen, tmp_path).dataset.filter == {}


def test_a_pattern_stays_a_pattern(tmp_path: Path) -> None:
    chat.make(tmp_path / "raw")
    config = config_of(survey("raw/*.parquet"), tmp_path)
    assert config.name == "raw"
    assert config.dataset.source.path == "raw/*.parquet"  # type: ignore[union-attr]
    assert taken(config) == 6


def asked(number: int) -> list[dict[str, str]]:
    return [
        {"from": "human", "value": f"<image>\nWhat is {number}?"},
        {"from": "gpt", "value": f"Thing {number}."},
    ]


def test_llava_is_read_from_its_array_with_the_images_elsewhere(tmp_path: Path) -> None:
    for number in range(8):
        path = tmp_path / "raw" / "pictures" / "coco" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    rows: list[dict[str, Any]] = [
        {"id": str(n), "image": f"coco/{n}.png", "conversations": asked(n)} for n in range(8)
    ]
    rows[2]["conversations"] = rows[2]["conversations"][:1]
    (tmp_path / "raw" / "annotations").mkdir()
    (tmp_path / "raw" / "annotations" / "llava.json").write_text(json.dumps(rows, indent=1))
    for place in ("raw", "raw/annotations/llava.json"):
        seen = survey(place)
        assert seen.best.seen == {
            "path": "raw/annotations/llava.json: 8 conversations in 1 file; columns id, image, conversations",
            "images": "image: paths, such as coco/0.png",
            "root": "raw/pictures: 8 of 8 looked at are there, and 0 below the table's folder",
            "texts": "conversations: a list of {from, value} as LLaVA and ShareGPT write, in pairs 0.9 per "
            "conversation in 8 looked at; 1 whose turns do not alternate, which are rejected",
        }
    config = config_of(seen, tmp_path)
    built = build(
        config.model_copy(update={"dataset": config.dataset.model_copy(update={"reject_budget": 0.5})})
    )
    assert (built.read, built.accepted) == (8, 7)
    (reject,) = pq.read_table(built.version / "rejects.parquet").to_pylist()
    assert reject["source"] == "llava.json:3"
    assert reject["detail"] == "the last turn, 1, is the user's and has no answer: remove it"
    learnt_from(built.version)


def test_images_that_are_nowhere_ask_for_root(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "coco/0.png", "conversations": asked(0)}) + "\n")
    seen = survey("a.jsonl")
    fix = (
        "image names images that are not there, such as coco/0.png (0 of 1 looked at are there): put them there, "
        "or give the folder that holds both"
    )
    assert (seen.best.grade, warnings(seen)) == (0, fix)


def test_openai_messages_bring_their_images(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / f"{number}.png").write_bytes(png(number))
    for name, image in (("paths", "{}.png"), ("inline", "data:image/png;base64,{}")):
        with (tmp_path / "raw" / f"{name}.jsonl").open("w") as file:
            for number in range(6):
                content = base64.b64encode(png(number)).decode() if name == "inline" else number
                question = [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": image.format(content)}},
                ]
                messages = [
                    {"role": "system", "content": "Be short."},
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": f"Thing {number}."},
                ]
                file.write(json.dumps({"messages": messages}) + "\n")
        seen = survey(f"raw/{name}.jsonl")
        where = "paths relative to the table's folder, 6 of 6 looked at are there"
        where = "data: URIs" if name == "inline" else where
        assert seen.best.seen["images"] == f"they stand in the messages, as {where}"
        assert (
            "as OpenAI and transformers write, in pairs 1.0 per conversation in 6 looked at; 6 with a system"
            in (seen.best.seen["texts"])
        )
        config = config_of(seen, tmp_path)
        assert config.dataset.source.images is None  # type: ignore[union-attr]
        built = build(config)
        assert (built.read, built.accepted) == (6, 6)
        members = learnt_from(built.version)
        document = json.loads(members["json"])
        assert document["system"] == "Be short."
        assert document["messages"][0]["user"] == "What is this?<image>"
        shutil.rmtree(config.dataset.output)


def test_an_array_of_something_else_is_no_conversation(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "state.json").write_text(json.dumps([{"name": "x", "value": 1}]))
    with pytest.raises(UsageError, match=r"holds 1 \.json"):
        survey("raw")


def learnt_from(version: Path) -> dict[str, bytes]:
    """A sample of the version, which is sound and of which recipe vlm makes tokens and tiles."""
    assert verify(version, level="full").ok
    members = IndexedReader(version, "train").read(0).members
    batch = recipes.load_recipe(train_block("vlm")).transform(True)(members, 1)
    assert len(batch["tokens"]) and len(batch["image"])
    return dict(members)


def test_the_cauldron_is_taken_whole(tmp_path: Path) -> None:
    """As its own builder writes it: `source` in every turn, and one row group per file."""
    for subset in ("tqa", "vqav2"):
        texts = [{**chat.turn(f"Which of {n}?"), "source": subset.upper()} for n in range(10)]
        rows = [{"images": [{"bytes": png(n), "path": None}], "texts": texts[n : n + 1]} for n in range(10)]
        chat.write_parquet(tmp_path / "cauldron" / subset / "train-00000-of-00001.parquet", rows)
    config = config_of(survey("cauldron"), tmp_path)
    reading = forecast(config).reading
    assert reading is not None and (len(reading.containers), reading.samples, reading.taken) == (2, 20, 20)
    built = build(config)
    assert (built.read, built.accepted) == (20, 20)
    assert verify(built.version, level="full").ok
    publish(config.dataset.output, built.version, 1)
    write_beside(built.version, asdict(Terms.of(config)))
    assert "Which of 3?" in page_path(built.version).read_text()
    read = IndexedReader(built.version, "train").read(0).members
    assert json.loads(read["json"])["messages"][0].keys() == {"user", "assistant", "source"}
    batch = recipes.load_recipe(train_block("vlm")).transform(True)(read, 1)
    assert len(batch["tokens"]) and len(batch["image"])
