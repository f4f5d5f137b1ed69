"""Tars of one folder: what was seen in some of them, hence their modality and what must be renamed."""

from __future__ import annotations

import json
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.stores import Unreachable
from tasks.core.units import percent
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.formats.volumes import stored
from tasks.dataset.init.evidence import shown, spread
from tasks.dataset.init.inventory import Inventory
from tasks.dataset.init.roles import CAPTIONS
from tasks.dataset.init.tar_file import Looked, look_at_tar
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.files import read_file

MOST_FOLDERS = 8
TARS = 3
"""Looked at in each folder."""
MOST = 0.5
"""A member that this share of the samples has is one that samples have."""
WHOLE = 0.95
"""Two images that so many samples have are two of one sample."""
TEXTS = ("caption.txt", "text.txt", "caption", "text", "title.txt")
LARGEST_SIZES = 16 << 20


@dataclass(frozen=True)
class TarFolder:
    """Tars of one folder and what was seen in some of them, added up."""

    folder: str
    files: Sequence[str]
    looked: Looked
    looked_at: int
    samples: int
    is_about: bool
    broken: Sequence[str]

    def has(self, suffix: str) -> bool:
        return self.looked.share(suffix) >= MOST

    @property
    def images(self) -> list[str]:
        return [suffix for suffix in IMAGES if self.has(suffix)] or self._mixed_images

    @property
    def _mixed_images(self) -> list[str]:
        """Samples of several formats have each of them less often."""
        shares = {suffix: self.looked.share(suffix) for suffix in IMAGES}
        mixed = [suffix for suffix, share in shares.items() if share]
        return mixed if sum(shares.values()) >= MOST else []

    @property
    def is_reinforcement(self) -> bool:
        return self.has("paug.json") or self.has("syn.json")

    @property
    def members(self) -> str:
        shares = sorted(self.looked.suffixes, key=lambda suffix: (-self.looked.suffixes[suffix], suffix))
        return ", ".join(f"{suffix} {percent(self.looked.share(suffix), 0)}" for suffix in shares[:8])


def tar_folders(inventory: Inventory) -> list[TarFolder]:
    """In the order of their names; at most MOST_FOLDERS."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for file in inventory.of([".tar"]):
        by_folder[posixpath.dirname(file)].append(file)
    return [
        _folder(inventory, folder, by_folder[folder]) for folder in spread(sorted(by_folder), MOST_FOLDERS)
    ]


def _folder(inventory: Inventory, folder: str, files: Sequence[str]) -> TarFolder:
    whole, broken, samples = Looked(), [], 0.0
    chosen = spread(files, TARS)
    is_about = len(chosen) < len(files)
    for file in chosen:
        looked = look_at_tar(inventory, file)
        if looked.fault:
            broken.append(f"{shown(file)}: {looked.fault}")
        whole.add(looked)
        if looked.ended or looked.fault:
            samples += looked.samples
        else:
            samples += inventory.size(file) / max(looked.bytes / max(looked.samples, 1), 1)
            is_about = True
    told = _told_sizes(inventory, folder, files)
    if told is not None:
        return TarFolder(folder, files, whole, len(chosen), told, False, broken)
    every = round(samples * len(files) / len(chosen))
    return TarFolder(folder, files, whole, len(chosen), every, is_about, broken)


def _told_sizes(inventory: Inventory, folder: str, files: Sequence[str]) -> int | None:
    """The samples of all tars by the `sizes.json` beside them; None where it does not tell."""
    try:
        told: Any = json.loads(
            read_file(inventory.store, posixpath.join(folder, "sizes.json"), LARGEST_SIZES)
        )
        return sum(int(told[posixpath.basename(file)]) for file in files)
    except Unreachable:
        raise
    except (Reject, ValueError, KeyError, TypeError):
        return None


def modality_of(one: TarFolder) -> str:
    """ "" where the members make none."""
    if any(one.has(f"000.{suffix}") for suffix in IMAGES) or "messages" in field_names(one):
        return "chat"
    if _has_volumes(one) or (one.has("npy") and not one.images):
        return "volume_report"
    has_image = one.images or _dotted_image(one)
    if has_image and one.is_reinforcement:
        return "reinforced"
    return "image_text" if has_image and (one.has("txt") or _caption_origin(one)) else ""


def members_of(one: TarFolder) -> Mapping[str, str]:
    """What must be made out of other members."""
    members = {}
    modality = modality_of(one)
    if modality in ("image_text", "reinforced"):
        whole = [suffix for suffix in one.images if one.looked.share(suffix) >= WHOLE]
        if len(whole) > 1:
            members["image"] = whole[0]
        elif not one.images and (dotted := _dotted_image(one)):
            members["image"] = dotted
        if not one.has("txt") and (origin := _caption_origin(one)):
            members["txt"] = origin
    if modality == "volume_report" and not _has_volumes(one):
        members["volume.npy"] = "npy"
    return members


def _has_volumes(one: TarFolder) -> bool:
    return any(one.has(suffix) for suffix in stored.MEMBERS)


def _dotted_image(one: TarFolder) -> str | None:
    """`image.jpg`, of members such as `00001.image.jpg`."""
    dotted = [
        suffix for suffix in one.looked.suffixes if suffix.rpartition(".")[2] in IMAGES and "." in suffix
    ]
    return next((suffix for suffix in sorted(dotted) if one.has(suffix)), None)


def _caption_origin(one: TarFolder) -> str | None:
    """The member, or field of `json`, that the caption stands in."""
    member = next((suffix for suffix in TEXTS if one.has(suffix)), None)
    if member is not None:
        return member
    names = field_names(one)
    found = [name for name in CAPTIONS if name in names] or [
        name for name in names if " " in example(one, f"json:{name}").strip()
    ]
    return f"json:{found[0]}" if found else None


def field_names(one: TarFolder) -> list[str]:
    """Fields that most of the `json` looked at have, in their order."""
    names = dict.fromkeys(name for fields in one.looked.fields for name in fields)
    return [
        n for n in names if 2 * sum(n in fields for fields in one.looked.fields) >= len(one.looked.fields)
    ]


def example(one: TarFolder, origin: str) -> str:
    name = origin.removeprefix("json:")
    values = (fields.get(name) for fields in one.looked.fields)
    return next((value for value in values if isinstance(value, str) and value), "")
