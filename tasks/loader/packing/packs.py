"""Several conversations in one row of a fixed number of tokens: which samples share a row, as a pure plan.

The endless sequence of samples is cut into windows of equally many, and each window is packed by itself. So
the content of a pack follows from lengths, seed and its number, whoever reads it. The price is that the
number of packs of all windows before must be known: a training that resumes counts them again, which takes a
third of a second per million samples.

A window's packs are filled in rounds: the longest remaining samples go into the emptiest packs. That takes a
round of array operations where best fit would take an interpreter's loop per sample. It also spreads samples
with many images over all packs, while best fit would leave those with short texts for the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.loader.order import Integers, permute, rank_positions, sample_seeds

PACKS_A_WINDOW = 1024
"""About as many packs per window: more leave less empty, but bring samples together that lie farther apart on
the disk."""
LEFT_OUT = -1
UNMEASURED = int(np.iinfo(np.int32).max)
"""The tokens of a sample that was not measured: it fits into no pack."""


class Lengths(NamedTuple):
    """The tokens and the images of samples, both of shape [n] and of signed integers."""

    tokens: NDArray[Any]
    images: NDArray[Any]


@dataclass(frozen=True)
class PackLimits:
    """The limits of one pack; a sample of it has at most `images_per_sample`."""

    tokens: int
    images: int
    images_per_sample: int | None = None

    @property
    def most_images(self) -> int:
        """The most images of a sample."""
        return self.images if self.images_per_sample is None else min(self.images, self.images_per_sample)

    def takes(self, lengths: Lengths) -> NDArray[np.bool_]:
        """Return whether each sample fits into a pack at all; the others are left out."""
        fits: NDArray[np.bool_] = (lengths.tokens <= self.tokens) & (lengths.images <= self.most_images)
        return fits


@dataclass(frozen=True)
class Packs:
    """The endless sequence of packs: each is the positions of its samples in the sequence of samples. `draw`
    gives the lengths of the samples at positions [n]; a window holds `window` of them."""

    draw: Callable[[Integers], Lengths]
    limits: PackLimits
    window: int
    seed: int

    def starting(self, pack: int) -> Iterator[Integers]:
        """Return the packs from number `pack` on, without end, as long as any sample fits (see
        `window_size`)."""
        number = 0
        for window in count():
            found = self._packs_of(window)
            if number + len(found) > pack:
                yield from found[max(pack - number, 0) :]
            number += len(found)

    def _packs_of(self, window: int) -> list[Integers]:
        """Return the window's packs in an order that depends on seed and window alone: filling leaves the
        emptiest packs last."""
        places = np.arange(window * self.window, (window + 1) * self.window)
        packs = pack_window(self.draw(places), self.limits)
        order = np.argsort(packs, kind="stable")
        order = order[np.count_nonzero(packs == LEFT_OUT) :]
        if not order.size:
            return []
        starts = np.flatnonzero(np.diff(packs[order], prepend=LEFT_OUT))
        parts = np.split(places[order], starts[1:])
        key = int(sample_seeds(np.array([window]), self.seed)[0])
        return [parts[place] for place in permute(np.arange(len(parts)), len(parts), key).tolist()]


class PackedPositions(NamedTuple):
    """What one rank reads for a step: the positions of the samples, and each one's pack in the batch."""

    positions: list[int]
    packs: list[int]


@dataclass(frozen=True)
class PackSteps(Iterable[PackedPositions]):
    """Return, for each step from `start` on and without end, what a rank reads: an even share of `batch_size`
    packs, in parts of `part_size`, of which the last may have fewer."""

    packs: Packs
    start: int
    batch_size: int
    rank: int
    world_size: int
    part_size: int

    def __iter__(self) -> Iterator[PackedPositions]:
        sequence = self.packs.starting(self.start * self.batch_size)
        mine = rank_positions(0, self.batch_size, self.rank, self.world_size)
        while True:
            batch = [next(sequence) for _ in range(self.batch_size)]
            for start in range(mine.start, mine.stop, self.part_size):
                part = batch[start : min(start + self.part_size, mine.stop)]
                positions = [place for pack in part for place in pack.tolist()]
                yield PackedPositions(positions, [row for row, pack in enumerate(part) for _ in pack])


def window_size(lengths: Sequence[Lengths], limits: PackLimits) -> int:
    """Return how many samples fill PACKS_A_WINDOW packs on average. DataError when none fits into one."""
    tokens = np.concatenate([one.tokens[limits.takes(one)] for one in lengths])
    if not tokens.size:
        known = [one.tokens[one.tokens < UNMEASURED] for one in lengths]
        longest = max(int(tokens.max(initial=0)) for tokens in known)
        raise DataError(
            f"train.pack: no sample has at most {limits.tokens:,} tokens and {limits.most_images} images; "
            f"the longest has {longest:,} tokens; raise train.pack.tokens"
        )
    return max(int(PACKS_A_WINDOW * limits.tokens / max(tokens.mean(), 1)), 1)


def pack_window(lengths: Lengths, limits: PackLimits) -> Integers:
    """Return the pack of each sample, numbered from 0, or LEFT_OUT; [samples] -> [samples]."""
    found = np.full(len(lengths.tokens), LEFT_OUT, np.int64)
    kind = np.int16 if limits.tokens < 1 << 15 else np.int32  # numpy sorts small integers without comparing
    left = np.flatnonzero(limits.takes(lengths))
    tokens, images = lengths.tokens[left].astype(kind), lengths.images[left].astype(kind)
    order = np.argsort(np.negative(tokens), kind="stable")
    left, tokens, images = left[order], tokens[order], images[order]
    packs = 0
    while left.size:
        chosen = _level(Lengths(tokens, images), limits)
        has_room = chosen != LEFT_OUT
        found[left[has_room]] = packs + chosen[has_room]
        packs += int(chosen.max()) + 1
        left, tokens, images = left[~has_room], tokens[~has_room], images[~has_room]
    return found


def _level(lengths: Lengths, limits: PackLimits) -> Integers:
    """Return the pack of each sample, for samples from the longest to the shortest, among as many packs as
    all of them would just fill; LEFT_OUT for those for which no pack has room in the end."""
    tokens, images = lengths
    total, pictures = tokens.sum(dtype=np.int64), images.sum(dtype=np.int64)
    packs = max(int(max(total / limits.tokens, pictures / max(limits.images, 1))), 1)
    room, places = np.full(packs, limits.tokens, tokens.dtype), np.full(packs, limits.images, images.dtype)
    chosen = np.full(len(tokens), LEFT_OUT, np.int64)
    waiting, following = np.empty(0, np.int64), 0
    while waiting.size or following < len(tokens):
        emptiest = np.argsort(-room, kind="stable")
        until = min(following + packs - len(waiting), len(tokens))
        paired = np.concatenate([waiting, np.arange(following, until)])
        following = until
        emptiest = emptiest[: len(paired)]
        fits = (tokens[paired] <= room[emptiest]) & (images[paired] <= places[emptiest])
        taken, into = paired[fits], emptiest[fits]
        chosen[taken] = into
        room[into] -= tokens[taken]
        places[into] -= images[taken]
        room[places <= 0] = 0
        waiting = paired[~fits]
        waiting = waiting[tokens[waiting] <= room.max()]
        if not taken.size:
            waiting = waiting[1:]
    return chosen
