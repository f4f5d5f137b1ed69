"""A version's dataset card, by which Hugging Face `datasets` loads the version's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tasks.core.files import digest, write_json
from tasks.core.schema import Config
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.repair.run import repair
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tasks.dataset.version.build_info import seal_files
from tasks.dataset.version.card import card
from tasks.dataset.version.layout import BUILD, CARD, INPUTS
from tasks.dataset.version.manifest import Manifest, SourceSummary, SplitSummary
from tasks.dataset.version.tables import ArrowBatches, BatchWriter
from tests.dataset import handmade, raw
from tests.dataset.raw import chat
from tests.models.examples import SAMPLES

NAMES = ("カラス/IMG 0001.jpg", "кошки/кот.png", "صور/قط.png", "owl/.hidden.png", "__a/b.png", "owl/1.webp")


def published(config: Config) -> Path:
    version = build(config).version
    versions.publish(config.dataset.output, version, config.dataset.keep)
    return version


def pictures(folder: Path, **dataset: Any) -> Config:
    """Names of many alphabets, three formats, and rows that have a field or not."""
    folder.mkdir()
    rows = []
    for number, name in enumerate(NAMES):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw.png(number, kind={".jpg": "JPEG", ".webp": "WEBP"}.get(path.suffix, "PNG")))
        fields = {"file": name, "caption": f"picture {number}"}
        rows.append(json.dumps(fields | ({"label": "owl"} if number == 5 else {})))
    (folder / "captions.jsonl").write_text("\n".join(rows))
    source = {"kind": "table", "path": str(folder / "captions.jsonl"), "image": "file", "caption": "caption"}
    return raw.config(folder, folder.parent / "out", source=source, splits={"val": 0.3}, **dataset)


def conversations(folder: Path) -> Config:
    """Of no image, one or two."""
    rows = [
        chat.row(
            number,
            images=[{"bytes": raw.png(number + one)} for one in range(number % 3)],
            set="held-out" if number > 5 else "train",
        )
        for number in range(9)
    ]
    chat.write_parquet(folder / "a.parquet", rows)
    return chat.config(folder / "a.parquet", folder.parent / "out", splits={"from": "set"})


def scans(folder: Path) -> Config:
    raw.volumes(folder, 6)
    return raw.volume_config(folder, folder.parent / "out")


@pytest.mark.parametrize("make", [pictures, conversations, scans])
def test_datasets_load_every_sample_of_a_version(make: Callable[[Path], Config], tmp_path: Path) -> None:
    from datasets import load_dataset

    config = make(tmp_path / "raw")
    version = published(config)
    loaded = load_dataset(str(config.dataset.output / "current"), cache_dir=str(tmp_path / "cache"))
    manifest = versions.read_manifest(version)
    assert {name.replace("_", "-"): split.num_rows for name, split in loaded.items()} == {
        name: split.samples for name, split in manifest.splits.items()
    }
    if make is pictures:
        captions = sorted(row["txt"] for split in loaded.values() for row in split)
        assert captions == [f"picture {number}" for number in range(len(NAMES))]


def test_datasets_load_reinforced_samples(tmp_path: Path) -> None:
    from datasets import load_dataset

    samples = [(f"k{number}", members) for number, members in enumerate(SAMPLES["clip_reinforced"])]
    version = handmade.write_version(tmp_path / "v", "reinforced", {"train": samples})
    (version / CARD).write_text(card(versions.read_manifest(version), samples[0][1].keys(), None))
    loaded = load_dataset(str(version), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == len(samples) and len(loaded[0]["npz"]["text_emb"]) == 3


def test_the_card_counts_explains_and_names_the_licence(tmp_path: Path) -> None:
    config = pictures(tmp_path / "raw", license="cc-by-4.0", reject_budget=0.5)
    (tmp_path / "raw/owl/1.webp").write_bytes(b"torn")
    version = published(config)
    text = (version / CARD).read_text()
    assert 'license: "cc-by-4.0"' in text and "| image.not_an_image | 1 |" in text
    assert "Of 6 raw samples, 5 were accepted" in text
    assert "| `jpg`, `png` | the image |" in text and "`webp`" not in text
    assert not any(word in text for word in ("picture", "owl", str(tmp_path)))
    other = config.dataset.model_copy(update={"license": "mit"})
    relicensed = config.model_copy(update={"dataset": other})
    assert is_up_to_date(relicensed) is None
    assert published(relicensed) == version and 'license: "mit"' in (version / CARD).read_text()
    assert is_up_to_date(relicensed) == version


def test_splits_that_differ_in_a_dash_alone_both_stand_in_the_card() -> None:
    split = SplitSummary(shards=1, samples=1, bytes=2048)
    manifest = Manifest(
        format="tarmac/1",
        name="pictures",
        modality="image_text",
        digest="a" * 64,
        splits={"held-out": split, "held_out": split},
        read=2,
        accepted=2,
        filtered=0,
        rejects={},
        source=SourceSummary(kind="table", digest=""),
        config_digest="",
    )
    text = card(manifest, ["png", "txt"], None)
    assert all(f'    path: "{name}/*.tar"' in text for name in manifest.splits)


def test_the_card_is_sealed_and_mended_as_every_other_file(tmp_path: Path) -> None:
    version = published(pictures(tmp_path / "raw"))
    before = (version / CARD).read_bytes()
    (version / CARD).write_bytes(b"other words")
    (found,) = verify(version).findings
    assert CARD in json.dumps(found.where) + json.dumps(found.evidence)
    assert repair(version).ok
    assert (version / CARD).read_bytes() == before and verify(version).ok


def test_a_version_of_an_earlier_tarmac_has_no_card_and_is_sound(tmp_path: Path) -> None:
    version = published(pictures(tmp_path / "raw"))
    (version / CARD).unlink()
    batches = ArrowBatches(version / INPUTS)
    tables = [batches[number].drop_columns("members") for number in range(len(batches))]
    with BatchWriter(version / INPUTS, tables[0].schema) as inputs:
        for table in tables:
            inputs.write(table)
    info = json.loads((version / BUILD).read_text())
    for later in ("changes", "passed_over", "digest"):
        del info[later]
    info["files"] = {name: asdict(seal) for name, seal in seal_files(version).items()}
    write_json(version / BUILD, info | {"digest": digest(info)})
    assert verify(version, "full").ok
    (version / "train/sizes.json").write_text("{}")
    assert repair(version).ok and verify(version).ok and not (version / CARD).exists()
