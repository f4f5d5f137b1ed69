"""Surveys the samples in any tars by the tars' headers, within seconds.

Samples with the same members are of one kind. There are few kinds however many samples there are, so a few
samples of each kind show what a trainer does with all of them. Contents are skipped, except `json`, whose
fields may hold what a sample lacks, and the heads of some images, which hold their size. A survey ends after
some seconds unless it is deep; the samples that it did not read are estimated.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from tasks.core.folders import open_store
from tasks.core.schema import ImageRules
from tasks.core.schema.dataset import MOST_PIXELS
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import Store, is_remote, split_location
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.formats.images import size_of
from tasks.dataset.sources.fields import object_of
from tasks.dataset.tar.reader import Member, StoredSample, TarReader, group_samples
from tasks.dataset.version.rejects import Reject

Kind = frozenset[str]
"""The suffixes of the members of a sample."""

LOOK_S = 4.0
"""A survey that is not deep reads no more tars after this time; it reads two in any case."""
SAMPLES = 2_000
"""The samples that are read of each tar where the survey is not deep."""
EXAMPLES = 8
"""The samples of each kind that are kept, spread over the tars."""
EXAMPLES_PER_TAR = 2
MEASURED = 16
"""The images per tar whose size is read where the survey is not deep."""
HEAD = 1 << 16
LARGEST_JSON = 1 << 16
LONGEST_TEXT = 4096
LARGEST_EXAMPLE = 256 << 20


@dataclass(frozen=True)
class Example:
    """The position of a sample in a tar, from the header of its first member to the end of its last."""

    tar: str
    key: str
    start: int
    stop: int


@dataclass(frozen=True)
class SurveyedTar:
    """One tar. `kinds` counts the samples that were read; `samples` is the number in the whole tar, an
    estimate unless the tar was read whole."""

    location: str
    size_bytes: int
    kinds: Mapping[Kind, int]
    samples: int
    is_whole: bool
    damage: str | None = None

    @property
    def looked_at(self) -> int:
        return sum(self.kinds.values())


@dataclass
class TarSurvey:
    """The survey of all tars, in the order of the trainer's list."""

    locations: Sequence[str]
    tars: dict[str, SurveyedTar] = field(default_factory=dict)
    examples: dict[Kind, list[Example]] = field(default_factory=lambda: defaultdict(list))
    texts: Counter[str] = field(default_factory=Counter)
    """The number of samples in which each field of `json` holds a text."""
    pixels: list[tuple[int, str, str]] = field(default_factory=list)
    """The pixels, key and tar of each image whose size was read."""

    @property
    def kinds(self) -> Counter[Kind]:
        return sum((Counter(one.kinds) for one in self.tars.values()), Counter())

    @property
    def looked_at(self) -> int:
        return sum(one.looked_at for one in self.tars.values())

    @property
    def is_whole(self) -> bool:
        return len(self.tars) == len(self.locations) and all(one.is_whole for one in self.tars.values())

    @property
    def samples(self) -> int:
        """The number of all samples; a tar that was not read counts like the average of the others."""
        found = sum(one.samples for one in self.tars.values())
        return round(found * len(self.locations) / max(len(self.tars), 1))

    @property
    def sample_bytes(self) -> float:
        """The average bytes of a sample in its tar."""
        samples = sum(one.samples for one in self.tars.values())
        return sum(one.size_bytes for one in self.tars.values()) / max(samples, 1)

    @property
    def caption_field(self) -> tuple[str, int] | None:
        """The field of `json` that is most likely the caption, and the number of samples that have it."""
        named = [name for name in self.texts if "caption" in name.lower() or name.lower() in ("text", "txt")]
        found = max(named, key=lambda name: (self.texts[name], name.lower() == "caption"), default=None)
        return None if found is None else (found, self.texts[found])


