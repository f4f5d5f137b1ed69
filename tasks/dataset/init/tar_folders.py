"""WebDataset tars: what their samples hold, which folders of them are one source, and what joins them.

Some tars of each folder are looked at, and of each the first samples; nothing is extracted.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tasks.core.schema.source import PLACE
from tasks.core.stores import StoreUnreachable, is_remote
from tasks.core.units import counted, percent
from tasks.dataset.formats import Unjudged
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.formats.volumes import stored
from tasks.dataset.init.columns import ColumnCounts, add_row, caption_columns
from tasks.dataset.init.evidence import Key, Reading, enumerate_names, shard_key, shown, splits_key, spread
from tasks.dataset.init.inventory import Inventory, config_path
from tasks.dataset.modalities import reinforced
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.fields import object_of
from tasks.dataset.sources.raw_files import COMPRESSED
from tasks.dataset.tar.reader import Member, StoredSample, TarReader, group_samples

MOST_FOLDERS = 8
TARS = 3
"""Looked at in each folder."""
SAMPLES = 100
"""Looked at in each tar."""
REMOTE_BYTES = 32 << 20
"""A remote tar is read, not jumped through, so it is looked at no further than this."""
LARGEST_JSON = 1 << 20
LARGE = 100_000
"""Bytes of a sample, beyond which larger shards are worth it."""
MOST = 0.5
"""Share of the samples; a member that as many have is one that samples have."""
WHOLE = 0.95
"""Share of the samples; of images that as many have, a sample has several."""
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
    """The tars of one folder, and what the samples looked at hold: how many have each suffix, their keys, and
    the fields of their `json` as columns. `samples` are those of all tars."""

    folder: str
    files: Sequence[str]
    looked_at: int = 0
    bytes: int = 0
    suffixes: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    first_in: dict[str, str] = field(default_factory=dict)
    """The tar in which each whole key was seen first."""
    restarts: bool = False
    """Whether a key was seen in two tars."""
    columns: dict[str, ColumnCounts] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    samples: int = 0
    is_estimate: bool = False
    teacher_width: int | None = None
    """Numbers of the embeddings in the first sample that has any; None where they cannot be read."""

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
        """The images that samples have; where their formats differ, each is in a smaller share of them."""
        mixed = [suffix for suffix in IMAGES if self.suffixes[suffix]]
        if sum(map(self.share, mixed)) < MOST:
            return []
        return list(filter(self.has, mixed)) or mixed

    @property
    def dotted_image(self) -> str | None:
        """`image.jpg`, of members such as `00001.image.jpg`."""
        dotted = (one for one in sorted(self.suffixes) if "." in one and one.rpartition(".")[2] in IMAGES)
        return next(filter(self.has, dotted), None)

    @property
    def is_reinforcement(self) -> bool:
        return self.has("paug.json") or self.has("syn.json")

    @property
    def has_volumes(self) -> bool:
        return any(map(self.has, stored.MEMBERS))

    @property
    def is_scattered(self) -> bool:
        """Whether the members of a sample are apart, as in a tar of a folder in no order."""
        images = sum(self.suffixes[suffix] for suffix in IMAGES)
        kinds = [images, *(number for suffix, number in self.suffixes.items() if suffix not in IMAGES)]
        common = sum(number >= self.looked_at / 10 for number in kinds)
        return common > 1 and self.suffixes.total() < 1.2 * self.looked_at

    def has_field(self, name: str) -> bool:
        """Whether most of the `json` have it."""
        return name in self.columns and 2 * self.columns[name].filled >= self.suffixes["json"]

    @property
    def caption_origin(self) -> str | None:
        """The member, or field of `json`, that holds the caption where no `txt` does."""
        fields = (f"json:{one.name}" for one in caption_columns(self.columns) if self.has_field(one.name))
        return next((member for member in CAPTIONS if self.has(member)), None) or next(fields, None)

    @property
    def modality(self) -> str:
        """ "" where the members make none."""
        if any(self.has(f"000.{suffix}") for suffix in IMAGES) or self.has_field("messages"):
            return "chat"
        if self.has_volumes or (self.has("npy") and not self.images):
            return "volume_report"
        if not self.images and not self.dotted_image:
            return ""
        if self.is_reinforcement:
            return "reinforced"
        return "image_text" if self.has("txt") or self.caption_origin else ""

    @property
    def origins(self) -> dict[str, str]:
        """The config's `members`: what must be made out of other members."""
        if self.modality == "volume_report" and not self.has_volumes:
            return {"volume.npy": "npy"}
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
    """The folders of tars of one modality are one source; reinforcements join the images they belong to."""
    folders = _look_at_folders(inventory)
    lone = [one for one in folders if one.is_reinforcement and not one.images]
    alike: dict[tuple[str, str], list[TarFolder]] = defaultdict(list)
    for one in folders:
        if one not in lone and one.modality:
            alike[one.modality, json.dumps(one.origins)].append(one)
    found = []
    for (modality, _), its in alike.items():
        partners = (one for one in lone if any(one.keys & images.keys for images in its))
        joined = next(partners, None) if modality == "image_text" else None
        found.append(_reading(inventory, its, joined, len(folders)))
    return found


