"""CT volumes with their reports: int16 HU voxels, a report that says something, facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.core.schema import ImageRules
from tasks.dataset import volumes
from tasks.dataset.reasons import Reject
from tasks.dataset.samples.image_text import judge_json, judge_text
from tasks.dataset.samples.sample import Fault, Modality, Taken
from tasks.dataset.tar import Members

VOLUME = "volume.npy"


def take(raw: Members, rules: ImageRules) -> Taken:
    report = bytes(raw["txt"]).decode()
    if not report.strip():
        raise Reject("report.missing", "the report is empty")
    volume = volumes.parse(raw[VOLUME])
    statistics = volumes.statistics(volume)
    fault = volumes.implausible(statistics)
    if fault is not None:
        raise Reject("volume.hu_range", fault)
    facts = json.loads(bytes(raw["json"])) | {"slice_crc32c": volumes.slice_checksums(volume)}
    described = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()
    members = {VOLUME: raw[VOLUME], "txt": raw["txt"], "json": described}
    return Taken(members, {**statistics, "caption_length": len(report)})


def judge(members: Mapping[str, bytes]) -> list[Fault]:
    return _judge_volume(members) + judge_text(members) + judge_json(members)


def _judge_volume(members: Mapping[str, bytes]) -> list[Fault]:
    if VOLUME not in members:
        return []
    try:
        volume = volumes.parse(members[VOLUME])
        statistics = volumes.statistics(volume)
    except Exception as error:  # noqa: BLE001 - numpy raises whatever torn bytes lead it to
        return [Fault("member.undecodable", VOLUME, f"{type(error).__name__}: {error}")]
    fault = volumes.implausible(statistics)
    if fault is not None:
        return [Fault("member.undecodable", VOLUME, fault)]
    return _judge_slices(volume, members)


def _judge_slices(volume: volumes.Volume, members: Mapping[str, bytes]) -> list[Fault]:
    try:
        recorded: Any = json.loads(members.get("json", b"{}")).get("slice_crc32c")
    except (ValueError, AttributeError, RecursionError):
        return []  # judge_json says what is wrong with it
    if recorded is None or recorded == volumes.slice_checksums(volume):
        return []
    return [Fault("member.checksum", VOLUME, "its slices differ from slice_crc32c in json")]


VOLUME_REPORT = Modality(
    take=take,
    judge=judge,
    required=((VOLUME, "volume.b2nd"), ("txt",), ("json",)),
    statistics=("depth", "height", "width", *volumes.QUANTILES, "caption_length"),
    undecodable="volume.undecodable",
)