def survey(locations: Sequence[str], is_deep: bool = False, progress: Progress = no_progress) -> TarSurvey:
    """Survey tars in an order that spreads over the list, each whole where the survey `is_deep`.

    Unreachable where a server does not answer. A tar that cannot be read counts as damaged.
    """
    began = time.monotonic()
    found = TarSurvey(locations)
    for place in _spread(len(locations)):
        is_late = time.monotonic() - began > LOOK_S
        if is_late and not is_deep and len(found.tars) >= 2:
            break
        _survey_tar(locations[place], found, is_deep)
        progress(len(found.tars), len(locations), "tars")
    return found


def _spread(count: int) -> Iterable[int]:
    """Return all of 0..count-1: the first, the last, then ever finer in between."""
    divisions = [2**power for power in range(count.bit_length() + 1)]
    return dict.fromkeys(part * (count - 1) // parts for parts in divisions for part in range(parts + 1))


def _survey_tar(location: str, found: TarSurvey, is_deep: bool) -> None:
    folder, name = split_location(location)
    store = open_store(folder)
    stat, kinds = store.stat(name), Counter[Kind]()
    damage: str | None = None
    last, is_whole = 0, False

    def is_wanted(member: Member) -> bool:
        return member.suffix == "json" and member.size <= LARGEST_JSON

    try:
        with store.open(name) as file:
            reader = TarReader(file, is_wanted, seeks=not is_remote(location))
            samples = group_samples(reader, splits_repeats=True)
            for one in samples if is_deep else islice(samples, SAMPLES):
                if not isinstance(one, StoredSample):
                    damage = damage or str(one)
                    continue
                kinds[frozenset(one.suffixes)] += 1
                last = _end_of(one)
                _note(one, location, found)
            is_whole = is_deep or next(samples, None) is None
        if not is_remote(location):
            _measure(store, name, location, found, is_deep)
    except OSError as error:
        damage = f"cannot be read: {error.strerror or error}"
        is_whole = True
    count = kinds.total()
    samples_there = count if is_whole or not last else round(count * max(stat.size, last) / last)
    found.tars[location] = SurveyedTar(location, max(stat.size, 0), kinds, samples_there, is_whole, damage)


def _end_of(sample: StoredSample) -> int:
    last = sample.members[-1]
    return last.offset + last.size + -last.size % 512


def _note(sample: StoredSample, location: str, found: TarSurvey) -> None:
    kind = frozenset(sample.suffixes)
    examples = found.examples[kind]
    of_tar = sum(one.tar == location for one in examples)
    stop = _end_of(sample)
    if len(examples) < EXAMPLES and of_tar < EXAMPLES_PER_TAR and stop - sample.start < LARGEST_EXAMPLE:
        examples.append(Example(location, sample.key, sample.start, stop))
    content = next((one.content for one in sample.members if one.suffix == "json"), None)
    if content is not None:
        with suppress(Reject):  # the trainer's own decoding judges it
            for field, value in object_of(content).items():
                if isinstance(value, str) and value.strip() and len(value) <= LONGEST_TEXT:
                    found.texts[field] += 1


def _measure(store: Store, name: str, location: str, found: TarSurvey, is_deep: bool) -> None:
    """Read the size of some images from the head of each."""
    with store.open(name) as file:
        images = (
            member
            for member in TarReader(file, seeks=True)
            if isinstance(member, Member) and member.suffix.rpartition(".")[2] in IMAGES
        )
        for one in list(images if is_deep else islice(images, MEASURED)):
            file.seek(one.offset)
            # A file that is no image, or has its size further on, fails where it is decoded.
            with suppress(Reject):
                width, height = size_of(file.read(min(one.size, HEAD)), ImageRules(max_pixels=MOST_PIXELS))
                found.pixels.append((width * height, one.key, location))


def copy_examples(examples: Sequence[Example]) -> bytes:
    """Return a tar of these samples, copied byte by byte."""
    parts = []
    for one in examples:
        folder, name = split_location(one.tar)
        with open_store(folder).open(name) as file:
            file.seek(one.start)
            parts.append(file.read(one.stop - one.start))
    return b"".join([*parts, bytes(1024)])
