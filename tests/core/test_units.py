"""Durations and sizes need a unit."""

from __future__ import annotations

import pytest

from tasks.core.units import parse_duration, parse_size


def test_values() -> None:
    assert [parse_duration(text) for text in ("90s", "30m", "48h", "1.5h", "2d")] == [
        90,
        1800,
        172800,
        5400,
        172800,
    ]
    assert [parse_size(text) for text in ("256MB", "2GB", "512 B")] == [256_000_000, 2_000_000_000, 512]


@pytest.mark.parametrize("value", [30, "30", "30x", "m", "-3s", "", None, "3 s s"])
def test_no_unit_no_value(value: object) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse_duration(value)
    with pytest.raises(ValueError, match="such as"):
        parse_size(value)
