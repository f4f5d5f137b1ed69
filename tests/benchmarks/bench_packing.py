"""Samples a second that are packed, and how full the packs are, beside nanoVLM's algorithm.

A million conversations as long as nanoVLM takes them to be, packs of 4,096 tokens and at most 18 images. The
peer is written from the description of nanoVLM's ConstantLengthDataset: a buffer of 8 packs' tokens, sorted
by length, each into the least loaded of as many bags as it fills and five more.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np

from tasks.loader.order import Integers
from tasks.loader.packing.packs import Lengths, PackLimits, Packs, window_size
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, times, value

SAMPLES = 1_000_000
THEIRS = 50_000
"""So many samples are enough to time the peer, whose buffers are alike."""
LIMITS = PackLimits(4096, 18)
BUFFERED, SPARE = 8, 5


def conversations(count: int) -> Lengths:
    """An image of 64 tokens and its mark, mostly, and 198 tokens of text on average."""
    draw = np.random.default_rng(0)
    images = draw.choice([0, 1, 2], count, p=[0.05, 0.9, 0.05]).astype(np.int32)
    text = draw.lognormal(np.log(198) - 0.32, 0.8, count)
    return Lengths(np.clip(65 * images + text, 20, 4094).astype(np.int32), images)


def packed_by_us(count: int) -> Row:
    """`full` is the share of the packs' tokens that are samples'; `resumed_s` the time to the first pack after all."""
    lengths = conversations(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    packs = Packs(
        lambda at: Lengths(*(values[at] for values in lengths)), LIMITS, window_size([lengths], LIMITS), 0
    )
    windows = count // packs.window
    began, samples, rows = time.perf_counter(), 0, 0
    for number in range(windows):
        found = packs._packs_of(number)
        rows += len(found)
        samples += sum(map(len, found))
    elapsed_s = time.perf_counter() - began
    tokens = int(lengths.tokens[: windows * packs.window].sum())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    full, resumed_s = tokens / (rows * LIMITS.tokens), resumed(lengths)
    return {
        "samples_per_s": samples / elapsed_s,
        "full": 100 * full,
        "mb": grown / 1024,
        "resumed_s": resumed_s,
    }


def packed_by_nanovlm() -> Row:
    lengths = conversations(THEIRS)
    tokens, images = lengths.tokens[:THEIRS].tolist(), lengths.images[:THEIRS].tolist()
    began, rows, start = time.perf_counter(), 0, 0
    while start < THEIRS:
        stop, held = start, 0
        while held < BUFFERED * LIMITS.tokens and stop < THEIRS:
            held += tokens[stop] + 1  # a token of padding follows each sample
            stop += 1
        rows += _bags([(tokens[n] + 1, images[n]) for n in range(start, stop)])
        start = stop
    full = sum(tokens) / (rows * LIMITS.tokens)
    return {"samples_per_s": THEIRS / (time.perf_counter() - began), "full": 100 * full}


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


def resumed(lengths: Lengths) -> float:
    """Seconds to the first pack after all samples have been packed once."""
    count = len(lengths.tokens)

    def draw(places: Integers) -> Lengths:
        return Lengths(*(values[places % count] for values in lengths))

    packs = Packs(draw, LIMITS, window_size([lengths], LIMITS), 0)
    began = time.perf_counter()
    next(islice(packs.starting(int(count * lengths.tokens.mean() / LIMITS.tokens)), 1))
    return time.perf_counter() - began


def cases(setup: Setup) -> Iterator[Case]:
    count = setup.sized(SAMPLES, 100_000)
    yield Case(
        f"{count:,} conversations",
        {"tarmac": call(packed_by_us, count), "nanoVLM's algorithm": call(packed_by_nanovlm)},
    )


BENCHMARKS = (
    Benchmark(
        "packing",
        "Packing conversations",
        "Conversations as long as nanoVLM takes them to be, in packs of 4,096 tokens and at most 18 images, beside the "
        "algorithm of nanoVLM's ConstantLengthDataset, of which 50,000 are timed, as its buffers are alike. Memory is "
        "what packing adds to the peak of the process; a resume is the time to the first pack after all samples.",
        cases,
        (
            Column("samples_per_s", "samples/s"),
            Column("full", "% full", ".2f"),
            Column("mb", "MB more"),
            Column("resumed_s", "s to resume", ".2f"),
        ),
        promises=(
            Promise(
                "samples/s over nanoVLM's",
                times("samples_per_s", "tarmac", "nanoVLM's algorithm"),
                "at least",
                5.0,
            ),
            Promise(
                "tokens of a pack that are samples'", value("tarmac", "full"), "at least", 98.0, unit="%"
            ),
        ),
        packages=("numpy",),
        ratio="samples_per_s",
    ),
)
