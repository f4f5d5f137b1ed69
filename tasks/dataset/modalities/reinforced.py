"""Reinforced image-text pairs (MobileCLIP): an image-text pair, and the additions of teacher models.

MobileCLIP's format (https://github.com/apple/ml-mobileclip-dr): `paug.json` lists the parameters of the
augmentations that the teacher saw, `syn.json` the synthetic captions, `npz` (or `pth.gz` with bfloat16) one
row of `image_emb` per augmentation and one row of `text_emb` per caption, the real one first. A version 2
file may hold further lists of captions, each with an array `<list>_emb` of its own.

Members are stored unchanged. A crop counts pixels of the image that the teacher saw, which MobileCLIP loads
without regard to its EXIF, so the image may be neither scaled nor turned on its way into a shard. A `sha256`
in `json` is not compared: those of DataCompDR and img2dataset are of the downloaded file, before img2dataset
encoded it again, so sound images differ.
Without torch a `pth.gz` cannot be judged: the sample is accepted, its `embedding_width` stays empty, and
verify reports that such members were not judged.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import UsageError
from tasks.core.schema import Dataset
from tasks.dataset.formats import Unjudged, images, npy, tensors
from tasks.dataset.formats.checks import is_blank, json_object
from tasks.dataset.formats.pixels import Box
from tasks.dataset.formats.tensors import UNSOUND
from tasks.dataset.modalities import image_text
from tasks.dataset.modalities.base import AcceptedSample, MemberFault, Modality, Statistic, missing
from tasks.dataset.tar.format import Members
from tasks.dataset.version.rejects import Reason, Reject

logger = logging.getLogger(__name__)

NPZ, PTH = "npz", "pth.gz"
ADDED = ("syn.json", "paug.json", NPZ, PTH)
REQUIRED = (images.MEMBERS, ("txt",), ("syn.json",), ("paug.json",), (NPZ, PTH))
OPERATIONS = 14
"""Identity, ShearX, ShearY, TranslateX, TranslateY, Rotate, Brightness, Color, Contrast, Sharpness,
Posterize, Solarize, AutoContrast, Equalize."""
FARTHEST = 1 << 30
"""Pixels; no image has a side this long."""
REASONS: Mapping[Reason, Reason] = {
    "volume.undecodable": UNSOUND,
    "volume.dtype": UNSOUND,
    "volume.pickle": "archive.unsafe",
}
"""The reasons for faults of an array where it holds embeddings."""


def check_reinforced_rules(dataset: Dataset) -> None:
    """UsageError for image rules under which the teachers' crops would show something else."""
    changes = {"max_side": dataset.image.max_side is not None, "encode": dataset.image.encode != "keep"}
    for key in (key for key, is_set in changes.items() if is_set):
        why = "the crops of reinforced samples count pixels of the image as it is"
        fix = f"leave {key} out, or change the images before teachers look at them"
        raise UsageError(f"dataset.image.{key}: {why}; {fix}")
    if not tensors.can_read():
        logger.warning("torch is not installed: embeddings in pth.gz are stored without a check")


def accept_reinforced(raw: Members, dataset: Dataset) -> AcceptedSample:
    pair = image_text.take_pair(raw, dataset, turns=False)
    added = {suffix: raw[suffix] for suffix in ADDED if suffix in raw}
    width, height = (pair.statistics[side] for side in ("width", "height"))
    assert isinstance(width, int) and isinstance(height, int)
    counts = check_added(added, width, height)
    return AcceptedSample({**pair.members, **added}, {**pair.statistics, **counts})


def reinforced_faults(members: Mapping[str, bytes]) -> list[MemberFault]:
    faults = image_text.image_text_faults(members)
    size = _size(members)
    if size is None or missing(REQUIRED, members):
        return faults  # which name the image; that a member is missing is reported for all modalities alike
    try:
        check_added(members, *size)
    except Reject as reject:
        member = "paug.json" if reject.reason == "reinforcement.crop" else f"{NPZ}|{PTH}"
        faults.append(MemberFault("member.undecodable", member, str(reject)))
    return faults


def unjudged() -> tuple[str, ...]:
    return () if tensors.can_read() else (PTH,)


def _size(members: Mapping[str, bytes]) -> tuple[int, int] | None:
    """Return width and height by the image's header; None when it has no sound one."""
    suffix = next((suffix for suffix in images.MEMBERS if suffix in members), None)
    try:
        return None if suffix is None else images.size_of(members[suffix], images.ANY_SIZE)
    except Reject:
        return None


def check_added(members: Members, width: int, height: int) -> dict[str, int]:
    """Return the numbers of augmentations and synthetic captions, and the embeddings' width where they can be
    read. Reject for members that do not fit each other, or the image of `width` x `height` pixels."""
    lacking = missing(REQUIRED[2:], members)
    if lacking or (NPZ in members and PTH in members):
        raise Reject(UNSOUND, f"no {lacking[0]}" if lacking else f"has both {NPZ} and {PTH}")
    of_image = augmentations(bytes(members["paug.json"]))
    for number, augmentation in enumerate(of_image):
        check_augmentation(number, augmentation, width, height)
    of_text = captions(bytes(members["syn.json"]))
    counts = {"augmentations": len(of_image), "synthetic_captions": sum(map(len, of_text.values()))}
    with suppress(Unjudged):
        counts["embedding_width"] = _check_embeddings(embeddings(members), len(of_image), of_text)
    return counts


