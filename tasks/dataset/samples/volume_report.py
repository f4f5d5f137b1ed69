"""CT volumes with their reports: int16 HU voxels, a report that says something, facts as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.schema import Dataset, VolumeRules
from tasks.dataset.reasons import Reject
from tasks.dataset.samples.image_text import judge_json, judge_text
from tasks.dataset.samples.sample import Fault, Modality, Taken
from tasks.dataset.tar import Members
from tasks.dataset.volumes import npy, stored
from tasks.dataset.volumes.geometry import AXES, Axis, Spacing, pad_fraction, plan, spacing_of
from tasks.dataset.volumes.hounsfield import QUANTILES, implausible, quantiles, require_in_range
from tasks.dataset.volumes.prepare import prepare

CHECKSUMS = "chunk_crc32c"
SIDES = ("depth", "height", "width")
SPACING = tuple(f"spacing_{axis}" for axis in AXES)


def check(dataset: Dataset) -> None:
    if dataset.volume.encode == "blosc2":
        stored.require_package("blosc2", "dataset.volume.encode: blosc2")


def take(raw: Members, dataset: Dataset) -> Taken:
    rules = dataset.volume
    report = _report(raw)
    facts = _told(raw)
    voxels = _voxels(raw)
    require_in_range(voxels)
    fault = implausible(voxels)
    if fault is not None:
        raise Reject("volume.hu_range", fault)
    spacing = spacing_of(facts.get("spacing_mm"))
    axes = plan(voxels.shape, spacing, rules)
    prepared = prepare(voxels, axes, rules)
    member, content = stored.encode(prepared, rules.encode)
    facts |= _facts(facts, voxels.shape, spacing, axes, rules)
    facts[CHECKSUMS] = stored.checksums(stored.open_volume(member, content))
    described = json.dumps(facts, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    statistics = {
        **dict(zip(SIDES, prepared.shape, strict=True)),
        **dict(zip(SPACING, facts["spacing_mm"] or [math.nan] * 3, strict=True)),
        **quantiles(prepared),
        "pad_fraction": facts["pad_fraction"],
        "caption_length": len(report),
    }
    return Taken({member: content, "txt": raw["txt"], "json": described}, statistics)


def _report(raw: Members) -> str:
    try:
        report = bytes(raw.get("txt", b"")).decode()
    except UnicodeDecodeError as error:
        raise Reject("caption.encoding", f"the report is not UTF-8 at byte {error.start}") from None
    if not report.strip():
        raise Reject("report.missing", "the report is empty")
    return report


def _told(raw: Members) -> dict[str, Any]:
    """What is known of the volume; numbers that JSON has not (NaN, Infinity) are not known."""
    try:
        facts = json.loads(bytes(raw.get("json", b"{}")), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise Reject("source.unreadable", "json: no JSON object")
    return facts


def _voxels(raw: Members) -> NDArray[Any]:
    """The raw volume, which other people's shards may hold as either member."""
    member = stored.member_of(raw)
    if member is None:
        raise Reject("member.missing", "|".join(stored.MEMBERS))
    if member == stored.NPY:
        voxels = npy.parse(raw[member])
    else:
        try:
            voxels = stored.read_crop(stored.open_volume(member, raw[member]))
        except stored.Damaged as error:
            raise Reject("volume.undecodable", str(error)) from None
    if voxels.ndim != 3 or 0 in voxels.shape:
        raise Reject("volume.shape", f"{voxels.shape}, not 3D")
    return voxels


def _facts(
    before: Mapping[str, Any],
    shape: tuple[int, ...],
    spacing: Spacing | None,
    axes: tuple[Axis, Axis, Axis],
    rules: VolumeRules,
) -> dict[str, Any]:
    """What was done to the volume, and how it lies now; all triples are (z, y, x)."""
    return {
        "spacing_before_mm": spacing,
        "spacing_mm": rules.spacing_mm or spacing,
        "orientation": before.get("orientation"),
        "window": rules.window or before.get("window"),
        "shape_before": shape,
        "shape": [axis.stored for axis in axes],
        "pad_fraction": pad_fraction(axes),
    }


def judge(members: Mapping[str, bytes]) -> list[Fault]:
    faults = judge_text(members) + judge_json(members)
    facts: Any = (
        {} if any(fault.member == "json" for fault in faults) else json.loads(members.get("json", b"{}"))
    )
    return _judge_volume(members, facts) + faults + _judge_facts(facts)


def _judge_volume(members: Mapping[str, bytes], facts: Mapping[str, Any]) -> list[Fault]:
    member = stored.member_of(members)
    if member is None:
        return []
    try:
        volume = stored.open_volume(member, members[member])
        fault = implausible(stored.read_crop(volume), _window(facts))
    except stored.Damaged as error:
        return [Fault("member.undecodable", member, str(error))]
    if fault is not None:
        return [Fault("member.undecodable", member, fault)]
    recorded = facts.get(CHECKSUMS)
    if recorded is not None and recorded != stored.checksums(volume):
        return [Fault("member.checksum", member, f"its chunks differ from {CHECKSUMS} in json")]
    return []


def _window(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    match facts.get("window"):
        case [int() as low, int() as high]:
            return low, high
    return None


def _judge_facts(facts: Mapping[str, Any]) -> list[Fault]:
    faults = []
    try:
        spacing_of(facts.get("spacing_mm"))
    except Reject as reject:
        faults.append(Fault("member.undecodable", "json", str(reject)))
    labels = facts.get("labels", {})
    if not isinstance(labels, dict) or not all(_is_number(label) for label in labels.values()):
        faults.append(Fault("member.undecodable", "json", "labels that are not all numbers"))
    return faults


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


VOLUME_REPORT = Modality(
    take=take,
    judge=judge,
    required=(stored.MEMBERS, ("txt",), ("json",)),
    statistics={
        **dict.fromkeys(SIDES, int),
        **dict.fromkeys(SPACING, float),
        **dict.fromkeys(QUANTILES, int),
        "pad_fraction": float,
        "caption_length": int,
    },
    undecodable="volume.undecodable",
    check=check,
)
