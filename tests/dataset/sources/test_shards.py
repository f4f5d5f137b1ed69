import errno
import io
import json
import os
import tarfile
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import LocalStore
from tasks.core.stores import StoreUnreachable
from tasks.dataset.building.builder import build
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.sources import RawSample, open_sources, tar_samples
from tasks.dataset.sources.shards import Shards
from tasks.dataset.tar.reader import BUFFER
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.manifest import read_manifest
from tests.dataset import raw
from tests.dataset.raw import shards


def source(path: Path | str, modality: str = "image_text", **dataset: Any) -> Shards:
    (opened,) = open_sources(shards.config(path, modality, **dataset).dataset)
    assert isinstance(opened, Shards)
    return opened


def items(path: Path | str, modality: str = "image_text", **dataset: Any) -> list[RawSample]:
    opened = source(path, modality, **dataset)
    return [item for container in opened.containers() for item in opened.items(container)]


def listed(folder: Path, content: bytes, **dataset: Any) -> list[RawSample]:
    (folder / "x.tar").write_bytes(content)
    return items(folder / "x.tar", **dataset)


def faults(found: list[RawSample]) -> list[str | None]:
    return [item.fault[0] if item.fault else None for item in found]


def test_members_keep_their_bytes_and_become_what_the_modality_takes(tmp_path: Path) -> None:
    config = shards.make(tmp_path)
    (opened,) = open_sources(config.dataset)
    assert opened.is_sequential
    found = [item for container in opened.containers() for item in opened.items(container)]
    assert [item.original_key for item in found] == [f"{n:09d}" for n in range(6)]
    assert found[4].place == "00001.tar:000000004" and found[4].file == "00001.tar"
    for number, item in enumerate(found):
        (_, image), (_, described), (_, text) = shards.pair(f"{number:09d}", number, score=number)
        assert item.members == {"image": image, "json": described, "txt": text}
        assert MODALITIES["image_text"].take(item.members, config.dataset).members["jpg"] == image


@pytest.mark.parametrize("pattern", ["", "*.tar", "{00000..00001}.tar", "{00000,00001}.tar", "0000[01].tar"])
def test_a_path_is_a_folder_or_a_pattern(tmp_path: Path, pattern: str) -> None:
    shards.make(tmp_path)
    (tmp_path / "00000_stats.json").write_text("{}")
    (tmp_path / "00000.parquet").write_bytes(b"")
    assert len(items(f"{tmp_path}/{pattern}")) == 6


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{00000..00002}.tar", r"dataset\.source\.path.*00002\.tar"),
        ("x*.tar", r"dataset\.source\.path"),
        ("nowhere", r"dataset\.source\.path.*nowhere"),
        ("zipped", r"dataset\.source\.path.*a\.tar\.gz is compressed.*unpack"),
        ("zipped/a.tar.gz", r"compressed"),
    ],
)
def test_a_path_with_nothing_readable_names_key_and_place(tmp_path: Path, pattern: str, message: str) -> None:
    shards.make(tmp_path)
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "a.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(UsageError, match=message):
        source(tmp_path / pattern).columns()


LONG = "一幅画着数字的小图片" * 6
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_of_header_is_read(tmp_path: Path, form: int) -> None:
    long = "d/" + ("k" * 80 if form == tarfile.USTAR_FORMAT else LONG)
    members = [*shards.pair(long, 1), *shards.pair("./plain", 2), *shards.pair("prefix/" * 15 + "k", 3)]
    first, second, third = listed(tmp_path, shards.tar_bytes(members, form))
    assert (first.original_key, second.original_key) == (long, "plain")
    assert third.original_key == "prefix/" * 15 + "k"
    assert first.members is not None and first.members["txt"] == f"picture {long}".encode()


def test_sizes_in_base_256_and_in_pax_records_are_followed(tmp_path: Path) -> None:
    image, size = raw.png(1), len(raw.png(1))
    record = f"{len(str(size)) + 9} size={size}\n".encode()
    content = (
        shards.entry("a.jpg", image, size=b"\x80" + size.to_bytes(11, "big"))
        + shards.entry("a.txt", b"a")
        + shards.entry("./PaxHeaders/b", record, type=tarfile.XHDTYPE)
        + shards.entry("b.jpg", image, size=b"%011o\0" % 0)
        + shards.entry("b.txt", b"b")
    )
    a, b = listed(tmp_path, content + shards.END)
    assert a.members == {"image": image, "txt": b"a"} and b.members == {"image": image, "txt": b"b"}


