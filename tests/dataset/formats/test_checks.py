"""Level full on members of an unknown modality: sound ones pass, and every kind of damage is found."""

import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.dataset.formats.checks import CHECKS
from tasks.dataset.formats.volumes import stored
from tasks.dataset.tar.format import END
from tasks.dataset.verify import scan
from tasks.dataset.verify.scan import Decoder, ShardTask
from tasks.dataset.verify.shard import check_shard
from tests.dataset import raw
from tests.dataset.raw import shards

GIF = raw.png(0, kind="GIF")


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def torn_volume() -> bytes:
    """A volume whose frame is sound and whose content is not."""
    voxels = np.add.outer(np.arange(8), np.add.outer(np.arange(60), np.arange(60))).astype(np.int16)
    content = bytearray(stored.encode(voxels, "blosc2")[1])
    middle = len(content) // 3
    content[middle : middle + 300] = b"\xff" * 300
    return bytes(content)


def torch_file(value: Any) -> bytes:
    return gzip.decompress(shards.pth_gz(value))


def tensors(kind: str = "float32") -> Any:
    torch = pytest.importorskip("torch")
    return {"image_emb": torch.zeros(3, 4, dtype=getattr(torch, kind))}


SOUND: dict[str, list[Callable[[], bytes]]] = {
    "jpg": [lambda: raw.png(0, kind="JPEG")],
    "000.jpeg": [lambda: raw.png(0, kind="JPEG")],
    "seg.png": [lambda: raw.png(0)],
    "webp": [lambda: raw.png(0, kind="WEBP")],
    "mpo": [lambda: raw.png(0, kind="MPO")],
    "avif": [lambda: raw.png(0, kind="AVIF")],
    "heic": [raw.heic],
    "heif": [raw.heic],
    "hif": [lambda: raw.heic(6)],
    "gif": [lambda: GIF],
    "bmp": [lambda: raw.png(0, kind="BMP")],
    "tif": [lambda: raw.png(0, kind="TIFF")],
    "txt": [lambda: "a caption, größer".encode(), lambda: b"\xef\xbb\xbfwith a mark"],
    "caption": [lambda: b"x"],
    "json": [lambda: b'{"a": [1, null]}', lambda: b"[]", lambda: b"null"],
    "jsonl": [lambda: b'{"a": 1}\n\n[2]\n'],
    "cls": [lambda: b"17", lambda: b"-3\n"],
    "npy": [lambda: npy(np.zeros((3, 4))), lambda: npy(np.array([True])), lambda: npy(np.array(["a"])),
            lambda: npy(np.zeros(3, [("a", "i4"), ("b", "f8")])), lambda: npy(np.float32(1))],
    "npz": [lambda: shards.npz({"a": np.zeros(9), "b": np.array(["x"])}), lambda: shards.npz({"a": np.zeros(1 << 20)}, True)],
    "pth": [lambda: torch_file(tensors()), lambda: torch_file(tensors("bfloat16"))],
    "pt": [lambda: torch_file(tensors("int64")), lambda: torch_file(tensors()["image_emb"])],
    "pth.gz": [lambda: shards.pth_gz(tensors())],
    "nii.gz": [lambda: gzip.compress(b"x" * 5000)],
    "volume.b2nd": [lambda: bytes(stored.encode(np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10), "blosc2")[1])],
}  # fmt: skip

UNSOUND: dict[str, list[Callable[[], bytes]]] = {
    "heic": [lambda: raw.heic()[:-20], lambda: raw.png(0)],
    "jpg": [lambda: raw.png(0, kind="JPEG")[:300], lambda: b"<html>404</html>", lambda: raw.png(0)],
    "png": [lambda: raw.png(0)[:-20], lambda: GIF],
    "gif": [lambda: GIF[:100]],
    "txt": [lambda: b"caf\xe9"],
    "json": [lambda: b'{"a": ', lambda: b"\xff\xfe\xff"],
    "jsonl": [lambda: b'{"a": 1}\n{"b": \n'],
    "cls": [lambda: b"seven", lambda: b"1.5"],
    "npy": [lambda: npy(np.zeros(9))[:-1], lambda: npy(np.zeros(9)) + b"x", lambda: b"no array"],
    "npz": [lambda: shards.npz({"a": np.zeros(99)})[:-30], lambda: shards.npz({"a": np.zeros(99)}).replace(bytes(300), bytes(299) + b"x"),
            lambda: b"no zip"],
    "pth": [lambda: torch_file(tensors())[:-30], lambda: b"no file of torch's"],
    "pth.gz": [lambda: shards.pth_gz(tensors())[:-9], lambda: torch_file(tensors())],
    "nii.gz": [lambda: gzip.compress(b"x" * 5000)[:-3], lambda: b"no gzip"],
    "volume.b2nd": [torn_volume, lambda: SOUND["volume.b2nd"][0]()[:-9], lambda: npy(np.zeros((2, 2, 2), np.int16))],
}  # fmt: skip


