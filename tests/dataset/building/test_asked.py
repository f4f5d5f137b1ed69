"""What a user may ask of a build: to accept a loss, to compare contents, to convert a shard again."""

import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, NeedsApproval
from tasks.core.lock import Lease
from tasks.core.schema import Config
from tasks.dataset.building import builder, fingerprint, listing
from tasks.dataset.building.builder import build
from tasks.dataset.building.forecast import forecast
from tasks.dataset.keys import key_of
from tasks.dataset.version import versions
from tests.dataset import raw
from tests.dataset.building.prepared import pictures, published

COUNT = 100


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return pictures(tmp_path, COUNT)


def keep_rows(folder: Path, count: int, first: int = 0) -> None:
    rows = [(f"{n:04d}.png", f"picture {n}", f"label {n % 3}") for n in range(first, first + count)]
    raw.write_table(folder, rows)


def test_a_great_loss_needs_approval(config: Config, tmp_path: Path) -> None:
    first = published(config)
    keep_rows(tmp_path / "raw", 94)
    with pytest.raises(
        DataError, match=rf"6 of the 100 samples of version {first.version.name} are gone.*--accept-loss"
    ):
        build(config)
    assert versions.current(tmp_path / "out") == first.version
    second = published(config, accept_loss=True)
    assert (second.lost, second.gained, second.accepted) == (6, 0, 94)
    keep_rows(tmp_path / "raw", 90)
    third = published(config)
    assert (third.lost, third.gained) == (4, 0)


def classes(folder: Path, *names: str) -> Config:
    """Images in folders by class."""
    for name in names:
        path = folder / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw.png(int(path.stem)))
    source = {"kind": "image_folder", "path": str(folder / "raw"), "captions": "folder"}
    return raw.config(folder / "raw", folder / "out", source=source)


def overwrite(folder: Path, numbers: range) -> None:
    """Other pictures under the same names, as a sync that goes wrong leaves them."""
    for number in numbers:
        (folder / f"{number:04d}.png").write_bytes(raw.png(9000 + number))


def test_overwritten_samples_need_approval_as_lost_ones_do(config: Config, tmp_path: Path) -> None:
    first = published(config)
    overwrite(tmp_path / "raw", range(5))
    second = published(config)
    assert (second.gained, second.lost, second.replaced) == (0, 0, 5)
    assert second.changed == "0 samples gained, 0 lost, 5 replaced"
    overwrite(tmp_path / "raw", range(5, 49))
    with pytest.raises(NeedsApproval) as asked:
        build(config)
    question, *lines = str(asked.value).splitlines()
    assert question.startswith(f"44 of the 100 samples of version {second.version.name} are overwritten ")
    assert "(44.0%)" in question and question.endswith("tarmac build CONFIG --accept-loss")
    assert len(lines) == 1 and lines[0].startswith("  44 overwritten, such as 00")
    names = [row["sample"] for row in asked.value.samples]
    assert len(names) == 20 and set(names) <= {f"{number:04d}.png" for number in range(5, 49)}
    assert versions.current(tmp_path / "out") == second.version != first.version
    assert published(config, accept_loss=True).replaced == 44


def test_lost_and_overwritten_samples_share_one_budget(config: Config, tmp_path: Path) -> None:
    published(config)
    overwrite(tmp_path / "raw", range(3))
    keep_rows(tmp_path / "raw", 97)
    with pytest.raises(NeedsApproval, match=r"3 of the 100 .* are gone and 3 are overwritten .*\(6.0%\)"):
        build(config)


def test_samples_that_the_users_own_rules_replace_are_counted_as_replaced_only(
    config: Config, tmp_path: Path
) -> None:
    published(config)
    scaled = published(raw.config(tmp_path / "raw", tmp_path / "out", image={"max_side": 8}))
    assert (scaled.gained, scaled.lost, scaled.replaced) == (0, 0, COUNT)
    block = {**config.dataset.source.model_dump(), "caption": "label"}  # type: ignore[union-attr]
    other = published(raw.config(tmp_path / "raw", tmp_path / "out", source=block))
    assert (other.gained, other.lost, other.replaced) == (0, 0, COUNT)


def test_an_overwriting_is_noticed_beside_a_change_of_the_rules(config: Config, tmp_path: Path) -> None:
    published(config)
    overwrite(tmp_path / "raw", range(10))
    with pytest.raises(NeedsApproval, match=r"10 of the 100 samples .* are overwritten"):
        build(raw.config(tmp_path / "raw", tmp_path / "out", image={"max_side": 8}))


def test_a_changed_key_is_named_beside_the_loss(config: Config, tmp_path: Path) -> None:
    published(config)
    block = {**config.dataset.source.model_dump(), "key": "caption"}  # type: ignore[union-attr]
    with pytest.raises(
        NeedsApproval,
        match=r"100 of the 100 .* now read by other rules, such as another key; .* Take that change back, or acc",
    ):
        build(raw.config(tmp_path / "raw", tmp_path / "out", source=block))


def test_a_new_plan_of_shards_replaces_nothing(config: Config, tmp_path: Path) -> None:
    published(config)
    again = published(raw.config(tmp_path / "raw", tmp_path / "out", shard={"samples": 30}))
    assert again.shards_rewritten and again.replaced == 0