def without_use(inventory: Inventory) -> str:
    """What to do about tars of which no reading came; "" where there are none."""
    packed = inventory.of(COMPRESSED)
    if packed:
        return f"{shown(packed[0])} is compressed, so that it cannot be read in parts; unpack it to .tar"
    folders = _look_at_folders(inventory)
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


def _look_at_folders(inventory: Inventory) -> list[TarFolder]:
    """In the order of their names; at most MOST_FOLDERS."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for file in inventory.of([".tar"]):
        by_folder[posixpath.dirname(file)].append(file)
    found = []
    for folder in spread(sorted(by_folder), MOST_FOLDERS):
        files = by_folder[folder]
        chosen = spread(files, TARS)
        one = TarFolder(folder, files, is_estimate=len(chosen) < len(files))
        samples = sum(_look_at_tar(inventory, file, one) for file in chosen)
        one.samples = round(samples * len(files) / len(chosen))
        found.append(one)
    return found


def _look_at_tar(inventory: Inventory, file: str, found: TarFolder) -> float:
    """Add what the tar's first samples hold; about how many there are in all."""
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
    found.keys.add(posixpath.basename(sample.key))
    found.suffixes.update(sample.suffixes)
    contents = {one.suffix: one.content for one in sample.members if one.content is not None}
    if contents.keys() & {reinforced.NPZ, reinforced.PTH}:
        with suppress(Reject, Unjudged):
            found.teacher_width = int(reinforced.embeddings(contents)["image_emb"].shape[1])
    content = contents.get("json")
    if content is not None:
        with suppress(Reject):  # the build says what is wrong with it
            add_row(found.columns, object_of(content))


def _reading(
    inventory: Inventory, its: Sequence[TarFolder], joined: TarFolder | None, folders: int
) -> Reading:
    first, modality = its[0], its[0].modality
    samples, tars = sum(one.samples for one in its), counted(sum(len(one.files) for one in its), "tar")
    about = "about " if any(one.is_estimate for one in its) else ""
    seen = [("tars", f"{tars}, {about}{counted(samples, 'sample')}"), ("members", first.members)]
    path = Key("path", _path(inventory, its, folders), f"{tars}; members {first.members}")
    source = [Key("kind", "shards"), path]
    if first.origins:
        origins = [(target, _origin(first, origin)) for target, origin in first.origins.items()]
        seen += origins
        source.append(Key("members", first.origins, "; ".join(map(" ".join, origins))))
    if joined is not None:
        modality = "reinforced"
        source.append(_join(inventory, first, joined))
        seen.append(("joined", f"{counted(len(joined.files), 'tar')} in {joined.folder}: {joined.members}"))
    restarts = any(one.restarts for one in its)
    if restarts:
        source.append(Key("key", PLACE, "tars count their samples anew, so that keys come again"))
    key = next((name for name in ("uid", "key", "sha256", "id") if first.has_field(name)), None)
    if key is not None:
        why = "the sample's key; without it the tar's own"
        source.append(Key("key", f"json:{key}", why, is_alternative=True))
    warnings = [reason for one in its for reason in one.broken[:2]]
    warnings += [f"{one.folder or '.'}: {SORT}" for one in its if one.is_scattered]
    if len(its) > 1:
        where = enumerate_names([one.folder or "." for one in its])
        warnings.append(f"tars lie in {where}: splits draws anew from all; for one alone give its path")
    is_private = modality == "volume_report"
    group = "patient" if is_private and first.has_field("patient") else None
    each = first.bytes / max(first.looked_at, 1)
    most = "2GB" if is_private else "512MB" if each > LARGE else "256MB"
    dataset = [splits_key(samples, group), shard_key(samples, each, most)]
    what = WHAT[modality]
    width = next(
        (one.teacher_width for one in (first, joined) if one is not None and one.teacher_width), None
    )
    return Reading(
        "shards",
        what,
        modality,
        samples,
        2,
        seen,
        warnings,
        source,
        dataset,
        is_private,
        teacher_width=width,
    )


def _origin(first: TarFolder, origin: str) -> str:
    column = first.columns.get(origin.removeprefix("json:"))
    return f"from {origin}" + (f", “{shown(next(iter(column.values)), 48)}”" if column else "")


def _path(inventory: Inventory, its: Sequence[TarFolder], folders: int) -> str:
    if len(its) == folders and not inventory.datasets:
        return inventory.given
    if len(its) == 1 and its[0].folder:
        return config_path(inventory.store.location, its[0].folder)
    tars = [posixpath.join(one.folder, "*.tar") for one in its]
    return config_path(inventory.store.location, tars[0] if len(tars) == 1 else f"{{{','.join(tars)}}}")


def _join(inventory: Inventory, first: TarFolder, joined: TarFolder) -> Key:
    names = {posixpath.basename(file) for file in first.files}
    is_by_shard = names == {posixpath.basename(file) for file in joined.files}
    join = {"path": config_path(inventory.store.location, joined.folder)}
    why = "the tars of the same name" if is_by_shard else "found by key, in any of the tars"
    return Key("join", [{**join, "match": "shard"} if is_by_shard else join], f"{joined.members}; {why}")
