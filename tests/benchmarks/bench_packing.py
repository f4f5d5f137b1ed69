"""Samples a second that are packed, and how full the packs are, beside nanoVLM's algorithm.

A million conversations as long as nanoVLM takes them to be, packs of 4,096 tokens and at most 18 images. The
peer is written from the description of nanoVLM's ConstantLengthDataset: a buffer of 8 packs' tokens, sorted
by length, each into the least loaded of as many bags as it fills and five more. Interleaved, median of 5.

    .venv/bin/python -m tests.benchmarks.bench_packing
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import time
from itertools import islice

import numpy as np

from tasks.loader.order import Integers
from tasks.loader.packing.packs import Lengths, PackLimits, Packs, window_size

SAMPLES, ROUNDS = 1_000_000, 5
THEIRS = 50_000
"""So many samples are enough to time the peer, whose buffers are alike."""
LIMITS = PackLimits(4096, 18)
BUFFERED, SPARE = 8, 5
LEAST_RATIO, LEAST_FILL = 5.0, 0.98


def conversations() -> Lengths:
    """An image of 64 tokens and its mark, mostly, and 198 tokens of text on average."""
    draw = np.random.default_rng(0)
    images = draw.choice([0, 1, 2], SAMPLES, p=[0.05, 0.9, 0.05]).astype(np.int32)
    text = draw.lognormal(np.log(198) - 0.32, 0.8, SAMPLES)
    return Lengths(np.clip(65 * images + text, 20, 4094).astype(np.int32), images)


def packed_by_us(lengths: Lengths) -> tuple[float, float]:
    """Samples a second, and the share of the packs' tokens that are samples'."""
    packs = Packs(
        lambda at: Lengths(*(values[at] for values in lengths)), LIMITS, window_size([lengths], LIMITS), 0
    )
    windows = SAMPLES // packs.window
    began, samples, rows = time.perf_counter(), 0, 0
    for number in range(windows):
        found = packs._packs_of(number)
        rows += len(found)
        samples += sum(map(len, found))
    elapsed_s = time.perf_counter() - began
    tokens = int(lengths.tokens[: windows * packs.window].sum())
    return samples / elapsed_s, tokens / (rows * LIMITS.tokens)


def packed_by_nanovlm(lengths: Lengths) -> tuple[float, float]:
    tokens, images = lengths.tokens[:THEIRS].tolist(), lengths.images[:THEIRS].tolist()
    began, rows, start = time.perf_counter(), 0, 0
    while start < THEIRS:
        stop, held = start, 0
        while held < BUFFERED * LIMITS.tokens and stop < THEIRS:
            held += tokens[stop] + 1  # a token of padding follows each sample
            stop += 1
        rows += _bags([(tokens[n] + 1, images[n]) for n in range(start, stop)])
        start = stop
    return THEIRS / (time.perf_counter() - began), sum(tokens) / (rows * LIMITS.tokens)


def _bags(samples: list[tuple[int, int]]) -> int:
    bags = [[0, 0] for _ in range(-(-sum(length for length, _ in samples) // LIMITS.tokens) + SPARE)]
    held: list[list[int]] = [[] for _ in bags]
    for number, (length, images) in sorted(enumerate(samples), key=lambda one: one[1][0], reverse=True):
        for place in sorted(range(len(bags)), key=bags.__getitem__):
            if bags[place][0] + length <= LIMITS.tokens and bags[place][1] + images <= LIMITS.images:
                break
        else:
            place = len(bags)
            bags.append([0, 0])
            held.append([])
        bags[place][0] += length
        bags[place][1] += images
        held[place].append(number)
    random.shuffle(held)
    return sum(map(bool, held))


def resumed_s(lengths: Lengths) -> float:
    """Seconds to the first pack after a million samples."""

    def draw(places: Integers) -> Lengths:
        return Lengths(*(values[places % SAMPLES] for values in lengths))

    packs = Packs(draw, LIMITS, window_size([lengths], LIMITS), 0)
    began = time.perf_counter()
    next(islice(packs.starting(int(SAMPLES * lengths.tokens.mean() / LIMITS.tokens)), 1))
    return time.perf_counter() - began


def main() -> None:
    lengths = conversations()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(packed_by_us(lengths))
        theirs.append(packed_by_nanovlm(lengths))
    rates = [statistics.median(rate for rate, _ in found) for found in (ours, theirs)]
    fills = [found[0][1] for found in (ours, theirs)]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for name, rate, fill in zip(("tarmac", "nanoVLM"), rates, fills, strict=True):
        print(f"{name:8} {rate:12,.0f} samples/s   {fill:6.1%} full")
    ratio = rates[0] / rates[1]
    print(f"ratio    {ratio:.1f} (at least {LEAST_RATIO}), {grown:.0f} MB more memory")
    print(f"resume   {resumed_s(lengths):.2f} s after {SAMPLES:,} samples")
    sys.exit(0 if ratio >= LEAST_RATIO and fills[0] >= max(LEAST_FILL, fills[1]) else 1)


if __name__ == "__main__":
    main()
