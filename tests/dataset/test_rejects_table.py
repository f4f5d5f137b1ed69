"""What is shown of many rejects: the largest cause, what nearly all share, and for private data only the counts."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

from tasks.dataset.version.rejects import (
    COMPARED,
    LEAST,
    MEANINGS,
    Reason,
    RejectRow,
    causes_of,
    printable,
    read_groups,
    reject_lines,
    traits_of,
)
from tests.dataset.handmade import write_version

Row = tuple[str, str, str, str]
"""As `write_version` takes rejects: reason, key, detail, source."""


def rows(keys: list[str], detail: str = "no image", source: str = "") -> list[RejectRow]:
    return [RejectRow(key, detail, source) for key in keys]


def version_of(folder: Path, rejects: list[Row]) -> Path:
    sample = [("accepted", {"txt": b"a text"})]
    return write_version(folder / "version", "image_text", {"train": sample}, rejects=rejects)


def test_every_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(get_args(Reason))


def test_the_line_of_a_reason_shows_its_largest_cause(tmp_path: Path) -> None:
    rejects = [("report.missing", f"p{n}_a", f"the report is too short: {n} bytes", "") for n in range(12)]
    rejects += [("report.missing", f"q{n}_b", "no row in reports.csv", f"q{n}.npz") for n in range(400)]
    rejects += [("volume.spacing", f"r{n}", f"z is {n / 10} mm", f"r{n}.npz") for n in range(3)]
    version = version_of(tmp_path, rejects)
    lines = reject_lines(version, {"report.missing": 412, "volume.spacing": 3}, is_private=False)
    assert lines == [
        "    412 report.missing         q0.npz: no row in reports.csv   ← 400 of 412 alike; 400 of 412 under q*",
        "      3 volume.spacing         r0.npz: z is 0.0 mm",
    ]


def test_details_that_differ_in_names_and_figures_are_one_cause() -> None:
    details = [
        [f"z is {n}.5 mm, not between 0.01 and 50" for n in range(9)],
        [f"no partner of 'scan {n}' in part-{n}.tar" for n in range(7)],
        ["it is HTML"] * 4,
    ]
    mixed = [RejectRow(f"{n}", detail, "") for n, detail in enumerate(chain(*details))]
    random.Random(0).shuffle(mixed)
    causes = causes_of(mixed)
    assert [cause.count for cause in causes] == [9, 7, 4]
    assert causes[0].detail.startswith("z is ") and len(causes[0].examples) == 5


def test_rejects_of_private_data_are_counts_alone(tmp_path: Path) -> None:
    rejects = [("volume.shape", f"Meier_{n}", "no array arr_1", f"Meier_{n}.npz") for n in range(LEAST)]
    version = version_of(tmp_path, rejects)
    counts = {"volume.shape": LEAST}
    assert reject_lines(version, counts, is_private=True) == [f"{LEAST:>7} volume.shape"]
    assert "arr_1" not in repr(read_groups(version, counts, is_private=True))
    assert "no array arr_1" in reject_lines(version, counts, is_private=False)[0]


def test_without_the_table_the_counts_are_left(tmp_path: Path) -> None:
    (tmp_path / "rejects.parquet").write_bytes(b"PAR1 torn")
    assert reject_lines(tmp_path, {"image.empty": 2}, is_private=False) == ["      2 image.empty"]


def test_all_rejects_are_counted_but_few_are_compared(tmp_path: Path) -> None:
    many = COMPARED + 300
    version = version_of(tmp_path, [("image.empty", f"a/{n}", "0 bytes", "") for n in range(many)])
    (group,) = read_groups(version, {"image.empty": many}, is_private=False)
    assert (group.count, group.compared, group.traits) == (many, COMPARED, [f"all {COMPARED:,} under a"])


@pytest.mark.parametrize(
    ("keys", "accepted", "trait"),
    [
        (
            [f"train_40{n:02d}_a_1" for n in range(99)] + ["train_7_a_1", "valid_12_b_2"],
            [],
            "99 of 101 under train_40*",
        ),
        ([f"site_b/{n:06d}" for n in range(30)], [], "all 30 under site_b"),
        ([f"{n:06d}" for n in range(30)], [], None),  # padding is no beginning
        ([f"train_{n}" for n in range(0, 90000, 997)], [], "all 91 under train_*"),
        ([f"train_{n}" for n in range(0, 90000, 997)], [f"train_{n}" for n in range(1000)], None),
        (
            [f"train_{n}" for n in range(0, 90000, 997)],
            [f"other_{n}" for n in range(1000)],
            "all 91 under train_*",
        ),
        (["a/1", "a/2", "a/3", "a/4"], [], None),  # too few to be more than a coincidence
        ([], [], None),
    ],
)
def test_a_beginning_that_rejects_share_and_accepted_samples_do_not(
    keys: list[str], accepted: list[str], trait: str | None
) -> None:
    shuffled = random.Random(3).sample(keys, len(keys))
    assert (
        traits_of(rows(keys), accepted) == traits_of(rows(shuffled), accepted) == ([trait] if trait else [])
    )


@pytest.mark.parametrize(
    ("sources", "traits"),
    [
        ([f"captions.csv:{1200 + n}" for n in range(26)], ["all 26 in rows 1,200 to 1,225 of captions.csv"]),
        ([f"captions.csv:{97 * n}" for n in range(26)], []),
        (
            [f"part-7.parquet:{97 * n}" for n in range(25)] + ["part-8.parquet:3"],
            ["25 of 26 in part-7.parquet"],
        ),
        ([f"{n}.tar" for n in range(26)], []),
        ([""] * 26, []),
    ],
)
def test_a_stretch_of_rows_or_one_file_of_several(sources: list[str], traits: list[str]) -> None:
    letters = [chr(97 + n) for n in range(26)]
    assert (
        traits_of([RejectRow(key, "", source) for key, source in zip(letters, sources, strict=True)])
        == traits
    )


def test_passwords_and_signatures_of_addresses_stay_out_of_the_tables() -> None:
    signed = 'no file: "https://user:pw@host/a.png?X-Amz-Signature=SECRET" s3://bucket/b'
    assert printable(signed) == 'no file: "https://host/a.png" s3://bucket/b'
    assert printable("gr\udcfcn ://") == "gr\\udcfcn ://"
