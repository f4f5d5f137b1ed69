"""Reinforced image-text pairs (MobileCLIP): an image-text pair, and what teachers said of it.

Members are stored as they came. A crop counts pixels of the image that the teacher saw, so the image may
neither be scaled nor turned on its way into a shard. A `sha256` in `json` is not compared: DataCompDR's and
img2dataset's are of the file as downloaded, before img2dataset encoded it anew, so sound images differ.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

from tasks.core.errors import UsageError
from tasks.core.schema import Dataset
from tasks.dataset.formats import images
from tasks.dataset.modalities import image_text, reinforcement
from tasks.dataset.modalities.base import Fault, Modality, Taken
from tasks.dataset.rejects import Reject
from tasks.dataset.tar.writer import Members

ADDED = ("syn.json", "paug.json", *reinforcement.EMBEDDINGS)


def check(dataset: Dataset) -> None:
    """UsageError for image rules under which the teachers' crops would show something else."""
    changes = {"max_side": dataset.image.max_side is not None, "encode": dataset.image.encode != "keep"}
    for key, is_set in changes.items():
        if is_set:
            raise UsageError(
                f"dataset.image.{key}: the crops of reinforced samples count pixels of the image as it is; "
                f"leave {key} out, or change the images before teachers look at them"
            )


def take(raw: Members, dataset: Dataset) -> Taken:
    pair = image_text.take(raw, dataset)
    added = {suffix: raw[suffix] for suffix in ADDED if suffix in raw}
    counts = reinforcement.check(added, int(pair.statistics["width"]), int(pair.statistics["height"]))
    return Taken({**pair.members, **added}, {**pair.statistics, **counts})


def judge(members: Mapping[str, bytes]) -> list[Fault]:
    faults = image_text.judge(members)
    size = _size(members)
    if size is None or not all(any(suffix in members for suffix in choice) for choice in REQUIRED):
        return faults  # that a member is missing or broken has been said
    try:
        reinforcement.check(members, *size)
    except Reject as reject:
        member = "paug.json" if reject.reason == "reinforcement.crop" else "npz|pth.gz"
        faults.append(Fault("member.undecodable", member, str(reject)))
    return faults


def _size(members: Mapping[str, bytes]) -> tuple[int, int] | None:
    """Width and height by the image's header; None when it has none that is sound."""
    for suffix in images.MEMBERS:
        kind = images.kind_of(members.get(suffix, b""))
        if kind is not None:
            try:
                return images.DECODERS[kind](io.BytesIO(members[suffix])).size
            except Exception:  # noqa: BLE001 - image_text.judge says what is wrong with it
                return None
    return None


REQUIRED = (images.MEMBERS, ("txt",), ("syn.json",), ("paug.json",), tuple(reinforcement.EMBEDDINGS))

REINFORCED = Modality(
    take=take,
    judge=judge,
    required=REQUIRED,
    statistics={
        **image_text.IMAGE_TEXT.statistics,
        "augmentations": int,
        "synthetic_captions": int,
        "embedding_width": int,
    },
    undecodable="reinforcement.members",
    check=check,
)
