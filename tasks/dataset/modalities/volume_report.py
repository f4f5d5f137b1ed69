"""CT volumes with their reports: int16 HU voxels, a report that is not blank, facts as JSON.

The `json` of a stored sample states how the volume lies (`axes`, `spacing_mm`, `shape`, in the order of the
array; see `formats.volumes.geometry`), how it was processed, and the CRC32C of each of its chunks, so that a
part can be read and trusted alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tasks.core.errors import UsageError
from tasks.core.schema import Dataset, VolumeRules
from tasks.dataset.formats import measures, npy
from tasks.dataset.formats.checks import is_blank, json_object
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import (
    ZYX,
    Axis,
    Spacing,
    axes_of,
    ordered,
    pad_fraction,
    plan,
    spacing_of,
)
from tasks.dataset.formats.volumes.hounsfield import QUANTILES, implausible, quantiles, require_in_range
from tasks.dataset.formats.volumes.resample import resample
from tasks.dataset.formats.volumes.stored import StoredVolume
from tasks.dataset.modalities.base import AcceptedSample, MemberFault, Modality, Statistic
from tasks.dataset.modalities.image_text import OF_CAPTION, caption_statistics, judge_each, judge_json
from tasks.dataset.tar.format import Members
from tasks.dataset.version.rejects import Reject

CHECKSUMS = "chunk_crc32c"
DIFFERS = f"its chunks differ from {CHECKSUMS} in json"
TELLS_HU = "tells_hu"
"""False where a volume was found to be HU but its stored part cannot show it, such as a crop in a lung."""
SIDES = ("depth", "height", "width")


def check_volume_rules(dataset: Dataset) -> None:
    if dataset.volume.encode == "blosc2":
        stored.require_package("blosc2", "dataset.volume.encode: blosc2")
    try:
        spacing_of(dataset.volume.spacing_mm)
    except Reject as reject:
        raise UsageError(f"dataset.volume.spacing_mm: {reject.detail}") from None


def accept_volume_report(raw: Members, dataset: Dataset) -> AcceptedSample:
    rules = dataset.volume
    try:
        report = bytes(raw.get("txt", b"")).decode()
    except UnicodeDecodeError as error:
        raise Reject("caption.encoding", f"the report is not UTF-8 at byte {error.start}") from None
    if is_blank(report):
        raise Reject("report.missing", "the report is empty")
    facts = _stated(raw)
    voxels = _voxels(raw, facts)
    require_in_range(voxels)
    fault = _implausible(voxels, facts)
    if fault is not None:
        raise Reject("volume.hu_range", fault)
    axes = axes_of(facts.get("axes"))
    spacing = spacing_of(facts.get("spacing_mm"), axes)
    sides = plan(voxels.shape, spacing, rules, axes)
    prepared = resample(voxels, sides, rules)
    facts |= _facts(facts, voxels.shape, spacing, sides, rules)
    if _implausible(prepared, facts) is not None:
        facts[TELLS_HU] = False
    member, content = stored.encode(prepared, rules.encode)
    facts[CHECKSUMS] = stored.checksums(stored.open_volume(member, content))
    spacing_by_axis = zip(axes or ZYX, facts["spacing_mm"] or [math.nan] * 3, strict=True)
    statistics = {
        **dict(zip(SIDES, prepared.shape, strict=True)),
        **{f"spacing_{axis}": side for axis, side in spacing_by_axis},
        **quantiles(prepared),
        "pad_fraction": facts["pad_fraction"],
        "content_hash": xxh3_64_intdigest(content),
        **dict(zip(("phash", "phash_fine", "spectrum"), measures.volume_hashes(prepared), strict=True)),
        **caption_statistics(report),
    }
    try:
        document = json.dumps(facts, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Reject("caption.encoding", "json holds a text that is not UTF-8") from None
    return AcceptedSample({member: content, "txt": raw["txt"], "json": document}, statistics)


def _stated(raw: Members) -> dict[str, Any]:
    """Return the facts stated about the volume; Reject where a label is neither a number nor null. Other
    numbers that JSON lacks (NaN, Infinity, also as 1e999) count as unknown."""
    content = bytes(raw.get("json", b"{}"))
    fault = _fault_of_labels(json_object(content, "source.unreadable"))
    if fault is not None:
        raise Reject("labels.missing", fault)
    finite = partial(json.loads, parse_constant=lambda _: None, parse_float=_finite_or_none)
    return json_object(content, "source.unreadable", loads=finite)


def _finite_or_none(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _voxels(raw: Members, facts: Mapping[str, Any]) -> NDArray[Any]:
    """Return the raw volume, which shards made by Tarmac or others hold as either member."""
    content = raw.get("volume")
    if content is None:
        raise Reject("member.missing", "volume")
    kind = stored.kind_of(content)
    try:
        if kind == stored.B2ND or CHECKSUMS in facts:
            volume = stored.open_volume(kind or stored.NPY, content)
            if _differs(volume, facts):
                raise stored.Damaged(DIFFERS)
            voxels: NDArray[Any] = stored.read_crop(volume)
        else:
            voxels = npy.parse(content)
    except stored.Damaged as error:
        raise Reject("volume.undecodable", str(error)) from None
    if voxels.ndim != 3 or 0 in voxels.shape:
        raise Reject("volume.shape", f"{voxels.shape}, not 3D")
    return voxels


def _differs(volume: StoredVolume, facts: Mapping[str, Any]) -> bool:
    return facts.get(CHECKSUMS) is not None and facts[CHECKSUMS] != stored.checksums(volume)


def _implausible(voxels: NDArray[Any], facts: Mapping[str, Any]) -> str | None:
    """Return why the voxels cannot be HU, or None, also where a crop of them cannot show it."""
    if facts.get(TELLS_HU) is False:
        return None
    match facts.get("window"):
        case [int() as low, int() as high]:
            return implausible(voxels, (low, high))
    return implausible(voxels)


def _facts(
    before: Mapping[str, Any],
    shape: tuple[int, ...],
    spacing: Spacing | None,
    sides: tuple[Axis, Axis, Axis],
    rules: VolumeRules,
) -> dict[str, Any]:
    """Return how the volume lies now and how it was processed.

    A volume from a shard that is stored unchanged keeps the record of how it was processed before.
    """
    axes = axes_of(before.get("axes"))
    now = {
        "axes": axes,
        "spacing_mm": spacing if rules.spacing_mm is None else ordered(axes, *rules.spacing_mm),
        "orientation": before.get("orientation"),
        "window": rules.window or before.get("window"),
        "shape": [side.stored for side in sides],
    }
    done = {"spacing_before_mm": spacing, "shape_before": shape, "pad_fraction": pad_fraction(sides)}
    is_untouched = all(side.raw == side.resampled == side.stored for side in sides)
    if is_untouched and before.get("shape") == list(shape) and _is_number(before.get("pad_fraction")):
        done |= {name: before[name] for name in done if name in before}
    return now | done


def volume_report_faults(members: Mapping[str, bytes]) -> list[MemberFault]:
    malformed = judge_json(members)
    facts: Any = {} if malformed else json.loads(members.get("json", b"{}"))
    return [*_judge_volume(members, facts), *judge_each(members, ("txt",)), *malformed, *_judge_facts(facts)]


def _judge_volume(members: Mapping[str, bytes], facts: Mapping[str, Any]) -> list[MemberFault]:
    member = stored.member_of(members)
    if member is None:
        return []
    try:
        volume = stored.open_volume(member, members[member])
        fault = _implausible(stored.read_crop(volume), facts)
    except stored.Damaged as error:
        return [MemberFault("member.undecodable", member, str(error))]
    if fault is not None:
        return [MemberFault("member.undecodable", member, fault)]
    return [MemberFault("member.checksum", member, DIFFERS)] if _differs(volume, facts) else []


def _judge_facts(facts: Mapping[str, Any]) -> list[MemberFault]:
    axes = axes_of(facts.get("axes"))
    problems = [] if axes or facts.get("axes") is None else ["axes are no order of z, y and x"]
    try:
        spacing_of(facts.get("spacing_mm"), axes)
    except Reject as reject:
        problems.append(str(reject))
    fault = _fault_of_labels(facts)
    if fault is not None:
        problems.append(fault)
    return [MemberFault("member.undecodable", "json", problem) for problem in problems]


def _fault_of_labels(facts: Mapping[str, Any]) -> str | None:
    """Return why the labels are not numbers by name, null where one is unknown; None where they are."""
    labels = facts.get("labels", {})
    if not isinstance(labels, dict):
        return "labels are no object of numbers by name"
    wrong = next(
        (name for name, value in labels.items() if value is not None and not _is_number(value)), None
    )
    return None if wrong is None else f"labels: {wrong} is neither a number nor null"


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -math.inf < value < math.inf


VOLUME_REPORT = Modality(
    take=accept_volume_report,
    judge=volume_report_faults,
    required=(stored.MEMBERS, ("txt",), ("json",)),
    statistics={
        **dict.fromkeys(SIDES, Statistic.COUNT),
        **{f"spacing_{axis}": Statistic.NUMBER for axis in ZYX},
        **dict.fromkeys(QUANTILES, Statistic.COUNT),
        "pad_fraction": Statistic.NUMBER,
        **dict.fromkeys(("content_hash", "phash"), Statistic.HASH),
        "phash_fine": Statistic.FINE,
        "spectrum": Statistic.SPECTRUM,
        **OF_CAPTION,
    },
    undecodable="volume.undecodable",
    check=check_volume_rules,
)