def augmentations(content: bytes) -> Sequence[Any]:
    """Return `param_aug` of a `paug.json`, which is a list, or a list as JSON text; Reject."""
    value = json_object(content, UNSOUND, "paug.json").get("param_aug")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not value:
        raise Reject(UNSOUND, "paug.json: param_aug is no list of augmentations")
    return value


def crop_of(number: int, augmentation: Any) -> Box:
    """Return the crop of an augmentation, which is `[crop, operations]` or `[crop]`; Reject."""
    where = f"augmentation {number}"
    if not isinstance(augmentation, list) or len(augmentation) not in (1, 2):
        raise Reject("reinforcement.crop", f"{where} is no [crop, operations]")
    crop = augmentation[0]
    if not isinstance(crop, list) or len(crop) != 4 or not all(map(_is_pixels, crop)):
        raise Reject("reinforcement.crop", f"{where} has no crop [top, left, height, width] in pixels")
    return Box(*crop)


def captions(content: bytes) -> dict[str, Sequence[str]]:
    """Return the lists of synthetic captions of a `syn.json` by their names; Reject."""
    value = json_object(content, UNSOUND, "syn.json")
    named = {name: texts for name, texts in value.items() if name.startswith("syn_text")}
    for name, texts in named.items():
        if not isinstance(texts, list) or not texts:
            raise Reject(UNSOUND, f"syn.json: {name} is no list of captions")
        if not all(isinstance(text, str) and not is_blank(text) for text in texts):
            raise Reject(UNSOUND, f"syn.json: {name} holds an empty caption")
    if not named:
        raise Reject(UNSOUND, "syn.json has no syn_text")
    return named


def check_augmentation(number: int, augmentation: Any, width: int, height: int) -> Box:
    """Return the crop of an augmentation of an image of that size; Reject if it or the operations are wrong.

    Operations are `[[operation, magnitude], …]`, null for a skipped one, or null for none at all.
    """
    where = f"augmentation {number}"
    crop = top, left, high, wide = crop_of(number, augmentation)
    if min(top, left) < 0 or min(high, wide) < 1 or top + high > height or left + wide > width:
        outside = f"{list(crop)} lies outside of {width} x {height} pixels"
        raise Reject("reinforcement.crop", f"{where}: {outside}")
    operations = augmentation[1] if len(augmentation) == 2 else None
    is_list = isinstance(operations, list) and all(map(_is_operation, operations))
    if operations is not None and not is_list:
        raise Reject(UNSOUND, f"{where}: operations are no [[0 to 13, number], …]")
    return crop


def _is_pixels(value: Any) -> bool:
    return type(value) is int and abs(value) < FARTHEST


def _is_operation(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        return False
    is_number = type(value[1]) in (int, float) and abs(value[1]) < math.inf
    return 0 <= value[0] < OPERATIONS and is_number


def embeddings(members: Members) -> dict[str, NDArray[Any]]:
    """Return the arrays of the member that holds them; Reject, and Unjudged without torch for a `pth.gz`."""
    if PTH in members:
        return tensors.read_gz(bytes(members[PTH]))
    try:
        return npy.parse_npz(bytes(members[NPZ]), tensors.LARGEST_BYTES)
    except Reject as reject:
        raise Reject(REASONS.get(reject.reason, reject.reason), reject.detail) from None


def _check_embeddings(
    arrays: Mapping[str, NDArray[Any]], augmented: int, texts_by_name: Mapping[str, Sequence[str]]
) -> int:
    """Return the width of all arrays; Reject unless each has the expected number of finite rows."""
    own = {f"{name}_emb": len(texts) for name, texts in texts_by_name.items() if f"{name}_emb" in arrays}
    others = sum(len(texts) for name, texts in texts_by_name.items() if f"{name}_emb" not in arrays)
    rows = {**own, "image_emb": augmented, "text_emb": 1 + others}
    widths = set()
    for name, expected in rows.items():
        array = arrays.get(name)
        if array is None:
            raise Reject(UNSOUND, f"there is no {name}")
        if array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]:
            raise Reject("reinforcement.rows", f"{name} is {array.dtype} in {array.shape}, no rows of floats")
        if array.shape[0] != expected:
            raise Reject("reinforcement.rows", f"{name} has {array.shape[0]} rows for {expected}")
        if not np.isfinite(array).all():
            raise Reject("reinforcement.rows", f"{name} holds numbers that are not finite")
        widths.add(array.shape[1])
    if len(widths) != 1:
        raise Reject("reinforcement.rows", f"embeddings of different widths: {sorted(widths)}")
    return int(widths.pop())


REINFORCED = Modality(
    take=accept_reinforced,
    judge=reinforced_faults,
    required=REQUIRED,
    statistics={
        **image_text.IMAGE_TEXT.statistics,
        **dict.fromkeys(("augmentations", "synthetic_captions", "embedding_width"), Statistic.COUNT),
    },
    undecodable=UNSOUND,
    scores=image_text.IMAGE_TEXT.scores,
    check=check_reinforced_rules,
    unjudged=unjudged,
)
