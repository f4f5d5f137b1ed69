"""Judges a sample of captions together: what many of them share, and which are in another language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

WORDS = 4
"""A beginning or end is boilerplate only if it has this many words."""
SHARED, SHARED_BY_FORM = 0.1, 0.02
"""A beginning or end that this share of the different captions has is boilerplate; the second is enough if it
looks like it: set off by a separator, or with an address or a copyright."""
NEARLY = 0.9
"""A longer text is taken instead of a shorter one that hardly more captions have."""
LEAST = 20
"""Among fewer different captions than this, what they share may be a coincidence."""
LONGEST = 30
"""The most words of a beginning or end that are compared."""
MAIN = 0.6
"""A language that this share of the captions has is that of the rest."""
SURE = 0.95
LONG_ENOUGH = 25
"""Shorter captions (characters) say too little of their language."""
LANGUAGES = "py3langid"
"""The package that recognises languages."""
_FORM = re.compile(r"\s[|–—•»-]\s|\w\|\w|©|®|™|https?:|www\.|\.(?:com|org|net|de|cn)\b|!", re.IGNORECASE)
_SPACES = re.compile(r"\s+")

Classify = Callable[[str], tuple[str, float]]


def boilerplate(captions: Sequence[str]) -> tuple[list[int], str]:
    """Return which captions have the most common long beginning or end, and that text; nothing if none is
    common."""
    whole = [_SPACES.sub(" ", caption).strip() for caption in captions]
    distinct = set(whole)
    if len(distinct) < LEAST:
        return [], ""
    counts: Counter[tuple[bool, str]] = Counter()
    for caption in distinct:
        words = caption.split(" ")
        for length in range(WORDS, min(len(words), LONGEST + 1)):  # fewer than all: it must say more, too
            counts[True, " ".join(words[:length])] += 1
            counts[False, " ".join(words[-length:])] += 1
    common = {
        (starts, text): number
        for (starts, text), number in counts.items()
        if number >= (SHARED_BY_FORM if _FORM.search(text) else SHARED) * len(distinct) and number > 1
    }
    if not common:
        return [], ""
    most = max(common.values())
    nearly = (one for one, number in common.items() if number >= NEARLY * most)
    starts, text = max(nearly, key=lambda one: len(one[1]))
    has_it = str.startswith if starts else str.endswith
    return [number for number, caption in enumerate(whole) if has_it(caption, text)], text


def foreign(captions: Sequence[str]) -> tuple[list[int], str, Sequence[str]] | None:
    """Return which captions are surely in another language than most, the language of most (ISO 639-1), and
    the languages of the others; None if the package is not installed. Nothing is foreign where no language
    prevails."""
    classify = _classifier()
    if classify is None:
        return None
    found = [
        (number, *classify(caption))
        for number, caption in enumerate(captions)
        if len(caption) >= LONG_ENOUGH or not caption.isascii()
    ]
    sure = [(number, language) for number, language, certainty in found if certainty >= SURE]
    if not sure:
        return [], "", []
    main, count = Counter(language for _, language in sure).most_common(1)[0]
    if count < MAIN * len(sure):
        return [], "", []
    others = [(number, language) for number, language in sure if language != main]
    named = [language for language, _ in Counter(language for _, language in others).most_common(5)]
    return [number for number, _ in others], main, named


@cache
def _classifier() -> Classify | None:
    if find_spec(LANGUAGES) is None:
        return None
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda text: identifier.classify(text)
