"""WebDataset tars: what their samples hold, which folders of them are one source, and what joins them.

The first samples of some tars in each folder are read; nothing is extracted.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tasks.core.schema.source import PLACE
from tasks.core.stores import StoreUnreachable, is_remote
from tasks.core.units import counted, percent
from tasks.dataset.formats import Unjudged
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.formats.volumes import stored
from tasks.dataset.init.column_counts import ColumnCounts, add_row
from tasks.dataset.init.columns import caption_columns
from tasks.dataset.init.evidence import (
    ConfigKey,
    Reading,
    enumerate_names,
    propose_shards,
    propose_splits,
    shown,
    spread,
)
from tasks.dataset.init.inventory import Inventory
from tasks.dataset.modalities import reinforced
from tasks.dataset.sources.fields import object_of
from tasks.dataset.sources.raw_files import COMPRESSED
from tasks.dataset.sources.tar_samples import contents_of
from tasks.dataset.tar.reader import Member, StoredSample, TarReader, group_samples
from tasks.dataset.version.rejects import Reject

MOST_FOLDERS = 8
TARS = 3
"""Tars to read in each folder."""
SAMPLES = 100
"""Samples to read in each tar."""
REMOTE_BYTES = 32 << 20
"""A remote tar is read from its start and cannot be jumped through, so it is read no further than this."""
LARGEST_JSON = 1 << 20
LARGE = 100_000
"""Bytes of a sample above which larger shards are worth it."""
MOST = 0.5
"""Samples have a member if at least this share of them does."""
WHOLE = 0.95
"""A sample has several images if each of them is in at least this share of the samples."""
CAPTIONS = ("caption.txt", "text.txt", "caption", "text", "title.txt")
SORT = (
    "the members of a sample are not adjacent in the tar: pack it again sorted by name "
    "(tar --sort=name -cf TAR FOLDER)"
)
WHAT = {
    "image_text": "WebDataset tars of images and captions",
    "reinforced": "WebDataset tars with MobileCLIP's reinforcements",
    "volume_report": "WebDataset tars of volumes and reports",
    "chat": "WebDataset tars of conversations",
}


@dataclass
class TarFolder:
    """The tars of one folder and what the samples that were read hold: how many have each suffix, their keys,
    and the fields of their `json` as columns. `samples` is the number in all tars."""

    folder: str
    files: Sequence[str]
    looked_at: int = 0
    bytes: int = 0
    suffixes: Counter[str] = field(default_factory=Counter)
    first_in: dict[str, str] = field(default_factory=dict)
    """The first tar that holds each whole key."""
    restarts: bool = False
    """Whether two tars hold the same key."""
    columns: dict[str, ColumnCounts] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    samples: int = 0
    is_estimate: bool = False
    teacher_width: int | None = None
    """Width of the embeddings in the first sample that has any; None where they cannot be read."""

    @property
    def keys(self) -> set[str]:
        return set(map(posixpath.basename, self.first_in))

    def share(self, suffix: str) -> float:
        return self.suffixes[suffix] / max(self.looked_at, 1)

    def has(self, suffix: str) -> bool:
        return self.share(suffix) >= MOST

    @property
    def members(self) -> str:
        """`jpg 100 %, txt 98 %`."""
        suffixes = sorted(self.suffixes, key=lambda suffix: (-self.suffixes[suffix], suffix))
        return ", ".join(f"{suffix} {percent(self.share(suffix), 0)}" for suffix in suffixes[:8])

    @property
    def images(self) -> list[str]:
        """The suffixes of the samples' images; where formats are mixed, each is in a smaller share."""
        mixed = [suffix for suffix in IMAGES if self.suffixes[suffix]]
        if sum(map(self.share, mixed)) < MOST:
            return []
        return list(filter(self.has, mixed)) or mixed

    @property
    def dotted_image(self) -> str | None:
        """`image.jpg`, where members are named like `00001.image.jpg`."""
        dotted = (one for one in sorted(self.suffixes) if "." in one and one.rpartition(".")[2] in IMAGES)
        return next(filter(self.has, dotted), None)

    @property
    def is_reinforcement(self) -> bool:
        return self.has("paug.json") or self.has("syn.json")

    @property
    def is_scattered(self) -> bool:
        """Whether the members of a sample are apart, as in a tar of an unsorted folder."""
        images = sum(self.suffixes[suffix] for suffix in IMAGES)
        kinds = [images, *(number for suffix, number in self.suffixes.items() if suffix not in IMAGES)]
        common = sum(number >= self.looked_at / 10 for number in kinds)
        return common > 1 and self.suffixes.total() < 1.2 * self.looked_at

    def has_field(self, name: str) -> bool:
        """Whether most `json` members have the field."""
        return name in self.columns and 2 * self.columns[name].filled >= self.suffixes["json"]

    @property
    def caption_origin(self) -> str | None:
        """The member, or the field of `json`, that holds the caption where there is no `txt`."""
        fields = (f"json:{one.name}" for one in caption_columns(self.columns) if self.has_field(one.name))
        return next((member for member in CAPTIONS if self.has(member)), None) or next(fields, None)

    @property
    def modality(self) -> str:
        """The modality that the members make up, or ""."""
        if any(self.has(f"000.{suffix}") for suffix in IMAGES) or self.has_field("messages"):
            return "chat"
        if any(map(self.has, (*stored.MEMBERS, *(() if self.images else ("npy",))))):
            return "volume_report"
        if not self.images and not self.dotted_image:
            return ""
        if self.is_reinforcement:
            return "reinforced"
        return "image_text" if self.has("txt") or self.caption_origin else ""

    @property
    def origins(self) -> dict[str, str]:
        """The config's `members`: the origin of each member that must be made from another."""
        if self.modality == "volume_report":
            return {} if any(map(self.has, stored.MEMBERS)) else {"volume.npy": "npy"}
        members: dict[str, str] = {}
        if self.modality in ("image_text", "reinforced"):
            several = [suffix for suffix in self.images if self.share(suffix) >= WHOLE]
            if len(several) > 1:
                members["image"] = several[0]
            elif not self.images and self.dotted_image:
                members["image"] = self.dotted_image
            if not self.has("txt") and self.caption_origin:
                members["txt"] = self.caption_origin
        return members


