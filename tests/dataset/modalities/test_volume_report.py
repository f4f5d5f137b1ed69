import io
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.dataset.formats.volumes import stored
from tasks.dataset.modalities.volume_report import VOLUME_REPORT
from tasks.dataset.sources import RawSample, open_sources
from tasks.dataset.sources.npz import NpzVolumes
from tasks.dataset.version.rejects import Reject
from tests.dataset import ct_clip, raw
from tests.dataset.raw import nifti


class Bomb:
    """Unpickling it would leave a file behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("unpickled", "w"))


def source(folder: Path, **keys: Any) -> NpzVolumes:
    config = raw.volume_config(folder, folder / "out", source=keys)
    return NpzVolumes(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]


def items(npz: NpzVolumes) -> Iterator[RawSample]:
    return npz.items(next(npz.containers()))


def take(folder: Path, volume: Any = None, **keys: Any) -> Any:
    dataset = {} if volume is None else {"volume": volume}
    config = raw.volume_config(folder, folder / "out", source=keys, **dataset).dataset
    npz = NpzVolumes(config.all_sources[0], config, "dataset.source")  # type: ignore[arg-type]
    item = next(items(npz))
    return VOLUME_REPORT.take(npz.read(item.file, item.content), config)


def voxels(taken: Any) -> np.ndarray:
    """The voxels of whichever member holds them."""
    name = stored.member_of(taken.members)
    assert name is not None
    return stored.read_crop(stored.open_volume(name, taken.members[name]))


def reason(folder: Path, **keys: Any) -> str:
    with pytest.raises(Reject) as caught:
        take(folder, **keys)
    return caught.value.reason


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    raw.volumes(tmp_path / "ct", 1)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ct"


def save(folder: Path, **arrays: Any) -> None:
    np.savez(folder / "p0_scan_0.npz", **arrays)


def test_a_volume_is_stored_as_given(folder: Path) -> None:
    taken = take(folder)
    np.testing.assert_array_equal(voxels(taken), raw.volume(0))
    assert bytes(taken.members["txt"]).decode() == "Clear lungs. Healthy p0_scan_0."
    facts = json.loads(taken.members["json"])
    assert facts["patient"] == "p0"
    assert facts["volume_name"] == "p0_scan_0.npz"
    assert facts["labels"] == {"effusion": 0, "nodule": 1}
    assert len(facts["chunk_crc32c"]) == 1
    assert facts["spacing_mm"] is None and facts["orientation"] is None


def test_npy_is_stored_for_whoever_maps_files(folder: Path) -> None:
    taken = take(folder, {"encode": "npy"})
    array = np.load(io.BytesIO(bytes(taken.members["volume.npy"])), allow_pickle=False)
    assert array.dtype == np.int16
    np.testing.assert_array_equal(array, raw.volume(0))
    assert len(json.loads(taken.members["json"])["chunk_crc32c"]) == len(array), "a slice is a chunk"


@pytest.mark.parametrize("dtype", ["float32", "float64", ">i4", "uint16", "float16"])
def test_whole_numbers_of_any_type_are_cast(folder: Path, dtype: str) -> None:
    values = np.clip(raw.volume(0), 0, 700).astype(dtype)
    save(folder, arr_0=np.asfortranarray(values))
    np.testing.assert_array_equal(voxels(take(folder)), values.astype(np.int16))


def test_scale_multiplies_and_rounds(folder: Path) -> None:
    save(folder, arr_0=(raw.volume(0) / 1000).astype(np.float32))
    np.testing.assert_array_equal(voxels(take(folder, scale=1000)), raw.volume(0))


def test_numbers_between_are_rounded(folder: Path) -> None:
    save(folder, arr_0=raw.volume(0) + 0.4)
    np.testing.assert_array_equal(voxels(take(folder)), raw.volume(0))


@pytest.mark.parametrize("keys", [{}, {"spacing_mm": [3, 0.5, 0.5]}, {"metadata": nifti.METADATA}])
def test_spacing_comes_from_the_config_or_from_metadata(folder: Path, keys: dict[str, Any]) -> None:
    nifti.tables(folder, ["p0_scan_0"], '1,0,"[0.5, 0.5]",3')
    rules = {"spacing_mm": [6, 1, 1], "shape": [2, 3, 2]}
    if not keys:
        with pytest.raises(Reject, match=r"volume\.spacing: unknown"):
            take(folder, rules)
        return
    taken = take(folder, rules, **keys)
    assert voxels(taken).shape == (2, 3, 2)
    assert (taken.statistics["spacing_z"], taken.statistics["spacing_x"]) == (6, 1)


AS_STORED = {"zyx": "zyx", "zxy": "zxy", "xyz": "zxy", "yxz": "zyx", "nifti": "zxy"}


@pytest.mark.parametrize("order", AS_STORED)
@pytest.mark.parametrize("knows", ["metadata", "the source"])
def test_a_spacing_belongs_to_the_axes_of_the_body(tmp_path: Path, order: str, knows: str) -> None:
    """Pixels that are not square come out alike, however the file's array lies."""
    scan = raw.volume(0, (4, 6, 10))
    z, y, x = 3.0, 0.5, 0.8
    source: dict[str, Any]
    if order == "nifti":
        source = {"kind": "nifti", "rescale": "none"}
        content = nifti.nifti(scan.transpose(2, 1, 0), np.diag([-x, -y, z, 1.0]))
        (tmp_path / "p0.nii.gz").write_bytes(nifti.packed(content))
    else:
        source = {"axes": order, **({"spacing_mm": [z, y, x]} if knows == "the source" else {})}
        np.savez(tmp_path / "p0.npz", scan.transpose(["zyx".index(axis) for axis in order]))
    nifti.tables(tmp_path, ["p0"], f'1,0,"[{y}, {x}]",{z}')
    if knows == "metadata":
        source["metadata"] = nifti.METADATA
    config = raw.volume_config(
        tmp_path, tmp_path, source=source, volume={"spacing_mm": [3, 1, 2]}, shard={"bytes": "1MB"}
    ).dataset
    (files,) = open_sources(config)
    item = next(files.items(next(files.containers())))
    taken = VOLUME_REPORT.take(files.read(item.file, item.content), config)  # type: ignore[attr-defined]
    facts = json.loads(taken.members["json"])
    axes = AS_STORED[order]
    assert facts["axes"] == axes
    assert facts["spacing_before_mm"] == [{"z": z, "y": y, "x": x}[axis] for axis in axes]
    assert facts["spacing_mm"] == [{"z": 3, "y": 1, "x": 2}[axis] for axis in axes]
    assert [taken.statistics[f"spacing_{axis}"] for axis in "zyx"] == [3, 1, 2]
    expected = ct_clip.prepared(scan, (z, y, x), (3, 1, 2), (4, 3, 4), (-1000, 1000))
    found = voxels(taken).transpose([axes.index(axis) for axis in "zyx"])
    assert np.abs(found - expected).max() <= 0.501
    size = sum(len(content) for content in taken.members.values())
    assert files.stored_bytes(item.file, 0, item.content) >= size  # type: ignore[attr-defined]


