"""Everything that may be wrong with a version or with tars, one at a time, and how `verify` must name it.

A fault is put into one of three worlds. `built`: the version as the build wrote it, so checksums and tables
show the fault. `forged`: all tables were made to agree with the damaged tars, so only the tars show it.
`foreign`: nothing but tars, as others make them. A world that a fault does not mention cannot show it.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tests.dataset import damage, raw, tampering
from tests.dataset.raw import chat
from tests.dataset.verify import file_injectors as harm
from tests.dataset.verify import injectors as put
from tests.dataset.verify.places import Inject

World = Literal["built", "forged", "foreign"]
LEVELS = ("quick", "default", "full")
Expected = dict[str, tuple[str, ...]]


def on(quick: str = "", default: str = "", full: str = "") -> Expected:
    """Codes by level, each level with those of the levels before; `a|b` is one of them."""
    found = tuple(quick.split()), tuple(default.split()), tuple(full.split())
    return {"quick": found[0], "default": found[0] + found[1], "full": found[0] + found[1] + found[2]}


Worlds = dict[World, Expected]


def build_each(folder: Path) -> dict[str, tuple[Config, str]]:
    """Build a sound version of each kind as FOLDER/KIND, apart from any dataset, from raw data in FOLDER/raw; return
    its config and the name that it had."""
    raw_data, splits = folder / "raw", {"val": 0.4}
    for name, count in (("pictures", 140), ("another", 150)):
        raw.pictures(raw_data / name, count)
    raw.volumes(raw_data / "ct", 24)
    turns = [chat.turn("<image>What is it?"), chat.turn("Sure?")]
    chat.write_parquet(raw_data / "chat/a.parquet", [chat.row(number, texts=turns) for number in range(24)])
    configs = {
        "pictures": raw.config(raw_data / "pictures", raw_data / "pictures-out", splits=splits),
        "another": raw.config(raw_data / "another", raw_data / "another-out", splits=splits),
        "volumes": raw.volume_config(raw_data / "ct", raw_data / "ct-out", splits=splits),
        "chats": chat.config(raw_data / "chat/a.parquet", raw_data / "chat-out", splits=splits),
    }
    built = {kind: (config, build(config).version) for kind, config in configs.items()}
    for kind, (_, version) in built.items():
        version.rename(folder / kind)
    return {kind: (config, version.name) for kind, (config, version) in built.items()}


@dataclass(frozen=True)
class Fault:
    """`also` are codes that may come with it, `also_built` and `also_foreign` in those worlds. `hides` are codes that
    cannot be found beside it in any shard. With `leaves_foreign`, the tars can only be judged like foreign ones; with
    `hides_keys`, a sample whose header is broken has no name. A fault that `forges` writes all tables anew."""

    name: str
    inject: Inject
    worlds: Worlds
    also: frozenset[str] = frozenset()
    also_built: frozenset[str] = frozenset()
    also_foreign: frozenset[str] = frozenset()
    hides: frozenset[str] = frozenset()
    leaves_foreign: bool = False
    hides_keys: bool = False
    forges: bool = False
    data: str = "pictures"

    @property
    def has_shard(self) -> bool:
        """Whether it is in the tars."""
        return not self.name.partition(" ")[0].endswith((".json", ".parquet", ".npy"))

    def __str__(self) -> str:
        return self.name


def also(codes: str) -> frozenset[str]:
    return frozenset(codes.split())


WRONG_BYTES = "shard.checksum|shard.truncated"
"""A tar that was written anew has another checksum, and perhaps another size."""
SHOWN_BY_CHECKSUM = also("shard.checksum shard.truncated shard.count member.checksum manifest.invalid")


def structural(
    name: str,
    inject: Inject,
    default: str = "",
    full: str = "",
    more: str = "",
    **options: Any,
) -> Fault:
    """Damage that a tar shows by itself."""
    worlds: Worlds = {
        "built": on("", f"{WRONG_BYTES} {default}", full),
        "forged": on("", "", f"{default} {full}"),
        "foreign": on("", default, full),
    }
    return Fault(name, inject, worlds, also(more), SHOWN_BY_CHECKSUM, **options)


def of_bytes(
    name: str, inject: Inject, built: Expected, foreign: Expected | None = None, more: str = ""
) -> Fault:
    worlds: Worlds = {"built": built} if foreign is None else {"built": built, "foreign": foreign}
    return Fault(name, inject, worlds, also(more))


def of_file(
    name: str, damage: Callable[[Path], object], code: str = "manifest.invalid", **options: Any
) -> Fault:
    file_name, _, _ = name.partition(" ")
    others = ("shards.parquet",) if file_name == "manifest.json" else ()
    if file_name == "shards.parquet":
        options = {"leaves_foreign": True, **options}
    if file_name == "samples/train.parquet":
        options = {"hides_keys": True, **options}
    return Fault(name, harm.file(file_name, damage, *others), {"built": on(code)}, **options)


_BIT = on("", "shard.checksum member.checksum")
_CUT = on("shard.truncated")
_HEADER = on("", "shard.checksum")
_NOTHING = on()
_LOST = "shard.checksum member.checksum shard.count"

BYTES = [
    of_bytes("a bit of an image", put.bit(put.of_image, 6), _BIT, _NOTHING, "member.undecodable"),
    of_bytes("a bit of a caption", put.bit(put.of_caption), _BIT, _NOTHING),
    of_bytes("a bit of a member's name", put.bit(lambda sample: sample[0].offset + 2), _BIT, _HEADER, "sample.missing_member"),
    of_bytes("a bit of a member's size", put.bit(lambda sample: sample[1].offset + 130), _BIT, _HEADER, "sample.missing_member"),
    of_bytes("a bit of a header's checksum", put.bit(lambda sample: sample[0].offset + 150), _BIT, _HEADER, "sample.missing_member"),
    of_bytes("a bit of padding", put.bit(put.of_padding, 6), _BIT, _NOTHING),
    of_bytes("a bit of the end blocks", put.bit_of_end, _CUT, _CUT, _LOST),
    of_bytes("cut within a member", put.cut(put.middle_of_content), _CUT, _CUT, _LOST),
    of_bytes("cut within a header", put.cut(put.within_header), _CUT, _CUT, _LOST),
    of_bytes("cut between members", put.cut(put.second_member), _CUT, _CUT, _LOST + " sample.missing_member"),
    of_bytes("cut between samples", put.cut(put.first_header), _CUT, _CUT, _LOST),
    of_bytes("cut before its end blocks", put.cut(put.before_end(1024)), _CUT, _CUT, "shard.checksum"),
    of_bytes("cut after one end block", put.cut(put.before_end(512)), _CUT, _CUT, "shard.checksum"),
    of_bytes("cut within an end block", put.cut(put.before_end(300)), _CUT, _CUT, "shard.checksum"),
    of_bytes("cut to 100 bytes", put.cut(lambda tar, sample: 100), _CUT, _CUT, _LOST),
    of_bytes("zeros from a sample on", put.zeros(put.first_header), on("", "shard.truncated"),
             on("", "shard.truncated"), _LOST),
    of_bytes("zeros from within a member on", put.zeros(put.middle_of_content), on("", "shard.truncated"),
             on("", "shard.truncated"), _LOST + " sample.missing_member member.undecodable"),
    of_bytes("zeros for the last sample", put.zeros(put.start_of_last), on("", WRONG_BYTES), _NOTHING, _LOST),
    of_bytes("zeros within the last sample", put.zeros(put.before_end(1536)), on("", "shard.checksum|shard.truncated member.checksum|shard.truncated"),
             _NOTHING, _LOST + " member.undecodable member.empty sample.missing_member"),
    of_bytes("a page of zeros", put.hole, on("", "shard.checksum|shard.truncated member.checksum|shard.truncated"),
             on("", "shard.checksum|shard.truncated"), "shard.truncated shard.count sample.missing_member"),
    of_bytes("garbage behind the end", put.appended(lambda version, at: b"garbage!" * 64),
             on("shard.checksum"), on("shard.truncated"), "shard.truncated"),
    of_bytes("zeros behind the end", put.appended(lambda version, at: bytes(put.ZEROS)),
             on("shard.checksum"), on("", "shard.truncated"), "shard.truncated"),
    of_bytes("another tar behind the end", put.appended(lambda version, at: (version / at.other).read_bytes()),
             on("shard.checksum"), on("", "shard.checksum|shard.truncated"), "shard.truncated"),
]  # fmt: skip

_GONE = on("shard.missing|shard.truncated|shard.checksum")

SHARDS = [
    of_bytes("a missing shard", put.missing_shard, on("shard.missing"), on("shard.missing")),
    of_bytes("an extra shard", put.extra_shard, on("shard.extra"), _NOTHING),
    of_bytes("a renamed shard", put.renamed_shard, on("shard.missing shard.extra"), on("shard.missing")),
    of_bytes("swapped shards", put.swapped_shards, on("", "shard.checksum"), _NOTHING, WRONG_BYTES.split("|")[1]),
    of_bytes("a copied shard", put.copied_shard, on("", "shard.checksum"), on("", "sample.duplicate_key"),
             "shard.truncated sample.duplicate_key"),
    of_bytes("an empty shard", put.filled(b""), _CUT, _CUT),
    of_bytes("a shard without samples", put.filled(tampering.END), _CUT, on("", "shard.count"), _LOST),
    of_bytes("a record of zeros as shard", put.filled(bytes(10240)), _CUT, on("", "shard.count"), _LOST),
    of_bytes("a text as shard", put.filled(b"version https://git-lfs.github.com/spec/v1\noid blake3:4d7a2146\n"),
             _CUT, _CUT, _LOST),
    of_bytes("a large text as shard", put.filled(b"<html>404 Not Found</html>\n" * 2000),
             on("shard.checksum", "member.checksum"), on("shard.truncated", "shard.truncated|shard.checksum"),
             "shard.truncated shard.checksum"),
    of_bytes("a folder as shard", put.folder_for_a_shard, _GONE, _GONE),
    of_bytes("a link to nowhere as shard", put.link_to_nowhere, _GONE, _GONE),
    of_bytes("a pipe as shard", put.pipe_for_a_shard, _GONE, _GONE),
    Fault("a shard with another number of samples", put.one_row_for_two, {"built": on("", "", "shard.count")},
          also("manifest.invalid"), forges=True),
]  # fmt: skip

SAMPLES = [
    structural("a member twice", put.changed(put.member_twice), "sample.duplicate_key"),
    structural("a sample twice in a shard", put.changed(put.sample_twice), "sample.duplicate_key",),
    structural("a sample in two shards", put.sample_of("other"), "sample.duplicate_key",),
    structural("a sample in two splits", put.sample_of("across"), "sample.duplicate_key",),
    structural("a caption apart", put.changed(put.apart), "sample.split_members"),
    structural("two samples interleaved", put.changed(put.interleaved), "sample.split_members"),
    structural("no caption", put.lacking("txt"), "sample.missing_member"),
    structural("no image", put.lacking("png"), "sample.missing_member"),
    structural("an empty image", put.content("png", b""), "member.empty"),
    structural("an empty caption", put.content("txt", b""), "member.empty"),
    structural("a blank caption", put.content("txt", b" \n\t "), "", "member.empty", more="member.empty"),
    structural("HTML as an image", put.content("png", b"<html>404 Not Found</html>", "jpg"), "", "member.undecodable"),
    structural("half an image", put.half("png"), "", "member.undecodable"),
    structural("another kind of image", put.changed(put.image_of_another), "", "member.undecodable"),
    structural("a caption that is not UTF-8", put.content("txt", b"caf\xe9 \xff"), "", "member.undecodable"),
    structural("torn JSON", put.content("json", b'{"label": '), "", "member.undecodable"),
    structural("JSON nested without end", put.content("json", b"[" * 100_000), "", "member.undecodable"),
    structural("an image of 30 gigabytes", put.content("png", raw.giant_png(100_000, 100_000)), "", "member.undecodable"),
    structural("an absolute path", put.placed("/etc/"), "member.unsafe"),
    structural("a path out of the folder", put.placed("../../"), "member.unsafe"),
    structural("a symbolic link", put.instead(tarfile.SYMTYPE, "/etc/passwd"), "member.unsafe",
               more="member.empty sample.missing_member"),
    structural("a hard link", put.instead(tarfile.LNKTYPE, "../../secret"), "member.unsafe",
               more="member.empty sample.missing_member"),
    structural("a character device", put.instead(tarfile.CHRTYPE), "member.unsafe",
               more="member.empty sample.missing_member"),
    structural("a block device", put.instead(tarfile.BLKTYPE), "member.unsafe",
               more="member.empty sample.missing_member"),
    structural("a pipe", put.instead(tarfile.FIFOTYPE), "member.unsafe", more="member.empty sample.missing_member"),
    structural("an additional link", put.added("lnk", b"", kind=tarfile.SYMTYPE, linkname="/etc"), "member.unsafe",
               more="member.empty"),
    structural("a pyd", put.added("pyd", put.pickled("pyd")), "member.unsafe"),
    structural("a pkl", put.added("pkl", put.pickled("pkl")), "member.unsafe"),
    structural("a pickle", put.added("pickle", put.pickled("pickle")), "member.unsafe"),
    structural("a pickle as npy", put.added("npy", put.pickled("npy")), "", "member.undecodable"),
    structural("a pickle within npz", put.added("npz", put.pickled("npz")), "", "member.undecodable"),
    structural("a pickle as pth", put.added("pth", put.pickled("pth")), "", "member.undecodable", more="member.unsafe"),
]  # fmt: skip

MANIFEST = [
    of_file("manifest.json torn", damage.cut),
    of_file("manifest.json empty", damage.empty),
    of_file("manifest.json gone", Path.unlink),
    of_file("manifest.json as a list", lambda path: path.write_text("[]")),
    of_file("manifest.json not UTF-8", lambda path: path.write_bytes(b"\xff\xfe{}")),
    of_file("manifest.json nested deeply", lambda path: path.write_text("[" * 100_000)),
    of_file("manifest.json with another read", harm.rewritten(lambda value: value.update(read=999))),
    of_file("manifest.json with another accepted", harm.rewritten(lambda value: value.update(accepted=119, read=119))),
    of_file("manifest.json with another number of shards",
            harm.rewritten(lambda value: value["splits"]["train"].update(shards=9))),
    of_file("manifest.json with another split", harm.rewritten(lambda value: value["splits"].pop("val"))),
    of_file("manifest.json with a split of another place",
            harm.rewritten(lambda value: value["splits"].update({"../../etc": {"shards": 1, "samples": 1, "bytes": 1}}))),
    of_file("manifest.json with another digest", harm.rewritten(lambda value: value.update(digest="0" * 64))),
    of_file("manifest.json without digest", harm.rewritten(lambda value: value.pop("digest"))),
    of_file("manifest.json without splits", harm.rewritten(lambda value: value.pop("splits"))),
    of_file("manifest.json of a newer format", harm.rewritten(lambda value: value.update(format="tarmac/2"))),
    of_file("manifest.json of an unknown modality", harm.rewritten(lambda value: value.update(modality="odour_text"))),
    of_file("manifest.json of another version", harm.of_another_version),
]  # fmt: skip

_ALL_SHARDS = also(
    "shard.extra shard.missing shard.checksum shard.truncated shard.count member.checksum index.mismatch"
)


def _first(**update: Any) -> Callable[[Path], None]:
    return harm.with_rows(lambda rows: rows[0].update(update))


def _tables() -> list[Fault]:
    faults = []
    for name in ("shards.parquet", "rejects.parquet", "samples/train.parquet", "train/sizes.json"):
        options: dict[str, Any] = {}
        if name == "shards.parquet":
            options = {"also": also("index.mismatch")}
        faults += [
            of_file(f"{name} torn", damage.cut, **options),
            of_file(f"{name} empty", damage.empty, **options),
            of_file(f"{name} gone", Path.unlink, **options),
            of_file(f"{name} as garbage", lambda path: path.write_bytes(b"no table" * 99), **options),
        ]
    for name, column in (
        *[("shards.parquet", column) for column in ("name", "split", "blake3", "bytes", "samples")],
        *[("samples/train.parquet", column) for column in ("key", "shard", "row")],
        *[("rejects.parquet", column) for column in ("key", "reason")],
    ):
        faults.append(
            of_file(f"{name} without {column}", harm.without_column(column), also=also("index.mismatch"))
        )
    for name in ("shards.parquet", "samples/train.parquet"):
        faults.append(of_file(f"{name} of another version", harm.of_another_version, also=_ALL_SHARDS))
    return faults


TABLES = [
    *_tables(),
    of_file("shards.parquet with another checksum", _first(blake3="0" * 64), also=_ALL_SHARDS),
    of_file("shards.parquet with another size", _first(bytes=512), also=_ALL_SHARDS),
    of_file("shards.parquet with a negative size", _first(bytes=-5), also=_ALL_SHARDS),
    of_file("shards.parquet with another number", _first(samples=3), also=_ALL_SHARDS),
    of_file("shards.parquet with a huge number", _first(samples=1 << 60), also=_ALL_SHARDS),
    of_file("shards.parquet with a negative number", _first(samples=-3), also=_ALL_SHARDS),
    of_file("shards.parquet with a path out of the folder", _first(name="../../000000.tar", split="../.."),
            also=_ALL_SHARDS),
    of_file("shards.parquet without its last shard", harm.with_rows(lambda rows: rows.pop()), also=_ALL_SHARDS),
    of_file("shards.parquet in another order", harm.with_rows(lambda rows: rows.reverse()), also=_ALL_SHARDS),
    Fault("samples/train.parquet with another key", harm.file("samples/train.parquet", _first(key="nobody")),
          {"built": on("", "manifest.invalid")}, also("member.checksum")),
    of_file("samples/train.parquet with a key twice", harm.with_rows(lambda rows: rows[0].update(key=rows[1]["key"])),
            "manifest.invalid|sample.duplicate_key", also=also("sample.duplicate_key manifest.invalid")),
    of_file("samples/train.parquet without its last row", harm.with_rows(lambda rows: rows.pop()),
            also=also("index.mismatch")),
    of_file("samples/train.parquet with another shard", _first(shard=5)),
    of_file("samples/train.parquet with another row", _first(row=5)),
    of_file("train/sizes.json with another number", harm.rewritten(lambda value: value.update({"000000.tar": 1}))),
    of_file("train/sizes.json without a shard", harm.rewritten(lambda value: value.pop("000001.tar"))),
    of_file("rejects.parquet with a reject", harm.with_rows(lambda rows: rows.append(
        {"key": "a", "original_key": "a", "reason": "caption.empty", "detail": "", "source": "", "file": ""}))),
]  # fmt: skip

_INDEX = {"code": "index.mismatch", "hides": also("member.checksum")}

INDEX = [
    of_file("index/train.npy torn", damage.cut, **_INDEX),
    of_file("index/train.npy empty", damage.empty, **_INDEX),
    of_file("index/train.npy gone", Path.unlink, **_INDEX),
    of_file("index/train.npy as garbage", lambda path: path.write_bytes(b"no index" * 99), **_INDEX),
    of_file("index/train.npy as a pickle", lambda path: path.write_bytes(put.pickled()), **_INDEX),
    of_file("index/train.npy of another type", harm.indexed(lambda index: index["offset"].copy()), **_INDEX),
    of_file("index/train.npy of two dimensions", harm.indexed(lambda index: index.reshape(-1, 1)), **_INDEX),
    of_file("index/train.npy without its last row", harm.indexed(lambda index: index[:-1].copy()), **_INDEX),
    of_file("index/train.npy with another offset", harm.add("offset", 512), **_INDEX),
    of_file("index/train.npy with a huge offset", harm.add("offset", 1 << 63), **_INDEX),
    of_file("index/train.npy with another length", harm.add("length", 512), **_INDEX),
    of_file("index/train.npy with a huge length", harm.add("length", (1 << 63) + 512), **_INDEX),
    of_file("index/train.npy with another shard", harm.indexed(harm.row_of_other_shard), **_INDEX),
    of_file("index/train.npy of another version", harm.of_another_version, **_INDEX),
    Fault("index/train.npy with another checksum", harm.file("index/train.npy", harm.add("crc32c", 1)),
          {"built": on("", "index.mismatch")}, also("member.checksum")),
]  # fmt: skip

HARMLESS = [
    Fault(
        f"build.json {name}", harm.file("build.json", damage), {"built": _NOTHING}, also("manifest.invalid")
    )
    for name, damage in (
        ("torn", damage.cut),
        ("gone", Path.unlink),
        ("as a list", lambda path: path.write_text("[1]")),
        ("without files", harm.rewritten(lambda value: value.pop("files"))),
        ("with files of nonsense", harm.rewritten(lambda value: value.update(files={"manifest.json": 7}))),
    )
]
"""Nothing of the dataset is lost with build.json; but no fault may hide behind it."""

_B2ND = "volume.b2nd"


def of_volume(
    name: str, inject: Inject, default: str = "", full: str = "", foreign: Expected | None = None
) -> Fault:
    """`foreign` are the codes where the modality is unknown, if they are others. There, a member with another name
    also counts as missing, because all other samples have it."""
    fault = structural(name, inject, default, full, data="volumes")
    worlds: Worlds = fault.worlds if foreign is None else {**fault.worlds, "foreign": foreign}
    return replace(fault, worlds=worlds, also_foreign=also("sample.missing_member"))


def of_chat(
    name: str, inject: Inject, default: str = "", full: str = "", foreign: Expected | None = None
) -> Fault:
    return replace(of_volume(name, inject, default, full, foreign), data="chats")


def _array(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


VOLUMES = [
    of_volume("half a volume", put.half(_B2ND), "", "member.undecodable"),
    of_volume("a volume that is HTML", put.content(_B2ND, b"<html></html>"), "", "member.undecodable"),
    of_volume("a pickle as volume.npy", put.content(_B2ND, put.pickled(), "volume.npy"), "", "member.undecodable"),
    of_volume("half an array as volume.npy", put.content(_B2ND, _array(np.zeros((4, 6, 5), "i2"))[:-50], "volume.npy"),
              "", "member.undecodable"),
    of_volume("a volume that is not finite",
              put.content(_B2ND, _array(np.full((4, 6, 5), np.nan, "f4")), "volume.npy"), "", "member.undecodable", foreign=_NOTHING),
    of_volume("the volume of another sample", put.of_another(_B2ND), "", "member.checksum", foreign=_NOTHING),
    of_volume("no volume", put.lacking(_B2ND), "sample.missing_member"),
    of_volume("an empty volume", put.content(_B2ND, b""), "member.empty"),
    of_volume("no report", put.lacking("txt"), "sample.missing_member"),
    of_volume("no facts", put.lacking("json"), "sample.missing_member"),
    of_volume("a negative spacing", put.in_json(lambda facts: facts.update(spacing_mm=[1, -1, 1])), "",
              "member.undecodable", foreign=_NOTHING),
    of_volume("a label that is no number", put.in_json(lambda facts: facts["labels"].update(nodule="yes")), "",
              "member.undecodable", foreign=_NOTHING),
    of_volume("a report that is not UTF-8", put.content("txt", b"\xff\xfe"), "", "member.undecodable"),
]  # fmt: skip

CHATS = [
    of_chat("no image of a turn", put.lacking("000.png", named=("000.png", "json")), "", "sample.missing_member", foreign=on("", "sample.missing_member")),
    of_chat("no messages", put.lacking("json"), "sample.missing_member"),
    of_chat("torn messages", put.content("json", b'{"messages": ['), "", "member.undecodable"),
    of_chat("messages that do not alternate", put.in_json(lambda chat: chat["messages"][0].pop("assistant")), "",
            "member.undecodable", foreign=_NOTHING),
    of_chat("an empty answer", put.in_json(lambda chat: chat["messages"][0].update(assistant="  ")), "",
            "member.undecodable", foreign=_NOTHING),
    of_chat("ratings of other turns", put.in_json(lambda chat: chat["ratings"].update(relevance=[5])), "",
            "member.undecodable", foreign=_NOTHING),
    of_chat("half an image of a turn", put.half("000.png"), "", "member.undecodable"),
    of_chat("HTML as an image of a turn", put.content("000.png", b"<html></html>", "000.jpg"), "", "member.undecodable"),
    of_chat("a hole in the images", put.content("000.png", raw.png(1), "001.png"), "", "sample.missing_member", foreign=on("", "sample.missing_member")),
]  # fmt: skip

PICTURES = [*BYTES, *SHARDS, *SAMPLES, *MANIFEST, *TABLES, *INDEX, *HARMLESS]

BY_NAME = {fault.name: fault for fault in PICTURES}
TOGETHER = [
    BY_NAME[name]
    for name in (
        "a bit of an image",
        "a bit of a member's name",
        "cut within a member",
        "cut between samples",
        "zeros from a sample on",
        "a missing shard",
        "a renamed shard",
        "swapped shards",
        "an empty shard",
        "a sample in two splits",
        "a caption apart",
        "no caption",
        "an empty image",
        "HTML as an image",
        "a symbolic link",
        "a pkl",
        "manifest.json torn",
        "shards.parquet gone",
        "samples/train.parquet torn",
        "train/sizes.json with another number",
        "index/train.npy with another offset",
        "build.json gone",
    )
]
"""One of each kind, for all pairs of them."""
