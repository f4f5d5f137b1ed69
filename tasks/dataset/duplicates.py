"""Finds samples that are equal or nearly equal, by their hashes alone: pure functions from arrays to arrays.

Two pictures are nearly equal if their perceptual hashes differ in at most NEAR of 64 bits and their fine
hashes in at most NEAR_FINE of 192, and if their lowest frequencies correlate by at least ALIKE. Scaled
copies, other qualities and grey copies pass; of pictures with the same composition most fail the second, of
simple drawings, such as digits, the third. The price is that a copy cut by more than about 2 % of its sides,
or mirrored, is not found.

All pairs are found without comparing all pairs: the 64 bits are cut into BLOCKS; of two hashes that differ in
at most NEAR bits, at least BLOCKS - NEAR blocks are equal. So for every choice of that many blocks the hashes
are sorted by them, and only neighbours with equal blocks are compared (G. S. Manku et al., "Detecting
Near-Duplicates for Web Crawling", 2007). A million hashes take seconds instead of days.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.formats.measures import CONSTANT, FINE_BYTES, SPECTRUM_BYTES

NEEDED = ("content_hash", "text_hash", "phash", "phash_fine", "spectrum")
LOOKS = (*NEEDED, "contrast")
"""The statistics that show which samples are equal or nearly equal; volumes have no contrast."""

NEAR, NEAR_FINE, ALIKE = 6, 50, 0.992
MOST_COMPARED = 20_000_000
"""More samples are not compared with each other, because what they look like takes too much memory."""
BLOCKS = 9
BITS = 64
MOST_PAIRS = 4
"""A sorted table gives at most this many pairs per row, those that stand nearest to each other. So a million
pictures of one kind, such as white pages, take a minute and not days; nearly equal ones stand in many
tables."""
AT_ONCE = 1 << 20

Hashes = NDArray[np.uint64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]


def equal(*hashes: Hashes) -> Rows:
    """Return for each row the first row with the same hashes, itself if there is none; each of `hashes` has
    one per row."""
    order, is_new = _ordered(*hashes)
    firsts = np.empty_like(order)
    firsts[order] = order[is_new][np.cumsum(is_new) - 1]
    return firsts


def _ordered(*hashes: Hashes) -> tuple[Rows, Flags]:
    """Return the rows in the order of their hashes, of which the last counts most, and which of them in that
    order differ from the one before. Equal rows stay in their order."""
    order = np.lexsort(hashes)
    is_new = np.zeros(len(order), bool)
    is_new[:1] = True
    for column in hashes:
        ordered = column[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    return order, is_new


@dataclass(frozen=True)
class Looks:
    """What samples look like, one row each: hashes of their content and text (0: unknown), and of their
    pictures the perceptual hashes, fine hashes (rows, 3), spectra (rows, SPECTRUM_BYTES) and contrasts (NaN:
    unknown), as `measures` makes them."""

    content: Hashes
    text: Hashes
    coarse: Hashes
    fine: Hashes
    spectrum: NDArray[np.int8]
    contrast: NDArray[np.float32]

    @classmethod
    def of(cls, pieces: Iterable[Any], rows: int) -> Looks:
        """Read the LOOKS of tables or batches that have `rows` in all."""
        looks, start = cls.unknown(rows), 0
        for piece in pieces:
            looks.put(np.arange(start, start + piece.num_rows), piece)
            start += piece.num_rows
        return looks

    @classmethod
    def unknown(cls, rows: int) -> Looks:
        """Return the looks of so many samples of which nothing is known, for `put`."""
        content, text, coarse = (np.zeros(rows, np.uint64) for _ in range(3))
        return cls(
            *(content, text, coarse),
            np.zeros((rows, FINE_BYTES // 8), np.uint64),
            np.zeros((rows, SPECTRUM_BYTES), np.int8),
            np.full(rows, np.nan, np.float32),
        )

    def put(self, rows: Rows, piece: Any) -> None:
        """Write the LOOKS of a table or batch into these rows."""
        for name, mine in {
            "content_hash": self.content,
            "text_hash": self.text,
            "phash": self.coarse,
        }.items():
            mine[rows] = piece.column(name).fill_null(0).to_numpy(zero_copy_only=False)
        self.fine[rows] = _bytes(piece, "phash_fine", FINE_BYTES).view(np.uint64)
        self.spectrum[rows] = _bytes(piece, "spectrum", SPECTRUM_BYTES).view(np.int8)
        if "contrast" in piece.schema.names:
            self.contrast[rows] = piece.column("contrast").fill_null(np.nan).to_numpy(zero_copy_only=False)

    def comparable(self, *, by_text: bool) -> tuple[Flags, Flags]:
        """Return which rows can be compared by their content, with `by_text` also by their text alone, and
        which by their look. Pictures of one colour are copies of none, because they are a fault of their
        own. Volumes, which have no contrast, are not compared by their look: scans of one part of the body
        look alike whoever the patient is."""
        is_plain = self.contrast < CONSTANT
        is_known = (self.content != 0) | (self.text != 0) if by_text else self.content != 0
        return is_known & ~is_plain, self.spectrum.any(axis=1) & (self.contrast >= CONSTANT)

    def near(self, pairs: Rows) -> Rows:
        """Return the pairs (n, 2) of rows that are nearly equal."""
        left, right = pairs.T
        pairs = np.compress(np.bitwise_count(self.coarse[left] ^ self.coarse[right]) <= NEAR, pairs, axis=0)
        left, right = pairs.T
        differing = np.bitwise_count(self.fine[left] ^ self.fine[right]).sum(axis=1, dtype=np.uint16)
        pairs = pairs[differing <= NEAR_FINE]
        one, other = (self.spectrum[side].astype(np.float32) for side in pairs.T)
        norms = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
        return np.compress((one * other).sum(axis=1) >= ALIKE * norms, pairs, axis=0)


def _bytes(piece: Any, name: str, size: int) -> NDArray[np.uint8]:
    content = b"".join(piece.column(name).fill_null(bytes(size)).to_pylist())
    return np.frombuffer(content, np.uint8).reshape(-1, size)


def clusters_of(looks: Looks, *, by_text: bool) -> tuple[Rows, Rows]:
    """Return for each row the first row with the same content, and the smallest row of those that are equal
    or nearly equal to it. With `by_text` only rows with equal texts are, as conversations about one picture
    may be different samples; then rows without content are compared by their texts."""
    number = np.arange(len(looks.content))
    is_known, is_seen = looks.comparable(by_text=by_text)
    texts = [looks.text] if by_text else []
    exact = np.where(is_known, equal(looks.content, *texts), number)
    clusters = Clusters(len(number))
    clusters.join(np.column_stack((exact, number))[exact != number])
    some = np.flatnonzero(is_seen)
    near = nearly_equal(looks, some)
    if by_text:
        near = some[equal(near.astype(np.uint64), looks.text[some])]
    clusters.join(np.column_stack((near, some))[near != some])
    return exact, clusters.labels()


def like_first(looks: Looks, *, by_text: bool) -> tuple[Flags, Flags]:
    """Return which rows equal the first one, and which nearly do, by the rules of `clusters_of`; the first
    one itself is among them if it can be compared."""
    is_known, is_seen = looks.comparable(by_text=by_text)
    is_same = looks.text == looks.text[0] if by_text else np.ones(len(looks.text), bool)
    exact = is_known & is_known[0] & is_same & (looks.content == looks.content[0])
    some = np.flatnonzero(is_seen & is_seen[0] & is_same)
    near = np.zeros(len(exact), bool)
    near[looks.near(np.column_stack((np.zeros_like(some), some)))[:, 1]] = True
    return exact, near


def nearly_equal(looks: Looks, rows: Rows) -> Rows:
    """Return for each of these rows the smallest row of its cluster: those of the rows that are connected by
    pairs of nearly equal ones."""
    order, is_new = _ordered(*looks.fine[rows].T, looks.coarse[rows])
    distinct = rows[order[is_new]]
    clusters = Clusters(len(looks.coarse))
    for pairs in _neighbours(looks.coarse[distinct]):
        clusters.join(looks.near(clusters.apart(distinct[pairs])))
    labels = np.empty_like(rows)
    labels[order] = clusters.labels()[distinct[np.cumsum(is_new) - 1]]
    return labels


class Clusters:
    """Connects rows, which are numbered from 0, by pairs (n, 2) of them."""

    def __init__(self, rows: int) -> None:
        self._label = np.arange(rows)

    def apart(self, pairs: Rows) -> Rows:
        """Return the pairs whose rows are not known to be connected."""
        left, right = self._label[pairs.T]
        return np.compress(left != right, pairs, axis=0)

    def join(self, pairs: Rows) -> None:
        label = self._label
        while len(pairs):
            roots = label[pairs.T]
            lower = roots.min(axis=0)
            for side in roots:
                np.minimum.at(label, side, lower)
            label[:] = label[label]
            pairs = self.apart(pairs)

    def labels(self) -> Rows:
        """Return for each row the smallest row that it is connected with."""
        label = self._label
        while (label[label] != label).any():
            label[:] = label[label]
        return label.copy()


def _neighbours(coarse: Hashes) -> Iterator[Rows]:
    """Yield pairs (n, 2) of rows with equal blocks: nearly all that differ in at most NEAR bits are there.
    `coarse` is in order, so that a stable sort also puts rows with equal blocks in the order of their other
    bits: which pairs are compared depends neither on the host nor on the samples' order."""
    for blocks in combinations(_masks(), BLOCKS - NEAR):
        keys = coarse & np.uint64(sum(blocks))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        at = np.arange(len(keys))
        step = pairs = 0
        while pairs < MOST_PAIRS * len(keys):
            step += 1
            at = at[at + step < len(keys)]
            at = at[keys[at] == keys[at + step]]
            if not len(at):
                break
            pairs += len(at)
            for start in range(0, len(at), AT_ONCE):
                some = at[start : start + AT_ONCE]
                yield np.column_stack((order[some], order[some + step]))


def _masks() -> list[int]:
    """Return the masks of BLOCKS blocks of nearly equal size that cover the BITS."""
    ends = [round(number * BITS / BLOCKS) for number in range(BLOCKS + 1)]
    return [(1 << end) - (1 << start) for start, end in pairwise(ends)]