def test_statistics_are_exact(folder: Path) -> None:
    statistics = take(folder).statistics
    values = np.sort(raw.volume(0).ravel())
    assert (statistics["depth"], statistics["height"], statistics["width"]) == (4, 6, 5)
    assert (statistics["hu_min"], statistics["hu_max"]) == (values[0], values[-1])
    assert statistics["hu_p50"] == values[len(values) // 2 - 1]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"arr_0": np.array({"a": 1}, dtype=object)}, "volume.pickle"),
        ({"arr_0": np.full((2, 2, 2), Bomb(), dtype=object)}, "volume.pickle"),
        ({"arr_0": np.zeros((4, 4))}, "volume.shape"),
        ({"arr_0": np.zeros((1, 4, 4, 4))}, "volume.shape"),
        ({"arr_0": np.zeros((0, 4, 4))}, "volume.shape"),
        ({"a": np.zeros((2, 2, 2)), "b": np.zeros((2, 2, 2))}, "volume.shape"),
        ({"arr_0": np.full((2, 2, 2), np.nan)}, "volume.nonfinite"),
        ({"arr_0": np.full((2, 2, 2), np.inf)}, "volume.nonfinite"),
        ({"arr_0": raw.volume(0) / 1000}, "volume.hu_range"),
        ({"arr_0": np.full((2, 2, 2), "x")}, "volume.dtype"),
        ({"arr_0": np.zeros((2, 2, 2), complex)}, "volume.dtype"),
        ({"arr_0": np.full((2, 2, 2), 40000)}, "volume.hu_range"),
        ({"arr_0": np.full((2, 2, 2), -2024)}, "volume.hu_range"),
        ({"arr_0": raw.volume(0) + 1024}, "volume.hu_range"),
        ({"arr_0": raw.volume(0) - 1024}, "volume.hu_range"),
    ],
)
def test_rejects_of_an_array(folder: Path, arrays: dict[str, Any], expected: str) -> None:
    save(folder, **arrays)
    assert reason(folder) == expected
    assert not Path("unpickled").exists()


