"""Whatever verify can find in a version that was built, repair mends, alone or with others."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.dataset.repair.run import repair
from tasks.dataset.verify.verifier import verify
from tests.dataset import raw
from tests.dataset.verify import faults_of_shards as faults
from tests.dataset.verify.faults_of_shards import Fault
from tests.dataset.verify.injectors import Place

FORGERIES = ("a shard with another number of samples",)
"""All tables were written anew, so nothing shows the damage."""
FAULTS = [
    fault
    for fault in [*faults.PICTURES, *faults.VOLUMES, *faults.CHATS]
    if "built" in fault.worlds and fault.name not in FORGERIES
]
PLACES = {"pictures": Place()}
SMALL = Place("train/000000.tar", "train/000001.tar", "val/000000.tar", 1)
EVERY = 4
"""Only every fourth fault is tried, to save time."""


class World:
    """A version of each kind, and its config."""

    def __init__(self, root: Path) -> None:
        self.root = root
        built = faults.build_each(root)
        self.configs = {name: config for name, (config, _) in built.items()}
        self.names = {name: version for name, (_, version) in built.items()}
        self.whole = {name: raw.contents(root / name, without=("build.json",)) for name in built}

    def damaged(self, data: str, some: list[Fault], folder: Path) -> tuple[Path, dict[Path, int]]:
        """A copy with these faults in a dataset of its own, and the tars in it that are still sound."""
        version = Path(shutil.copytree(self.root / data, folder / self.names[data]))
        before = {tar: (tar.stat().st_ino, tar.read_bytes()) for tar in version.glob("*/*.tar")}
        for fault in some:
            fault.inject(version, PLACES.get(data, SMALL))
        sound = {}
        for tar, (inode, content) in before.items():
            if tar.is_file() and tar.stat().st_ino == inode and tar.read_bytes() == content:
                sound[tar] = inode
        return version, sound


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Iterator[Path]:
    versions = tmp_path / "versions"
    versions.mkdir()
    (versions / "another").symlink_to(world.root / "another")
    yield versions
    shutil.rmtree(tmp_path)


def require_whole(world: World, data: str, version: Path, sound: dict[Path, int]) -> None:
    assert raw.contents(version, without=("build.json",)) == world.whole[data]
    assert verify(version, "full").ok
    assert {tar: tar.stat().st_ino for tar in sound} == sound


@pytest.mark.parametrize("fault", FAULTS[::EVERY], ids=str)
def test_every_fault_is_mended(fault: Fault, world: World, folder: Path) -> None:
    version, sound = world.damaged(fault.data, [fault], folder)
    done = repair(version, config=world.configs[fault.data])
    assert done.ok, done
    require_whole(world, fault.data, version, sound)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 8))]
)
def test_faults_together_are_mended(seed: int, world: World, folder: Path) -> None:
    rng = random.Random(seed)
    # Whatever would damage a pipe further waits for its other end.
    files = [fault for fault in FAULTS if fault.data == "pictures" and "pipe" not in fault.name]
    some: list[Fault] = []
    while len(some) < 3:
        some.append(rng.choice(files))
        try:
            version, sound = world.damaged("pictures", some, folder)
        except Exception:  # noqa: BLE001 - one damage may leave nothing for another to be put into
            some.pop()
        shutil.rmtree(folder / world.names["pictures"])
    version, sound = world.damaged("pictures", some, folder)
    done = repair(version, config=world.configs["pictures"])
    assert done.ok, (list(map(str, some)), done)
    require_whole(world, "pictures", version, sound)
