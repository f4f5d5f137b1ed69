"""What rejects have in common: found where there is one cause, silent where there is none."""

from __future__ import annotations

import random

import pytest

from tasks.dataset.patterns import patterns


def rejects(keys: list[str], detail: str = "no image", source: str = "") -> list[tuple[str, str, str]]:
    return [(key, detail, source) for key in keys]


def texts(*arguments: object) -> list[str]:
    return [pattern.text for pattern in patterns(*arguments)]  # type: ignore[arg-type]


def test_one_patient_range_among_many_rejects_is_named_with_its_count() -> None:
    keys = [f"train_40{n:02d}_a_1" for n in range(99)] + ["train_7_a_1", "valid_12_b_2"]
    found = patterns(rejects(keys))
    assert found[0].text == "99 of 101 under train_40*" and found[0].count == 99


def test_the_order_of_the_rejects_changes_nothing() -> None:
    keys = [f"train_40{n:02d}_a_1" for n in range(50)] + ["valid_12_b_2"]
    shuffled = random.Random(3).sample(keys, len(keys))
    assert texts(rejects(keys)) == texts(rejects(shuffled)) == ["50 of 51 under train_40*"]


def test_a_folder_is_named_as_a_folder_and_padding_is_no_pattern() -> None:
    assert texts(rejects([f"site_b/{n:06d}" for n in range(30)])) == ["all 30 under site_b"]
    assert texts(rejects([f"{n:06d}" for n in range(30)])) == []


def test_a_beginning_that_accepted_samples_share_says_nothing() -> None:
    keys = [f"train_{n}" for n in range(0, 90000, 997)]
    assert texts(rejects(keys)) == [f"all {len(keys)} under train_*"]
    assert texts(rejects(keys), [f"train_{n}" for n in range(1000)]) == []
    assert texts(rejects(keys), [f"other_{n}" for n in range(1000)]) == [f"all {len(keys)} under train_*"]


def test_the_same_words_count_only_where_they_could_have_been_others() -> None:
    keys = [chr(97 + n) for n in range(20)]
    assert texts(rejects(keys, "the caption is empty")) == []
    assert texts(rejects(keys, "z is 0 mm")) == ["all 20 say 'z is 0 mm'"]
    mixed = [*rejects(keys, "the caption is empty"), ("x", "the caption is blank", "")]
    assert texts(mixed) == ["20 of 21 say 'the caption is empty'"]


@pytest.mark.parametrize(
    ("sources", "says"),
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
def test_a_stretch_of_rows_or_one_file_of_several(sources: list[str], says: list[str]) -> None:
    letters = [chr(97 + n) for n in range(26)]
    found = [(key, "no image", source) for key, source in zip(letters, sources, strict=True)]
    assert texts(found) == says


def test_few_rejects_have_no_pattern() -> None:
    assert texts(rejects(["a/1", "a/2", "a/3", "a/4"])) == [] == texts([])
