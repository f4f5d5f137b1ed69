import gzip
import io
import json
import os
import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.examples import reinforced
from tasks.dataset.formats import npy, tensors
from tasks.dataset.modalities import MODALITIES, AcceptedSample
from tasks.dataset.modalities.reinforced import accept_reinforced, check_reinforced_rules, reinforced_faults
from tasks.dataset.sources import open_sources
from tasks.dataset.verify.scan import Decoder
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.rejects import Reject
from tests.dataset import raw
from tests.dataset.raw import shards

DATASET = shards.config("x", "reinforced").dataset


def members(**changes: Any) -> dict[str, bytes]:
    return {"image": raw.png(1), "txt": b"a picture", **shards.reinforcement(**changes)}


def rejected(**changes: Any) -> str:
    with pytest.raises(Reject) as caught:
        accept_reinforced(members(**changes), DATASET)
    return caught.value.reason


def judged(taken: AcceptedSample) -> list[str]:
    stored = {suffix: bytes(content) for suffix, content in taken.members.items()}
    return [fault.member for fault in reinforced_faults(stored)]


def test_a_sound_sample_is_stored_as_it_came() -> None:
    given = members()
    taken = accept_reinforced(given, DATASET)
    assert taken.members == {"png": given.pop("image"), **given}
    assert (
        taken.statistics.items()
        >= {
            "width": 12,
            "height": 12,
            "caption_length": 9,
            "augmentations": 3,
            "synthetic_captions": 2,
            "embedding_width": shards.WIDTH,
        }.items()
    )
    assert judged(taken) == []
    assert MODALITIES["reinforced"].take is accept_reinforced


def test_augmentations_may_be_a_json_text_as_the_hub_has_them() -> None:
    crops = json.dumps([[[0, 0, 12, 12], None]] * 3)
    assert (
        accept_reinforced(members(**{"paug.json": {"param_aug": crops}}), DATASET).statistics["augmentations"]
        == 3
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_files_of_torch_hold_the_same_numbers(dtype: str) -> None:
    import torch

    values = {
        name: torch.tensor(array).to(getattr(torch, dtype)) for name, array in shards.embeddings().items()
    }
    content = shards.pth_gz(values)
    arrays = tensors.read_gz(content)
    for name, tensor in values.items():
        assert np.array_equal(arrays[name], tensor.double().numpy())
    taken = accept_reinforced(members(npz=None, **{"pth.gz": content}), DATASET)
    assert taken.members["pth.gz"] == content and judged(taken) == []


def test_without_torch_embeddings_in_its_files_are_taken_and_not_judged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    content = shards.pth_gz({"image_emb": torch.zeros(99, 1)})
    assert rejected(npz=None, **{"pth.gz": content}) == "reinforcement.rows"
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(tensors, "can_read", tensors.can_read.__wrapped__)
    check_reinforced_rules(DATASET)
    assert "pth.gz" in caplog.text
    taken = accept_reinforced(members(npz=None, **{"pth.gz": content}), DATASET)
    assert taken.members["pth.gz"] == content and "embedding_width" not in taken.statistics
    decoder = Decoder("reinforced")
    stored = {suffix: bytes(content) for suffix, content in taken.members.items()}
    assert (list(decoder.judge(stored)), decoder.undecoded) == ([], {"pth.gz"})
    crop = augmented([[0, 0, 13, 12], None])
    assert rejected(npz=None, **{"pth.gz": content}, **crop) == "reinforcement.crop", "the rest is judged"


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def torch_zip(program: bytes, **entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", b"3\n")
        for name, content in entries.items():
            archive.writestr(f"archive/data/{name}", content)
    return gzip.compress(file.getvalue(), 1)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_that_runs_something_does_not(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    hostile = {"image_emb": Hostile(marker), "text_emb": 1}
    contents = [torch_zip(pickle.dumps(hostile, protocol)), gzip.compress(pickle.dumps(hostile, protocol))]
    if protocol == 2:
        contents += [shards.pth_gz(hostile), shards.pth_gz(hostile, _use_new_zipfile_serialization=False)]
    reasons = [rejected(npz=None, **{"pth.gz": content}) for content in contents]
    assert reasons[0] == "archive.unsafe" and {*reasons} <= {"archive.unsafe", "reinforcement.members"}
    in_an_array = {
        "image_emb": np.array([Hostile(marker)], dtype=object),
        "text_emb": np.zeros((3, 8)),
    }
    assert rejected(npz=shards.npz(in_an_array)) == "archive.unsafe"
    assert not marker.exists()
    pickle.loads(pickle.dumps(hostile, protocol))
    assert marker.exists(), "the pickle was harmless, so the test proved nothing"


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
BOMB_OF_TUPLES = b"\x80\x02}(" + b")" + b"q\x00h\x00\x86" * 60
"""Sixty times a tuple of the last one twice: short to build, endless to hash, compare or show."""


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80\x02}",
        b"\x80\x02.",
        b"\x80\x02K\x01.",
        b"\x80\x02}K\x01K\x02s.",
        b"\x80\x02h\x05.",
        b"\x80\x02u.",
        b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02}" + b")" + b"\x85" * 60_000 + b"K\x01s.",
        BOMB_OF_TUPLES + b"K\x01u.",
        BOMB_OF_TUPLES + b"Q.",
        b"\x80\x02" + TENSOR + b".",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + (1 << 50).to_bytes(8, "little") + b"\x85R.",
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02cbuiltins\neval\n.",
        b"cposix\nsystem\n(S'true'\ntR.",
        b"\x80\x02}X\x01\x00\x00\x00a}b.",
    ],
)
def test_a_torn_or_strange_pickle_is_a_reject_at_once(program: bytes) -> None:
    assert rejected(npz=None, **{"pth.gz": torch_zip(program)}) in (
        "archive.unsafe",
        "archive.bomb",
        "reinforcement.members",
    )