def judged(
    suffix: str, content: bytes, modality: str | None = None
) -> tuple[list[tuple[str, str]], set[str]]:
    decoder = Decoder(modality)
    return [(fault.code, fault.member) for fault in decoder.judge({suffix: content})], decoder.undecoded


@pytest.mark.parametrize("suffix", SOUND)
def test_sound_members_pass(suffix: str) -> None:
    for make in SOUND[suffix]:
        assert judged(suffix, make()) == ([], set())


@pytest.mark.parametrize("suffix", UNSOUND)
def test_damaged_members_do_not(suffix: str) -> None:
    for make in UNSOUND[suffix]:
        assert judged(suffix, make()) == ([("member.undecodable", suffix)], set())


def test_a_heic_is_not_judged_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert judged("heic", raw.heic(1)) == ([], {"heic"})


def test_every_decoder_is_tried() -> None:
    ends = {suffix.rpartition(".")[2] for suffix in SOUND} | {"pth.gz", "jpe", "jfif", "tiff", "text", "cap"}
    assert set(CHECKS) <= ends | {"cls2", "index", "inx", "id", "pt.gz", "jpeg"}


@pytest.mark.parametrize("text", [" \n\t", "\u200b\ufeff", "\0\0", "\u2028\u00a0"])
def test_a_text_of_which_nothing_can_be_seen_is_empty(text: str) -> None:
    assert judged("txt", text.encode()) == ([("member.empty", "txt")], set())
    assert judged("txt", text.encode(), "image_text") == ([("member.empty", "txt")], set())


@pytest.mark.parametrize("text", ["\u200ba", "\N{DOG FACE}", "。", "\ue000", "\U0001fae9"])
def test_a_text_of_one_sign_is_one(text: str) -> None:
    assert judged("txt", text.encode()) == ([], set())


def test_what_no_decoder_can_judge_is_reported_and_no_fault() -> None:
    assert judged("video.mp4", b"x") == ([], {"mp4"})
    assert judged("json", b"[" + b" " * (33 << 20) + b"]") == ([], {"json"})


def test_a_modality_judges_its_own_members_and_decoders_the_others() -> None:
    assert judged("png", raw.png(0)[:-20], "image_text") == ([("member.undecodable", "png")], set())
    assert judged("mask.png", raw.png(0)[:-20], "image_text") == ([("member.undecodable", "mask.png")], set())
    assert judged("000.png", raw.png(0)[:-20], "chat")[0] == [("member.undecodable", "000.png")]
    assert judged("npz", b"no zip", "image_text") == ([("member.undecodable", "npz")], set())


def test_a_zip_entry_that_lies_about_its_array_is_seen() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(9))[:-8])
    assert judged("npz", file.getvalue()) == ([("member.undecodable", "npz")], set())


def test_a_sample_too_large_to_be_held_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "MOST_HELD", 5000)
    small = [(f"{n}.{suffix}", b"seven") for n in range(9) for suffix in ("cls", "txt")]
    large = [("large.cls", b"seven"), ("large.txt", b"x" * 6000), ("large.json", b"{")]
    (tmp_path / "a.tar").write_bytes(b"".join(shards.entry(*one) for one in [*small, *large]) + END)
    found = check_shard(ShardTask(str(tmp_path), "a.tar", decodes=True))
    assert [fault.where["key"] for fault in found.faults] == [str(n) for n in range(9)]
    assert found.undecoded == {"cls", "txt", "json"}
