"""WebDataset tars as sources: which folders make one, and the reinforcements that join them."""

from __future__ import annotations

import json
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tasks.core.units import counted
from tasks.dataset.formats.images import SUFFIXES as IMAGES
from tasks.dataset.init.evidence import Key, Reading, listed, shown, splits_key
from tasks.dataset.init.inventory import Inventory, config_path
from tasks.dataset.init.tar_folder import (
    TarFolder,
    example,
    field_names,
    members_of,
    modality_of,
    tar_folders,
)
from tasks.dataset.sources.files import COMPRESSED

SORT = (
    "the members of a sample do not stand together in the tar: pack it again sorted by name "
    "(tar --sort=name -cf TAR FOLDER)"
)
ALONE = 1.2
"""Members of a sample, as they stand; where samples have several and so few meet, they are scattered."""
LARGE = 100_000
"""Bytes of a sample, beyond which larger shards are worth it."""


def readings(inventory: Inventory) -> list[Reading]:
    """The folders of tars of one modality are one source; reinforcements join the images they belong to."""
    folders = tar_folders(inventory)
    by_what: dict[tuple[str, str], list[TarFolder]] = defaultdict(list)
    lone = [one for one in folders if one.is_reinforcement and not one.images]
    for one in folders:
        if one not in lone and one.looked.samples:
            by_what[modality_of(one), json.dumps(members_of(one))].append(one)
    found = []
    for (modality, members), its in by_what.items():
        if modality:
            joined = _partner(its, lone) if modality == "image_text" else None
            found.append(_reading(inventory, modality, json.loads(members), its, joined, len(folders)))
    return found


def without_use(inventory: Inventory) -> str:
    """What to do about tars of which no reading came; "" where there are none."""
    packed = inventory.of(COMPRESSED)
    if packed:
        return f"{shown(packed[0])} is compressed, so that it cannot be read in parts; unpack it to .tar"
    folders = tar_folders(inventory)
    if not folders:
        return ""
    if broken := [reason for one in folders for reason in one.broken]:
        looked_at = sum(one.looked_at for one in folders)
        return f"{len(broken)} of {looked_at} tars looked at cannot be read: {broken[0]}"
    first = folders[0]
    if first.is_reinforcement:
        return f"the tars hold reinforcements ({first.members}) without images: give a folder with both"
    if scattered := next(filter(_is_scattered, folders), None):
        return f"{shown(scattered.files[0])}: {SORT}"
    return (
        f"the tars' samples hold {first.members or 'nothing'}, which is no sample that Tarmac knows: images "
        "need txt, or json with a caption; volumes volume.npy or volume.b2nd, txt and json; conversations "
        "json and 000.jpg"
    )


def _is_scattered(one: TarFolder) -> bool:
    """Whether the members of a sample stand apart, as in a tar of a folder in no order."""
    looked = one.looked
    images = sum(looked.suffixes[suffix] for suffix in IMAGES)
    kinds = [images, *(number for suffix, number in looked.suffixes.items() if suffix not in IMAGES)]
    common = sum(number >= looked.samples / 10 for number in kinds)
    return common > 1 and looked.suffixes.total() < ALONE * looked.samples


WHAT = {
    "image_text": "WebDataset tars of images and captions",
    "reinforced": "WebDataset tars with MobileCLIP's reinforcements",
    "volume_report": "WebDataset tars of volumes and reports",
    "chat": "WebDataset tars of conversations",
}


