"""Conversations about images: alternating turns that are not blank, with an image for each placeholder.

A turn is `{user, assistant}` and may have further fields, such as `source` in The Cauldron; these stay in the
sample's `json`, where training ignores them.

nanoVLM puts a conversation's images before its first turn. A text may instead mark their places with
`<image>` (or `<image: 1>`), as other datasets do; then there must be a mark for each image, or the trainer
would show the wrong one. The model's own tokens, such as `<|image|>`, are no marks: nanoVLM strips them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.schema import Dataset
from tasks.dataset.formats import images
from tasks.dataset.formats.captions import text_hash
from tasks.dataset.formats.checks import is_blank, json_object
from tasks.dataset.modalities.base import AcceptedSample, MemberFault, Modality, Statistic
from tasks.dataset.modalities.image_text import OF_IMAGE, image_statistics, judge_each, judge_json
from tasks.dataset.tar.format import Members
from tasks.dataset.version.rejects import Reject

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")
"""The kinds of rating of a turn; a raw row names them `relevance_ratings` and so on."""
BEST = 5
ROLES = ("user", "assistant")
MOST_IMAGES = 1000
"""Members are numbered with three digits, so that sorted names are in the order of the images."""
PLACEHOLDER = re.compile(r"<image(?:: ?(\d+))?>")
_IMAGE = re.compile(r"(\d{3})(?:\.(jpg|png|webp))?")

Turn = Mapping[str, Any]
Rating = int | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns as `{user, assistant, …}`, and for each kind of rating one value per turn (None: not rated)."""

    turns: tuple[Turn, ...]
    ratings: Mapping[str, tuple[Rating, ...]]

    @property
    def placeholders(self) -> list[str]:
        """The number of each placeholder, empty where it has none."""
        return [number for turn in self.turns for number in PLACEHOLDER.findall(turn["user"])]


def accept_chat(raw: Members, dataset: Dataset) -> AcceptedSample:
    """Accept `json` and the images `000`, `001`, …, which are stored under their formats, as `000.jpg`."""
    numbered = sorted(name for name in raw if _IMAGE.fullmatch(name))
    gap = _gap(numbered)
    if gap is not None:
        raise Reject("chat.images", gap)
    conversation = _conversation(bytes(raw["json"]))
    check_images(conversation, len(numbered))
    members = {"json": raw["json"]}
    found = []
    for number, name in enumerate(numbered):
        try:
            image = images.store(bytes(raw[name]), dataset.image)
        except Reject as reject:
            raise Reject(reject.reason, f"image {number + 1}: {reject.detail}") from None
        members[f"{number:03d}.{image.suffix}"] = image.content
        found.append(image_statistics(image))
    statistics = {"images": len(numbered), "turns": len(conversation.turns), **_of_images(found)}
    for role in ROLES:
        statistics[f"{role}_length"] = sum(len(turn[role]) for turn in conversation.turns)
    texts = (turn[role] for turn in conversation.turns for role in ROLES)
    return AcceptedSample(members, {**statistics, "text_hash": text_hash(*texts)})


