"""Turns as LLaVA, ShareGPT, OpenAI and transformers write them, and JSON arrays of any length."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.dataset.sources import RawSample, open_sources
from tasks.dataset.sources.chat_turns import Dialogue, pair_turns
from tasks.dataset.sources.tabular import open_table
from tasks.dataset.version.rejects import Reject
from tests.dataset.raw import chat, png


def said(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"from": author, "value": text} for author, text in turns]


def test_turns_of_sharegpt_become_pairs() -> None:
    turns = said(("system", "Be short."), ("human", "<image>What?"), ("gpt", "A cat."), ("user", "Sure?"))
    assert pair_turns(
        [*turns, {"from": "assistant", "value": "Yes.", "loss": None, "weight": 2}]
    ) == Dialogue(
        [
            {"user": "<image>What?", "assistant": "A cat."},
            {"user": "Sure?", "assistant": "Yes.", "weight": 2},
        ],
        "Be short.",
    )


def test_messages_of_openai_become_pairs_with_marks_for_their_images() -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "a.png"}, "text": None},
        {"type": "text", "text": "Like this? "},
        {"type": "image", "image": "b.png"},
        {"type": "image"},
    ]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "No."}]
    assert pair_turns(messages) == Dialogue(
        [{"user": "<image>Like this? <image><image>", "assistant": "No."}], images=("a.png", "b.png")
    )


@pytest.mark.parametrize(
    ("turns", "detail"),
    [
        (said(("human", "A?")), "the last turn, 1, is the user's and has no answer: remove it"),
        (said(("gpt", "A."), ("human", "B?")), "turn 1 is the assistant's, but the user begins: remove it"),
        (
            said(("human", "A?"), ("human", "B?"), ("gpt", "C.")),
            "turn 2 is the user's again, but user and assistant take turns: join it with the one before",
        ),
        (
            said(("human", "A?"), ("gpt", "B."), ("system", "C.")),
            "turn 3 is a system message, which may only be the first turn: join it with the user's",
        ),
        (
            said(("human", "A?"), ("function_call", "f()")),
            "turn 2 is from 'function_call'; a turn is the user's, the assistant's or a system message: remove "
            "it or rename its from",
        ),
        (said(("human", "A?"), ("gpt", " ")), "turn 2, the assistant's, has no text"),
        (said(("human", {"x": 1}), ("gpt", "B.")), "turn 1 holds a dict where a text belongs"),
        ([*said(("human", "A?")), "B."], "turn 2 is no object with from and value"),
        (
            said(("human", [{"type": "input_audio"}])),
            "turn 1 has a part of type 'input_audio'; text and image_url are read",
        ),
        (
            said(("human", "A?"), ("gpt", [{"type": "image", "image": "a.png"}])),
            "turn 2, the assistant's, has an image, which only the user's may have: put it there",
        ),
    ],
)
def test_turns_that_cannot_be_pairs_name_the_turn_and_the_fix(turns: Any, detail: str) -> None:
    with pytest.raises(Reject) as caught:
        pair_turns(turns)
    assert (caught.value.reason, caught.value.detail) == ("chat.turns", detail)


def item_of(folder: Path, *rows: Any, **source: Any) -> list[RawSample]:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (opened,) = open_sources(chat.config(path, folder / "out", source).dataset)
    return [item for container in opened.containers() for item in opened.items(container)]


INLINE = "data:image/png;base64," + base64.b64encode(png(1)).decode()


def test_an_image_within_the_text_comes_with_the_row(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(png(2))
    (item,) = item_of(
        tmp_path, {"images": [INLINE, "file://b.png"], "texts": [chat.turn("<image><image> Alike?")]}
    )
    assert item.members is not None
    assert [bytes(item.members[name]) for name in ("000", "001")] == [png(1), png(2)]


def test_images_that_contradict_each_other_are_rejected(tmp_path: Path) -> None:
    paths = [{"images": ["0.png"], "texts": [chat.turn("What?")]} for _ in range(20)]
    part = {"type": "image", "image": "b.png"}
    both = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "A."}]
    *_, late, double = item_of(
        tmp_path, *paths, {**paths[0], "images": INLINE}, {"images": ["a.png"], "texts": both}
    )
    assert late.fault == (
        "chat.images",
        "a data: URI, where the first rows of the source hold paths: give such rows a source of their own",
    )
    assert double.fault == (
        "chat.images",
        "there are images in the messages and in column images: remove one of them, or set images: null",
    )
    (broken,) = item_of(tmp_path, {"images": "data:image/png,x", "texts": [chat.turn("What?")]})
    assert broken.fault == ("chat.images", "a data: URI that does not hold base64")


def rows_of(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return [(row.line, row.fields) for row in open_table(path, "dataset.source.path").rows]


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_object_by_object(tmp_path: Path, indent: int | None) -> None:
    objects = [{"n": n, "text": 'x[{"' * (500_000 if n == 1 else 3)} for n in range(9)]
    text = json.dumps(objects, indent=indent)
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf\n" + text.encode())
    assert rows_of(tmp_path / "a.json") == list(enumerate(objects, 1))
    (tmp_path / "b.json").write_text(
        "\n\n".join(json.dumps(one) for one in objects)
    )  # lines, in spite of the name
    assert rows_of(tmp_path / "b.json") == [(2 * n + 1, one) for n, one in enumerate(objects)]


def test_a_long_array_takes_the_memory_of_a_short_one(tmp_path: Path) -> None:
    row = json.dumps({"conversations": said(("human", "What? " * 50), ("gpt", "That. " * 50))})
    with (tmp_path / "a.json").open("w") as file:
        file.write("[" + ",\n".join([row] * 60_000) + "]")
    assert (tmp_path / "a.json").stat().st_size > 40e6
    rows = open_table(tmp_path / "a.json", "dataset.source.path", wanted=()).rows
    tracemalloc.start()
    assert sum(1 for _ in rows) == 60_000
    assert tracemalloc.get_traced_memory()[1] < 8e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "read", "problem"),
    [
        ('[{"n": 1},\n{"n": 2}', 2, "from character 20 on, no valid JSON: , is missing"),
        ('[{"n": 1},\n{"n": 2', 1, "from character 12 on, no valid JSON"),
        ('[{"n": 1}]\n{"n": 2}', 1, "from character 12 on, no valid JSON: something follows its end"),
        ('{"n": 1}\n{"n": 2}\n{"n": oops}', 2, "from character 19 on, no valid JSON"),
    ],
)
def test_a_torn_array_says_where(tmp_path: Path, text: str, read: int, problem: str) -> None:
    (tmp_path / "a.json").write_text(text)
    rows = open_table(tmp_path / "a.json", "dataset.source.path", wanted=()).rows
    for _ in range(read):
        next(rows)
    with pytest.raises(DataError) as caught:
        next(rows)
    fix = "mend it, or copy it again if it was cut"
    assert str(caught.value) == f"{tmp_path}/a.json: {problem}; {fix}"


@pytest.mark.parametrize(
    ("images", "root", "problem"),
    [
        (
            "0.png",
            "nowhere",
            "dataset.source.root: there is no folder nowhere; paths start at the working directory",
        ),
        (INLINE, ".", "dataset.source.root: the table holds the images themselves; remove the key"),
    ],
)
def test_a_root_without_effect_names_its_key(tmp_path: Path, images: str, root: str, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"images": images, "texts": [chat.turn("What?")]}) + "\n")
    config = chat.config(tmp_path / "a.jsonl", tmp_path / "out", {"root": root})
    with pytest.raises(UsageError) as caught:
        open_sources(config.dataset)[0].columns()
    assert str(caught.value) == problem


def test_a_column_that_is_not_there_says_how_to_do_without(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    config = chat.config(tmp_path / "a.jsonl", tmp_path / "out", {"texts": "messages"})
    with pytest.raises(UsageError, match=r"images'.*\(null if there are none, or the messages hold them\)"):
        open_sources(config.dataset)[0].columns()


@pytest.mark.parametrize("name", ["vqa.jsonl.gz", "vqa.json.gz", "vqa.json"])
def test_a_compressed_file_is_a_subset_like_a_plain_one(tmp_path: Path, name: str) -> None:
    row = {"texts": [chat.turn("What?")]}
    text = json.dumps([row, row]) if ".json." in name else f"{json.dumps(row)}\n" * 2
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(content)
    (source,) = open_sources(chat.config(tmp_path / name, tmp_path / "out", {"images": None}).dataset)
    items = [item for container in source.containers() for item in source.items(container)]
    assert [(item.fields["subset"], item.fault) for item in items] == [("vqa", None)] * 2


def test_in_a_folder_other_json_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_text(json.dumps({"texts": [chat.turn("What?")]}))
    (tmp_path / "raw" / "dataset_info.json").write_text('{"a": {"file_name": "a.jsonl"}}')
    (source,) = open_sources(chat.config(tmp_path / "raw", tmp_path / "out", {"images": None}).dataset)
    assert [container.name for container in source.containers()] == ["a.jsonl"]
