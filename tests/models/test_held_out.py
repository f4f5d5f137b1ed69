from __future__ import annotations

import pytest

from tasks.models.held_out import held_out


@pytest.mark.parametrize(
    ("splits", "chosen"),
    [
        (["train", "val"], "val"),
        (["test", "train", "val"], "val"),
        (["test", "train"], "test"),
        (["train"], None),
        (["test", "train", "validation"], "validation"),
        (["a", "b", "train"], None),
    ],
)
def test_val_or_the_only_other_split(splits: list[str], chosen: str | None) -> None:
    assert held_out(splits) == chosen
