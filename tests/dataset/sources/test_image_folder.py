import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError
from tasks.core.folders import LocalStore
from tasks.core.schema import Config
from tasks.dataset.sources.image_folder import ImageFolder
from tasks.dataset.sources.protocol import RawSample
from tasks.dataset.version.rejects import Reject
from tests.dataset import raw
from tests.dataset.raw import image_folder


def source(config: Config) -> ImageFolder:
    return ImageFolder(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]


def listed(images: ImageFolder) -> list[RawSample]:
    return [item for container in images.containers() for item in images.items(container)]


def read_all(config: Config) -> list[dict[str, Any]]:
    """As a worker does it: with a source that has listed nothing."""
    return [dict(source(config).read(item.file, item.content)) for item in listed(source(config))]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw.png(1) if name.lower().endswith(("png", "jpg")) else b"a cat")


def test_captions_beside_images(tmp_path: Path) -> None:
    members = read_all(image_folder.make(tmp_path / "raw"))
    assert [one["txt"].decode().strip() for one in members] == [f"picture {n}" for n in range(6)]
    assert [one["image"] for one in members] == [raw.png(n) for n in range(6)]


def test_captions_in_json_keep_the_other_fields(tmp_path: Path) -> None:
    members = read_all(image_folder.make_of_json(tmp_path / "raw"))
    assert [one["txt"].decode().strip() for one in members] == [f"picture {n}" for n in range(6)]
    assert all(json.loads(one["json"]) == {"seed": 1} for one in members)


def test_a_folder_is_a_class_and_the_key_draws_the_template(tmp_path: Path) -> None:
    config = image_folder.make_of_classes(tmp_path / "raw")
    items = listed(source(config))
    assert {item.fields["label"] for item in items} == {"dog", "tabby cat"}
    members = read_all(config)
    assert {json.loads(one["json"])["label"] for one in members} == {"dog", "tabby cat"}
    said = {one["txt"].decode() for one in members}
    assert said <= {"a photo of a dog", "a photo of a tabby cat", "a dog.", "a tabby cat."} and len(said) > 2
    write(tmp_path / "raw", "aardvark/0.png")  # a new sample changes no other's sentence
    assert [one["txt"] for one in read_all(config)[1:]] == [one["txt"] for one in members]


def test_what_has_no_partner_is_a_reject(tmp_path: Path) -> None:
    write(tmp_path / "raw", "a.png", "a.txt", "b.png", "c.txt", "x/c.png")
    faults = {
        item.place: item.fault and item.fault[0]
        for item in listed(source(image_folder.config(tmp_path / "raw")))
    }
    assert faults == {
        "a.png": None,
        "b.png": "caption.missing",
        "c.txt": "member.missing",
        "x/c.png": "caption.missing",
    }


def test_an_image_outside_all_classes_is_a_reject(tmp_path: Path) -> None:
    write(tmp_path / "raw", "a.png", "cat/b.png", "cat/notes.txt")
    items = listed(source(image_folder.config(tmp_path / "raw", captions="folder")))
    assert [(item.file, item.fault and item.fault[0]) for item in items] == [
        ("a.png", "caption.missing"),
        ("cat/b.png", None),
    ]


@pytest.mark.parametrize("captions", ["txt", "json", "folder"])
def test_images_in_formats_that_are_not_read_are_counted(tmp_path: Path, captions: str) -> None:
    """But for those that lie there in another format too."""
    write(tmp_path / "raw", "x/a.JP2", "x/a.txt", "x/a.json", "x/b.jxl", "x/c.svg", "x/d.jpg", "x/d.nef")
    write(tmp_path / "raw", "x/d.txt", "x/d.json", "x/e.JPE", "x/e.txt", "x/e.json", "x/notes.pdf")
    field = {"field": "caption"} if captions == "json" else {}
    items = listed(source(image_folder.config(tmp_path / "raw", captions=captions, **field)))
    assert [(item.file, item.fault) for item in items] == [
        ("x/d.jpg", None),
        ("x/e.JPE", None),
        ("x/a.JP2", ("image.undecodable", ".jp2 is not read; convert it")),
        ("x/b.jxl", ("image.undecodable", ".jxl is not read; convert it")),
        ("x/c.svg", ("image.undecodable", ".svg is not read; convert it")),
    ]


def test_an_image_that_shards_do_not_hold_gives_way_to_its_twin(tmp_path: Path) -> None:
    write(tmp_path / "raw", "a.GIF", "a.jpg", "a.txt", "b.bmp", "b.txt", "c.jpg", "c.tiff", "c.txt")
    kept = image_folder.config(tmp_path / "raw")
    assert [item.file for item in listed(source(kept))] == ["a.jpg", "b.bmp", "c.jpg"]
    encoded = image_folder.config(tmp_path / "raw", dataset={"image": {"encode": "png"}})
    assert [item.file for item in listed(source(encoded))] == ["a.GIF", "a.jpg", "b.bmp", "c.jpg", "c.tiff"]


