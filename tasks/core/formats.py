"""Figures as people read them on a page: `1,797`, `3.1 %`, `71 s`, `1.26 MB`, `2025-11-20 09:25 UTC`.

Every function is a filter of the page templates. What is not known (None, not finite) shows as a dash.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from tasks.core.units import format_duration

NOTHING = "–"
SPACE = "\u202f"  # narrow and unbreakable: between a figure and its unit


def count(value: float | None) -> str:
    """1797 -> `1,797`."""
    return NOTHING if value is None else f"{value:,.0f}"


def counted(value: float | None, thing: str, things: str = "") -> str:
    """2 and `worker` -> `2 workers`; `things` is the plural where it is not `thing` with an s."""
    return f"{count(value)} {thing if value == 1 else things or thing + 's'}"


def number(value: float | None, digits: int = 3) -> str:
    """To `digits` significant figures: 4.1589 -> `4.16`, 3410.2 -> `3,410`, 1.25e-06 -> `1.25e-6`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value != 0 and not 1e-4 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    places = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def percent(share: float | None, places: int = 1) -> str:
    """0.0312 -> `3.1 %`; a share too small to show is `<0.1 %`, since 0 would say that there was none."""
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
    """The beginning of a long text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


FILTERS = (count, counted, number, percent, size, duration, when, shorten)
