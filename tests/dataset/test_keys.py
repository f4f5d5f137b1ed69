from decimal import Decimal

import numpy as np
import pytest

from tasks.core.errors import UsageError
from tasks.core.schema import Splits
from tasks.dataset import splits
from tasks.dataset.filters import passes
from tasks.dataset.formats import images
from tasks.dataset.keys import key_of, shard_hash, split_hash, stem
from tasks.dataset.version.rejects import Reject


def test_a_plain_name_is_its_own_key() -> None:
    assert key_of("cat_01-b.png") == "cat_01-b"
    assert key_of("scan.nii.gz") == "scan"
    assert key_of("SCAN.NPZ") == "SCAN"


@pytest.mark.parametrize(
    "original",
    [
        *(
            "a/b.png",
            "a b.png",
            "ä.png",
            "x" * 200,
            "",
            "\udcff.png",
            "../../etc",
            "__x.png",
            "_1",
            "-n",
            ".k",
        ),
        *("カラス/IMG 0001.jpg", "кошки/кот.jpg", "صور/قط.png"),
    ],
)
def test_an_awkward_name_becomes_a_safe_key_of_its_own(original: str) -> None:
    key = key_of(original)
    assert 0 < len(key) <= 80
    assert key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    assert key[0].isalnum(), "other tools pass over names that begin with . or __"


def test_a_key_shows_what_of_a_name_is_ascii() -> None:
    assert key_of("カラス/IMG 0001.jpg").startswith("IMG_0001-")
    assert key_of("кошки/кот.jpg").startswith("k-")


def test_cleaning_does_not_make_different_names_equal() -> None:
    names = [
        "a/b",
        "a_b",
        "a b",
        "a.b",
        "x" * 81,
        "x" * 82,
        "a",
        "_a",
        "__a",
        "-a",
        "猫/a",
        "犬/a",
        "猫",
        "犬",
        "k",
    ]
    assert len({key_of(name) for name in names}) == len(names)
    assert key_of("a.png") == key_of("a.jpg"), "a suffix is no part of the key"


def test_shard_and_split_bits_are_independent() -> None:
    keys = [f"{number:05d}" for number in range(4000)]
    held_out = [key for key in keys if split_hash(key) < 0.15]
    assert 0.12 < len(held_out) / len(keys) < 0.18
    in_lower_half = sum(shard_hash(key) < 1 << 63 for key in held_out) / len(held_out)
    assert 0.4 < in_lower_half < 0.6


def test_splits_by_key_hold_their_shares_and_never_move() -> None:
    rules = Splits.model_validate({"val": 0.2, "test": 0.1})
    drawn = {f"{n}": splits.split_of(rules, f"{n}", None, {}) for n in range(3000)}
    counts = {name: list(drawn.values()).count(name) / 3000 for name in ("train", "val", "test")}
    assert counts == pytest.approx({"train": 0.7, "val": 0.2, "test": 0.1}, abs=0.03)
    turned = Splits.model_validate({"test": 0.1, "val": 0.2})
    assert all(splits.split_of(turned, key, None, {}) == split for key, split in drawn.items())


def test_a_group_is_never_in_two_splits() -> None:
    rules = Splits.model_validate({"val": 0.5, "group_by": "patient"})
    for patient in range(50):
        fields = {"patient": patient}
        group = splits.group_of(rules, fields)
        assert len({splits.split_of(rules, f"{patient}-{scan}", group, fields) for scan in range(20)}) == 1


@pytest.mark.parametrize("same", [7.0, "7", "7.0", "7.", Decimal("7.00"), np.int32(7), np.float32(7)])
def test_a_group_of_whole_numbers_is_one_however_it_is_written(same: object) -> None:
    rules = Splits.model_validate({"group_by": "patient"})
    assert splits.group_of(rules, {"patient": same}) == splits.group_of(rules, {"patient": 7}) == "7"


@pytest.mark.parametrize("text", ["7.5", "07x", "1.0.0", "a.0", ".0"])
def test_any_other_group_stays_as_it_is_written(text: str) -> None:
    assert splits.group_of(Splits.model_validate({"group_by": "patient"}), {"patient": text}) == text


def test_a_sample_without_group_or_split_is_rejected() -> None:
    with pytest.raises(Reject, match="group_by"):
        splits.group_of(Splits.model_validate({"val": 0.5, "group_by": "patient"}), {"patient": ""})
    by_column = Splits.model_validate({"from": "set"})
    assert splits.split_of(by_column, "key", None, {"set": "test"}) == "test"
    for name in (None, "", "../etc", "samples", 3):
        with pytest.raises(Reject, match="set"):
            splits.split_of(by_column, "key", None, {"set": name})


def test_a_split_may_not_take_the_name_of_a_table_folder() -> None:
    with pytest.raises(UsageError, match=r"dataset.splits.index"):
        splits.check_splits(Splits.model_validate({"index": 0.1}))


@pytest.mark.parametrize(
    ("rules", "fields", "expected"),
    [
        ({}, {}, True),
        ({"score": 3}, {"score": "3.0"}, True),
        ({"score": 3}, {"score": 2.9}, False),
        ({"score": 3}, {"score": "high"}, False),
        ({"score": 3}, {}, False),
        ({"score": 3}, {"score": float("nan")}, False),
        ({"score": 3}, {"score": Decimal("3.00")}, True),
        ({"score": 3}, {"score": Decimal("2.99")}, False),
        ({"score": [3, 4]}, {"score": Decimal(4)}, True),
        ({"score": 3}, {"score": 10**400}, False),
        ({"language": "en"}, {"language": "en"}, True),
        ({"language": "en"}, {"language": "EN"}, False),
        ({"language": ["en", "de"]}, {"language": "de"}, True),
        ({"grade": [1, 2]}, {"grade": "2"}, True),
        ({"grade": [1, 2]}, {"grade": "3"}, False),
        ({"safe": True}, {"safe": "True"}, True),
        ({"safe": True}, {"safe": False}, False),
        ({"score": 3, "language": "en"}, {"score": 4, "language": "fr"}, False),
    ],
)
def test_filters(rules: dict[str, object], fields: dict[str, object], expected: bool) -> None:
    assert passes(rules, fields) is expected


@pytest.mark.parametrize("suffix", images.SUFFIXES)
def test_the_suffix_of_an_image_that_is_read_is_no_part_of_its_key(suffix: str) -> None:
    assert key_of(f"owls/1.{suffix}") == key_of("owls/1.png") and stem(f"a.{suffix.upper()}") == "a"