def test_the_request_for_approval_shows_only_counts_of_private_data(config: Config, tmp_path: Path) -> None:
    private = raw.config(tmp_path / "raw", tmp_path / "out", private=True)
    published(private)
    keep_rows(tmp_path / "raw", 80)
    with pytest.raises(NeedsApproval) as asked:
        build(private)
    assert "20 of the 100 samples" in str(asked.value) and ".png" not in str(asked.value)
    assert not asked.value.samples


def test_the_request_for_approval_names_the_folders_that_lost_samples(tmp_path: Path) -> None:
    config = classes(tmp_path, *(f"{'owl' if number < 5 else 'crow'}/{number}.png" for number in range(20)))
    published(config)
    shutil.rmtree(tmp_path / "raw/owl")
    with pytest.raises(NeedsApproval, match=r"\n  5 gone under owl, such as owl/\d") as asked:
        build(config)
    assert asked.value.samples == [
        {"what": "gone", "folder": "owl", "in this folder": 5, "sample": f"owl/{n}.png"} for n in range(5)
    ]


def test_keys_of_an_earlier_tarmac_are_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys of Japanese and Russian paths began with __, and Hugging Face datasets skip such members."""
    config = classes(tmp_path, "カラス/1.png", "カラス/2.png", "кот/3.png", "owl/4.png")
    with monkeypatch.context() as earlier:
        earlier.setattr(listing, "key_of", lambda name: key_of(name) if name < "z" else f"__{key_of(name)}")
        for module in (fingerprint, builder):
            earlier.setattr(module, "CONVERTER", fingerprint.CONVERTER - 1)
        first = published(config)
    why = f"Tarmac converts samples differently from the one that built version {first.version.name}"
    assert why in str(forecast(config).why)
    second = published(config)
    assert why in caplog.text
    assert (second.gained, second.lost, second.replaced, second.rekeyed) == (0, 0, 0, 3)
    assert second.changed.endswith("0 lost, 0 replaced, 3 with new keys")
    assert second.shards_rewritten == second.shards and second.version != first.version
    table = pq.read_table(second.version / "samples/train.parquet")
    assert all(key[0].isalnum() for key in table.column("key").to_pylist())


def test_new_names_are_lost_and_gained(config: Config, tmp_path: Path) -> None:
    published(config)
    for number in range(COUNT, COUNT + 10):
        (tmp_path / "raw" / f"{number:04d}.png").write_bytes(raw.png(number))
    keep_rows(tmp_path / "raw", COUNT, first=10)
    with pytest.raises(DataError, match="10 of the 100 samples"):
        build(config)
    result = published(config, accept_loss=True)
    assert (result.gained, result.lost) == (10, 10)


def test_an_unknown_loss_needs_approval_too(config: Config, tmp_path: Path) -> None:
    first = published(config)
    keep_rows(tmp_path / "raw", 50)
    [table] = (first.version / "samples").glob("train*")
    os.truncate(table, 100)
    with pytest.raises(DataError, match="50 of the 100 samples"):
        build(config)  # the sidecars have the keys too
    os.truncate(first.version / "inputs.arrow", 100)
    with pytest.raises(
        DataError, match=r"keys of \d+ of the 100 samples.*cannot be read.*tarmac repair DATASET"
    ):
        build(config)
    assert build(config, accept_loss=True).accepted == 50


@pytest.mark.parametrize(
    "lost", [["manifest.json"], ["manifest.json", "samples"], ["manifest.json", "samples", "inputs.arrow"]]
)
def test_a_loss_needs_approval_also_when_the_version_has_lost_its_manifest(
    config: Config, tmp_path: Path, lost: list[str]
) -> None:
    first = published(config)
    keep_rows(tmp_path / "raw", 50)
    for name in lost:
        path = first.version / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=r"of the 100 samples.*--accept-loss"):
        build(config)
    assert os.readlink(tmp_path / "out" / "current") == f"versions/{first.version.name}"
    second = published(config, accept_loss=True)
    assert (second.previous, second.accepted) == (first.version.name, 50)


def test_a_version_of_which_nothing_is_left_is_replaced_only_with_approval(config: Config) -> None:
    first = published(config)
    for path in first.version.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=r"neither manifest nor tables.*--accept-loss"):
        build(config)
    assert published(config, accept_loss=True).accepted == COUNT


def test_rejects_count_as_loss(config: Config, tmp_path: Path) -> None:
    published(config)
    for number in range(8):
        (tmp_path / "raw" / f"{number:04d}.png").write_bytes(b"torn")
    with pytest.raises(DataError, match="8 of the 100 samples"):
        build(raw.config(tmp_path / "raw", tmp_path / "out", reject_budget=0.2))


def test_rehash_finds_what_size_and_time_hide(config: Config, tmp_path: Path) -> None:
    first = published(config)
    image = tmp_path / "raw" / "0042.png"
    before = image.stat()
    image.write_bytes(raw.png(4242).ljust(before.st_size, b"\0"))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert image.stat().st_size == before.st_size
    assert published(config).up_to_date
    second = published(config, rehash=True)
    assert second.shards_rewritten == 1 and second.version != first.version
    third = published(config)
    assert third.up_to_date and third.version == second.version


def test_rehash_of_an_unchanged_source_changes_nothing(config: Config) -> None:
    first = published(config)
    second = published(config, rehash=True)
    assert second.version == first.version and second.shards_rewritten == 0


def test_a_build_may_fail_instead_of_waiting(config: Config, tmp_path: Path) -> None:
    with Lease(tmp_path / "out" / "lease.json"), pytest.raises(DataError, match=f"process {os.getpid()}"):
        build(config, waits=False)
