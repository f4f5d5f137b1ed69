"""Durations and sizes as people write them in a config: `90s`, `30m`, `48h`; `256MB`, `2GB`.

A bare number is refused, because nobody can tell which unit was meant.
"""

from __future__ import annotations

import re

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def _parse(value: object, units: dict[str, int], example: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else None
    if match is None or match.group(2) not in units:
        raise ValueError(f"{value!r} needs a number and a unit ({', '.join(units)}), such as {example}")
    return round(float(match.group(1)) * units[match.group(2)])


def parse_duration(value: object) -> int:
    """Seconds in a duration such as `90s` or `48h`; ValueError without a known unit."""
    return _parse(value, SECONDS, "48h")


def parse_size(value: object) -> int:
    """Bytes in a size such as `256MB` (powers of ten); ValueError without a known unit."""
    return _parse(value, BYTES, "256MB")


def format_duration(seconds: float) -> str:
    """`4 s`, `12 min`, `3 h`: rounded to what a reader needs."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
