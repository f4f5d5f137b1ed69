"""Image-text pairs: an image that decodes whole, a caption that says something, further fields as JSON.

White space around a caption is no part of it, whatever source it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tasks.core.schema import Dataset
from tasks.dataset.formats import images
from tasks.dataset.formats.checks import is_blank
from tasks.dataset.modalities.base import Fault, Modality, Taken
from tasks.dataset.rejects import Reject
from tasks.dataset.tar.format import Members


def take(raw: Members, dataset: Dataset) -> Taken:
    text = bytes(raw["txt"]).decode()
    caption = text.strip()
    if is_blank(caption):
        raise Reject("caption.empty", "the caption is blank" if text else "the caption is empty")
    suffix, image, (width, height) = images.store(bytes(raw["image"]), dataset.image)
    members = {suffix: image, "txt": caption.encode()}
    if "json" in raw:
        members["json"] = raw["json"]
    return Taken(members, {"width": width, "height": height, "caption_length": len(caption)})


def judge(members: Mapping[str, bytes]) -> list[Fault]:
    pictures = [suffix for suffix in images.MEMBERS if suffix in members]
    faults = [fault for suffix in pictures for fault in judge_image(suffix, members[suffix])]
    return faults + judge_text(members) + judge_json(members)


def judge_image(member: str, content: bytes) -> list[Fault]:
    """What is wrong with an image stored as `jpg`, or as `000.jpg`."""
    try:
        kind = images.check(content, images.ANY_SIZE)
    except Reject as reject:
        return [Fault("member.undecodable", member, str(reject))]
    is_named = kind == member.rpartition(".")[2]
    return [] if is_named else [Fault("member.undecodable", member, f"holds a {kind}")]


def judge_text(members: Mapping[str, bytes]) -> list[Fault]:
    try:
        text = members.get("txt", b"-").decode()
    except UnicodeDecodeError as error:
        return [Fault("member.undecodable", "txt", f"not UTF-8: {error.reason} at byte {error.start}")]
    return [Fault("member.empty", "txt", "the text is blank")] if is_blank(text) else []


def judge_json(members: Mapping[str, bytes]) -> list[Fault]:
    try:
        value = json.loads(members.get("json", b"{}"))
    except (ValueError, RecursionError) as error:
        return [Fault("member.undecodable", "json", str(error))]
    return [] if isinstance(value, dict) else [Fault("member.undecodable", "json", "no JSON object")]


IMAGE_TEXT = Modality(
    take=take,
    judge=judge,
    required=(images.MEMBERS, ("txt",)),
    statistics={"width": int, "height": int, "caption_length": int},
    undecodable="image.undecodable",
)
