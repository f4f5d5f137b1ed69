"""Whatever the build takes, verify finds sound, and the loader reads: no dataset is refused by its own rules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.errors import UsageError
from tasks.core.schema import Dataset
from tasks.dataset.building.builder import build
from tasks.dataset.examples.phantoms import AIR, LUNG, TISSUE, phantoms
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes import stored
from tasks.dataset.modalities.volume_report import VOLUME_REPORT
from tasks.dataset.sources import open_sources
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.rejects import Reject
from tasks.loader.decoders import decode_volume
from tests.dataset import raw
from tests.dataset.examples.test_phantoms import config as phantom_config
from tests.dataset.examples.test_phantoms import members as members_of
from tests.dataset.raw import shards

SHAPES = ((8, 8, 8), (24, 40, 40), (40, 80, 30))
RULES: tuple[dict[str, Any], ...] = (
    {},
    *({"shape": shape} for shape in SHAPES),
    *({"shape": shape, "spacing_mm": (4, 6, 5), "window": (-1000, 1000)} for shape in SHAPES),
    {"window": (-150, 250), "shape": (4, 4, 4)},
    {"window": (-1000, -500)},
    {"window": (-1024, 300), "encode": "npy"},
)


def rules(**volume: Any) -> Dataset:
    return raw.volume_config(Path("raw"), Path("out"), volume=volume).dataset


def body(noise: float) -> np.ndarray:
    """A body in air whose middle is lung, and whose share of tissue is next to the least there may be."""
    random = np.random.default_rng(0)
    volume = np.full((24, 40, 40), AIR, np.float32)
    volume[:, 4:36, 4:36] = LUNG
    volume[:, 4:36, 4:6] = TISSUE
    volume[:, 4:5, 6:10] = TISSUE
    return (volume + random.normal(0, noise, volume.shape)).astype(np.float32)


def sample(voxels: np.ndarray, **facts: Any) -> dict[str, Any]:
    described = {"spacing_mm": [4.0, 5.0, 5.0], "labels": {"nodule": 1, "effusion": 0.5}, **facts}
    return {"volume": npy.dump(voxels), "txt": b"Clear lungs.", "json": json.dumps(described).encode()}


VOLUMES = [
    body(0),
    body(20),
    body(120),
    np.rint(body(20)).astype(np.int16),
    np.where(body(0) == AIR, -3024, body(0)),
    np.clip(body(20), -1000, 200),
]
FACTS: list[dict[str, Any]] = [
    {},
    {"labels": {"nodule": None}},
    {"labels": {"nodule": float("nan")}},
    {"labels": {"nodule": float("inf")}},
    {"labels": {"nodule": True}},
    {"labels": {"nodule": 10**400}},
    {"labels": "none"},
    {"spacing_mm": [0, 1, 1]},
    {"spacing_mm": None},
    {"window": [-150, 250]},
    {"window": "lung"},
    {"tells_hu": False},
    {"tells_hu": "no"},
    {"shape": [24, 40, 40], "pad_fraction": "much"},
    {"site": "\ud800"},
]


def judged(members: dict[str, bytes]) -> list[str]:
    return [str(fault) for fault in VOLUME_REPORT.judge(members)]


@pytest.mark.parametrize("volume", RULES)
def test_what_is_taken_is_judged_sound_and_can_be_read(volume: dict[str, Any]) -> None:
    dataset = rules(**volume)
    taken = 0
    for voxels, facts in [*((voxels, {}) for voxels in VOLUMES), *((VOLUMES[1], facts) for facts in FACTS)]:
        try:
            made = VOLUME_REPORT.take(sample(voxels, **facts), dataset)
        except Reject:
            continue
        taken += 1
        members = {suffix: bytes(content) for suffix, content in made.members.items()}
        assert judged(members) == [], facts
        one = decode_volume(members, (slice(0, 1), slice(0, 1), slice(0, 1)))
        assert one.shape == (1, 1, 1) and set(made.statistics) == set(VOLUME_REPORT.statistics)
        name = stored.member_of(members)
        assert name is not None
        again = VOLUME_REPORT.take({**members, "volume": members[name]}, rules(encode=dataset.volume.encode))
        assert {suffix: bytes(content) for suffix, content in again.members.items()} == members
    assert taken >= len(VOLUMES), "the rules leave something to judge"


def test_a_crop_within_a_lung_is_taken_and_says_that_it_tells_nothing() -> None:
    made = VOLUME_REPORT.take(sample(VOLUMES[1]), rules(shape=(8, 8, 8)))
    members = {suffix: bytes(content) for suffix, content in made.members.items()}
    assert json.loads(members["json"])["tells_hu"] is False and judged(members) == []
    whole = VOLUME_REPORT.take(sample(VOLUMES[1]), rules())
    assert "tells_hu" not in json.loads(whole.members["json"])
    with pytest.raises(Reject, match="air alone"):
        VOLUME_REPORT.take(sample(VOLUMES[1][8:16, 16:24, 16:24]), rules())


def test_a_spacing_that_no_volume_can_have_is_told_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match=r"dataset\.volume\.spacing_mm: z is 0\.001 mm"):
        VOLUME_REPORT.check(rules(spacing_mm=(0.001, 1, 1)))


@pytest.mark.parametrize("encode", ["blosc2", "npy"])
def test_a_dataset_of_volumes_can_be_built_again_from_its_shards(tmp_path: Path, encode: str) -> None:
    (tmp_path / "raw").mkdir()
    phantoms(tmp_path / "raw", 3)
    first = build(
        phantom_config(
            tmp_path / "raw", tmp_path / "a", f"dataset.volume.encode={encode}", "dataset.splits={}"
        )
    )
    block = {"path": str(first.version / "train"), "kind": "shards"}
    config = shards.config(
        block["path"], "volume_report", output=str(tmp_path / "b"), volume={"encode": encode}, splits={}
    )
    again = build(config)
    assert (again.accepted, again.rejected) == (first.accepted, 0) and first.accepted == 4
    assert verify(again.version, "full").ok
    assert sorted(members_of(again.version)) == sorted(members_of(first.version))
    assert {name.partition(".")[2] for _, name, _ in members_of(again.version)} == {
        "volume.b2nd" if encode == "blosc2" else "volume.npy",
        "txt",
        "json",
    }


def test_a_shard_whose_volume_was_altered_is_not_taken(tmp_path: Path) -> None:
    made = VOLUME_REPORT.take(sample(VOLUMES[1]), rules())
    members = {suffix: bytes(content) for suffix, content in made.members.items()}
    other = VOLUME_REPORT.take(sample(VOLUMES[2]), rules()).members["volume.b2nd"]
    (tmp_path / "x.tar").write_bytes(
        shards.tar_bytes([("a.volume.b2nd", bytes(other)), ("a.txt", b"t"), ("a.json", members["json"])])
    )
    dataset = shards.config(tmp_path / "x.tar", "volume_report").dataset
    (source,) = open_sources(dataset)
    (item,) = [item for container in source.containers() for item in source.items(container)]
    assert item.members is not None
    with pytest.raises(Reject, match="differ from chunk_crc32c"):
        VOLUME_REPORT.take(item.members, dataset)