def test_nothing_is_ever_unpickled(folder: Path) -> None:
    (folder / "p0_scan_0.npz").write_bytes(pickle.dumps(Bomb()))
    assert reason(folder) == "volume.pickle"
    assert not Path("unpickled").exists()


def test_a_named_array_and_the_only_volume_are_found(folder: Path) -> None:
    save(folder, spacing=np.ones(3), volume=raw.volume(7), meta=np.array({"a": 1}, dtype=object))
    for keys in ({}, {"array": "volume"}):
        np.testing.assert_array_equal(voxels(take(folder, **keys)), raw.volume(7))
    assert reason(folder, array="volumes") == "member.missing"


def _npy(shape: tuple[int, ...], data: bytes, dtype: str = "<i2") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (_npy((100_000, 100_000, 100_000), b""), "archive.bomb"),
        (_npy((2, 2, 2), bytes(16 + 50_000_000)), "archive.bomb"),
        (_npy((2, 2, 2), bytes(7)), "volume.undecodable"),
        (_npy((-1, 2, 2), bytes(16)), "volume.undecodable"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 50_000_000, "volume.undecodable"),
        (b"no array", "volume.undecodable"),
    ],
)
def test_what_a_header_claims_is_not_believed(folder: Path, member: bytes, expected: str) -> None:
    with zipfile.ZipFile(folder / "p0_scan_0.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("arr_0.npy", member)
    tracemalloc.start()
    assert reason(folder) == expected
    assert tracemalloc.get_traced_memory()[1] < 10_000_000, "nor is memory taken for it"
    tracemalloc.stop()


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [_cut, _flip])
def test_a_damaged_archive_is_a_reject(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    save(folder, arr_0=raw.volume(0, (20, 20, 20)))
    path = folder / "p0_scan_0.npz"
    path.write_bytes(damage(path.read_bytes()))
    assert reason(folder) == "volume.undecodable"


def test_reports_and_labels_must_be_there(folder: Path) -> None:
    reports, labels = folder / "reports.csv", folder / "labels.csv"
    labels.write_text("VolumeName,effusion\np0_scan_0,\n")
    assert reason(folder) == "labels.missing"
    labels.write_text("VolumeName,effusion\nother,1\n")
    assert reason(folder) == "labels.missing"
    reports.write_text("VolumeName,Findings,Impression\np0_scan_0, ,\n")
    assert reason(folder, labels=None) == "report.missing"
    reports.write_text("VolumeName,Findings,Impression\np0_scan_0,a,\np0_scan_0.npz,b,\n")
    assert reason(folder) == "report.missing"
    reports.write_text("VolumeName,Findings,Impression\nother,a,b\n")
    assert reason(folder) == "report.missing"
    reports.write_bytes(b"VolumeName,Findings,Impression\np0_scan_0,gr\xfcn,b\n")
    assert reason(folder, labels=None) == "caption.encoding"


def test_a_config_that_does_not_fit_names_the_key(folder: Path) -> None:
    reports = {"path": "reports.csv", "key": "VolumeName", "text": ["Finding"]}
    with pytest.raises(UsageError, match=r"dataset\.source\.reports\.text.*did you mean Findings\?"):
        list(items(source(folder, reports=reports)))
    with pytest.raises(UsageError, match=r"dataset\.source\.labels\.path"):
        list(items(source(folder, labels={"path": "none.csv", "key": "VolumeName"})))
    (folder / "p0_scan_0.npz").unlink()
    with pytest.raises(DataError, match=r"no \.npz"):
        list(items(source(folder)))


@pytest.mark.parametrize("volume", [{}, {"encode": "npy"}, {"shape": [20, 28, 40]}])
def test_the_size_is_told_without_reading(folder: Path, volume: dict[str, Any]) -> None:
    save(folder, arr_0=raw.volume(0, (20, 30, 50)))
    config = raw.volume_config(folder, folder / "out", volume=volume).dataset
    npz = NpzVolumes(config.all_sources[0], config, "dataset.source")  # type: ignore[arg-type]
    item = next(items(npz))
    most = npz.stored_bytes(item.file, (folder / item.file).stat().st_size, item.content)
    taken = VOLUME_REPORT.take(npz.read(item.file, item.content), config)
    size = sum(len(content) for content in taken.members.values())
    assert size <= most <= 2.5 * size + 60_000


@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_a_flipped_voxel_shows_in_its_chunk(folder: Path, encoding: str) -> None:
    save(folder, arr_0=raw.volume(0, (20, 30, 50)))
    taken = take(folder, {"encode": encoding})
    members = {suffix: bytes(content) for suffix, content in taken.members.items()}
    assert VOLUME_REPORT.judge(members) == []
    (name,) = set(members) & set(stored.MEMBERS)
    content = bytearray(members[name])
    content[-1 if name == "volume.npy" else len(content) // 2] ^= 0x01
    faults = VOLUME_REPORT.judge({**members, name: bytes(content)})
    assert [fault.code for fault in faults] == ["member.checksum"]
    faults = VOLUME_REPORT.judge({**members, name: members[name][:-2]})
    assert [fault.code for fault in faults] == ["member.undecodable"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_what_numpy_packs_is_unpacked(folder: Path, compression: int) -> None:
    """bzip2 unpacks 900 kB a block at least, and LZMA whatever its dictionary holds, at one go."""
    with zipfile.ZipFile(folder / "p0_scan_0.npz", "w", compression) as file:
        file.writestr("arr_0.npy", _npy((1, 1000, 1000), bytes(12_000_000)))
    tracemalloc.start()
    assert reason(folder) == "volume.undecodable"
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"txt": b"gr\xfcn"}, "caption.encoding"),
        ({"txt": b" "}, "report.missing"),
        ({"json": b"{"}, "source.unreadable"),
        ({"json": b"[]"}, "source.unreadable"),
        ({"json": b'{"spacing_mm": [NaN, 1, 1]}'}, "volume.spacing"),
        ({"json": b'{"labels": {"nodule": NaN}}'}, "labels.missing"),
        ({"json": b'{"labels": {"nodule": 1e999}}'}, "labels.missing"),
        ({"json": b'{"labels": {"nodule": "yes"}}'}, "labels.missing"),
        ({"json": b'{"labels": [1]}'}, "labels.missing"),
        ({"json": b'{"site": "\\ud800"}'}, "caption.encoding"),
        ({"json": b'{"chunk_crc32c": [1]}'}, "volume.undecodable"),
        ({"volume": b"no array"}, "volume.undecodable"),
        ({"volume": b""}, "volume.undecodable"),
        ({"volume": b"\x9e\xa8b2frame\0 of nothing"}, "volume.undecodable"),
        ({"volume": _npy((2, 2), bytes(8))}, "volume.shape"),
        ({"volume": _npy((2, 2, 2), bytes(64), "|O")}, "volume.pickle"),
        ({"volume": _npy((2, 2, 2), bytes(64), "<c8")}, "volume.dtype"),
        ({"volume": _npy((1 << 40, 1 << 40, 1), b"")}, "archive.bomb"),
    ],
)
@pytest.mark.parametrize("encoding", ["blosc2", "npy"])
def test_members_of_other_peoples_shards(
    folder: Path, encoding: str, change: dict[str, bytes], expected: str
) -> None:
    _, content = stored.encode(raw.volume(0), encoding)
    members = {"volume": content, "txt": b"clear", "json": b"{}"}
    config = raw.volume_config(folder, folder / "out").dataset
    np.testing.assert_array_equal(voxels(VOLUME_REPORT.take(members, config)), raw.volume(0))
    with pytest.raises(Reject) as caught:
        VOLUME_REPORT.take({**members, **change}, config)
    assert caught.value.reason == expected


