"""Samples as rows of the catalogue, and back.

Texts beyond ASCII are stored as bytes, because paths and captions may hold what is not Unicode; to store all
of them so would take SQLite half as long again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.dataset.build.entries import Entry, Identity, Spilled
from tasks.dataset.build.shard_plan import Weighed
from tasks.dataset.keys import HASH_BITS

SAMPLE = """number INTEGER, key TEXT, original_key BLOB, place BLOB, source INTEGER, file BLOB, size INTEGER,
    stamp TEXT, content BLOB, split TEXT, grp BLOB, part INTEGER, start INTEGER, length INTEGER,
    position INTEGER, weight INTEGER"""
ENTRY = (
    "number, key, original_key, place, source, file, size, stamp, content, split, grp, part, start, length"
)
IDENTITY = "source, key, original_key, file, size, stamp, content, grp"
SIGN = 1 << (HASH_BITS - 1)
"""SQLite's integers are signed; positions are shifted so that their order stays."""


def of(listed: Weighed[Entry]) -> tuple[Any, ...]:
    position, weight, sample = listed
    number, key, original_key, place, source, file, size, stamp, content, split, group, spilled = sample
    return (
        number,
        key,
        raw(original_key),
        raw(place),
        source,
        raw(file),
        size,
        stamp,
        raw(content),
        split,
        None if group is None else raw(group),
        None if spilled is None else spilled.part,
        None if spilled is None else spilled.offset,
        None if spilled is None else spilled.length,
        position - SIGN,
        weight,
    )


def entry(row: Sequence[Any]) -> Entry:
    number, key, original_key, place, source, file, size, stamp, content, split, group, *spilled = row
    return Entry(
        number,
        key,
        text(original_key),
        text(place),
        source,
        text(file),
        size,
        stamp,
        text(content),
        split,
        None if group is None else text(group),
        None if spilled[0] is None else Spilled(*spilled),
    )


def identity(row: Sequence[Any]) -> Identity:
    source, key, original_key, file, size, stamp, content, group = row
    group = None if group is None else text(group)
    return Identity(source, key, text(original_key), text(file), size, stamp, text(content), group)


def raw(value: str) -> str | bytes:
    return value if value.isascii() else value.encode("utf-8", "surrogatepass")


def text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")