def _reading(
    inventory: Inventory,
    modality: str,
    members: Mapping[str, str],
    its: Sequence[TarFolder],
    joined: TarFolder | None,
    folders: int,
) -> Reading:
    samples, files, first = sum(one.samples for one in its), sum(len(one.files) for one in its), its[0]
    about = "about " if any(one.is_about for one in its) else ""
    tars = counted(files, "tar")
    seen = [("tars", f"{tars}, {about}{counted(samples, 'sample')}"), ("members", first.members)]
    source = [
        Key("kind", "shards"),
        Key("path", _path(inventory, its, folders), f"{tars}; members {first.members}"),
    ]
    if members:
        seen += [(target, _origin(first, origin)) for target, origin in members.items()]
        why = "; ".join(f"{target} {_origin(first, origin)}" for target, origin in members.items())
        source.append(Key("members", dict(members), why))
    if joined is not None:
        modality = "reinforced"
        source.append(_join(inventory, first, joined))
        seen.append(("joined", f"{counted(len(joined.files), 'tar')} in {joined.folder}: {joined.members}"))
    source += [*_key(first), *_table_beside(inventory, first)]
    warnings = [reason for one in its for reason in one.broken[:2]]
    warnings += [f"{one.folder or '.'}: {SORT}" for one in its if _is_scattered(one)]
    if len(its) > 1:
        where = listed([one.folder or "." for one in its])
        warnings.append(f"tars lie in {where}: splits draws anew from all; for one alone give its path")
    is_private = modality == "volume_report"
    group = "patient" if is_private and "patient" in field_names(first) else None
    dataset = [splits_key(samples, group), _shard(first, modality)]
    return Reading(
        "shards", WHAT[modality], modality, samples, 2, seen, warnings, source, dataset, is_private
    )


def _origin(first: TarFolder, origin: str) -> str:
    text = example(first, origin) if origin.startswith("json:") else ""
    return f"from {origin}" + (f", “{shown(text, 48)}”" if text else "")


def _shard(first: TarFolder, modality: str) -> Key:
    each = first.looked.bytes / max(first.looked.samples, 1)
    most = "2GB" if modality == "volume_report" else "512MB" if each > LARGE else "256MB"
    return Key("shard", {"bytes": most}, "a maximum; or {samples: 10000}")


def _path(inventory: Inventory, its: Sequence[TarFolder], folders: int) -> str:
    if len(its) == folders and not inventory.datasets:
        return inventory.given
    if len(its) == 1 and its[0].folder:
        return config_path(inventory.store.location, its[0].folder)
    tars = [posixpath.join(one.folder, "*.tar") for one in its]
    return config_path(inventory.store.location, tars[0] if len(tars) == 1 else f"{{{','.join(tars)}}}")


def _partner(its: Sequence[TarFolder], lone: Sequence[TarFolder]) -> TarFolder | None:
    """The reinforcements whose keys are those of the images."""
    keys = {posixpath.basename(key) for one in its for key in one.looked.keys}
    return next((one for one in lone if keys & {posixpath.basename(key) for key in one.looked.keys}), None)


def _join(inventory: Inventory, first: TarFolder, joined: TarFolder) -> Key:
    names = {posixpath.basename(file) for file in first.files}
    is_by_shard = names == {posixpath.basename(file) for file in joined.files}
    join = {"path": config_path(inventory.store.location, joined.folder)}
    why = "the tars of the same name" if is_by_shard else "found by key, in any of the tars"
    return Key("join", [{**join, "match": "shard"} if is_by_shard else join], f"{joined.members}; {why}")


def _key(first: TarFolder) -> list[Key]:
    name = next((name for name in ("uid", "key", "sha256", "id") if name in field_names(first)), None)
    if name is None:
        return []
    return [Key("key", f"json:{name}", "the sample's key; without it the tar's own", is_aside=True)]


def _table_beside(inventory: Inventory, first: TarFolder) -> list[Key]:
    """img2dataset's Parquet beside each tar, with a row for every address it tried."""
    stem = first.files[0].removesuffix(".tar")
    if f"{stem}.parquet" not in set(inventory.files):
        return []
    pattern = config_path(inventory.store.location, posixpath.join(first.folder, "*.parquet"))
    why = "img2dataset's table beside each tar; what it could not fetch is in no tar"
    return [Key("join", [{"path": pattern, "key": "key", "match": "shard"}], why, is_aside=True)]