def test_a_label_that_is_null_is_unknown_in_shards_too(folder: Path) -> None:
    _, content = stored.encode(raw.volume(0), "npy")
    described = b'{"labels": {"effusion": null, "nodule": 1}, "site": NaN}'
    members = {"volume": content, "txt": b"clear", "json": described}
    found = VOLUME_REPORT.take(members, raw.volume_config(folder, folder / "out").dataset)
    kept = {suffix: bytes(content) for suffix, content in found.members.items()}
    facts = json.loads(kept["json"])
    assert facts["labels"] == {"effusion": None, "nodule": 1} and facts["site"] is None
    assert VOLUME_REPORT.judge(kept) == []


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"spacing_mm": [0, 1, 1]}, "volume.spacing"),
        ({"spacing_mm": "1.5"}, "volume.spacing"),
        ({"labels": {"nodule": "yes"}}, "labels"),
        ({"labels": [1]}, "labels"),
        ({"axes": "zyy"}, "axes"),
        ({"axes": ["z", "y", "x"]}, "axes"),
    ],
)
def test_judges_the_facts(folder: Path, facts: dict[str, Any], problem: str) -> None:
    members = {suffix: bytes(content) for suffix, content in take(folder).members.items()}
    described = json.dumps(json.loads(members["json"]) | facts).encode()
    faults = VOLUME_REPORT.judge({**members, "json": described})
    assert [(fault.code, fault.member) for fault in faults] == [("member.undecodable", "json")]
    assert problem in faults[0].evidence


@pytest.mark.parametrize(("change", "problem"), [(-1024, "rescaled twice"), (1024, "never applied")])
def test_judges_what_is_no_hu(change: int, problem: str) -> None:
    name, content = stored.encode(raw.volume(0) + np.int16(change), "blosc2")
    faults = VOLUME_REPORT.judge({name: bytes(content), "txt": b"clear", "json": b"{}"})
    assert problem in faults[0].evidence


@pytest.mark.parametrize(
    "member",
    [
        _npy((1 << 40, 1 << 40, 1), b""),
        _npy((1 << 62, 0, 1), b""),
        _npy((1 << 62, 1 << 62, 1), b"", "|S0"),
    ],
)
def test_what_a_header_claims_does_not_stop_the_planning(folder: Path, member: bytes) -> None:
    with zipfile.ZipFile(folder / "p0_scan_0.npz", "w") as file:
        file.writestr("arr_0.npy", member)
    npz = source(folder)
    item = next(items(npz))
    assert 0 < npz.stored_bytes(item.file, 1000, item.content) < 10_000
