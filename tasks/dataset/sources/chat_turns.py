"""Turns as other tools write them, brought into the form of the shards: pairs of user and assistant.

A turn's own fields show its form, so no key of the config names one: `{user, assistant}` is nanoVLM's pair,
`{from, value}` a turn of LLaVA and ShareGPT, `{role, content}` a message of OpenAI and transformers. The
content of a message is a text, or a list of parts: texts and images, which come with an address, a path or a
`data:` URI, or from the row's own column of images. The place of each image in a message becomes the mark
`<image>`.

A system message stands before the first turn and belongs to no pair; the sample's `json` keeps it as
`system`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.dataset.formats.checks import is_blank
from tasks.dataset.version.rejects import Reject

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
FORMS = (("from", "value"), ("role", "content"))
"""The fields of a turn that name its author and hold its text."""
AUTHORS = {
    **dict.fromkeys(("user", "human"), USER),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), ASSISTANT),
    **dict.fromkeys(("system", "developer"), SYSTEM),
}
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image", "image_url", "input_image")
MARK = "<image>"
DATA_URI = "data:"


class Dialogue(NamedTuple):
    """The turns of a row: pairs as `modalities.chat.parse` takes them, the system message ("" for none), and
    the images that stand within the messages."""

    pairs: Any
    system: str = ""
    images: tuple[Any, ...] = ()


class _Turn(NamedTuple):
    role: str
    text: str
    images: list[Any]
    further: dict[str, Any]


def form_of(turns: Any) -> tuple[str, str] | None:
    """Return which of FORMS the turns have; None for pairs, and for what is no list of turns."""
    first = turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(first, dict):
        return None
    return next((form for form in FORMS if first.keys() >= set(form)), None)


def pair_turns(turns: Any) -> Dialogue:
    """Return the turns as pairs; Reject unless user and assistant alternate, each with a text. What is in
    none of FORMS is returned as it is."""
    form = form_of(turns)
    if form is None:
        return Dialogue(turns)
    spoken = [_turn(number, entry, *form) for number, entry in enumerate(turns, 1)]
    before = 1 if spoken[0].role == SYSTEM else 0
    for number, turn in enumerate(spoken[before:], before + 1):
        _require_turn(number, turn.role, USER if (number - before) % 2 else ASSISTANT, number == before + 1)
    if (len(spoken) - before) % 2:
        raise Reject(
            "chat.turns", f"the last turn, {len(spoken)}, is the user's and has no answer: remove it"
        )
    pairs = [
        {**asked.further, **answered.further, USER: asked.text, ASSISTANT: answered.text}
        for asked, answered in zip(spoken[before::2], spoken[before + 1 :: 2], strict=True)
    ]
    images = tuple(image for turn in spoken for image in turn.images)
    return Dialogue(pairs, spoken[0].text if before else "", images)


def _require_turn(number: int, role: str, expected: str, is_first: bool) -> None:
    if role == expected:
        return
    if role == SYSTEM:
        problem = "is a system message, which may only be the first turn: join it with the user's"
    elif is_first:
        problem = "is the assistant's, but the user begins: remove it"
    else:
        problem = f"is the {role}'s again, but user and assistant take turns: join it with the one before"
    raise Reject("chat.turns", f"turn {number} {problem}")


def _turn(number: int, entry: Any, author: str, content: str) -> _Turn:
    if not isinstance(entry, dict):
        raise Reject("chat.turns", f"turn {number} is no object with {author} and {content}")
    name = entry.get(author)
    role = AUTHORS.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        known = "a turn is the user's, the assistant's or a system message"
        raise Reject(
            "chat.turns", f"turn {number} is from {name!r}; {known}: remove it or rename its {author}"
        )
    text, images = _content(number, entry.get(content))
    if (is_blank(text) and role != SYSTEM) or (images and role != USER):
        problem = "has an image, which only the user's may have: put it there" if images else "has no text"
        raise Reject("chat.turns", f"turn {number}, the {role}'s, {problem}")
    further = {
        key: value for key, value in entry.items() if key not in (author, content) and value is not None
    }
    return _Turn(role, text, images, further)


def _content(number: int, content: Any) -> tuple[str, list[Any]]:
    """Return the text of a message, with a mark for each image, and the images that it brings along."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise Reject("chat.turns", f"turn {number} holds a {type(content).__name__} where a text belongs")
    texts: list[str] = []
    images: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in IMAGE_PARTS:
            texts.append(MARK)
            image = _image_of(part)
            images += [] if image is None else [image]
        else:
            raise Reject(
                "chat.turns", f"turn {number} has a part of type {kind!r}; text and image_url are read"
            )
    return "".join(texts), images


def _image_of(part: Mapping[str, Any]) -> Any:
    """Return the image that a part names or holds; None where it stands for the next one of the row's
    column."""
    given = next((part[key] for key in ("image_url", "image", "url", "path") if part.get(key)), None)
    return given.get("url") or given.get("bytes") or given.get("path") if isinstance(given, dict) else given


def holds_data(value: Any) -> bool:
    """Whether a cell holds an image as a `data:` URI, however deeply."""
    if isinstance(value, str):
        return value.startswith(DATA_URI)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(holds_data, inside))


def data_of(uri: str) -> bytes:
    """Return the bytes of a `data:` URI; Reject unless it holds them in base64."""
    head, comma, content = uri.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError
        return base64.b64decode(content, validate=True)
    except (ValueError, binascii.Error):
        raise Reject("chat.images", "a data: URI that does not hold base64") from None
