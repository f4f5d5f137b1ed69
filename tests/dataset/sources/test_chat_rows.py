import errno
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import LocalStore
from tasks.core.schema import Config
from tasks.core.stores import ABSENT
from tasks.dataset import filters
from tasks.dataset.building.builder import BuildResult, build
from tasks.dataset.modalities import MODALITIES, AcceptedSample
from tasks.dataset.modalities import chat as conversations
from tasks.dataset.sources import Absent, RawSample, Source, open_sources
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.rejects import Reject
from tasks.dataset.version.versions import publish
from tests.dataset.raw import chat, png
from tests.dataset.raw.chat import row, turn, write_jsonl, write_parquet
from tests.web import web_server

CHAT = MODALITIES["chat"]


def source_of(config: Config) -> Source:
    return open_sources(config.dataset)[0]


def items_of(config: Config) -> list[RawSample]:
    source = source_of(config)
    return [item for container in source.containers() for item in source.items(container)]


def raw_of(config: Config, item: RawSample) -> dict[str, bytes]:
    """As a worker gets it, whose source has listed nothing."""
    if item.members is not None:
        return dict(item.members)
    return dict(source_of(config).read(item.file, item.content))


def taken_of(config: Config, item: RawSample) -> AcceptedSample:
    assert item.fault is None
    return CHAT.take(raw_of(config, item), config.dataset)


def document_of(taken: AcceptedSample) -> dict[str, Any]:
    return dict(json.loads(bytes(taken.members["json"])))


def kept(config: Config) -> list[RawSample]:
    return [item for item in items_of(config) if filters.passes(config.dataset.filter, item.fields)]