def tar_readings(inventory: Inventory) -> list[Reading]:
    """Make one source of the folders with the same modality, and join reinforcements to their images."""
    folders = _survey_folders(inventory)
    lone = [one for one in folders if one.is_reinforcement and not one.images]
    alike: dict[tuple[str, str], list[TarFolder]] = defaultdict(list)
    for one in folders:
        if one not in lone and one.modality:
            alike[one.modality, json.dumps(one.origins)].append(one)
    found = []
    for (modality, _), same in alike.items():
        partners = (one for one in lone if any(one.keys & images.keys for images in same))
        joined = next(partners, None) if modality == "image_text" else None
        found.append(_reading(inventory, same, joined, is_all=len(same) == len(folders)))
    return found


def without_use(inventory: Inventory) -> str:
    """Return what to do about tars that no reading uses; "" where there are none."""
    packed = inventory.of(COMPRESSED)
    if packed:
        return f"{shown(packed[0])} is compressed, so that it cannot be read in parts; unpack it to .tar"
    folders = _survey_folders(inventory)
    if not folders:
        return ""
    if broken := [reason for one in folders for reason in one.broken]:
        return f"{counted(len(broken), 'tar')} looked at cannot be read: {broken[0]}"
    first = folders[0]
    if first.is_reinforcement:
        return f"the tars hold reinforcements ({first.members}) without images: give a folder with both"
    if scattered := next((one for one in folders if one.is_scattered), None):
        return f"{shown(scattered.files[0])}: {SORT}"
    return (
        f"the tars' samples hold {first.members or 'nothing'}, which is no sample that Tarmac knows: images "
        "need txt, or json with a caption; volumes volume.npy or volume.b2nd, txt and json; conversations "
        "json and 000.jpg"
    )


def _survey_folders(inventory: Inventory) -> list[TarFolder]:
    """Return at most MOST_FOLDERS, in the order of their names."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for file in inventory.of([".tar"]):
        by_folder[posixpath.dirname(file)].append(file)
    found = []
    for folder in spread(sorted(by_folder), MOST_FOLDERS):
        files = by_folder[folder]
        chosen = spread(files, TARS)
        one = TarFolder(folder, files, is_estimate=len(chosen) < len(files))
        samples = sum(_survey_tar(inventory, file, one) for file in chosen)
        one.samples = round(samples * len(files) / len(chosen))
        found.append(one)
    return found


def _survey_tar(inventory: Inventory, file: str, found: TarFolder) -> float:
    """Add what the tar's first samples hold, and return about how many samples it holds in all."""
    is_far = is_remote(inventory.store.location)
    looked_at = 0

    def is_wanted(member: Member) -> bool:
        is_first = found.teacher_width is None and member.suffix in (reinforced.NPZ, reinforced.PTH)
        return (member.suffix == "json" or is_first) and member.size <= LARGEST_JSON

    try:
        with inventory.store.open(file) as opened:
            reader = TarReader(opened, is_wanted, seeks=not is_far)
            for sample in group_samples(reader, splits_repeats=True):
                if not isinstance(sample, StoredSample):
                    found.broken.append(f"{shown(file)}: {sample}")
                    break
                if looked_at >= SAMPLES or (is_far and reader.offset > REMOTE_BYTES):
                    found.bytes += sample.start
                    found.is_estimate = True
                    return inventory.size(file) * looked_at / sample.start
                found.restarts |= found.first_in.setdefault(sample.key, file) != file
                _add(sample, found)
                looked_at += 1
            found.bytes += reader.offset
    except StoreUnreachable:
        raise
    except OSError as error:
        found.broken.append(f"{shown(file)}: {shown(error, 120)}")
    return looked_at


