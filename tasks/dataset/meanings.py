"""What each reject reason means, in words for a page."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    "source.unreadable": "the file could not be read",
    "member.missing": "a part of the sample is missing, such as its image file",
    "key.duplicate": "another sample has the same key",
    "image.undecodable": "the image is damaged",
    "image.empty": "the image file has no bytes",
    "image.not_an_image": "the file is no image, whatever its name says",
    "image.too_large": "the image has more pixels than dataset.image.max_pixels",
    "image.too_small": "a side is shorter than dataset.image.min_side",
    "caption.missing": "there is no caption",
    "caption.empty": "the caption has no characters",
    "caption.encoding": "the caption is not UTF-8",
    "volume.undecodable": "the volume is damaged",
    "volume.pickle": "the file holds Python objects, which are never loaded",
    "volume.shape": "the volume does not have three dimensions",
    "volume.dtype": "the volume's numbers are of a type that cannot be taken",
    "volume.nonfinite": "the volume holds values that are not finite",
    "volume.hu_range": "the values cannot be Hounsfield units",
    "volume.spacing": "the distance between slices cannot be right",
    "report.missing": "there is no report",
    "labels.missing": "a label is missing, or is no number",
    "reinforcement.crop": "a crop lies outside the image",
    "reinforcement.rows": "there are not as many embeddings as augmentations or captions",
    "reinforcement.members": "a part of the reinforcement is missing or cannot be read",
    "chat.turns": "the turns do not alternate, or one is empty",
    "chat.images": "there are not as many images as places for them",
    "chat.ratings": "a rating is not within its range",
    "archive.bomb": "the archive unpacks to more than is allowed",
    "archive.unsafe": "the archive holds paths or links that could escape",
}
