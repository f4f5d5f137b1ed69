"""The numbers of a version: counted whole, drawn from a bounded share, without tails that squeeze the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.dataset.preview.numbers import Distribution, histogram, merged, read_distributions, shard_charts
from tasks.dataset.quality import examine
from tasks.dataset.version.tables import ShardRecord
from tests.dataset.handmade import write_version
from tests.dataset.preview.pages import page, pairs, words


def test_whole_numbers_are_counted_exactly_and_tails_are_left_out() -> None:
    values = np.random.default_rng(0).integers(200, 260, 10_000).astype(float)
    counted = Distribution()
    for part in np.array_split(np.append(values, [20_000, np.nan]), 7):
        counted.add(part)
    assert (counted.total, counted.missing, counted.highest) == (10_001, 1, 20_000)
    assert counted.quantile(0.5) == np.quantile(values, 0.5, method="inverted_cdf")
    drawn = histogram("Width", "pixels", counted)
    assert drawn is not None and sum(drawn.bars.heights) == 10_000
    assert drawn.bars.edges[0] >= 190 and drawn.bars.edges[-1] <= 270
    assert drawn.bars.note == "Not drawn: 1 above (to 20,000)."


@pytest.mark.parametrize(
    "values", [[1.0, 1.0 + 1e-12], [-1e300, 1e300], [5.0] * 999 + [9e9], [1e-9, 2e-9], [0.0, 1.0]]
)
def test_any_two_numbers_make_a_histogram(values: list[float]) -> None:
    drawn = histogram("Number", "units", Distribution(values=np.array(values)))
    assert drawn is not None and drawn.columns


def test_of_many_values_an_even_share_is_kept() -> None:
    values = np.arange(10_000.0)
    parts = [Distribution(10), Distribution(10)]
    for part, some in zip(parts, np.split(values, [3333]), strict=True):
        for piece in np.array_split(some, 5):
            part.add(piece)
    whole = merged(parts)
    assert len(whole.values) == 1001 and whole.total == 10_000
    assert (whole.lowest, whole.highest) == (0, 9999)
    assert abs(whole.quantile(0.5) - 5000) < 20
    drawn = histogram("Number", "units", whole)
    assert drawn is not None and "Bars are of one sample in 10" in drawn.bars.note
    whole.add(np.array([1e6] * 10))
    drawn = histogram("Number", "units", whole)
    assert drawn is not None and "Not drawn: 50 above" in drawn.bars.note


def test_a_chat_without_images_has_no_sides(tmp_path: Path) -> None:
    samples = [(key, {"json": b"{}"}) for key in "abc"]
    sides = {"images": [0, 1, 0], "width": [0, 90, 0], "height": [0, 60, 0], "custom_score": [0.5, 0.25, 1]}
    version = write_version(tmp_path / "version", "chat", {"train": samples}, sides)
    columns = {column.name: column for column in read_distributions(version, ["train"], "chat")}
    width, images = columns["width"].splits["train"], columns["images"].splits["train"]
    assert (width.lowest, width.total, width.missing) == (90, 1, 2)
    assert (images.lowest, images.total) == (0, 3)
    assert list(columns) == ["width", "height", "images", "custom_score"]
    assert columns["custom_score"].title == "custom score"
    figures = columns["custom_score"].splits["train"].figures
    assert figures == ["0.2500", "0.2500", "0.5000", "1.000", "1.000"]


def test_tokens_are_counted_on_some_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "CAPTIONS", 20)
    version = write_version(tmp_path / "version", "image_text", {"train": pairs(40, "long " * 20)})
    (version / "train" / "000002.tar").unlink()
    text = words(page(version, count_tokens=len)).replace("\u202f", " ")
    assert "CLIP's tokenizer on 16 captions. 100.0 % are longer than the 77 that CLIP reads" in text


@pytest.mark.parametrize("count", [3, 200])
def test_shards_have_a_bar_each_until_they_are_many(count: int) -> None:
    names = [f"{'train' if n < count - 1 else 'val'}/{n:06d}.tar" for n in range(count)]
    shards = [
        ShardRecord(name, name.partition("/")[0], "", 10**6 + n, 16 + n % 2, "")
        for n, name in enumerate(names)
    ]
    samples, sizes = shard_charts(shards)
    assert len(sizes.bars.heights) == (3 if count == 3 else len(sizes.bars.edges) - 1)
    assert samples.bars.title == "Samples per shard" and sizes.bars.title == "Size of a shard"
    assert ("val", count - 1.5) in sizes.bars.lines or count > 3