@pytest.fixture(params=["parquet", "jsonl"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Writes rows in either form and gives the config that reads them."""

    def write(rows: list[dict[str, Any]], source: Any = None, **dataset: Any) -> Config:
        writer = write_parquet if request.param == "parquet" else write_jsonl
        path = writer(tmp_path / "raw" / f"vqa.{request.param}", rows)
        return chat.config(path, tmp_path / "out", source, **dataset)

    return write


def test_a_row_becomes_numbered_images_and_messages(write: Any) -> None:
    pictures = [{"bytes": png(1, 20)}, {"bytes": png(2, 30)}]
    config = write([row(0, images=pictures, origin="museum")])
    (item,) = items_of(config)
    taken = taken_of(config, item)
    assert {name: bytes(content) for name, content in taken.members.items() if name != "json"} == {
        "000.png": png(1, 20),
        "001.png": png(2, 30),
    }
    assert document_of(taken) == {
        "messages": [turn("What is shown in 0?", "Picture 0."), turn("Sure?")],
        "ratings": {"relevance": [5, 4], "formatting": [4, None]},
        "subset": "vqa",
        "origin": "museum",
    }
    assert (
        taken.statistics.items()
        >= {
            "images": 2,
            "turns": 2,
            "user_length": len("What is shown in 0?Sure?"),
            "assistant_length": len("Picture 0.Yes."),
            "width": 30,
            "height": 30,
            "frames": 1,
            "phash": None,
        }.items()
    )
    assert set(taken.statistics) == set(CHAT.statistics)
    assert CHAT.judge({name: bytes(content) for name, content in taken.members.items()}) == []


@pytest.mark.parametrize("images", [None, []])
def test_a_conversation_may_have_no_image(write: Any, images: Any) -> None:
    config = write([row(0, images=images), row(1)])
    assert set(taken_of(config, items_of(config)[0]).members) == {"json"}


@pytest.mark.parametrize("form", ["list", "one", "bytes", "list of bytes", "path"])
def test_images_come_in_any_form_of_the_format(tmp_path: Path, form: str) -> None:
    import pyarrow as pa

    (tmp_path / "a.png").write_bytes(png(1))
    image = {
        "list": [{"bytes": png(1), "path": "nowhere.png"}],
        "one": {"bytes": png(1), "path": None},
        "bytes": png(1),
        "list of bytes": [png(1)],
        "path": ["a.png"],
    }[form]
    table = pa.table({"images": pa.array([image]), "texts": pa.array([[turn("Who?")]])})
    pq.write_table(table, tmp_path / "vqa.parquet")
    config = chat.config(tmp_path / "vqa.parquet", tmp_path / "out")
    assert source_of(config).is_sequential == (form != "path")
    assert taken_of(config, items_of(config)[0]).members["000.png"] == png(1)


def test_listing_paths_opens_no_image(tmp_path: Path) -> None:
    config = chat.make_paths(tmp_path)
    items = items_of(config)
    for image in (tmp_path / "images").iterdir():
        image.write_bytes(b"")
    assert [item._replace(stat=ABSENT) for item in items_of(config)] == [
        item._replace(stat=ABSENT) for item in items
    ]
    (tmp_path / items[0].file).unlink()
    assert items[0].stat.size > 0
    assert items_of(config)[0].stat == ABSENT
    with pytest.raises(Absent):
        source_of(config).read(items[0].file, items[0].content)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"texts": []}, "chat.turns"),
        ({"texts": None}, "chat.turns"),
        ({"texts": [turn("What?", ""), turn("Sure?")]}, "chat.turns"),
        ({"texts": [turn("  "), turn("Sure?")]}, "chat.turns"),
        ({"texts": [{"user": "What?"}, turn("Sure?")]}, "chat.turns"),
        ({"texts": [turn("<image: 2> What?"), turn("Sure?")]}, "chat.images"),
        ({"relevance_ratings": [5]}, "chat.ratings"),
        ({"relevance_ratings": [5, 6]}, "chat.ratings"),
        ({"relevance_ratings": [0, 5]}, "chat.ratings"),
        ({"texts": [turn("<image><image> Alike?"), turn("Sure?")]}, "chat.images"),
        ({"images": [], "texts": [turn("<image> What?"), turn("Sure?")]}, "chat.images"),
    ],
)
def test_what_breaks_the_format_is_rejected(write: Any, fields: dict[str, Any], reason: str) -> None:
    first, second = items_of(write([row(0, **fields), row(1)]))
    assert first.fault is not None and first.fault[0] == reason
    assert second.fault is None


def test_what_is_wrong_with_the_turns_is_named() -> None:
    for texts, says in (("[]", "a str where a list"), ({"user": "What?"}, "a dict where a list")):
        with pytest.raises(Reject, match=says):
            conversations.parse(texts, {})


def test_further_fields_of_a_turn_stay_with_it(write: Any) -> None:
    texts = [{**turn("What?"), "source": "TQA", "note": None}, {**turn("And?"), "score": 0.5}]
    messages = document_of(taken_of(config := write([row(0, texts=texts)]), items_of(config)[0]))["messages"]
    assert messages == [{**turn("What?"), "source": "TQA"}, {**turn("And?"), "score": 0.5}]


def test_placeholders_name_each_image_once() -> None:
    def two(*marks: str) -> conversations.Conversation:
        return conversations.parse([{"user": f"{mark} What?", "assistant": "It."} for mark in marks], {})

    for marks in (("<image: 2>", "<image: 1>"), ("<image>", "<image>"), ("<image: 2>", "<image>")):
        conversations.check_images(two(*marks), 2)
    for marks in (("<image: 1>", "<image: 1>"), ("<image: 7>", "<image: 9>"), ("<image: 0>", "<image: 1>")):
        with pytest.raises(Reject, match=r"chat.images.*where there are 2"):
            conversations.check_images(two(*marks), 2)


def test_a_turn_that_was_a_placeholder_alone_goes_with_it() -> None:
    turns = [{"user": text, "assistant": "Yes."} for text in ("<image> q1", "<image>", "x")]
    parsed = conversations.parse(turns, {"relevance": [1, 5, 4]})
    left = conversations.select(parsed, lambda name, rating: rating > 2)
    assert left is not None and [turn["user"] for turn in left.turns] == ["x"]
    assert left.ratings == {"relevance": (4,)}


@pytest.mark.parametrize("mark", ["<image>", "<image: 1>", "<image:1>"])
def test_placeholders_may_stand_for_the_images(write: Any, mark: str) -> None:
    config = write([row(0, texts=[turn(f"{mark} What?"), turn("The <|image|>?")])])
    assert document_of(taken_of(config, items_of(config)[0]))["messages"][0]["user"] == f"{mark} What?"


def test_a_filter_drops_turns_and_only_empty_conversations(write: Any) -> None:
    rows = [
        row(0, relevance_ratings=[2, 3], formatting_ratings=[5, 5]),  # the second turn stays
        row(1, relevance_ratings=[5, 1], formatting_ratings=[1, 5]),  # each turn fails one of the rules
        row(2, relevance_ratings=None, formatting_ratings=None),  # not rated: stays
        row(3, relevance_ratings=[None, 1], formatting_ratings=[None, None]),
        row(4, relevance_ratings=[1, 2]),
    ]
    config = write(rows, filter={"relevance": 3, "formatting": 2})
    documents = [document_of(taken_of(config, item)) for item in kept(config)]
    assert [[message["user"] for message in document["messages"]] for document in documents] == [
        ["Sure?"],
        ["What is shown in 2?", "Sure?"],
        ["What is shown in 3?"],
    ]
    assert documents[0]["ratings"] == {"relevance": [3], "formatting": [5]}
    assert len(items_of(config)) == 5


def test_a_column_named_like_a_rating_rates_conversations_whose_turns_are_not(write: Any) -> None:
    rows = [
        row(0, relevance=5, relevance_ratings=[1, 1]),
        row(1, relevance=5, relevance_ratings=None),
        row(2, relevance=1, relevance_ratings=None),
    ]
    config = write(rows, filter={"relevance": 3})
    assert [item.place.rpartition(":")[2] for item in kept(config)] == ["2"]


def test_a_rule_on_ratings_that_nobody_gave_is_an_unknown_column(write: Any) -> None:
    config = write([row(0)], filter={"visual_dependency": 3})
    assert "relevance" in source_of(config).columns()
    assert "visual_dependency" not in source_of(config).columns()


def test_images_of_a_dropped_turn_stay_and_lead(write: Any) -> None:
    texts = [turn("<image> What?"), turn("<image>\nAnd its colour?")]
    pictures = [{"bytes": png(1)}, {"bytes": png(2)}]
    config = write([row(0, images=pictures, texts=texts, relevance_ratings=[1, 5])], filter={"relevance": 3})
    taken = taken_of(config, kept(config)[0])
    assert document_of(taken)["messages"] == [turn("And its colour?")]
    assert {"000.png", "001.png"} <= set(taken.members)


def test_keys_follow_the_content_and_not_the_place(write: Any) -> None:
    before = [item.original_key for item in items_of(write([row(number) for number in range(4)]))]
    after = [item.original_key for item in items_of(write([row(9), *(row(number) for number in range(4))]))]
    assert after[1:] == before and len(set(after)) == 5
    again = items_of(
        write([row(0), row(0), row(0, relevance_ratings=[1, 1]), row(0, texts=[turn("New?")] * 2)])
    )
    assert len({item.original_key for item in again}) == 2
    other = items_of(write([row(0), row(0, images=row(1)["images"])]))
    assert len({item.original_key for item in other}) == 2


def test_a_key_column_keeps_the_key_of_a_changed_row(write: Any) -> None:
    config = write([row(0, id=7.5), row(1, id=None), row(2, id=float("nan"))], source={"key": "id"})
    first, *others = items_of(config)
    assert first.original_key == "vqa/7.5"
    assert [item.fault for item in others] == [("source.unreadable", "column id holds no key")] * 2


def test_files_and_folders_are_subsets(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    for number, name in enumerate(("b/train-0.parquet", "b/train-1.parquet", "a.parquet", ".hidden.parquet")):
        write_parquet(folder / name, [row(number)])
    write_jsonl(folder / "c" / "rows.jsonl", [row(8)])
    (folder / "README.md").write_text("about")

    def subsets(path: Path) -> list[str]:
        return [str(item.fields["subset"]) for item in items_of(chat.config(path, tmp_path / "out"))]

    assert sorted(subsets(folder)) == ["a", "b", "b", "c"]
    assert subsets(folder / "*.parquet") == ["a"]
    assert sorted(subsets(folder / "**" / "*.parquet")) == ["a", "b", "b"]
    assert subsets(folder / "[bc]" / "train-?.parquet") == ["b", "b"]


def test_a_subset_does_not_lose_its_images_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(tmp_path / "vqa.parquet", [row(0)])
    other = [{"image": row(1)["images"], "texts": row(1)["texts"]}]
    write_parquet(tmp_path / "ocr.parquet", other)
    write_parquet(tmp_path / "text.parquet", [{"texts": row(2)["texts"]}])
    by_place = {item.place: item for item in items_of(chat.config(tmp_path, tmp_path / "out"))}
    fault = by_place["ocr.parquet:1"].fault
    assert fault is not None and "no column 'images' but one of bytes, 'image'" in fault[1]
    assert by_place["vqa.parquet:1"].fault is None and "text.parquet:1" in by_place
    assert "text.parquet: has no column 'images': its rows are taken as text alone" in caplog.text


def test_a_subset_that_does_not_load_costs_the_rows_it_is_known_to_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(tmp_path / "vqa.parquet", [row(0)])
    (tmp_path / "ocr.parquet").write_bytes(b"PAR1 torn")
    write_parquet(tmp_path / "web.parquet", [{"page": f"no turns here {number}"} for number in range(3)])
    config = chat.config(tmp_path, tmp_path / "out")
    by_place = {item.place: item for item in items_of(config)}
    assert set(by_place) == {"vqa.parquet:1", "ocr", "web.parquet:1", "web.parquet:2", "web.parquet:3"}
    for place, item in by_place.items():
        if not place.startswith("vqa"):
            assert item.fault is not None and item.fault[0] == "source.unreadable" and not item.may_pass
            assert str(tmp_path) not in item.fault[1]
    assert "ocr.parquet is left out" in caplog.text
    assert "web.parquet: 3 of 3 rows are left out: there is no column 'texts'" in caplog.text
    (tmp_path / "vqa.parquet").unlink()
    (tmp_path / "web.parquet").unlink()
    with pytest.raises(DataError, match="ocr"):
        source_of(config).columns()


def test_of_a_file_torn_in_its_middle_each_row_that_is_lost_counts(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "vqa.parquet",
        [row(number) for number in range(20)],
        row_group_size=5,
        write_page_checksum=True,
        compression="none",
    )
    data = bytearray(path.read_bytes())
    middle = data.index(png(12))
    data[middle + 60 : middle + 64] = b"torn"
    path.write_bytes(data)
    items = items_of(chat.config(path, tmp_path / "out"))
    before, lost = items[:10], items[10:]
    assert all(item.fault is None for item in before)
    assert [item.place for item in lost] == [f"vqa.parquet:{number}" for number in range(11, 21)]
    for item in lost:
        assert item.fault is not None and item.fault[0] == "source.unreadable"
        assert "row 11 and on" in item.fault[1]
    with pytest.raises(DataError, match=r"all 10 in rows 11 to 20 of vqa\.parquet"):
        build(chat.config(path, tmp_path / "out"))


class Failing(io.BytesIO):
    """A file on a disk that fails at one byte."""

    def __init__(self, content: bytes, at: int) -> None:
        super().__init__(content)
        self._at = at

    def read(self, size: int | None = -1) -> bytes:
        start, content = self.tell(), super().read(size)
        if start <= self._at < self.tell():
            raise OSError(errno.EIO, "the disk fails")
        return content

    read1 = read


@pytest.mark.parametrize("share", [0.01, 0.25, 0.999])
def test_a_disk_that_fails_is_no_fault_of_the_file_and_ends_the_build(
    write: Any, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    source = source_of(write([row(number, images=[{"bytes": png(number, 120)}]) for number in range(3)]))
    source.columns()

    def open_failing(store: LocalStore, file: str, in_order: bool = True, size: int = -1) -> Any:
        content = Path(store.path(file)).read_bytes()
        return Failing(content, int(share * len(content)))

    monkeypatch.setattr(LocalStore, "open", open_failing)
    with pytest.raises(DataError, match="the disk fails"):
        [item for container in source.containers() for item in source.items(container)]


def test_an_image_that_its_disk_cannot_give_may_be_there_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "vqa.parquet", [row(0)])
    path = write_jsonl(tmp_path / "web" / "rows.jsonl", [row(1), row(2), row(3)])
    images = [json.loads(line)["images"][0] for line in path.read_text().splitlines()]
    (path.parent / images[1]).unlink()
    read = LocalStore.read

    def failing(store: LocalStore, file: str, most: int) -> bytes:
        if file.endswith(images[0]):
            raise OSError(errno.EIO, "Input/output error")
        return read(store, file, most)

    monkeypatch.setattr(LocalStore, "read", failing)
    items = items_of(chat.config(tmp_path, tmp_path / "out"))
    found = {item.place: (item.fault and item.fault[0], item.may_pass) for item in items}
    assert found["web/rows.jsonl:1"] == ("source.unreadable", True)
    assert found["web/rows.jsonl:2"] == ("member.missing", False)
    assert found["web/rows.jsonl:3"] == (None, False)


def test_images_may_be_named_by_their_address(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.png").write_bytes(png(1))
    with web_server(tmp_path / "site", gives_parts=True) as (address, _):
        rows = [{**row(n), "images": [f"{address}/{name}"]} for n, name in enumerate(("a.png", "b.png"))]
        lines = "".join(json.dumps(one) + "\n" for one in rows)
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "vqa.jsonl").write_text(lines)
        config = chat.config(tmp_path / "raw", tmp_path / "out")
        there, gone = items_of(config)
        source = source_of(config)
        assert taken_of(config, there).members["000.png"] == png(1)
        with pytest.raises(Reject, match=r"source\.gone"):
            source.read(gone.file, gone.content)
        write_parquet(tmp_path / "raw" / "ocr.parquet", [row(5)])  # read in order, bytes and all
        found = {item.place: item for item in items_of(config)}
        assert (found["vqa.jsonl:1"].members or {})["000"] == png(1)
        assert (found["vqa.jsonl:2"].fault or ("",))[0] == "source.gone"


@pytest.mark.parametrize("depth", [90, 200, 495, 900, 985, 20_000])
def test_json_nested_too_deeply_is_a_reject_wherever_it_stands(tmp_path: Path, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    lines = [
        json.dumps(row(0, images=[])),
        json.dumps(row(1, images=[], more=0)).replace('"more": 0', f'"more": {nested}'),
        json.dumps(row(2, images=[], texts=0)).replace('"texts": 0', f'"texts": {nested}'),
    ]
    (tmp_path / "vqa.jsonl").write_text("\n".join(lines) + "\n")
    plain, more, texts = items_of(chat.config(tmp_path / "vqa.jsonl", tmp_path / "out"))
    deep = ("source.unreadable", "nested too deeply")
    assert plain.fault is None
    assert more.fault == (None if depth < 100 else deep)
    assert texts.fault is not None and (depth < 100 or texts.fault == deep)


@pytest.mark.parametrize("column", ["images", "texts"])
def test_what_no_value_can_be_made_of_costs_its_row_and_not_its_images_alone(
    tmp_path: Path, column: str
) -> None:
    import pyarrow as pa

    def text(*values: bytes) -> pa.Array:
        return pa.array(values, pa.binary()).view(pa.string())

    ends = pa.array([0, 1, 2], pa.int32())
    paths = text(b"a.png", b"\xff.png" if column == "images" else b"b.png")
    said = text(b"What?", b"\xff?" if column == "texts" else b"What?")
    images = pa.StructArray.from_arrays([pa.array([png(1), png(2)]), paths], ["bytes", "path"])
    turns = pa.StructArray.from_arrays([said, text(b"This.", b"That.")], ["user", "assistant"])
    rows = {name: pa.ListArray.from_arrays(ends, its) for name, its in (("images", images), ("texts", turns))}
    pq.write_table(pa.table(rows), tmp_path / "vqa.parquet")
    sound, torn = items_of(chat.config(tmp_path / "vqa.parquet", tmp_path / "out"))
    assert sound.fault is None
    assert torn.fault == ("source.unreadable", f"column {column} holds no valid value")


def test_a_bad_line_costs_one_row(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "vqa.jsonl", [row(0), row(1)])
    lines = path.read_bytes().splitlines(keepends=True)
    bad = [b"{torn\n", b"[1, 2]\n", b'{"images": [], "texts": [{"user": "\xff?", "assistant": "b"}]}\n']
    path.write_bytes(b"".join([lines[0], *bad, b"\n", lines[1]]))
    items = items_of(chat.config(path, tmp_path / "out"))
    assert [item.fault and item.fault[0] for item in items] == [
        None,
        "source.unreadable",
        "source.unreadable",
        "chat.turns",
        None,
    ]
    assert items[-1].place == "vqa.jsonl:6"


def test_parquet_and_paths_mix(tmp_path: Path) -> None:
    write_parquet(tmp_path / "vqa.parquet", [row(0)])
    path = write_jsonl(tmp_path / "web" / "rows.jsonl", [row(1), row(2)])
    absent = json.loads(path.read_text().splitlines()[1])["images"][0]
    (path.parent / absent).unlink()
    config = chat.config(tmp_path, tmp_path / "out")
    assert source_of(config).is_sequential
    faults = {item.place: item.fault and item.fault[0] for item in items_of(config)}
    assert faults == {"vqa.parquet:1": None, "web/rows.jsonl:1": None, "web/rows.jsonl:2": "member.missing"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"texts": "text"}, r"dataset\.source\.texts.*mean texts"),
        ({"images": "image"}, r"dataset\.source\.images.*mean images"),
        ({"key": "uid"}, r"dataset\.source\.key"),
    ],
)
def test_a_wrong_column_names_the_nearest(write: Any, source: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source_of(write([row(0)], source=source)).columns()


def test_no_file_at_all_names_the_key(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / "nowhere.parquet", tmp_path / "*.parquet"):
        with pytest.raises(UsageError, match=r"dataset\.source\.path"):
            source_of(chat.config(path, tmp_path / "out")).columns()


def test_what_is_stored_takes_no_more_than_foreseen(tmp_path: Path) -> None:
    from tasks.dataset.tar.format import span_bytes

    write_jsonl(tmp_path / "vqa.jsonl", [row(0, images=[{"bytes": png(1)}] * 3, title="né\n" * 50)])
    config = chat.config(tmp_path / "vqa.jsonl", tmp_path / "out")
    source = source_of(config)
    (item,) = items_of(config)
    members = taken_of(config, item).members
    size = item.stat.size
    assert source.stored_bytes(item.file, size, item.content) >= span_bytes(
        [len(m) for m in members.values()]
    )


def test_judge_finds_what_does_not_fit_together(tmp_path: Path) -> None:
    config = chat.make_paths(tmp_path)
    sound = {name: bytes(content) for name, content in taken_of(config, items_of(config)[0]).members.items()}
    assert CHAT.judge(sound) == []

    def codes(**changes: bytes) -> set[tuple[str, str]]:
        return {(fault.code, fault.member) for fault in CHAT.judge({**sound, **changes})}

    assert codes(json=b"{torn") == {("member.undecodable", "json")}
    assert codes(json=b'{"messages": []}') == {("member.undecodable", "json")}
    marked = {"messages": [turn("<image><image>?")]}
    assert codes(json=json.dumps(marked).encode()) == {("sample.missing_member", "json")}
    assert codes(**{"000.png": png(0)[:-20]}) == {("member.undecodable", "000.png")}
    assert codes(**{"001.jpg": png(0)}) == {("member.undecodable", "001.jpg")}
    assert codes(**{"002.png": png(0)}) == {("sample.missing_member", "002.png")}


def test_select_keeps_what_is_not_rated() -> None:
    conversation = conversations.parse([turn("a"), turn("b")], {"relevance": [float("nan"), 2.0]})
    assert conversation.ratings == {"relevance": (None, 2)}
    left = conversations.select(conversation, lambda name, rating: rating >= 3)
    assert left is not None and [one["user"] for one in left.turns] == ["a"]


def built(config: Config) -> BuildResult:
    result = build(config)
    publish(config.dataset.output, result.version, config.dataset.keep)
    return result


def test_a_build_accounts_for_every_row_and_is_sound(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    write_parquet(folder / "vqa.parquet", [row(number) for number in range(8)])
    low = {"relevance_ratings": [1, 1]}
    write_jsonl(folder / "web" / "rows.jsonl", [row(20), row(21, **low), row(22, texts=[turn("?", "")])])
    (folder / "ocr.parquet").write_bytes(b"PAR1 torn")
    config = chat.config(folder, tmp_path / "out", filter={"relevance": 3}, reject_budget=0.5)
    result = built(config)
    assert (result.read, result.accepted, result.filtered, result.rejected) == (12, 9, 1, 2)
    assert result.rejects == {"chat.turns": 1, "source.unreadable": 1}
    assert verify(result.version, "full").findings == []


def test_a_row_put_first_rewrites_few_shards(write: Any) -> None:
    rows = [row(number) for number in range(24)]
    assert built(write(rows)).shards > 4
    result = built(write([row(99), *rows]))
    assert result.accepted == 25 and 1 <= result.shards_rewritten <= 2


def test_a_changed_row_with_a_key_rewrites_one_shard(write: Any) -> None:
    rows = [row(number, id=number) for number in range(16)]
    built(write(rows, {"key": "id"}))
    rows[7] = row(7, id=7, texts=[turn("Who?", "You."), turn("Sure?")])
    second = build(write(rows, {"key": "id"}), accept_loss=True)
    assert second.shards_rewritten == 1 and second.replaced == 1


def test_groups_and_subsets_split_whole(tmp_path: Path) -> None:
    for number in range(6):
        write_parquet(tmp_path / "raw" / f"s{number}.parquet", [row(10 * number + n) for n in range(3)])
    splits = {"val": 0.4, "group_by": "subset"}
    result = built(chat.config(tmp_path / "raw", tmp_path / "out", splits=splits))
    names: dict[str, set[str]] = {}
    for split in ("train", "val"):
        keys = pq.read_table(result.version / "samples" / f"{split}.parquet")["original_key"].to_pylist()
        names[split] = {key.partition("-")[0] for key in keys}
    assert names["train"] and names["val"] and not names["train"] & names["val"]
