"""Well-known collections of images with captions, as they are published: COCO, Flickr8k, Karpathy's splits."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.dataset import raw

CAPTIONS = 5


def text(number: int, caption: int) -> str:
    return f"A child, number {number}, told the {caption}th time."


def images(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(raw.png(number, kind="JPEG"))


def coco_image(number: int, split: str) -> dict[str, Any]:
    name = f"{number:012d}.jpg"
    url = f"http://images.cocodataset.org/{split}/{name}"
    return {
        "license": 4,
        "file_name": name,
        "coco_url": url,
        "date_captured": "2013-11-14 17:02:52",
        "id": number,
    }


def coco_captions(numbers: Sequence[int], split: str) -> dict[str, Any]:
    annotations = [
        {"image_id": number, "id": number * CAPTIONS + caption, "caption": text(number, caption)}
        for number in numbers
        for caption in range(CAPTIONS)
    ]
    random.Random(0).shuffle(annotations)  # as COCO's are in no order
    described = [coco_image(number, split) for number in numbers]
    return {"info": {"year": 2017}, "images": described, "licenses": [{"id": 4}], "annotations": annotations}


def coco_instances(numbers: Sequence[int], split: str, each: int = 2) -> dict[str, Any]:
    annotations = [
        {
            "image_id": number,
            "id": each * number + box,
            "category_id": 1 + (number + box) % 2,
            "bbox": [0, 0, 5, 5],
        }
        for number in numbers
        for box in range(each)
    ]
    categories = [{"id": 1, "name": "person"}, {"id": 2, "name": "traffic light"}]
    described = [coco_image(number, split) for number in numbers]
    return {"images": described, "annotations": annotations, "categories": categories}


def coco(folder: Path, splits: Mapping[str, Sequence[int]], place: str = "") -> None:
    (folder / "annotations").mkdir(parents=True)
    for split, numbers in splits.items():
        images(folder / place / split, [f"{number:012d}.jpg" for number in numbers])
        for kind, make in (("captions", coco_captions), ("instances", coco_instances)):
            path = folder / "annotations" / f"{kind}_{split}.json"
            path.write_text(json.dumps(make(numbers, split)))


def karpathy(numbers: Sequence[int], folders: bool) -> dict[str, Any]:
    """Four splits; `folders` are named as for COCO, of Flickr there are none."""
    described = []
    for number in numbers:
        sentences = [
            {
                "tokens": ["a", "child"],
                "raw": text(number, caption),
                "imgid": number,
                "sentid": 5 * number + caption,
            }
            for caption in range(CAPTIONS)
        ]
        image = {"filename": f"{number:012d}.jpg", "imgid": number, "sentences": sentences}
        split = ("train", "restval", "val", "test")[number % 4]
        described.append({**image, "split": split, **({"filepath": "val2014"} if folders else {})})
    return {"images": described, "dataset": "coco" if folders else "flickr8k"}
