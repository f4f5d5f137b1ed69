"""What a table's columns are: the one of images, those of captions, of classes, of splits."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.dataset.init.profile import Column, Profile

IMAGES = ("image", "img", "jpg", "png", "picture", "photo", "image_bytes", "bytes")
CAPTIONS = ("caption", "text", "title", "description", "prompt", "alt", "txt", "alt_text", "sentence")
KEYS = ("key", "id", "uid", "uuid", "image_id", "sample_id", "sha256", "md5", "hash")
SPLITS = ("split", "subset", "partition", "set", "phase")
SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
MOST_CLASSES = 200


def image_column(profile: Profile) -> Column | None:
    """Bytes before paths before addresses; of several the one with an image's name, else the first."""
    columns = list(profile.columns.values())
    for candidates in (
        [column for column in columns if column.is_binary],
        [column for column in columns if column.share(column.named_images - column.addresses) >= 0.5],
        [column for column in columns if column.share(min(column.addresses, column.named_images)) >= 0.5],
        [column for column in columns if column.share(column.addresses) >= 0.9 and _is(column, ("url",))],
    ):
        if candidates:
            return next((column for column in candidates if _is(column, IMAGES)), candidates[0])
    return None


def caption_columns(profile: Profile, image: Column) -> list[Column]:
    """The columns that may be captions, the likeliest first."""
    scored = []
    for number, column in enumerate(profile.columns.values()):
        is_text = column.texts and not (column.is_numeric or column.is_binary or column.nested)
        points_elsewhere = column.share(column.named_images) > 0.1 or column.share(column.addresses) > 0.1
        if column is image or not is_text or points_elsewhere or column.name.lower() in (*KEYS, *SPLITS):
            continue
        score = 2 * _is(column, CAPTIONS) + 2 * column.share(column.spaced)
        if score >= 1:
            scored.append((-score, number, column))
    return [column for _, _, column in sorted(scored, key=lambda one: one[:2])]


def label_column(profile: Profile, image: Column, caption: Column) -> Column | None:
    """A column of few names that come again and again: the classes, perhaps. Numbers of classes say nothing
    to a model of texts."""
    for column in profile.columns.values():
        few = 2 <= len(column.values) <= min(MOST_CLASSES, column.filled // 3)
        if column in (image, caption) or not few or column.nested or column.is_numeric or split_names(column):
            continue
        if column.name.lower() in ("label", "class", "category", "class_name", "label_name") or (
            column.texts and column.filled >= 0.9 * caption.filled
        ):
            return column
    return None


def split_names(column: Column) -> list[str]:
    """The names of splits that the column holds; none when it holds something else."""
    names = list(column.values)
    is_named = column.name.lower() in SPLITS and len(names) <= 10 and "train" in names
    if not names or not (is_named or {name.lower() for name in names} <= SPLIT_NAMES):
        return []
    return names


def _is(column: Column, names: Sequence[str]) -> bool:
    name = column.name.lower()
    return name in names or any(part in names for part in name.replace("-", "_").split("_"))