def test_a_link_to_what_the_system_says_of_itself_is_no_caption_and_no_image(tmp_path: Path) -> None:
    write(tmp_path / "raw", "a.png", "b.txt", "real/c.png", "real/c.txt")
    (tmp_path / "raw/a.txt").symlink_to("/proc/self/environ")
    (tmp_path / "raw/b.png").symlink_to("/proc/self/environ")
    (tmp_path / "raw/real").rename(tmp_path / "cache")
    for name in ("c.png", "c.txt"):
        (tmp_path / "raw" / name).symlink_to(tmp_path / "cache" / name)
    images = source(image_folder.config(tmp_path / "raw"))
    *refused, linked = listed(images)
    for item in refused:
        with pytest.raises(Reject, match=r"^member\.missing: not a regular file$"):
            images.read(item.file, item.content)
    assert images.read(linked.file, linked.content)["txt"] == b"a cat"


def test_suffixes_in_any_case_and_hidden_files(tmp_path: Path) -> None:
    long = "猫" * 60
    write(
        tmp_path / "raw",
        "A.PNG",
        "A.TXT",
        "B.Jpg",
        "B.txt",
        f"{long}.png",
        f"{long}.txt",
        "a/b/c/d.png",
        "a/b/c/d.Txt",
    )
    write(tmp_path / "raw", ".hidden.png", ".git/x.png", "__MACOSX/._A.png", "Thumbs.db")
    config = image_folder.config(tmp_path / "raw")
    images = source(config)
    items = listed(images)
    assert [item.file for item in items] == ["A.PNG", "B.Jpg", f"{long}.png", "a/b/c/d.png"]
    assert not any(item.fault for item in items)
    assert len({item.stat for item in items}) == 4
    assert all(one["txt"] == b"a cat" for one in read_all(config))


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path / "raw", "x/a.png", "x/a.txt")
    (tmp_path / "raw/x/up").symlink_to(tmp_path / "raw")
    (tmp_path / "raw/self.png").symlink_to("self.png")
    faults = [(item.file, item.fault) for item in listed(source(image_folder.config(tmp_path / "raw")))]
    assert faults == [("self.png", ("caption.missing", "no .txt file beside it")), ("x/a.png", None)]


def test_a_changed_caption_is_a_changed_sample(tmp_path: Path) -> None:
    images = source(image_folder.make(tmp_path / "raw"))
    before = {item.file: item.stat for item in listed(images)}
    (tmp_path / "raw/train/0.txt").write_text("something else")
    after = {item.file: item.stat for item in listed(images)}
    assert {file for file in before if before[file] != after[file]} == {"train/0.png"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"gr\xfcn", "caption.encoding"),
        (b"{torn", "caption.missing"),
        (b"[1]", "caption.missing"),
        (b'{"other": 1}', "caption.missing"),
        (b'{"caption": null}', "caption.missing"),
        (b'{"caption": NaN}', "caption.missing"),
        (b'{"caption": ["x"]}', "caption.missing"),
        (b"[" * 100_000, "caption.missing"),
    ],
)
def test_a_bad_caption_costs_its_own_sample(tmp_path: Path, content: bytes, reason: str) -> None:
    config = image_folder.make_of_json(tmp_path / "raw")
    (tmp_path / "raw/train/0.json").write_bytes(content)
    item, *_ = listed(source(config))
    with pytest.raises(Reject) as caught:
        source(config).read(item.file, item.content)
    assert caught.value.reason == reason and str(tmp_path) not in caught.value.detail


def test_a_blank_caption_and_a_byte_order_mark(tmp_path: Path) -> None:
    config = image_folder.make(tmp_path / "raw")
    (tmp_path / "raw/train/0.txt").write_bytes(b"\n \n")
    (tmp_path / "raw/train/1.txt").write_bytes(b"\xef\xbb\xbfa cat\r\n")
    assert [one["txt"] for one in read_all(config)[:2]] == [b"\n \n", b"a cat\r\n"]


@pytest.mark.parametrize("lose", [raw.vanish, raw.unmount])
def test_a_source_that_goes_while_it_is_listed_is_an_error(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    images = source(image_folder.make(tmp_path / "raw"))
    write(tmp_path / "raw", "zzz/a.png", "zzz/a.txt")
    items = (item for container in images.containers() for item in images.items(container))
    next(items)
    lose(tmp_path / "raw")
    with pytest.raises(DataError, match="could not be listed to its end"):
        list(items)


def test_a_folder_that_may_not_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = source(image_folder.make(tmp_path / "raw"))
    (tmp_path / "raw/val").rename(tmp_path / "raw/zzz")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("zzz"):
            raise PermissionError(
                13, "Permission denied"
            )  # root may list anything, so the system is stood in for
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="Permission denied"):
        listed(images)
    assert LocalStore(str(tmp_path)).location == str(tmp_path)