def _add(sample: StoredSample, found: TarFolder) -> None:
    found.looked_at += 1
    found.suffixes.update(sample.suffixes)
    contents = contents_of(sample)
    if contents.keys() & {reinforced.NPZ, reinforced.PTH}:
        with suppress(Reject, Unjudged):
            found.teacher_width = int(reinforced.embeddings(contents)["image_emb"].shape[1])
    if "json" in contents:
        with suppress(Reject):  # the build reports what is wrong with it
            add_row(found.columns, object_of(contents["json"]))


def _reading(
    inventory: Inventory, folders: Sequence[TarFolder], joined: TarFolder | None, is_all: bool
) -> Reading:
    first, modality = folders[0], folders[0].modality if joined is None else "reinforced"
    samples, tars = sum(one.samples for one in folders), sum(len(one.files) for one in folders)
    about = "about " if any(one.is_estimate for one in folders) else ""
    tars_there = f"{counted(tars, 'tar')}, {about}{counted(samples, 'sample')}"
    path = ConfigKey("path", _path(inventory, folders, is_all), f"{tars_there}; members {first.members}")
    source = [ConfigKey("kind", "shards"), path]
    if first.origins:
        origins = [f"{target} from {_origin(first, origin)}" for target, origin in first.origins.items()]
        source.append(ConfigKey("members", first.origins, "; ".join(origins)))
    if joined is not None:
        source.append(_join(inventory, first, joined))
    if any(one.restarts for one in folders):
        source.append(ConfigKey("key", PLACE, "tars count their samples anew, so that keys come again"))
    key = next((name for name in ("uid", "key", "sha256", "id") if first.has_field(name)), None)
    if key is not None:
        why = "the sample's key; without it the tar's own"
        source.append(ConfigKey("key", f"json:{key}", why, is_alternative=True))
    warnings = [f"{one.folder or '.'}: {SORT}" for one in folders if one.is_scattered]
    if len(folders) > 1:
        where = enumerate_names([one.folder or "." for one in folders])
        warnings.append(f"tars lie in {where}: splits draws anew from all; for one alone give its path")
    is_private = modality == "volume_report"
    group = "patient" if is_private and first.has_field("patient") else None
    each = first.bytes / max(first.looked_at, 1)
    most = "2GB" if is_private else "512MB" if each > LARGE else "256MB"
    dataset = [propose_splits(samples, group), propose_shards(samples, each, most)]
    width = first.teacher_width or (joined.teacher_width if joined is not None else None)
    found = Reading("shards", WHAT[modality], modality, samples, 2, source, dataset, warnings, is_private)
    return replace(found, teacher_width=width)


def _origin(first: TarFolder, origin: str) -> str:
    column = first.columns.get(origin.removeprefix("json:"))
    return origin + (f", “{shown(next(iter(column.values)), 48)}”" if column else "")


def _path(inventory: Inventory, folders: Sequence[TarFolder], is_all: bool) -> str:
    if is_all and not inventory.datasets:
        return inventory.given
    if len(folders) == 1 and folders[0].folder:
        return inventory.path(folders[0].folder)
    tars = [posixpath.join(one.folder, "*.tar") for one in folders]
    return inventory.path(tars[0] if len(tars) == 1 else f"{{{','.join(tars)}}}")


def _join(inventory: Inventory, first: TarFolder, joined: TarFolder) -> ConfigKey:
    names = {posixpath.basename(file) for file in first.files}
    is_by_shard = names == {posixpath.basename(file) for file in joined.files}
    join = {"path": inventory.path(joined.folder)}
    where = "the tars of the same name" if is_by_shard else "found by key, in any of the tars"
    why = f"{counted(len(joined.files), 'tar')} in {joined.folder}: {joined.members}; {where}"
    return ConfigKey("join", [{**join, "match": "shard"} if is_by_shard else join], why)