def odd(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        odd("b.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        odd("b.txt", tarfile.LNKTYPE, "a.txt"),
        odd("b.jpg", tarfile.CHRTYPE),
        odd("b.jpg", tarfile.FIFOTYPE),
        odd("b", tarfile.SYMTYPE, "/"),
        odd("b.jpg", b"Z"),
        tarfile.TarInfo("/b.jpg"),
        tarfile.TarInfo("../b.jpg"),
        tarfile.TarInfo("x/../../b.jpg"),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
@pytest.mark.parametrize("form", FORMATS)
def test_what_is_no_plain_file_of_a_relative_path_costs_its_sample(
    tmp_path: Path, member: tarfile.TarInfo, form: int
) -> None:
    content = [*shards.pair("a", 1), (member, b""), *shards.pair("c", 2)]
    found = listed(tmp_path, shards.tar_bytes(content, form))
    assert faults(found) == [None, "archive.unsafe", None]
    assert os.listdir(tmp_path) == ["x.tar"]


def test_a_link_among_a_samples_members_costs_the_sample(tmp_path: Path) -> None:
    image, *others = shards.pair("a", 1)
    members = [image, (odd("a.cls", tarfile.SYMTYPE, "/etc/passwd"), b""), *others, *shards.pair("b", 2)]
    found = listed(tmp_path, shards.tar_bytes(members))
    assert faults(found) == ["archive.unsafe", None] and found[0].members is None


def test_a_link_that_claims_a_size_has_no_content_all_the_same(tmp_path: Path) -> None:
    link = shards.entry("l.jpg", b"", size=b"%011o\0" % 4096, type=tarfile.LNKTYPE)
    assert faults(listed(tmp_path, link + shards.tar_bytes(shards.pair("a", 1)))) == ["archive.unsafe", None]


def test_folders_and_files_beside_the_samples_are_no_samples(tmp_path: Path) -> None:
    folder = odd("d", tarfile.DIRTYPE)
    beside = [
        ("__index__", b"x"),
        ("d/._a.jpg", b"x"),
        ("Makefile", b"x"),
        ("x.tar.idx", b"x"),
        ("x.md5", b"x"),
    ]
    found = listed(tmp_path, shards.tar_bytes([(folder, b""), *beside, *shards.pair("d/a", 1)]))
    assert [(item.original_key, item.fault) for item in found] == [("d/a", None)]


def test_a_torn_tar_gives_its_whole_samples_and_one_reject_wherever_it_is_cut(tmp_path: Path) -> None:
    content = shards.tar_bytes(shards.pairs(0, 3), tarfile.USTAR_FORMAT)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        starts = [member.offset for member in archive]
        end = archive.offset
    whole = {item.original_key: item.members for item in listed(tmp_path, content)}
    for cut in sorted(
        {*starts, *(start + 300 for start in starts), *(start + 900 for start in starts), end - 512}
    ):
        found = listed(tmp_path, content[:cut])
        expected = sum(start + 512 <= cut for start in starts[::3]) - 1
        assert faults(found) == [None] * max(expected, 0) + ["source.unreadable"], cut
        assert all(whole[item.original_key] == item.members for item in found[:-1])
    assert faults(listed(tmp_path, content[: end + 512])) == [None] * 3


def pax(key: str, size: int) -> bytes:
    """A record of a pax header."""
    length = size
    while len(str(length)) + len(key) + 3 + size != length:
        length = len(str(length)) + len(key) + 3 + size
    return b"%d %s=%s\n" % (length, key.encode(), b"v" * size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds nothing"),
        (b"<html>" * 200, "no sound tar header at byte 0"),
        (b"\x1f\x8b" + bytes(600), "compressed by gzip"),
        (
            shards.tar_bytes(shards.pair("a", 1)) + shards.tar_bytes(shards.pair("b", 1)),
            "goes on after the end blocks",
        ),
        (shards.entry("p", b"nonsense", type=tarfile.XHDTYPE) + shards.END, "torn pax header"),
        (shards.entry("p", b"99 path=x\n", type=tarfile.XHDTYPE) + shards.END, "torn pax header"),
        (shards.entry("p", b"", size=b"77777777777\0", type=tarfile.XHDTYPE), "ends within a header"),
        (shards.entry("p", pax("comment", 1 << 19), type=tarfile.XHDTYPE) * 3, "bytes of records"),
        (shards.entry("a.jpg", b"", size=b"\xff" * 12), "no sound size"),
        (shards.entry("a.jpg", b"", size=b"-0000000001\0"), "no sound size"),
    ],
)
def test_what_is_no_sound_tar_is_one_reject(tmp_path: Path, content: bytes, message: str) -> None:
    last = listed(tmp_path, content)[-1]
    assert last.fault is not None and last.fault[0] == "source.unreadable" and message in last.fault[1]


@pytest.mark.parametrize("form", FORMATS)
def test_beside_a_damaged_header_samples_are_rejected_and_reading_goes_on(tmp_path: Path, form: int) -> None:
    content = bytearray(shards.tar_bytes(shards.pairs(0, 200), form))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        damaged = archive.getmembers()[4]
    content[damaged.offset + 5] ^= 1
    found = {item.original_key: item for item in listed(tmp_path, bytes(content))}
    assert list(found) == [f"{number:09d}" for number in range(200) if number != 1] + ["000000001"]
    torn = found["000000001"]
    assert torn.fault is not None and "no sound tar header" in torn.fault[1] and torn.more_lost
    assert faults([item for key, item in found.items() if key != "000000001"]) == [None] * 199


def test_of_two_tars_in_one_the_first_is_read_and_the_rest_is_told(tmp_path: Path) -> None:
    both = shards.tar_bytes(shards.pairs(0, 3)) + shards.tar_bytes(shards.pairs(3, 40))
    *sound, rest = listed(tmp_path, both)
    assert faults(sound) == [None] * 3
    assert rest.fault is not None and "goes on after the end blocks" in rest.fault[1] and rest.more_lost


def cut_at_two_thirds(folder: Path) -> list[RawSample]:
    content = shards.tar_bytes(shards.pairs(0, 240))
    return listed(folder, content[: len(content) * 2 // 3])


def test_a_cut_tar_that_nothing_tells_of_has_lost_an_unknown_number(tmp_path: Path) -> None:
    *sound, last = cut_at_two_thirds(tmp_path)
    assert faults(sound) == [None] * len(sound) and 150 < len(sound) < 170
    assert last.more_lost and last.fault is not None
    assert last.fault[0] == "source.unreadable"
    assert last.fault[1].endswith("how many samples it has lost is unknown")


@pytest.mark.parametrize("beside", ["x_stats.json", "x.parquet"])
def test_a_cut_tar_has_lost_what_the_files_of_img2dataset_say(tmp_path: Path, beside: str) -> None:
    if beside.endswith(".json"):
        (tmp_path / beside).write_text(json.dumps({"count": 300, "successes": 240}))
    else:
        status = ["success"] * 240 + ["failed_to_download"] * 60
        pq.write_table(pa.table({"status": status}), tmp_path / beside)
    found = cut_at_two_thirds(tmp_path)
    assert len(found) == 240 and not any(item.more_lost for item in found)
    assert len({item.place for item in found}) == 240
    lost = [item for item in found if item.fault]
    assert 70 < len(lost) < 90
    assert lost[-1].fault is not None and f"{beside} states 240 samples" in lost[-1].fault[1]


def test_build_and_verify_name_the_same_members(tmp_path: Path) -> None:
    """Global pax records, and names of sparse files, count for both."""
    record = pax_record("path", "g.jpg")
    sparse = shards.entry("GNUSparseFile.0/s.jpg", b"x", type=tarfile.REGTYPE)
    content = (
        shards.entry("pax_global_header", record, type=tarfile.XGLTYPE)
        + shards.entry("plain.jpg", b"x")
        + shards.entry("PaxHeaders/s", pax_record("GNU.sparse.name", "s.jpg"), type=tarfile.XHDTYPE)
        + sparse
    )
    found = listed(tmp_path, content + shards.END)
    assert [item.original_key for item in found] == ["g", "s"]
    assert found[1].fault == ("archive.unsafe", "a member is a sparse file")
    assert [(one.code, one.where["key"]) for one in verify(tmp_path / "x.tar").findings] == [
        ("member.unsafe", "s")
    ]


def test_build_and_verify_count_the_same_samples_of_a_cut_tar(tmp_path: Path) -> None:
    (tmp_path / "x_stats.json").write_text('{"successes": 240}')
    found = cut_at_two_thirds(tmp_path)
    (finding,) = verify(tmp_path / "x.tar").findings
    lost = sum(item.fault is not None for item in found)
    assert (len(found) - lost, lost) == (finding.evidence["whole_samples"], finding.evidence["lost_samples"])


def pax_record(key: str, value: str) -> bytes:
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return f"{length} {key}={value}\n".encode()


@pytest.mark.parametrize(
    ("suffix", "size", "reason"), [("jpg", 3 << 20, "image.too_large"), ("json", 257 << 20, "archive.bomb")]
)
def test_a_member_too_large_is_read_over_and_never_held(
    tmp_path: Path, suffix: str, size: int, reason: str
) -> None:
    start = b"".join(shards.entry(name, content) for name, content in shards.pair("a", 1))
    tracemalloc.start()
    try:
        ten_gigabytes = shards.entry(f"b.{suffix}", b"", size=b"\x80" + (10 << 30).to_bytes(11, "big"))
        assert faults(listed(tmp_path, start + ten_gigabytes)) == [None, "source.unreadable"]
        with (tmp_path / "x.tar").open("wb") as file:
            file.write(start + shards.entry(f"b.{suffix}", b"", size=b"%011o\0" % size))
            file.seek(size, os.SEEK_CUR)
            file.write(shards.entry("b.txt", b"b") + shards.tar_bytes(shards.pair("c", 1)))
        found = items(tmp_path / "x.tar", image={"max_pixels": 1000})
        assert faults(found) == [None, reason, None]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_sample_of_endless_members_is_a_bomb_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_samples, "MOST_MEMBERS", 100)
    members = b"".join(shards.entry(f"a.{number}", b"") for number in range(1000))
    assert faults(listed(tmp_path, members + shards.tar_bytes(shards.pair("b", 1)))) == ["archive.bomb", None]
    roles = tar_samples.Roles("image_text", 1000, {})
    with (tmp_path / "x.tar").open("rb") as file:
        held = [len(sample.members) for sample, _ in tar_samples.TarSamples(file, roles, size=-1)]
    assert held == [101, 3]


def test_a_sample_lacking_a_member_says_which_and_what_it_has(tmp_path: Path) -> None:
    members = [("a.jpg", b""), ("b.txt", b"x"), ("b.cls", b"1"), ("c.jpg", raw.png(1)), ("c.txt", b"gr\xfcn")]
    members += [
        ("d.jpg", b"x"),
        ("d.txt", b"d"),
        ("d.json", b"{"),
        ("e.jpg", b"x"),
        ("e.txt", b"d"),
        ("e.json", b"[]"),
    ]
    found = listed(tmp_path, shards.tar_bytes(members))
    reasons = [
        "caption.missing",
        "member.missing",
        "caption.encoding",
        "source.unreadable",
        "source.unreadable",
    ]
    assert faults(found) == reasons
    assert found[1].fault == ("member.missing", "no image; its members: cls, txt")


def test_members_that_the_modality_does_not_know_are_left_out(tmp_path: Path) -> None:
    more = [("a.cls", b"3"), ("a.seg.png", raw.png(2)), ("a.url.txt", b"http://x")]
    (found,) = listed(tmp_path, shards.tar_bytes([*shards.pair("a", 1), *more]))
    assert found.members is not None and sorted(found.members) == ["image", "json", "txt"]


def test_a_suffix_that_comes_again_begins_a_sample_as_in_webdataset(tmp_path: Path) -> None:
    found = listed(tmp_path, shards.tar_bytes([*shards.pair("a", 1), *shards.pair("a", 2)]))
    assert [item.original_key for item in found] == ["a", "a"] and faults(found) == [None, None]
    torn = [("a.jpg", raw.png(1)), ("a.JPG", raw.png(2)), ("a.txt", b"a")]
    assert faults(listed(tmp_path, shards.tar_bytes(torn))) == ["caption.missing", None]


def test_members_that_do_not_stand_together_are_two_half_samples(tmp_path: Path) -> None:
    members = [("a.jpg", raw.png(1)), *shards.pair("b", 1), ("a.txt", b"a")]
    assert faults(listed(tmp_path, shards.tar_bytes(members))) == ["caption.missing", None, "member.missing"]


def test_two_images_need_a_choice(tmp_path: Path) -> None:
    content = shards.tar_bytes([*shards.pair("a", 1), ("a.png", raw.png(2))])
    (both,) = listed(tmp_path, content)
    assert both.fault is not None and both.fault[0] == "key.duplicate" and "jpg and png" in both.fault[1]
    (chosen,) = listed(tmp_path, content, source={"members": {"jpg": "png"}})
    assert chosen.members is not None and chosen.members["image"] == raw.png(2)


def test_tars_that_each_count_anew_are_told_apart_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for tar in range(3):
        content = [member for n in range(5) for member in shards.pair(f"{n:03d}", 5 * tar + n)]
        (tmp_path / "raw" / f"{tar:02d}.tar").write_bytes(shards.tar_bytes(content))
    config = {"output": tmp_path / "out", "reject_budget": 0.9}
    assert build(shards.config(tmp_path / "raw", **config)).rejects == {"key.duplicate": 10}
    found = build(shards.config(tmp_path / "raw", source={"key": "place"}, **config))
    assert (found.accepted, dict(found.rejects)) == (15, {})
    [first, *_] = listed(tmp_path, shards.tar_bytes(shards.pair("a/b", 1)), source={"key": "place"})
    assert first.original_key.endswith("/a/b") and first.place.endswith(".tar:a/b")


def test_members_are_made_out_of_others(tmp_path: Path) -> None:
    members = [("a.image.jpg", raw.png(1)), ("a.json", b'{"text": {"en": "hello"}, "uid": "u7"}')]
    mapped = {"members": {"jpg": "image.jpg", "txt": "json:text.en"}, "key": "json:uid"}
    (found,) = listed(tmp_path, shards.tar_bytes(members), source=mapped)
    assert found.original_key == "u7" and found.members is not None
    assert found.members["image"] == raw.png(1) and found.members["txt"] == b"hello"
    bad = {
        "a": {"text": "x"},
        "b": {"text": ["x"], "uid": "b"},
        "c": {"text": "\ud800", "uid": "c"},
        "d": {"uid": 1},
    }
    content = [
        (f"{key}.{suffix}", value)
        for key, fields in bad.items()
        for suffix, value in (("jpg", raw.png(1)), ("json", json.dumps(fields).encode()))
    ]
    mapped = {"members": {"txt": "json:text"}, "key": "json:uid"}
    reasons = ["source.unreadable", "caption.missing", "caption.encoding", "caption.missing"]
    assert faults(listed(tmp_path, shards.tar_bytes(content), source=mapped)) == reasons


def test_a_member_no_sample_can_have_is_an_error_of_the_config(tmp_path: Path) -> None:
    shards.make(tmp_path)
    with pytest.raises(UsageError, match=r"dataset\.source\.members\.npz: .*image_text"):
        source(tmp_path, source={"members": {"npz": "x"}})


def test_filters_and_splits_use_fields_of_the_json(tmp_path: Path) -> None:
    shards.make(tmp_path)
    opened = source(tmp_path, filter={"score": 3}, splits={"val": 0.1, "group_by": "uid"})
    assert {"score", "uid"} <= set(opened.columns())
    first = next(iter(opened.items(next(opened.containers()))))
    assert first.fields == {"score": 0, "uid": "uid-000000000"}
    assert "scor" not in source(tmp_path, filter={"scor": 3}).columns()


def test_a_tar_is_read_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.tar").write_bytes(
        content := shards.tar_bytes([m for n in range(3000) for m in shards.pair(f"{n:05d}", 1, score=n)])
    )
    taken: Counter[str] = Counter()
    plain = LocalStore.open

    class Counted(io.RawIOBase):
        def __init__(self, file: BinaryIO) -> None:
            self.file = file

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            data = self.file.read(len(buffer))
            buffer[: len(data)] = data
            taken["bytes"] += len(data)
            return len(data)

    def open_counted(store: LocalStore, file: str, **named: Any) -> BinaryIO:
        return io.BufferedReader(Counted(plain(store, file)))  # type: ignore[return-value]

    monkeypatch.setattr(LocalStore, "open", open_counted)
    opened = source(tmp_path / "x.tar", filter={"score": 1})
    opened.columns()
    assert len([item for container in opened.containers() for item in opened.items(container)]) == 3000
    assert len(content) <= taken["bytes"] <= len(content) + 1.1 * BUFFER < 1.5 * len(content)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "disk trouble"), StoreUnreachable(errno.EIO, "no network", "s3://b/x.tar")]
)
@pytest.mark.parametrize("after", [-1, 20_000])
def test_a_disk_or_store_that_fails_ends_the_build_and_rejects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, after: int
) -> None:
    parts(tmp_path)
    (tmp_path / "x.tar").write_bytes(shards.tar_bytes(shards.pairs(0, 60)))

    class Failing(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            if self.tell() > after:
                raise error
            return super().readinto(buffer[: 1 << 14])

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_RDONLY)

    def open_failing(store: LocalStore, file: str, in_order: bool = True, size: int = -1) -> Any:
        content = Path(store.path(file)).read_bytes()
        return (io.BytesIO if "images" in store.location else Failing)(content)

    monkeypatch.setattr(LocalStore, "open", open_failing)
    with pytest.raises(DataError, match=r"x\.tar.*(disk trouble|no network)"):
        items(tmp_path / "x.tar")
    join = {"path": str(tmp_path / "added"), "key": "json:uid"}
    if after < 0:  # the joined tars are shorter
        with pytest.raises(DataError, match=r"disk trouble|no network"):
            items(tmp_path / "images", "reinforced", source={"key": "json:uid", "join": [join]})


