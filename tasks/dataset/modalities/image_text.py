"""Image-text pairs: an image that decodes completely, a caption that is not blank, further fields as JSON.

White space around a caption is removed, whatever source it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from xxhash import xxh3_64_intdigest

from tasks.core.schema import Dataset
from tasks.dataset.formats import images
from tasks.dataset.formats.captions import telling_words, text_hash
from tasks.dataset.formats.checks import is_blank, json_object, problem_of
from tasks.dataset.formats.measures import measure
from tasks.dataset.modalities.base import (
    CLIP_SCORES,
    AcceptedSample,
    MemberFault,
    Modality,
    Statistic,
    Statistics,
)
from tasks.dataset.tar.format import Members
from tasks.dataset.version.rejects import Reject

OF_IMAGE: Mapping[str, Statistic] = {
    **dict.fromkeys(("width", "height", "frames"), Statistic.COUNT),
    **dict.fromkeys(("contrast", "sharpness", "border"), Statistic.NUMBER),
    "colour": Statistic.WORD,
    **dict.fromkeys(("content_hash", "phash"), Statistic.HASH),
    "phash_fine": Statistic.FINE,
    "spectrum": Statistic.SPECTRUM,
}
OF_CAPTION: Mapping[str, Statistic] = {
    **dict.fromkeys(("caption_length", "caption_words"), Statistic.COUNT),
    "text_hash": Statistic.HASH,
}
"""The statistics of an image and of a caption. `measures` and `captions` define those that are measured;
hashes of equal bytes, or of texts that differ only in case and white space, are equal."""


def accept_image_text(raw: Members, dataset: Dataset) -> AcceptedSample:
    return take_pair(raw, dataset)


def take_pair(raw: Members, dataset: Dataset, *, turns: bool = True) -> AcceptedSample:
    """Accept a pair; with `turns` False the image is stored as it is, regardless of its EXIF orientation."""
    text = bytes(raw["txt"]).decode()
    caption = text.strip()
    if is_blank(caption):
        raise Reject("caption.empty", "the caption is blank" if text else "the caption is empty")
    image = images.store(bytes(raw["image"]), dataset.image, turns=turns)
    members = {image.suffix: image.content, "txt": caption.encode()}
    label = None
    if "json" in raw:
        members["json"] = raw["json"]
        label = _label(bytes(raw["json"]), dataset)
    return AcceptedSample(members, {**image_statistics(image), **caption_statistics(caption), "label": label})


def _label(document: bytes, dataset: Dataset) -> str | None:
    """Return the sample's class: its field `label`, or the one that a source makes its captions of."""
    of_sources = (one.caption for one in dataset.all_sources if one.kind == "table" and one.templates)
    names = [name for name in ("label", *of_sources) if json.dumps(name).encode() in document]
    if not names:
        return None
    fields = json_object(document, "source.unreadable")
    found = next((value for name in names if isinstance(value := fields.get(name), str | int)), None)
    return None if found is None or isinstance(found, bool) else str(found)


def image_statistics(image: images.StoredImage) -> Statistics:
    """Return the statistics of a stored image; those that need its pixels are None if it was not decoded."""
    known: dict[str, float | bytes | str | None] = {
        "width": image.size[0],
        "height": image.size[1],
        "frames": image.frames,
        "colour": image.colour,
        "content_hash": xxh3_64_intdigest(image.content),
    }
    return known if image.luma is None else known | measure(image.luma)._asdict()


def caption_statistics(caption: str) -> dict[str, int]:
    """Return the statistics of a caption."""
    return {
        "caption_length": len(caption),
        "caption_words": telling_words(caption),
        "text_hash": text_hash(caption),
    }


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
    statistics={**OF_IMAGE, **OF_CAPTION, "label": Statistic.WORD},
    undecodable="image.undecodable",
    scores=CLIP_SCORES,
)
