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
from dataclasses import dataclass, fields
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.formats.measures import CONSTANT, FINE_BYTES, SPECTRUM_BYTES

LOOKS = ("content_hash", "text_hash", "phash", "phash_fine", "spectrum", "contrast")
"""The statistics that show which samples are equal or nearly equal."""

NEAR, NEAR_FINE, ALIKE = 6, 50, 0.992
BLOCKS = 9
BITS = 64
MOST_PAIRS = 4
"""A sorted table gives at most this many pairs per row, those that stand nearest to each other. So a million
pictures of one kind, such as white pages, take a minute and not days; nearly equal ones stand in many
tables."""
AT_ONCE = 1 << 20

Hashes = NDArray[np.uint64]
Rows = NDArray[np.int64]


def equal(*hashes: Hashes) -> Rows:
    """Return for each row the first row with the same hashes, itself if there is none; each of `hashes` has
    one per row."""
    order = np.lexsort(hashes)
    is_new = np.zeros(len(order), bool)
    is_new[:1] = True
    for column in hashes:
        ordered = column[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    firsts = np.empty_like(order)
    firsts[order] = order[is_new][np.cumsum(is_new) - 1]
    return firsts


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
        content, text, coarse = (np.zeros(rows, np.uint64) for _ in range(3))
        fine = np.zeros((rows, FINE_BYTES // 8), np.uint64)
        spectrum = np.zeros((rows, SPECTRUM_BYTES), np.int8)
        contrast = np.full(rows, np.nan, np.float32)
        hashes = {"content_hash": content, "text_hash": text, "phash": coarse}
        start = 0
        for piece in pieces:
            here = slice(start, start + piece.num_rows)
            for name, mine in hashes.items():
                mine[here] = piece.column(name).fill_null(0).to_numpy(zero_copy_only=False)
            fine[here] = _bytes(piece, "phash_fine", FINE_BYTES).view(np.uint64)
            spectrum[here] = _bytes(piece, "spectrum", SPECTRUM_BYTES).view(np.int8)
            contrast[here] = piece.column("contrast").fill_null(np.nan).to_numpy(zero_copy_only=False)
            start = here.stop
        return cls(content, text, coarse, fine, spectrum, contrast)

    def take(self, rows: Rows) -> Looks:
        return Looks(*(getattr(self, one.name)[rows] for one in fields(self)))

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
    may be different samples; then rows without content are compared by their texts. Pictures of one colour
    are copies of none, because they are a fault of their own."""
    number = np.arange(len(looks.content))
    is_plain = looks.contrast < CONSTANT
    is_known = (looks.content != 0) & ~is_plain
    texts = [looks.text] if by_text else []
    if by_text:
        is_known = (is_known | (looks.text != 0)) & ~is_plain
    exact = np.where(is_known, equal(looks.content, *texts), number)
    clusters = Clusters(len(number))
    clusters.join(np.column_stack((exact, number))[exact != number])
    some = np.flatnonzero(looks.spectrum.any(axis=1) & ~is_plain)
    near = some[nearly_equal(looks.take(some))]
    if by_text:
        near = some[equal(near.astype(np.uint64), looks.text[some])]
    clusters.join(np.column_stack((near, some))[near != some])
    return exact, clusters.labels()


def nearly_equal(looks: Looks) -> Rows:
    """Return for each row the smallest row of its cluster: the rows that are connected by pairs of nearly
    equal ones."""
    firsts = equal(looks.coarse, *looks.fine.T)
    distinct = np.flatnonzero(firsts == np.arange(len(firsts)))
    clusters = Clusters(len(distinct))
    mine = looks.take(distinct)
    for pairs in _neighbours(mine.coarse):
        clusters.join(mine.near(clusters.apart(pairs)))
    place = np.empty(len(firsts), np.int64)
    place[distinct] = distinct[clusters.labels()]
    return place[firsts]


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
    """Yield pairs (n, 2) of rows with equal blocks: nearly all that differ in at most NEAR bits are there."""
    for blocks in combinations(_masks(), BLOCKS - NEAR):
        keys = coarse & np.uint64(sum(blocks))
        order = np.argsort(keys)
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
