"""docs/scale.md and its curves are what the kept figures give, and its estimates are their formulas."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tests.benchmarks import scale_page
from tests.benchmarks.bench_scale import MOST
from tests.benchmarks.results import KEPT, at, read

SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_shows_the_kept_figures() -> None:
    """`python -m tests.benchmarks.scale_page` writes it again."""
    written = scale_page.PAGE.read_text(encoding="utf-8")
    assert written == scale_page.page(written)


@pytest.mark.parametrize("name", scale_page.DRAWINGS)
def test_a_curve_is_as_drawn_and_stays_within_its_frame(name: str) -> None:
    picture = (scale_page.PICTURES / name).read_text(encoding="utf-8")
    assert picture == scale_page.DRAWINGS[name](), "draw it again: python -m tests.benchmarks.scale_page"
    root = ET.fromstring(picture)
    assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")
    for label in root.iter(f"{SVG}text"):
        assert float(label.get("x", "0")) + 7 * len(label.text or "") <= scale_page.WIDTH, label.text
    marks = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in root.iter(f"{SVG}circle")]
    assert len(marks) == sum(MOST[operation] - 2 for operation in scale_page.DRAWN)
    assert all(
        scale_page.LEFT <= x <= scale_page.RIGHT and scale_page.TOP <= y <= scale_page.BOTTOM
        for x, y in marks
    )


def test_every_operation_was_measured_up_to_its_largest_number_three_times() -> None:
    cases = read(KEPT, "scale")
    assert {name: len(case["rows"]) + 2 for name, case in cases.items()} == MOST
    assert {case["rounds"] for case in cases.values()} == {3}


def test_an_estimate_is_its_formula_over_kept_constants() -> None:
    found = {one.what: one for one in scale_page.estimates()}
    disk = found["shards on the disk"]
    assert disk.much == f"{2e9 * at('room/256 x 256/a sample/tar_bytes') / 1e12:.0f} TB"
    row = at("scale/plan/1,000,000/seconds") - at("scale/plan/100,000/seconds")
    assert found["listing the source, one process"].much == f"{row / 9e5 * 2e9 / 3600:.1f} h"
    decoded = float(found["building, each picture decoded"].much.split()[0].replace(",", ""))
    loading = float(found["loading an epoch for a ViT-B-32"].much.split()[0].replace(",", ""))
    paid = float(found["money: a build and an epoch's loading"].much.split()[0].replace(",", ""))
    assert abs(decoded + loading - paid) <= 1


def test_each_source_names_a_benchmark_with_kept_figures() -> None:
    named = {re.split(r"[:,]", one.source)[0] for one in scale_page.estimates()} - {
        "its format; room",
        "its format",
        "above",
    }
    assert named and all(read(KEPT, name) for name in named)
