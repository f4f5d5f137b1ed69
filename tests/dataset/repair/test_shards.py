"""Shards that are damaged, lost, renamed or swapped are made whole again, byte by byte, and nothing else is touched."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.lock import Lease
from tasks.core.schema import Config
from tasks.dataset.repair.run import repair
from tasks.dataset.version import versions
from tests.dataset import damage, raw
from tests.dataset.damage import Built
from tests.dataset.raw import chat, image_folder, nifti, npz, table
from tests.dataset.raw import shards as tars


def reinforced(folder: Path) -> Config:
    folder.mkdir(parents=True)
    for number in range(2):
        members = [
            member
            for row in range(3)
            for member in [
                *tars.pair(f"{3 * number + row:09d}", 3 * number + row),
                *(
                    (f"{3 * number + row:09d}.{suffix}", data)
                    for suffix, data in tars.reinforcement().items()
                ),
            ]
        ]
        (folder / f"{number:05d}.tar").write_bytes(tars.tar_bytes(members))
    return tars.config(folder / "*.tar", "reinforced", output=folder.parent / "out")


SOURCES: dict[str, Callable[[Path], Config]] = {
    "table": table.make,
    "table of bytes": table.make_of_bytes,
    "image folder": image_folder.make,
    "image folder with json": image_folder.make_of_json,
    "image folder of classes": image_folder.make_of_classes,
    "npz": npz.make,
    "nifti": nifti.make,
    "chat": chat.make,
    "chat with paths": chat.make_paths,
    "shards": tars.make,
    "reinforced": reinforced,
}
ONE_OF_EACH_KIND = ("table", "image folder", "nifti", "chat", "shards")


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """For tests that leave it as it was."""
    return damage.pictures(tmp_path_factory.mktemp("mended"))


@pytest.mark.parametrize(
    "source",
    [pytest.param(name, marks=[] if name in ONE_OF_EACH_KIND else pytest.mark.proof) for name in SOURCES],
)
def test_every_source_gives_the_same_bytes_again(source: str, tmp_path: Path) -> None:
    config = damage.small(SOURCES[source](tmp_path / "raw"))
    output = config.dataset.model_copy(update={"output": tmp_path / "out"})
    built = damage.publish(config.model_copy(update={"dataset": output}))
    assert len(built.tars) == 6
    damage.flip(built.tar(0))
    damage.cut(built.tar(1))
    built.tar(2).unlink()
    damage.swap(built.tar(3), built.tar(4))
    done = built.repair(level="full")
    assert done.ok and not done.failed
    ways = {one.file: one.way for one in done.shards}
    names = [tar.relative_to(built.version).as_posix() for tar in built.tars]
    assert ways == dict(zip(names, ["converted"] * 3 + ["renamed"] * 2, strict=False))
    built.check(built.tars[:5])


@pytest.mark.parametrize("name", damage.DAMAGES)
def test_whatever_lies_in_a_shards_place(mended: Built, name: str) -> None:
    damage.DAMAGES[name](mended.tar(3))
    assert mended.repair().ok
    mended.check([mended.tar(3)])


def test_only_samples_that_are_damaged_need_their_source(built: Built, tmp_path: Path) -> None:
    damage.flip(built.tar(0), 600)
    (lost,) = {one.where["key"] for one in built_findings(built) if "key" in one.where}
    for path in (tmp_path / "raw").glob("*.png"):
        if path.stem != lost:
            path.unlink()
    done = built.repair()
    assert done.ok and "1 of" in done.shards[0].how
    built.check([built.tar(0)])


def built_findings(built: Built) -> list[object]:
    from tasks.dataset.verify.verifier import verify

    return list(verify(built.version).findings)


@pytest.mark.parametrize("how", [damage.without_end, damage.lengthen])
def test_a_shard_whose_samples_are_sound_needs_no_source(
    built: Built, tmp_path: Path, how: damage.Damage
) -> None:
    how(built.tar(1))
    shutil.rmtree(tmp_path / "raw")
    done = built.repair()
    assert done.ok and done.shards[0].way == "joined"
    built.check([built.tar(1)])


def test_a_renamed_shard_gets_its_name_back(built: Built, tmp_path: Path) -> None:
    inode = built.tar(2).stat().st_ino
    built.tar(2).rename(built.tar(2).with_name("000099.tar"))
    shutil.rmtree(tmp_path / "raw")
    assert built.repair(level="quick").shards[0].how == "renamed back from train/000099.tar"
    assert built.tar(2).stat().st_ino == inode
    built.check([built.tar(2)])


def test_swapped_shards_are_exchanged(built: Built, tmp_path: Path) -> None:
    one, two, three = built.tars[:3]
    damage.swap(one, two)
    damage.swap(two, three)
    inodes = {path.stat().st_ino for path in (one, two, three)}
    shutil.rmtree(tmp_path / "raw")
    assert [done.way for done in built.repair().shards] == ["renamed"] * 3
    assert {path.stat().st_ino for path in (one, two, three)} == inodes
    built.check([one, two, three])


def test_a_copied_shard_is_converted_and_its_origin_left_alone(built: Built) -> None:
    shutil.copy(built.tar(0), built.tar(1))
    assert built.repair().ok
    built.check([built.tar(1)])


def test_a_second_name_of_a_shard_is_no_extra(built: Built) -> None:
    """As a repair leaves it that was killed after it had given a shard its name back."""
    second = built.tar(0).with_name("000099.tar")
    os.link(built.tar(0), second)
    done = built.repair()
    assert done.ok and not done.moved and not second.exists()
    built.check()


def test_what_is_extra_is_moved_and_never_deleted(built: Built) -> None:
    extra = built.tar(0).with_name("000099.tar")
    shutil.copy(built.tar(0), extra)
    (built.version / "notes.tar").write_bytes(b"mine")
    done = built.repair()
    assert done.ok and not extra.exists()
    assert done.moved["train/000099.tar"].read_bytes() == built.tar(0).read_bytes()
    assert (built.dataset / "repair/extra" / built.version.name / "notes.tar").read_bytes() == b"mine"
    built.check(left=("current", "repair", "versions"))
    extra.write_bytes(b"another")
    assert built.repair().moved["train/000099.tar"].read_bytes() == b"another"


def shared_with(built: Built, other: Path) -> Path:
    """A tar that the other version has too, as most of them."""
    return next(tar for tar in built.tars if (other / tar.relative_to(built.version)).samefile(tar))


def test_a_sound_copy_in_another_version_is_linked(built: Built, tmp_path: Path) -> None:
    other = built.another()
    shared = shared_with(built, other)
    copy = shared.with_name("copy")
    shutil.copy(shared, copy)
    copy.rename(shared)  # another file from now on
    damage.flip(shared)
    shutil.rmtree(tmp_path / "raw")
    done = repair(built.version)
    assert [one.how for one in done.shards] == [f"linked from version {other.name}"]
    assert shared.samefile(other / shared.relative_to(built.version))
    built.check([shared])


def test_damage_that_versions_share_is_mended_in_all(built: Built) -> None:
    other = built.another()
    shared = shared_with(built, other)
    damage.flip(shared)
    gone = other / shared.relative_to(built.version)
    assert repair(built.version).ok
    assert gone.samefile(shared)
    built.check([shared])
    gone.unlink()
    assert repair(other).shards[0].how == f"linked from version {built.version.name}"
    damage.cut(shared)
    gone.unlink()
    assert repair(other).ok and gone.samefile(shared), "the other's name is mended too"
    built.check([shared])


@pytest.mark.proof
def test_any_mixture_of_damage(built: Built) -> None:
    rng = random.Random(11)
    tables = [path for path in built.version.rglob("*") if path.is_file() and path.suffix != ".tar"]
    tables = [path for path in tables if path.name != "build.json"]
    for _ in range(6):
        hit = rng.sample(built.tars, 6)
        damage.swap(*hit[:2])
        for path, how in zip(hit[2:], rng.sample(sorted(damage.DAMAGES), 4), strict=True):
            damage.DAMAGES[how](path)
        for path in rng.sample(tables, 3):
            damage.DAMAGES[rng.choice(["flipped", "cut", "gone", "emptied"])](path)
        done = built.repair()
        assert done.ok, (hit, done)
        left = ("current", "repair", "versions") if (built.dataset / "repair").exists() else None
        built.check(built.tars, left or ("current", "versions"))


def test_a_version_that_lies_alone(built: Built, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(built.version, alone)
    damage.flip(alone / "train/000001.tar")
    (alone / "index/train.npy").unlink()
    (alone / "manifest.json").write_text("{")
    done = repair(alone)
    assert done.ok and raw.contents(alone, without=("build.json",)) == built.whole
    assert not (tmp_path / "alone.repair").exists()
    built.check()


def test_sound_is_sound(built: Built) -> None:
    done = built.repair()
    assert done.ok and not (done.shards or done.tables or done.moved or done.failed)
    built.check()


def test_two_do_not_work_on_one_dataset(built: Built) -> None:
    damage.flip(built.tar(0))
    with Lease(built.dataset / "lease.json"), pytest.raises(DataError, match=f"process {os.getpid()}"):
        built.repair()


def test_tars_of_others_are_no_version(tmp_path: Path) -> None:
    (tmp_path / "00000.tar").write_bytes(tars.tar_bytes(tars.pairs(0, 3)))
    with pytest.raises(UsageError, match="kind: shards"):
        repair(tmp_path)
    with pytest.raises(UsageError, match="nowhere is not there"):
        repair(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="remote"):
        repair("s3://bucket/data")


def test_a_dataset_without_a_current_version_names_those_it_has(built: Built) -> None:
    (built.dataset / "current").unlink()
    with pytest.raises(UsageError, match=built.version.name):
        built.repair()
    assert versions.current(built.dataset) is None