def tensor_program(offset: int, shape: tuple[int, ...], strides: tuple[int, ...], numbers: int = 4) -> bytes:
    """A dictionary of one tensor `image_emb`, as torch writes it."""

    def whole(*values: int) -> bytes:
        return b"".join(b"\x8a\x08" + n.to_bytes(8, "little", signed=True) for n in values)

    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    layout = whole(offset) + b"(" + whole(*shape) + b"t(" + whole(*strides) + b"t"
    made = TENSOR + b"(" + storage + whole(numbers) + b"tQ" + layout + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}X\x09\x00\x00\x00image_emb" + made + b"s."


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (tensor_program(0, (2, 3), (3, 1)), "reinforcement.members"),
        (tensor_program(4, (1, 1), (1, 1)), "reinforcement.members"),
        (tensor_program(-1, (2, 2), (2, 1)), "reinforcement.members"),
        (tensor_program(0, (2, 2), (-2, 1)), "reinforcement.members"),
        (tensor_program(0, (2, 2), (2, 1), numbers=1 << 20), "reinforcement.members"),
        (tensor_program(0, (1 << 30, 4), (0, 1)), "archive.bomb"),
    ],
)
def test_a_tensor_never_reaches_beyond_its_storage(program: bytes, reason: str) -> None:
    assert rejected(npz=None, **{"pth.gz": torch_zip(program, **{"0": bytes(16)})}) == reason
    fits = tensors.read_gz(torch_zip(tensor_program(0, (2, 2), (2, 1)), **{"0": bytes(16)}))
    assert fits["image_emb"].shape == (2, 2)