def parts(tmp_path: Path, count: int = 6) -> None:
    """Images in one folder, teachers' members in another, as MobileCLIP's two repositories have them."""
    for shard in range(2):
        images: list[tuple[Any, bytes]] = []
        added: list[tuple[Any, bytes]] = []
        for number in range(3 * shard, 3 * shard + 3):
            images += shards.pair(f"{number:08d}", number)
            described = json.dumps({"uid": f"uid-{number:08d}", "sha256": "0"}).encode()
            added[:0] = [
                (f"k{number}.json", described),
                (f"k{number}.url.txt", b"x"),
                (f"k{number}.txt", b"theirs"),
            ]
            added[3:3] = [(f"k{number}.{suffix}", value) for suffix, value in shards.reinforcement().items()]
        for folder, members in (("images", images), ("added", added)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{shard:05d}.tar").write_bytes(shards.tar_bytes(members))


@pytest.mark.parametrize("match", ["key", "shard"])
def test_tars_are_joined_by_key(tmp_path: Path, match: str) -> None:
    parts(tmp_path)
    join = {"path": f"{tmp_path}/added/{{00000..00001}}.tar", "key": "json:uid", "match": match}
    config = shards.config(tmp_path / "images", "reinforced", source={"key": "json:uid", "join": [join]})
    (opened,) = open_sources(config.dataset)
    found = [item for container in opened.containers() for item in opened.items(container)]
    assert faults(found) == [None] * 6
    for number, item in enumerate(found):
        assert item.members is not None and item.original_key == f"uid-{number:08d}"
        assert item.members["image"] == raw.png(number, kind="JPEG")
        assert item.members["txt"] == f"picture {number:08d}".encode()
        assert {suffix: item.members[suffix] for suffix in shards.reinforcement()} == shards.reinforcement()
        assert json.loads(item.members["json"])["sha256"] == "0"
        MODALITIES["reinforced"].take(item.members, config.dataset)


def test_a_sample_without_its_partner_is_rejected(tmp_path: Path) -> None:
    parts(tmp_path)
    (tmp_path / "added" / "00001.tar").rename(tmp_path / "added" / "00009.tar")
    keyed = {"key": "json:uid"}
    join = [{"path": str(tmp_path / "added"), **keyed}]
    assert faults(items(tmp_path / "images", "reinforced", source={**keyed, "join": join})) == [None] * 6
    join[0]["match"] = "shard"
    by_shard = faults(items(tmp_path / "images", "reinforced", source={**keyed, "join": join}))
    assert by_shard == [None] * 3 + ["member.missing"] * 3
    content = (tmp_path / "added" / "00009.tar").read_bytes()
    (tmp_path / "added" / "00009.tar").write_bytes(content[:4000])
    join[0]["match"] = "key"
    torn = items(tmp_path / "images", "reinforced", source={**keyed, "join": join})
    assert Counter(faults(torn)) == {None: 3, "member.missing": 3}
    assert all("00009.tar" in item.fault[1] for item in torn if item.fault)


def test_a_changed_partner_changes_the_container(tmp_path: Path) -> None:
    parts(tmp_path)
    for match, changed in (("key", 2), ("shard", 1)):
        joined = {"join": [{"path": str(tmp_path / "added"), "match": match}]}
        before = list(source(tmp_path / "images", source=joined).containers())
        os.utime(tmp_path / "added" / "00001.tar", ns=(1, changed))
        after = list(source(tmp_path / "images", source=joined).containers())
        assert sum(one != other for one, other in zip(before, after, strict=True)) == changed


@pytest.mark.parametrize("match", ["key", "shard"])
def test_the_layout_of_img2dataset_with_its_tables(tmp_path: Path, match: str) -> None:
    for shard in range(2):
        keys = [f"{shard:05d}{n:04d}" for n in range(4)]
        members = [member for n, key in enumerate(keys[:3]) for member in shards.pair(key, n)]
        (tmp_path / f"{shard:05d}.tar").write_bytes(shards.tar_bytes(members))
        (tmp_path / f"{shard:05d}_stats.json").write_text('{"count": 4, "successes": 3}')
        status = ["success"] * 3 + ["failed_to_download"]
        table = {
            "key": keys,
            "status": status,
            "aesthetic": [4.5, 5.5, 6.5, None],
            "caption": ["from the table"] * 4,
        }
        pq.write_table(pa.table(table), tmp_path / f"{shard:05d}.parquet")
    joined = {"join": [{"path": f"{tmp_path}/*.parquet", "key": "key", "match": match}]}
    opened = source(tmp_path, source=joined, filter={"aesthetic": 5})
    assert {"aesthetic", "status"} <= set(opened.columns())
    found = [item for container in opened.containers() for item in opened.items(container)]
    assert faults(found) == [None] * 6
    assert [item.fields["aesthetic"] for item in found] == [4.5, 5.5, 6.5] * 2
    assert found[0].members is not None
    described = json.loads(found[0].members["json"])
    assert described["caption"] == "a picture of 000000000" and described["status"] == "success"


def test_a_table_without_the_key_or_with_it_twice(tmp_path: Path) -> None:
    shards.make(tmp_path)
    table = tmp_path / "t.csv"
    table.write_text("id,score2\n000000000,1\n000000001,2\n000000001,3\n")
    join = {"path": str(table), "key": "id"}
    found = faults(items(tmp_path, source={"join": [join]}))
    assert found == [None, "key.duplicate"] + ["member.missing"] * 4
    with pytest.raises(UsageError, match=r"dataset\.source\.join\[0\]\.key.*did you mean id\?"):
        source(tmp_path, source={"join": [{**join, "key": "ids"}]}).columns()
    with pytest.raises(UsageError, match=r"needs key"):
        source(tmp_path, source={"join": [{"path": str(table)}]})


def test_what_a_table_has_not_is_null_in_the_sample(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(shards.tar_bytes(shards.pairs(0, 2)))
    table = {"id": ["000000000", "000000001"], "aesthetic": [float("nan"), float("inf")]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    join = {"path": str(tmp_path / "t.parquet"), "key": "id"}
    for item in items(tmp_path / "x.tar", source={"join": [join]}):
        assert item.members is not None
        described = item.members["json"]
        assert b"NaN" not in described and b"Infinity" not in described
        assert json.loads(described)["aesthetic"] is None and json.loads(described)["uid"]


def test_numbers_that_json_has_not_are_no_captions_and_no_members(tmp_path: Path) -> None:
    image = shards.pair("a", 1)[0]
    (tmp_path / "x.tar").write_bytes(
        shards.tar_bytes([image, ("a.json", b'{"said": NaN, "facts": {"score": 1e999}}'), ("a.txt", b"a")])
    )
    (nothing,) = items(tmp_path / "x.tar", source={"members": {"txt": "json:said"}})
    assert nothing.fault is not None and nothing.fault[0] == "caption.missing"
    (item,) = items(tmp_path / "x.tar", source={"members": {"json": "json:facts"}})
    assert item.members is not None and item.members["json"] == b'{"score": null}'


def test_the_mark_of_the_byte_order_is_no_part_of_a_caption(tmp_path: Path) -> None:
    (image, *_) = shards.pair("a", 1)
    (item,) = listed(tmp_path, shards.tar_bytes([image, ("a.txt", b"\xef\xbb\xbfa caf\xc3\xa9 ")]))
    assert item.members is not None and item.members["txt"] == "a café ".encode()


@pytest.mark.parametrize("depth", [90, 200, 495, 985, 100_000])
def test_json_nested_too_deeply_is_a_reject(tmp_path: Path, depth: int) -> None:
    image, _, text = shards.pair("a", 1)
    deep = b'{"more": ' + b"[" * depth + b"]" * depth + b"}"
    (item,) = listed(tmp_path, shards.tar_bytes([image, ("a.json", deep), text]))
    assert item.fault == (None if depth < 100 else ("source.unreadable", "json: nested too deeply"))


def test_conversations_and_volumes_come_out_of_tars_too(tmp_path: Path) -> None:
    chat = json.dumps({"messages": [{"user": "what?", "assistant": "this"}]}).encode()
    (tmp_path / "x.tar").write_bytes(
        shards.tar_bytes([("a.000.png", raw.png(1)), ("a.001.jpg", raw.png(2)), ("a.json", chat)])
    )
    (found,) = items(tmp_path / "x.tar", "chat")
    assert found.members == {"000": raw.png(1), "001": raw.png(2), "json": chat}
    (tmp_path / "x.tar").write_bytes(
        shards.tar_bytes([("a.volume.npy", b"v"), ("a.txt", b"t"), ("a.json", b"{}"), ("b.txt", b"t")])
    )
    whole, torn = items(tmp_path / "x.tar", "volume_report")
    assert whole.members == {"volume": b"v", "txt": b"t", "json": b"{}"}
    assert torn.fault is not None and torn.fault[0] == "member.missing"
    both = [("a.volume.npy", b"v"), ("a.volume.b2nd", b"w"), ("a.txt", b"t"), ("a.json", b"{}")]
    (tmp_path / "x.tar").write_bytes(shards.tar_bytes(both))
    (doubtful,) = items(tmp_path / "x.tar", "volume_report")
    assert doubtful.fault is not None and doubtful.fault[0] == "key.duplicate"
    (chosen,) = items(tmp_path / "x.tar", "volume_report", source={"members": {"volume.npy": "volume.b2nd"}})
    assert chosen.members == {"volume": b"w", "txt": b"t", "json": b"{}"}


def test_every_sample_of_damaged_tars_is_accounted_for(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    shards.make(folder)
    odd_ones = [
        *shards.pair("000000001", 9, score=9),
        (odd("l.jpg", tarfile.SYMTYPE, "/"), b""),
        ("m.txt", b"no image"),
    ]
    (folder / "00002.tar").write_bytes(shards.tar_bytes([*odd_ones, *shards.pair("n", 1, score=9)]))
    (folder / "00003.tar").write_bytes(shards.tar_bytes(shards.pairs(20, 3))[:-10240])
    rules = {"filter": {"score": 1}, "reject_budget": 0.9}
    result = build(shards.config(folder, output=tmp_path / "out", **rules))
    manifest = read_manifest(result.version)
    assert (result.read, result.accepted, result.filtered) == (13, 8, 1)
    counted = dict.fromkeys(("archive.unsafe", "key.duplicate", "member.missing", "source.unreadable"), 1)
    assert manifest.rejects == counted
    assert verify(result.version, "full").ok
