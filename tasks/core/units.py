"""Parses and formats figures and paths: `256MB` in a config, `1.26 MB` and `71 s` on a page.

A bare number in a config is an error, because its unit is ambiguous. Each function of FILTERS is also a
filter of the page templates; unknown values (None, not finite) are shown as a dash.
"""

from __future__ import annotations

import math
import os
import re
from datetime import UTC, datetime
from pathlib import Path

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
NOTHING = "–"
SPACE = "\u202f"  # narrow and unbreakable: between a figure and its unit


def _parse(value: object, units: dict[str, int], example: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else None
    if match is None or match.group(2) not in units:
        raise ValueError(f"{value!r} needs a number and a unit ({', '.join(units)}), such as {example}")
    return round(float(match.group(1)) * units[match.group(2)])


def parse_duration(value: object) -> int:
    """Return the seconds in a duration such as `90s` or `48h`; ValueError without a known unit."""
    return _parse(value, SECONDS, "48h")


def parse_size(value: object) -> int:
    """Return the bytes in a size such as `256MB` (powers of ten); ValueError without a known unit."""
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


def count(value: float | None) -> str:
    """1797 -> `1,797`."""
    return NOTHING if value is None else f"{value:,.0f}"


def counted(value: float | None, thing: str, things: str = "") -> str:
    """2 and `worker` -> `2 workers`; `things` is the plural where it is not formed by an s."""
    return f"{count(value)} {thing if value == 1 else things or thing + 's'}"


def number(value: float | None, digits: int = 3) -> str:
    """Round to `digits` significant figures: 4.1589 -> `4.16`, 3410.2 -> `3,410`, 1.25e-06 -> `1.25e-6`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value != 0 and not 1e-4 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    places = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def interval(low: float, high: float) -> str:
    """Format a confidence interval as `0.926 to 0.976`, since it need not be symmetric."""
    return f"{number(low)} to {number(high)}"


def percent(share: float | None, places: int = 1) -> str:
    """0.0312 -> `3.1 %`; a share too small to show is `<0.1 %`, since 0 would mean none."""
    if share is None or not math.isfinite(share):
        return NOTHING
    least = 10.0**-places
    if 0 < share * 100 < least / 2:
        return f"<{least:g}{SPACE}%"
    return f"{share * 100:.{places}f}{SPACE}%"


def size(size_bytes: float | None) -> str:
    """1256000 -> `1.26 MB`, in powers of ten."""
    if size_bytes is None:
        return NOTHING
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{number(size_bytes / factor)}{SPACE}{unit}"
    return f"{size_bytes:.0f}{SPACE}B"


def duration(seconds: float | None) -> str:
    """71.2 -> `71 s`, 0.042 -> `0.042 s`."""
    if seconds is None:
        return NOTHING
    if 0 < seconds < 1:
        return f"{number(seconds, 2)}{SPACE}s"
    return format_duration(seconds).replace(" ", SPACE)


def when(timestamp: float | None) -> str:
    """Unix seconds -> `2025-11-20 09:25 UTC`."""
    return NOTHING if timestamp is None else f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M} UTC"


def shorten(text: str, limit: int = 160) -> str:
    """Return a text on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


FILTERS = (count, counted, number, interval, percent, size, duration, when, shorten)


def near(path: Path) -> str:
    """Return the path as a user would type it: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative
