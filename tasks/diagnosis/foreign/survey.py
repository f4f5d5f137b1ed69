"""What the samples of anybody's tars hold, found from the tars' headers in seconds.

Samples with the same members are one kind, and there are few kinds however many samples, so whatever a
trainer makes of a sample is found out on a few of each kind. Contents are jumped over but for `json`, whose
fields may hold what a sample lacks, and for the head of some images, which states their size. A look ends
after some seconds unless it is deep; what was not looked at is counted.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from tasks.core.folders import open_store
from tasks.core.schema import ImageRules
from tasks.core.schema.dataset import MOST_PIXELS
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import ObjectStat, Store, is_remote, split_location
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.formats.images import size_of
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.fields import object_of
from tasks.dataset.tar.reader import Member, StoredSample, TarReader, group_samples

Kind = frozenset[str]
"""The suffixes of a sample's members."""

LOOK_S = 4.0
"""A look that is not deep takes no more tars after this time; two are looked at in any case."""
SAMPLES = 2_000
"""Looked at in each tar where the look is not deep."""
EXAMPLES = 8
"""Samples of each kind that are kept, spread over the tars."""
EXAMPLES_PER_TAR = 2
MEASURED = 16
"""Images per tar whose size is read, where the look is not deep."""
HEAD = 1 << 16
LARGEST_JSON = 1 << 16
LONGEST_TEXT = 4096
LARGEST_EXAMPLE = 256 << 20


@dataclass(frozen=True)
class Example:
    """A sample's place in a tar: the bytes from the header of its first member to behind its last."""

    tar: str
    key: str
    start: int
    stop: int


@dataclass(frozen=True)
class TarSeen:
    """One tar. `kinds` counts the samples looked at; `samples` are all in it, an estimate unless whole."""

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
    """What was seen of all tars, which are in the order of the trainer's list."""

    locations: Sequence[str]
    tars: dict[str, TarSeen] = field(default_factory=dict)
    examples: dict[Kind, list[Example]] = field(default_factory=lambda: defaultdict(list))
    texts: Counter[str] = field(default_factory=Counter)
    """In how many samples each field of `json` holds a text."""
    described: int = 0
    """Samples whose `json` was read."""
    pixels: list[tuple[int, str, str]] = field(default_factory=list)
    """Pixels, key and tar of the images measured."""
    seconds: float = 0.0

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
        """All samples; of tars not looked at as many as the others hold on average."""
        seen = sum(one.samples for one in self.tars.values())
        return round(seen * len(self.locations) / max(len(self.tars), 1))

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample in a tar, on average."""
        samples = sum(one.samples for one in self.tars.values())
        return sum(one.size_bytes for one in self.tars.values()) / max(samples, 1)

    @property
    def caption_field(self) -> tuple[str, int] | None:
        """The field of `json` that is most likely the caption, and the samples that have it."""
        named = [name for name in self.texts if "caption" in name.lower() or name.lower() in ("text", "txt")]
        found = max(named, key=lambda name: (self.texts[name], name.lower() == "caption"), default=None)
        return None if found is None else (found, self.texts[found])


def survey(locations: Sequence[str], is_deep: bool = False, progress: Progress = no_progress) -> TarSurvey:
    """Look at tars, those that are spread over the list first; each whole where the look `is_deep`.

    Unreachable where a server does not answer; a tar that cannot be read is one with damage.
    """
    began = time.monotonic()
    found = TarSurvey(locations)
    for place in _spread(len(locations)):
        is_late = time.monotonic() - began > LOOK_S
        if is_late and not is_deep and len(found.tars) >= 2:
            break
        _look(locations[place], found, is_deep)
        progress(len(found.tars), len(locations), "tars")
    found.seconds = time.monotonic() - began
    return found


def _spread(count: int) -> Iterator[int]:
    """All of 0..count-1: the first, the last, then ever finer in between."""
    seen: set[int] = set()
    parts = 1
    while len(seen) < count:
        for part in range(parts + 1):
            place = part * (count - 1) // parts
            if place not in seen:
                seen.add(place)
                yield place
        parts *= 2


def _look(location: str, found: TarSurvey, is_deep: bool) -> None:
    folder, name = split_location(location)
    store = open_store(folder)
    stat: ObjectStat = store.stat(name)
    kinds: Counter[Kind] = Counter()
    damage: str | None = None
    last = 0
    is_whole = False

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
        _measure(store, name, location, found, is_deep)
    except OSError as error:
        damage = f"cannot be read: {error.strerror or error}"
        is_whole = True
    count = kinds.total()
    samples_there = count if is_whole or not last else round(count * max(stat.size, last) / last)
    found.tars[location] = TarSeen(location, max(stat.size, 0), kinds, samples_there, is_whole, damage)


def _end_of(sample: StoredSample) -> int:
    last = sample.members[-1]
    return last.offset + last.size + -last.size % 512


def _note(sample: StoredSample, location: str, found: TarSurvey) -> None:
    kind = frozenset(sample.suffixes)
    examples = found.examples[kind]
    its = sum(one.tar == location for one in examples)
    stop = _end_of(sample)
    if len(examples) < EXAMPLES and its < EXAMPLES_PER_TAR and stop - sample.start < LARGEST_EXAMPLE:
        examples.append(Example(location, sample.key, sample.start, stop))
    content = next((one.content for one in sample.members if one.suffix == "json"), None)
    if content is not None:
        found.described += 1
        with suppress(Reject):  # the trainer's own decoding says what comes of it
            fields = object_of(content)
            found.texts.update(
                name
                for name, value in fields.items()
                if isinstance(value, str) and value.strip() and len(value) <= LONGEST_TEXT
            )


def _measure(store: Store, name: str, location: str, found: TarSurvey, is_deep: bool) -> None:
    """Read the size of some images, from the head of each; of a remote tar of none."""
    if is_remote(location):
        return
    with store.open(name) as file:
        images = (
            member
            for member in TarReader(file, seeks=True)
            if isinstance(member, Member) and member.suffix.rpartition(".")[2] in IMAGES
        )
        places = [
            (one.offset, one.size, one.key) for one in (images if is_deep else islice(images, MEASURED))
        ]
        for offset, size, key in places:
            file.seek(offset)
            # What is no image, or has its size further on, is found by whoever decodes it.
            with suppress(Reject):
                width, height = size_of(file.read(min(size, HEAD)), ImageRules(max_pixels=MOST_PIXELS))
                found.pixels.append((width * height, key, location))


def copy_examples(examples: Sequence[Example]) -> bytes:
    """A tar of these samples, as they lie in theirs."""
    parts = []
    for one in examples:
        folder, name = split_location(one.tar)
        with open_store(folder).open(name) as file:
            file.seek(one.start)
            parts.append(file.read(one.stop - one.start))
    return b"".join([*parts, bytes(1024)])
