"""Samples in a tar made by others, and the role of each member in a modality.

A sample is a run of adjacent members of one key, by webdataset's rule; where a suffix repeats, the next
sample begins, as in open_clip's loader. `jpeg` is a pair's `image`, `001.png` a chat's `001`, `volume.b2nd` a
`volume`: the format of an image or volume is read from its bytes, not from its name. A sample that is unsafe,
too large or next to damage has a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

from tasks.core.errors import UsageError
from tasks.core.schema import Dataset, ShardsSource
from tasks.dataset.formats import images
from tasks.dataset.formats.volumes import stored
from tasks.dataset.tar.reader import Cut, Gap, Member, StoredSample, TarReader, group_samples
from tasks.dataset.version.rejects import Reason, Reject

_CHAT_IMAGE = re.compile(rf"(\d{{3}})(?:\.(?:{'|'.join(images.SUFFIXES)}))?")
REINFORCEMENT = ("syn.json", "paug.json", "npz", "pth.gz")
FIELD = "json:"
"""The prefix of an origin that is a field of the sample's `json`."""
LARGEST_BYTES = 4 << 30
"""The limit for all members of a sample; a volume of 512 x 512 x 2,000 in float64 fits."""
LARGEST_TEXT = 256 << 20
MOST_MEMBERS = 10_000


def _pair(suffix: str) -> str | None:
    return "image" if suffix in (*images.SUFFIXES, "image") else suffix if suffix in ("txt", "json") else None


def _reinforced(suffix: str) -> str | None:
    return suffix if suffix in REINFORCEMENT else _pair(suffix)


def _volume(suffix: str) -> str | None:
    if suffix in (*stored.MEMBERS, "volume"):
        return "volume"
    return suffix if suffix in ("txt", "json") else None


def _chat(suffix: str) -> str | None:
    image = _CHAT_IMAGE.fullmatch(suffix)
    return image[1] if image else "json" if suffix == "json" else None


ROLES: Mapping[str, Callable[[str], str | None]] = {
    "image_text": _pair,
    "reinforced": _reinforced,
    "volume_report": _volume,
    "chat": _chat,
}
"""The raw member that a suffix stands for, by modality; None for an unknown one."""

REQUIRED: Mapping[str, Mapping[str, Reason]] = {
    "image_text": {"image": "member.missing", "txt": "caption.missing"},
    "reinforced": {"image": "member.missing", "txt": "caption.missing"},
    "volume_report": {"volume": "member.missing", "txt": "report.missing", "json": "member.missing"},
    "chat": {"json": "member.missing"},
}
"""The members that a sample must have, and the reject's reason without; the modality checks the rest."""


@dataclass(frozen=True)
class Roles:
    """Which members of a tar are kept, how large they may be, and what each becomes.

    `origins` maps the members that the config makes from others to those others.
    """

    modality: str
    max_pixels: int
    origins: Mapping[str, str]

    @classmethod
    def of(cls, config: ShardsSource, dataset: Dataset, config_key: str) -> Roles:
        """UsageError for a member that the modality does not have."""
        origins = {}
        for target, origin in config.members.items():
            role = ROLES[dataset.modality](target.lower())
            if role is None:
                unknown = f"a sample of {dataset.modality} has no such member"
                known = ", ".join(REQUIRED[dataset.modality])
                raise UsageError(f"{config_key}.members.{target}: {unknown}; it needs {known}")
            origins[role] = origin if origin.startswith(FIELD) else origin.lower()
        return cls(dataset.modality, dataset.image.max_pixels, origins)

    @property
    def described(self) -> str:
        """The suffix of the member that holds the sample's fields."""
        origin = self.origins.get("json", "json")
        return "json" if origin.startswith(FIELD) else origin

    def keeps(self, suffix: str) -> bool:
        return self.role(suffix) is not None or suffix in (self.described, *self.origins.values())

    def role(self, suffix: str) -> str | None:
        """Return the member that the suffix stands for, unless the config makes it from another."""
        role = ROLES[self.modality](suffix)
        return None if role in self.origins else role

    def limit(self, suffix: str) -> tuple[int, Reason]:
        """Return the most bytes of a sound member, and the reason for rejecting a larger one."""
        role = next((role for role, origin in self.origins.items() if origin == suffix), self.role(suffix))
        if role is not None and (role == "image" or role.isdigit()):
            return self.max_pixels * images.BYTES_PER_PIXEL + images.SLACK, "image.too_large"
        return (LARGEST_BYTES if role == "volume" else LARGEST_TEXT), "archive.bomb"

    def assign(self, found: Mapping[str, bytes]) -> dict[str, str]:
        """Return the suffix that each raw member comes from; Reject where two would be the same."""
        chosen: dict[str, str] = {}
        for suffix in found:
            role = self.role(suffix)
            if role in chosen:
                fix = "choose one with source.members"
                raise Reject("key.duplicate", f"{chosen[role]} and {suffix} are both its {role}; {fix}")
            if role is not None:
                chosen[role] = suffix
        renamed = {role: origin for role, origin in self.origins.items() if origin in found}
        return chosen | renamed