def _of_images(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of a conversation's images together: the largest size, the least contrast and
    sharpness, and a hash of all. The perceptual hash is that of a single image."""
    if not found:
        return {"width": 0, "height": 0}
    together: dict[str, Any] = {
        **max(found, key=lambda one: one["width"] * one["height"]),
        "frames": max(one["frames"] for one in found),
        "content_hash": text_hash(*(f"{one['content_hash']:x}" for one in found)),
    }
    for name in ("contrast", "sharpness"):
        values = [one[name] for one in found if one.get(name) is not None]
        together[name] = min(values, default=None)
    if len(found) > 1:
        together |= dict.fromkeys(("phash", "phash_fine", "spectrum"))
    return together


def chat_faults(members: Mapping[str, bytes]) -> list[MemberFault]:
    numbered = sorted(name for name in members if _IMAGE.fullmatch(name))
    nameless = [name for name in numbered if "." not in name]
    faults = [MemberFault("member.undecodable", name, "its name has no format") for name in nameless]
    faults += judge_each(members, (name for name in numbered if "." in name))
    gap = _gap(numbered)
    if gap is not None:
        faults.append(MemberFault("sample.missing_member", numbered[-1], gap))
    malformed = judge_json(members)
    if malformed or "json" not in members:
        return faults + malformed
    try:
        check_images(_conversation(members["json"]), len(numbered))
    except Reject as reject:
        code = "sample.missing_member" if reject.reason == "chat.images" else "member.undecodable"
        faults.append(MemberFault(code, "json", str(reject)))
    return faults


def _gap(numbered: list[str]) -> str | None:
    """Return the first gap in the numbers of these sorted members; None when they count up from 000."""
    for number, name in enumerate(numbered):
        if int(name[:3]) != number:
            return f"{name} stands where image {number:03d} belongs"
    return None


def _conversation(document: bytes) -> Conversation:
    value = json_object(document, "chat.turns")
    ratings: Any = value.get("ratings") or {}
    if not isinstance(ratings, dict):
        raise Reject("chat.ratings", f"ratings are a {type(ratings).__name__}, not lists by name")
    return parse(value.get("messages"), ratings)


def parse(texts: Any, ratings: Mapping[str, Any]) -> Conversation:
    """Return a raw conversation; Reject when turns do not alternate or are blank, or ratings are wrong."""
    if texts is None or texts == []:
        raise Reject("chat.turns", "there is no turn")
    if not isinstance(texts, list):
        raise Reject("chat.turns", f"a {type(texts).__name__} where a list of turns belongs")
    turns = tuple(_turn(number, entry) for number, entry in enumerate(texts, 1))
    given = {name: ratings[name] for name in RATINGS if ratings.get(name) is not None}
    return Conversation(turns, {name: _ratings(name, given[name], len(turns)) for name in given})


def _turn(number: int, entry: Any) -> Turn:
    if not isinstance(entry, dict):
        raise Reject("chat.turns", f"turn {number} is no pair of user and assistant")
    for role in ROLES:
        text = entry.get(role)
        if not isinstance(text, str) or is_blank(text):
            raise Reject("chat.turns", f"turn {number}: the {role}'s text is missing or blank")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Reject("chat.turns", f"turn {number}: the {role}'s text is not UTF-8") from None
    further = {name: value for name, value in entry.items() if name not in ROLES and value is not None}
    if further:
        further = json.loads(json.dumps(further, default=str))
    return {**further, **{role: entry[role] for role in ROLES}}


def _ratings(name: str, values: Any, turns: int) -> tuple[Rating, ...]:
    if not isinstance(values, list) or len(values) != turns:
        count = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise Reject("chat.ratings", f"{name}: {count} for {turns} turns")
    ratings: list[Rating] = []
    for number, value in enumerate(values, 1):
        is_missing = value is None or value != value  # NaN is how data frames write a missing number
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_missing and not (is_number and value in range(1, BEST + 1)):
            raise Reject("chat.ratings", f"{name} of turn {number} is {value!r}, not 1 to {BEST}")
        ratings.append(None if is_missing else int(value))
    return tuple(ratings)


def check_images(conversation: Conversation, count: int) -> None:
    """Reject unless each of `count` images has a placeholder, or none has one."""
    if count > MOST_IMAGES:
        raise Reject("chat.images", f"{count} images, more than {MOST_IMAGES}")
    marks = conversation.placeholders
    if len(marks) not in (0, count):
        raise Reject("chat.images", f"{len(marks)} placeholders for {count} images")
    numbers = [int(mark) for mark in marks if mark]
    if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(1, count + 1)):
        named = ", ".join(map(str, numbers[:8]))
        raise Reject("chat.images", f"placeholders of the images {named}, where there are {count}")


def select(conversation: Conversation, keep: Callable[[str, int], bool]) -> Conversation | None:
    """Return the conversation without the turns that have a rating `keep` rejects; None when none remains.

    As in nanoVLM, a turn without a rating is kept. Where a turn is dropped, all placeholders are too: the
    images, which all stay, then come before the first turn, since it is unknown which the others are about.
    """
    ratings = conversation.ratings.items()
    stay = [
        number
        for number in range(len(conversation.turns))
        if all((value := values[number]) is None or keep(name, value) for name, values in ratings)
    ]
    if len(stay) == len(conversation.turns):
        return conversation
    turns = tuple(conversation.turns[number] for number in stay)
    if conversation.placeholders:
        turns = tuple({**turn, "user": PLACEHOLDER.sub("", turn["user"]).strip()} for turn in turns)
        spoken = [place for place, turn in enumerate(turns) if not is_blank(turn["user"])]
        turns = tuple(turns[place] for place in spoken)  # a turn that was only a placeholder is blank now
        stay = [stay[place] for place in spoken]
    kept = {name: tuple(values[number] for number in stay) for name, values in ratings}
    return Conversation(turns, kept) if turns else None


CHAT = Modality(
    take=accept_chat,
    judge=chat_faults,
    required=(("json",),),
    statistics={
        **dict.fromkeys(("images", "turns", "user_length", "assistant_length"), Statistic.COUNT),
        **OF_IMAGE,
        "text_hash": Statistic.HASH,
    },
    undecodable="image.undecodable",
)
