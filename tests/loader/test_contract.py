"""What both readers promise of every modality, of shards on a disk and on a web server; recipes and trainings
build on it."""

from __future__ import annotations

import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from tasks.core.errors import DataError
from tasks.core.remote import clients
from tasks.dataset.formats.volumes import stored
from tasks.dataset.indexing import index_tars
from tasks.loader.feed import Feed, FeedState, Packing
from tasks.loader.packing.packs import Lengths, PackLimits
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, members_of
from tests.loader.feeds import feed_of
from tests.loader.shard_server import serving

SHARDS = [12, 4, 16, 8, 8]
COUNT = sum(SHARDS)
ALL = [f"k{number:06d}" for number in range(COUNT)]
READERS = ["indexed", "streaming"]
ON_THE_WEB = pytest.mark.parametrize("place", ["disk", "web"], indirect=True)
ON_THE_WEB_IN_SOAK = pytest.mark.parametrize(
    "place", ["disk", pytest.param("web", marks=pytest.mark.proof)], indirect=True
)
Members = dict[int, dict[str, bytes]]


@dataclass(frozen=True)
class Placed:
    """A version, and the folder in which its tars lie."""

    version: Path
    tars: Path


Place = Callable[[Members], Placed]


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number,) * 3).save(file, "JPEG")
    return file.getvalue()


def reinforced(number: int) -> dict[str, bytes]:
    rows = io.BytesIO()
    np.savez(rows, image=np.full((2, 4), number, np.float16))
    return {
        "jpg": jpeg(number),
        "npz": rows.getvalue(),
        "paug.json": json.dumps({"param_aug": [[0, 0, 8, 8]]}).encode(),
        "syn.json": json.dumps({"syn_text": [f"caption {number}"]}).encode(),
        "txt": f"caption {number}".encode(),
    }


def volume_report(number: int) -> dict[str, bytes]:
    voxels = np.full((4, 6, 5), number, np.int16)
    name, content = stored.encode(voxels, "blosc2" if number % 2 else "npy")
    facts = {"chunk_crc32c": stored.checksums(stored.open_volume(name, content))}
    return {name: bytes(content), "json": json.dumps(facts).encode(), "txt": b"clear"}


def chat(number: int) -> dict[str, bytes]:
    turns = {"messages": [{"user": "<image> Which?", "assistant": str(number)}]}
    return {"000.jpg": jpeg(number), "001.jpg": jpeg(number), "json": json.dumps(turns).encode()}


MODALITIES = {
    "image_text": members_of,
    "reinforced": reinforced,
    "volume_report": volume_report,
    "chat": chat,
}


def samples_of(modality: str) -> Members:
    return {number: MODALITIES[modality](number) for number in range(COUNT)}


@pytest.fixture
def place(
    request: pytest.FixtureRequest, make_version: MakeVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """Puts samples into shards, on the disk unless a test says where; those of the web are in no cache yet."""

    def on_disk(samples: Members) -> Placed:
        version = make_version(train=SHARDS, change=samples)
        return Placed(version, version / "train")

    if getattr(request, "param", "disk") == "disk":
        yield on_disk
        return
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)
    monkeypatch.setenv("TARMAC_CACHE", str(tmp_path / "cache"))
    with serving(tmp_path / "version/train") as server:

        def on_the_web(samples: Members) -> Placed:
            tars = on_disk(samples).tars
            version = index_tars({"train": f"{server.address}/{{000000..000004}}.tar"}, tmp_path / "data")
            for copy in (tmp_path / "cache").glob("*.tar"):
                copy.unlink()
            return Placed(version, tars)

        yield on_the_web


