"""Image-text pairs: an image that decodes completely, a caption that is not blank, further fields as JSON.

White space around a caption is removed, whatever source it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tasks.core.schema import Dataset
from tasks.dataset.formats import images
from tasks.dataset.formats.checks import is_blank, json_object, problem_of
from tasks.dataset.modalities.base import AcceptedSample, MemberFault, Modality
from tasks.dataset.rejects import Reject
from tasks.dataset.tar.format import Members


def accept_image_text(raw: Members, dataset: Dataset) -> AcceptedSample:
    return take_pair(raw, dataset)


def take_pair(raw: Members, dataset: Dataset, *, turns: bool = True) -> AcceptedSample:
    """Accept a pair; with `turns` False the image is stored as it is, regardless of its EXIF orientation."""
    text = bytes(raw["txt"]).decode()
    caption = text.strip()
    if is_blank(caption):
        raise Reject("caption.empty", "the caption is blank" if text else "the caption is empty")
    suffix, image, (width, height) = images.store(bytes(raw["image"]), dataset.image, turns=turns)
    members = {suffix: image, "txt": caption.encode()}
    if "json" in raw:
        members["json"] = raw["json"]
    return AcceptedSample(members, {"width": width, "height": height, "caption_length": len(caption)})


def image_text_faults(members: Mapping[str, bytes]) -> list[MemberFault]:
    return [*judge_each(members, (*images.MEMBERS, "txt")), *judge_json(members)]


def judge_each(members: Mapping[str, bytes], names: Iterable[str]) -> list[MemberFault]:
    """Return the faults of the named members that are there, each judged by its suffix."""
    problems = {name: problem_of(name, members[name]) for name in names if name in members}
    return [MemberFault(found[0], name, found[1]) for name, found in problems.items() if found is not None]


def judge_json(members: Mapping[str, bytes]) -> list[MemberFault]:
    try:
        json_object(members.get("json", b"{}"), "source.unreadable")
    except Reject as reject:
        return [MemberFault("member.undecodable", "json", reject.detail)]
    return []


IMAGE_TEXT = Modality(
    take=accept_image_text,
    judge=image_text_faults,
    required=(images.MEMBERS, ("txt",)),
    statistics={"width": int, "height": int, "caption_length": int},
    undecodable="image.undecodable",
)
