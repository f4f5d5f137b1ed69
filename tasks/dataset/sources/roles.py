"""What the members of a tar are to a modality: `jpeg` is a pair's `image`, `001.png` a chat's `001`,
`volume.b2nd` a `volume`. What an image or volume is stored as, its bytes tell, not its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tasks.core.errors import UsageError
from tasks.core.schema import Dataset, ShardsSource
from tasks.dataset.formats import images
from tasks.dataset.formats.volumes import stored
from tasks.dataset.rejects import Reason, Reject

_CHAT_IMAGE = re.compile(rf"(\d{{3}})(?:\.(?:{'|'.join(images.SUFFIXES)}))?")
REINFORCEMENT = ("syn.json", "paug.json", "npz", "pth.gz")
FIELD = "json:"
"""Begins an origin that is a field of the sample's `json`."""

LARGEST_BYTES = 4 << 30
"""A sample's members together; a volume of 512 x 512 x 2,000 in float64 fits."""
LARGEST_TEXT = 256 << 20


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
"""The raw member that a suffix is, by modality; None for one that it does not know."""

REQUIRED: Mapping[str, Mapping[str, Reason]] = {
    "image_text": {"image": "member.missing", "txt": "caption.missing"},
    "reinforced": {"image": "member.missing", "txt": "caption.missing"},
    "volume_report": {"volume": "member.missing", "txt": "report.missing", "json": "member.missing"},
    "chat": {"json": "member.missing"},
}
"""What a sample cannot do without, and the reason of its reject; the modality checks the rest."""


@dataclass(frozen=True)
class Roles:
    """Which members of a tar are kept, how large they may be, and what each becomes.

    `origins` are the members that the config makes out of others, by what they become.
    """

    modality: str
    max_pixels: int
    origins: Mapping[str, str]

    @classmethod
    def of(cls, config: ShardsSource, dataset: Dataset, config_key: str) -> Roles:
        """UsageError for a member that the modality does not know."""
        origins = {}
        for target, origin in config.members.items():
            role = ROLES[dataset.modality](target.lower())
            if role is None:
                known = ", ".join(REQUIRED[dataset.modality])
                raise UsageError(
                    f"{config_key}.members.{target}: a sample of {dataset.modality} has no such member; "
                    f"it needs {known}"
                )
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
        """What the suffix is, unless the config makes that out of another."""
        role = ROLES[self.modality](suffix)
        return None if role in self.origins else role

    def check_size(self, suffix: str, size: int) -> None:
        """Reject a member that is larger than any sound one, before it is read."""
        role = next((role for role, origin in self.origins.items() if origin == suffix), self.role(suffix))
        if role is not None and (role == "image" or role.isdigit()):
            limit, reason = self.max_pixels * images.BYTES_PER_PIXEL + images.SLACK, "image.too_large"
        else:
            limit, reason = (LARGEST_BYTES if role == "volume" else LARGEST_TEXT), "archive.bomb"
        if size > limit:
            raise Reject(reason, f"{suffix}: {size:,} bytes, more than {limit:,}")  # type: ignore[arg-type]

    def assign(self, found: Mapping[str, bytes]) -> dict[str, str]:
        """The suffix that each raw member comes from; Reject where two would be the same."""
        chosen: dict[str, str] = {}
        for suffix in found:
            role = self.role(suffix)
            if role is None:
                continue
            if role in chosen:
                fix = "choose one with source.members"
                raise Reject("key.duplicate", f"{chosen[role]} and {suffix} are both its {role}; {fix}")
            chosen[role] = suffix
        renamed = {role: origin for role, origin in self.origins.items() if origin in found}
        return chosen | renamed
