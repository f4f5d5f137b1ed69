"""Conversations about images in nanoVLM's terms: turns, ratings, placeholders; values in, values out.

nanoVLM puts a conversation's images before its first turn. A text may instead mark their places with
`<image>` (or `<image: 1>`), as other datasets do; then there must be a mark for each image, or the trainer
would show the wrong one. The model's own tokens, such as `<|image|>`, are no marks: nanoVLM strips them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.dataset.rejects import Reject
from tasks.dataset.texts import is_blank

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")
"""What a turn may be rated for; a raw row names them `relevance_ratings` and so on."""
BEST = 5
ROLES = ("user", "assistant")
MOST_IMAGES = 1000
"""Members are numbered by three digits, so that sorted names are in the order of the images."""
PLACEHOLDER = re.compile(r"<image(?:: ?(\d+))?>")

Turn = Mapping[str, str]
Rating = int | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns as `{user, assistant}`, and for each kind of rating given one a turn (None: not rated)."""

    turns: tuple[Turn, ...]
    ratings: Mapping[str, tuple[Rating, ...]]

    @property
    def placeholders(self) -> list[str]:
        """The number that each has, empty where it has none."""
        return [number for turn in self.turns for number in PLACEHOLDER.findall(turn["user"])]


def parse(texts: Any, ratings: Mapping[str, Any]) -> Conversation:
    """A conversation as it came; Reject when turns do not alternate or are blank, or ratings are wrong."""
    if texts is None or texts == []:
        raise Reject("chat.turns", "there is no turn")
    if not isinstance(texts, list):
        raise Reject("chat.turns", f"a {type(texts).__name__} where a list of turns belongs")
    turns = tuple(_turn(number, entry) for number, entry in enumerate(texts, 1))
    given = {name: ratings[name] for name in RATINGS if ratings.get(name) is not None}
    return Conversation(turns, {name: _ratings(name, given[name], len(turns)) for name in given})


def require_pairs(texts: Any) -> None:
    """Reject when a turn holds more than user and assistant, which `parse` would leave out."""
    for number, entry in enumerate(texts if isinstance(texts, list) else (), 1):
        given = entry.items() if isinstance(entry, dict) else ()
        others = sorted(str(name) for name, value in given if name not in ROLES and value is not None)
        if others:
            has = f"turn {number} has {', '.join(others)[:80]}"
            raise Reject("chat.turns", f"{has}, where a turn is a pair of user and assistant")


def _turn(number: int, entry: Any) -> Turn:
    if not isinstance(entry, dict):
        raise Reject("chat.turns", f"turn {number} is no pair of user and assistant")
    return {role: _text(number, role, entry.get(role)) for role in ROLES}


def _text(number: int, role: str, text: Any) -> str:
    if not isinstance(text, str) or is_blank(text):
        raise Reject("chat.turns", f"turn {number}: the {role} says nothing")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Reject("chat.turns", f"turn {number}: what the {role} says is not UTF-8") from None
    return text


def _ratings(name: str, values: Any, turns: int) -> tuple[Rating, ...]:
    if not isinstance(values, list) or len(values) != turns:
        count = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise Reject("chat.ratings", f"{name}: {count} for {turns} turns")
    return tuple(_rating(name, number, value) for number, value in enumerate(values, 1))


def _rating(name: str, number: int, value: Any) -> Rating:
    if value is None or value != value:  # NaN is how data frames write a missing number
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in range(1, BEST + 1):
        raise Reject("chat.ratings", f"{name} of turn {number} is {value!r}, not 1 to {BEST}")
    return int(value)


def check_images(conversation: Conversation, images: int) -> None:
    """Reject unless each image has its placeholder, or none has one."""
    if images > MOST_IMAGES:
        raise Reject("chat.images", f"{images} images, more than {MOST_IMAGES}")
    marks = conversation.placeholders
    if len(marks) not in (0, images):
        raise Reject("chat.images", f"{len(marks)} placeholders for {images} images")
    numbers = [int(mark) for mark in marks if mark]
    if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(1, images + 1)):
        named = ", ".join(map(str, numbers[:8]))
        raise Reject("chat.images", f"placeholders of the images {named}, where there are {images}")


def select(conversation: Conversation, keep: Callable[[str, int], bool]) -> Conversation | None:
    """The conversation without the turns of which a rating is not kept; None when no turn stays.

    As in nanoVLM a turn that is not rated stays. Where a turn goes, so do all placeholders: the images, which
    all stay, are then put before the first turn, since nobody can say which of them the others speak of.
    """
    stay = [
        number
        for number in range(len(conversation.turns))
        if all(_is_kept(name, values[number], keep) for name, values in conversation.ratings.items())
    ]
    if len(stay) == len(conversation.turns):
        return conversation
    turns = tuple(conversation.turns[number] for number in stay)
    if conversation.placeholders:
        turns = tuple({**turn, "user": PLACEHOLDER.sub("", turn["user"]).strip()} for turn in turns)
        spoken = [place for place, turn in enumerate(turns) if not is_blank(turn["user"])]
        turns = tuple(turns[place] for place in spoken)  # what was a placeholder alone asks nothing any more
        stay = [stay[place] for place in spoken]
    ratings = {
        name: tuple(values[number] for number in stay) for name, values in conversation.ratings.items()
    }
    return Conversation(turns, ratings) if turns else None


def _is_kept(name: str, rating: Rating, keep: Callable[[str, int], bool]) -> bool:
    return rating is None or keep(name, rating)