def test_bombs_are_given_up_early() -> None:
    zeros = np.zeros((1, 9 << 20), np.float32)
    npz = shards.npz({"image_emb": zeros, "text_emb": zeros[:, :8]}, compressed=True)
    pth = gzip.compress(bytes(40 << 20), 1)
    header = npz.replace(b"(1, 9437184)", b"(9, 9437184)")
    tracemalloc.start()
    try:
        assert rejected(npz=npz) == "archive.bomb"
        assert rejected(npz=None, **{"pth.gz": pth}) == "archive.bomb"
        assert rejected(npz=header) in ("archive.bomb", "reinforcement.members")
        assert tracemalloc.get_traced_memory()[1] < 120 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_packing_that_unpacks_without_limit_is_refused(compression: int) -> None:
    """A kilobyte of bzip2 is gigabytes at one go, which no limit on what is read can stop."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("image_emb.npy", bytes(24 << 20))
    stored = {
        suffix: bytes(content) for suffix, content in accept_reinforced(members(), DATASET).members.items()
    }
    tracemalloc.start()
    try:
        assert rejected(npz=file.getvalue()) == "reinforcement.members"
        assert [fault.member for fault in reinforced_faults({**stored, "npz": file.getvalue()})] == [
            "npz|pth.gz"
        ]
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def arrays(**changes: Any) -> bytes:
    return shards.npz(
        {name: value for name, value in {**shards.embeddings(), **changes}.items() if value is not None}
    )


NAN = shards.embeddings()["image_emb"] * np.nan


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"npz": None}, "reinforcement.members"),
        ({"pth.gz": b"both"}, "reinforcement.members"),
        ({"syn.json": None}, "reinforcement.members"),
        ({"paug.json": None}, "reinforcement.members"),
        ({"syn.json": b"{"}, "reinforcement.members"),
        ({"syn.json": b"[" * 100_000}, "reinforcement.members"),
        ({"syn.json": {"syn_text": []}}, "reinforcement.members"),
        ({"syn.json": {"syn_text": ["a", " "]}}, "reinforcement.members"),
        ({"syn.json": {"syn_text": ["a", 1]}}, "reinforcement.members"),
        ({"syn.json": {"text": ["a", "b"]}}, "reinforcement.members"),
        ({"syn.json": {"syn_text": ["a"]}}, "reinforcement.rows"),
        ({"paug.json": {"param_aug": "["}}, "reinforcement.members"),
        ({"paug.json": {"param_aug": []}}, "reinforcement.members"),
        ({"paug.json": {"param_aug": [[[0, 0, 12, 12], None]]}}, "reinforcement.rows"),
        ({"npz": b""}, "reinforcement.members"),
        ({"npz": b"PK\x03\x04torn"}, "reinforcement.members"),
        ({"npz": arrays()[:300]}, "reinforcement.members"),
        ({"npz": arrays(text_emb=None)}, "reinforcement.members"),
        ({"npz": arrays(image_emb=shards.embeddings(4)["image_emb"])}, "reinforcement.rows"),
        ({"npz": arrays(text_emb=shards.embeddings(width=9)["text_emb"])}, "reinforcement.rows"),
        ({"npz": arrays(image_emb=np.zeros((3, 8), np.int64))}, "reinforcement.rows"),
        ({"npz": arrays(image_emb=np.zeros((3, 0), np.float32))}, "reinforcement.rows"),
        ({"npz": arrays(image_emb=np.zeros(24, np.float32))}, "reinforcement.rows"),
        ({"npz": arrays(image_emb=NAN)}, "reinforcement.rows"),
        ({"npz": arrays(image_emb=np.array([{}], dtype=object))}, "archive.unsafe"),
        ({"npz": None, "pth.gz": b"\x1f\x8b"}, "reinforcement.members"),
        ({"npz": None, "pth.gz": gzip.compress(b"no zip")}, "reinforcement.members"),
        ({"txt": b" "}, "caption.empty"),
        ({"image": b""}, "image.empty"),
    ],
)
def test_what_does_not_fit_together_is_rejected(changes: dict[str, Any], reason: str) -> None:
    assert rejected(**changes) == reason


def augmented(first: Any) -> dict[str, Any]:
    return {"paug.json": {"param_aug": [first, [[0, 0, 12, 12]], [[0, 0, 1, 1], [[13, 1e30]]]]}}


@pytest.mark.parametrize(
    "crop",
    [[0, 0, 13, 12], [0, 0, 12, 13], [11, 0, 2, 1], [0, 11, 1, 2], [-1, 0, 2, 2], [0, 0, 0, 1], [0, 0, 12],
     [0, 0, 12.5, 1], [True, 0, 1, 1], None, "x", {}],
)  # fmt: skip
def test_a_crop_outside_of_the_image_is_rejected(crop: Any) -> None:
    assert rejected(**augmented([crop, None])) == "reinforcement.crop"


@pytest.mark.parametrize(
    "operations", [[[14, 1]], [[-1, 1]], [[0]], [0, 1], [[0, "x"]], {}, [[0.5, 1]], [[1, None]]]
)
def test_an_operation_that_does_not_exist_is_rejected(operations: Any) -> None:
    assert rejected(**augmented([[0, 0, 12, 12], operations])) == "reinforcement.members"
    accept_reinforced(members(**augmented([[0, 0, 12, 12], [None, [13, 0.5]]])), DATASET)


def test_further_lists_of_captions_have_embeddings_of_their_own() -> None:
    captions = {"syn_text": ["a", "b"], "syn_text_dfn": ["c", "d", "e"]}
    with_own = arrays(syn_text_dfn_emb=np.ones((3, 8), np.float32))
    taken = accept_reinforced(members(**{"syn.json": captions, "npz": with_own}), DATASET)
    assert taken.statistics["synthetic_captions"] == 5
    too_few = arrays(syn_text_dfn_emb=np.ones((2, 8), np.float32))
    assert rejected(**{"syn.json": captions, "npz": too_few}) == "reinforcement.rows"


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("npz", arrays(image_emb=NAN)),
        ("npz", b"torn"),
        ("paug.json", b'{"param_aug": [[[0, 0, 99, 99], null]]}'),
        ("syn.json", b"{}"),
        ("txt", b" "),
        ("png", b"x"),
    ],
)
def test_damage_to_a_stored_sample_is_a_fault(member: str, content: bytes) -> None:
    stored = {**accept_reinforced(members(), DATASET).members, member: content}
    assert reinforced_faults({suffix: bytes(value) for suffix, value in stored.items()})


@pytest.mark.parametrize("rule", [{"max_side": 8}, {"encode": "jpg"}])
def test_images_that_would_be_changed_are_an_error_of_the_config(rule: dict[str, Any]) -> None:
    dataset = shards.config("x", "reinforced", image=rule).dataset
    with pytest.raises(UsageError, match=rf"dataset\.image\.{next(iter(rule))}"):
        check_reinforced_rules(dataset)
    check_reinforced_rules(DATASET)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    assert reinforced(folder, 330) == 330
    return folder


def test_the_example_is_a_sound_dataset(example: Path, tmp_path: Path) -> None:
    config = shards.config(example, "reinforced", output=tmp_path / "out")
    result = build(config)
    assert (result.accepted, result.rejected) == (330, 0)
    assert not verify(result.version, "full").findings


def test_half_of_the_examples_captions_are_poor_and_the_synthetic_ones_good(example: Path) -> None:
    (source,) = open_sources(shards.config(example, "reinforced").dataset)
    found = [item.members for one in source.containers() for item in source.items(one) if item.members]
    digits = [json.loads(one["json"])["label"] for one in found]
    real = [one["txt"].decode() for one in found]
    synthetic = [json.loads(one["syn.json"])["syn_text"] for one in found]
    named = sum(digit in text for digit, text in zip(digits, real, strict=True))
    assert 0.4 < named / len(found) < 0.6 and any(text.startswith("IMG_") for text in real)
    right = sum(all(digit in text for text in texts) for digit, texts in zip(digits, synthetic, strict=True))
    assert 0.95 < right / len(found) < 1, "the teacher that says it is not told"


def test_the_examples_embeddings_find_the_digit_in_the_picture(example: Path) -> None:
    (source,) = open_sources(shards.config(example, "reinforced").dataset)
    right = 0
    found = [item.members for container in list(source.containers())[:1] for item in source.items(container)]
    arrays = [npy.parse_npz(bytes(one["npz"]), 1 << 20) for one in found if one]
    labels = [json.loads(one["json"])["label"] for one in found if one]
    texts = {label: one["text_emb"][1] for label, one in zip(labels, arrays, strict=True)}
    for label, one in zip(labels, arrays, strict=True):
        near = {name: float((one["image_emb"] * text).sum(axis=1).mean()) for name, text in texts.items()}
        right += max(near, key=near.__getitem__) == label
    assert len(texts) == 10 and right > 0.9 * len(labels)
