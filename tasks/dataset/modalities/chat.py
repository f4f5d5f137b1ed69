"""Conversations about images: turns that alternate and say something, with an image for each placeholder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tasks.core.schema import Dataset
from tasks.dataset.formats import images
from tasks.dataset.modalities.base import Fault, Modality, Taken
from tasks.dataset.modalities.conversations import Conversation, check_images, parse
from tasks.dataset.modalities.image_text import judge_json
from tasks.dataset.rejects import Reject
from tasks.dataset.tar.writer import Members

_IMAGE = re.compile(r"(\d{3})(?:\.(jpg|png|webp))?")


def take(raw: Members, dataset: Dataset) -> Taken:
    """`json` and the images `000`, `001`, …; these are stored as `000.jpg` or what they are."""
    numbered = sorted(name for name in raw if _IMAGE.fullmatch(name))
    fault = _gap(numbered)
    if fault is not None:
        raise Reject("chat.images", fault)
    conversation = _conversation(bytes(raw["json"]))
    check_images(conversation, len(numbered))
    members = {"json": raw["json"]}
    width = height = 0
    for number, name in enumerate(numbered):
        suffix, image, size = _stored(number, bytes(raw[name]), dataset)
        members[f"{number:03d}.{suffix}"] = image
        if size[0] * size[1] > width * height:
            width, height = size
    statistics = {"images": len(numbered), "turns": len(conversation.turns), "width": width, "height": height}
    return Taken(members, statistics | _lengths(conversation))


def _stored(number: int, data: bytes, dataset: Dataset) -> tuple[str, bytes, tuple[int, int]]:
    try:
        return images.store(data, dataset.image)
    except Reject as reject:
        raise Reject(reject.reason, f"image {number + 1}: {reject.detail}") from None


def _conversation(document: bytes) -> Conversation:
    try:
        value = json.loads(document)
    except (ValueError, RecursionError):
        raise Reject("chat.turns", "json is no valid JSON") from None
    if not isinstance(value, dict):
        raise Reject("chat.turns", "json is no JSON object")
    ratings: Any = value.get("ratings") or {}
    if not isinstance(ratings, dict):
        raise Reject("chat.ratings", f"ratings are a {type(ratings).__name__}, not lists by name")
    return parse(value.get("messages"), ratings)


def _lengths(conversation: Conversation) -> dict[str, int]:
    return {
        f"{role}_length": sum(len(turn[role]) for turn in conversation.turns)
        for role in ("user", "assistant")
    }


def _gap(numbered: list[str]) -> str | None:
    """What is wrong with the numbers of these sorted members; None when they count from 000 without gaps."""
    for number, name in enumerate(numbered):
        if int(name[:3]) != number:
            return f"{name} stands where image {number:03d} belongs"
    return None


def judge(members: Mapping[str, bytes]) -> list[Fault]:
    numbered = sorted(name for name in members if _IMAGE.fullmatch(name))
    faults = [fault for name in numbered for fault in _judge_image(name, members[name])]
    gap = _gap(numbered)
    if gap is not None:
        faults.append(Fault("sample.missing_member", numbered[-1], gap))
    malformed = judge_json(members)
    if malformed or "json" not in members:
        return faults + malformed
    try:
        check_images(_conversation(members["json"]), len(numbered))
    except Reject as reject:
        code = "sample.missing_member" if reject.reason == "chat.images" else "member.undecodable"
        faults.append(Fault(code, "json", str(reject)))
    return faults


def _judge_image(name: str, content: bytes) -> list[Fault]:
    try:
        kind = images.check(content, images.ANY_SIZE)
    except Reject as reject:
        return [Fault("member.undecodable", name, str(reject))]
    suffix = name[4:]
    return [] if kind == suffix else [Fault("member.undecodable", name, f"holds a {kind}")]


CHAT = Modality(
    take=take,
    judge=judge,
    required=(("json",),),
    statistics=dict.fromkeys(("images", "turns", "user_length", "assistant_length", "width", "height"), int),
    undecodable="image.undecodable",
)