@pytest.fixture(params=MODALITIES)
def modality(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def placed(modality: str, place: Place) -> Placed:
    return place(samples_of(modality))


def feed(version: Path, reader: str, **options: Any) -> Feed:
    given = {"batch_size": 12, "seed": 5, "reader": reader, **options}
    return feed_of(version, transforms.whole, **given)


def keys(feed: Feed, steps: int, start: int = 0) -> list[list[str]]:
    with feed.train(feed.state(start)) as batches:
        return [next(batches)["key"] for _ in range(steps)]


@ON_THE_WEB_IN_SOAK
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("reader", READERS)
def test_every_sample_comes_once_an_epoch_and_ranks_are_even(
    placed: Placed, reader: str, world_size: int
) -> None:
    of = feed(placed.version, reader)
    ranks = [keys(dataclasses.replace(of, rank=rank, world_size=world_size), 8) for rank in range(world_size)]
    assert {len(batch) for rank in ranks for batch in rank} == {12 // world_size}
    epochs = [
        Counter(key for rank in ranks for batch in rank[first : first + 4] for key in batch)
        for first in (0, 4)
    ]
    assert epochs[0] == epochs[1] == dict.fromkeys(ALL, 1)
    assert ranks[0][:4] != ranks[0][4:]


@ON_THE_WEB_IN_SOAK
@pytest.mark.parametrize("reader", READERS)
def test_it_goes_on_anywhere_with_what_would_have_come(placed: Placed, reader: str) -> None:
    whole = keys(feed(placed.version, reader), 9)
    for start in (1, 2, 7):
        assert keys(feed(placed.version, reader), 2, start) == whole[start : start + 2]


@ON_THE_WEB
@pytest.mark.parametrize("begun", [2, *(pytest.param(ranks, marks=pytest.mark.proof) for ranks in (1, 3, 4))])
@pytest.mark.parametrize("reader", READERS)
def test_it_goes_on_with_other_ranks_in_the_middle_of_an_epoch(
    placed: Placed, reader: str, begun: int
) -> None:
    of = feed(placed.version, reader)
    whole = steps_of(of, begun, 8)
    assert sorted(key for step in whole[:4] for key in step) == ALL
    for ranks in (1, 3, 4):
        assert steps_of(of, ranks, 2, start=3, begun=begun) == whole[3:5]


def steps_of(of: Feed, ranks: int, steps: int, start: int = 0, begun: int | None = None) -> list[list[str]]:
    """The global batches of a training that goes on with `ranks` and began with as many as given."""
    place = dataclasses.replace(of, world_size=begun or ranks).state(start)
    found: list[list[str]] = [[] for _ in range(steps)]
    for rank in range(ranks):
        with dataclasses.replace(of, rank=rank, world_size=ranks).train(place) as batches:
            for step in found:
                step += next(batches)["key"]
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize("reader", READERS)
def test_ranks_and_workers_change_in_the_middle_of_an_epoch(make_version: MakeVersion, reader: str) -> None:
    """From 2 workers of 1 rank to 3 of 2, and back, by the places that checkpoints hold."""
    of = feed(make_version(train=SHARDS), reader)
    whole = keys(of, 8)
    alone = dataclasses.replace(of, workers=2)
    read = keys(alone, 2)
    first = FeedState.of(alone.state(2).to_json())
    pair = [dataclasses.replace(of, workers=3, rank=rank, world_size=2) for rank in (0, 1)]
    ranks = []
    for one in pair:
        with one.train(first) as batches:
            ranks.append([next(batches)["key"] for _ in range(3)])
    read += [[*mine, *others] for mine, others in zip(*ranks, strict=True)]
    second = FeedState.of(pair[0].state(5, first).to_json())
    with alone.train(second) as batches:
        read += [next(batches)["key"] for _ in range(3)]
    assert read == whole


@ON_THE_WEB
def test_packs_go_on_with_other_ranks(place: Place) -> None:
    placed = place(samples_of("chat"))
    lengths = Lengths(*np.random.default_rng(0).integers(1, [[60], [3]], (2, COUNT)).astype(np.int32))
    of = dataclasses.replace(feed(placed.version, "indexed"), packed=Packing(PackLimits(100, 4), (lengths,)))
    whole = steps_of(of, 3, 4)
    assert min(map(len, whole)) > 12, "rows hold several"
    for ranks in (1, 2, 4):
        assert steps_of(of, ranks, 2, start=1) == whole[1:3]


@ON_THE_WEB_IN_SOAK
@pytest.mark.parametrize("reader", READERS)
def test_a_member_that_does_not_decode_is_named(place: Place, modality: str, reader: str) -> None:
    samples = samples_of(modality)
    torn = {"png", "jpg", "000.jpg", "volume.npy", "volume.b2nd"} & samples[13].keys()
    samples[13] |= dict.fromkeys(torn, b"<html>")
    with pytest.raises(DataError, match=r"/000001\.tar.*key 'k000013'.*cannot be decoded"):
        keys(feed(place(samples).version, reader), 4)


@ON_THE_WEB_IN_SOAK
@pytest.mark.parametrize("reader", READERS)
def test_a_shard_that_is_gone_is_named_and_no_epoch_is_short(placed: Placed, reader: str) -> None:
    (placed.tars / "000002.tar").unlink()
    with pytest.raises(DataError, match=r"/000002\.tar"):
        keys(feed(placed.version, reader), 4)


@ON_THE_WEB_IN_SOAK
@pytest.mark.parametrize("reader", READERS)
def test_a_shard_that_lost_samples_is_named_and_no_epoch_is_short(placed: Placed, reader: str) -> None:
    """It ends as a tar should, so a plain reader would take it for whole."""
    path = placed.tars / "000002.tar"
    content = path.read_bytes()
    cut = content.index(b"k000030.")
    path.write_bytes(content[:cut] + bytes(10240))
    with pytest.raises(DataError, match=r"/000002\.tar"):
        keys(feed(placed.version, reader), 4)


def changed_bytes() -> float:
    """Of this process and its children, without pages of files, which others on the machine may share."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(area.private_dirty for one in family for area in one.memory_maps())


@pytest.mark.proof
@pytest.mark.parametrize("reader", READERS)
def test_memory_is_flat_over_epochs(make_version: MakeVersion, reader: str) -> None:
    of = feed(make_version(train=SHARDS), reader, workers=2)
    taken = []
    with of.train() as batches:
        for _ in range(20):
            for _ in range(50 * COUNT // of.batch_size):
                next(batches)
            taken.append(changed_bytes())
    assert max(taken[5:]) < 1.03 * max(taken[:5])