def contents_of(sample: StoredSample) -> dict[str, bytes]:
    """Return the members whose content was kept, by suffix."""
    return {member.suffix: member.content for member in sample.members if member.content is not None}


class _BoundedReader(TarReader):
    """Skips the members of a key beyond MOST_MEMBERS + 1, so that no sample grows without limit."""

    def __iter__(self) -> Iterator[Member | Gap | Cut]:
        key, count = "", 0
        for found in super().__iter__():
            if isinstance(found, Member):
                count = count + 1 if found.key == key else 1
                key = found.key
                if count > MOST_MEMBERS + 1:
                    continue
            yield found


class TarSamples:
    """Iterates over the samples of an open tar, each with its fault or None; OSError as the file raises it.

    Afterwards `damage` describes what is wrong with the tar, so that it may have held further samples; "" for
    a whole one. `size` is the file's, -1 where it is unknown. The content of the members that `keeps` accepts
    is kept, by default of all that have a role; with `seeks` the others are jumped over.
    """

    def __init__(
        self,
        file: BinaryIO,
        roles: Roles,
        size: int,
        keeps: Callable[[Member], bool] | None = None,
        *,
        seeks: bool = False,
    ) -> None:
        self._roles = roles
        self._size = size
        self._reader = _BoundedReader(file, keeps or self._is_kept, seeks=seeks)
        self._kept_key, self._kept_bytes = "", 0
        self._limit = lru_cache(MOST_MEMBERS)(self._limit_of)
        self.damage = ""

    def __iter__(self) -> Iterator[tuple[StoredSample, tuple[Reason, str] | None]]:
        last: StoredSample | None = None  # held back, because damage after it arrives as the next value
        for found in group_samples(self._reader, splits_repeats=True):
            if not isinstance(found, StoredSample):
                if not (isinstance(found, Cut) and found.is_between and self._reader.offset >= self._size):
                    self.damage = self.damage or f"the tar {found}"
                continue
            if last is not None:
                yield last, self._fault(last)
            last = found
        if last is not None:
            yield last, self._fault(last)

    def _is_kept(self, member: Member) -> bool:
        """Whether to keep a member's content, by the sizes that headers claim."""
        if member.key != self._kept_key:
            self._kept_key, self._kept_bytes = member.key, 0
        limit = self._limit(member.suffix)
        if limit is None or member.size > limit[0]:
            return False
        self._kept_bytes += member.size
        return self._kept_bytes <= LARGEST_BYTES

    def _limit_of(self, suffix: str) -> tuple[int, Reason] | None:
        """Return the roles' limit; None for a member that they do not keep."""
        return self._roles.limit(suffix) if self._roles.keeps(suffix) else None

    def _fault(self, sample: StoredSample) -> tuple[Reason, str] | None:
        """Return why the sample is torn, unsafe or too large; None for a sound one."""
        if sample.is_torn:
            return "source.unreadable", f"{self.damage}, so it may lack members"
        if len(sample.members) > MOST_MEMBERS:
            return "archive.bomb", f"more than {MOST_MEMBERS:,} members of one key"
        total = 0
        for member in sample.members:
            if member.oddity is not None:
                return "archive.unsafe", f"a member is {member.oddity}"
            if (limit := self._limit(member.suffix)) is not None:
                if member.size > limit[0]:
                    problem = f"{member.suffix}: {member.size:,} bytes, more than {limit[0]:,}"
                    return limit[1], problem
                total += member.size
        if total > LARGEST_BYTES:
            return "archive.bomb", f"its members have more than {LARGEST_BYTES:,} bytes"
        return None
