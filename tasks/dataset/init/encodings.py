"""Guess the encoding of a text that is not UTF-8, by the letters that it would have.

A text of a few sentences is enough, unlike for detectors that weigh all encodings alike: those
that spreadsheets and databases write are few, and the wrong ones make letters that hardly occur together in
any language. It is a guess: `tarmac init` shows a text as it would be read.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

LEAST = 0.5
"""The share of letters beyond ASCII that must be likely ones; below, no encoding is named."""
MOST_BYTES = 1 << 16
"""Bytes of lines beyond ASCII to weigh."""
WIDE = 0.3
"""The share of zero bytes in UTF-16 of languages in Latin letters."""
LONGEST_RUN = 3
"""The most letters beyond ASCII that a word in Latin letters has in a row."""
LATIN = 1.0

_WEST = (
    "äöüÄÖÜß",
    "éèêëàâçîïôùûœæÉÈÊÀÇ",
    "ñáéíóúüÑÁÉÍÓÚº",
    "àèéìòùÈÀ",
    "áàâãçéêíóôõúÁÉÓÚÃÇ",
    "æøåäöéÆØÅÄÖ",
)
_CENTRE = (
    "ąćęłńóśźżĄĆĘŁŃÓŚŹŻ",
    "áčďéěíňóřšťúůýžÁČĎÉĚÍŇÓŘŠŤÚŮÝŽľĺ",
    "áéíóöőúüűÁÉÍÓÖŐÚÜŰ",
    "ăâîşţĂÂÎŞŢ",
    "čćđšžČĆĐŠŽ",
)
_TURKISH = ("çğıöşüÇĞİÖŞÜâîû",)
_MARKS = "“”„‘’«»–—…€°·¿¡•²½£§©®™´"
_KANA = "".join(map(chr, range(0x3041, 0x30FF)))
_SIMPLE = (
    "的一是不了在有人我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
    "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心只白色黑红绿蓝黄狗猫"
    "车站男女孩两三手街边照片坐窗水山花草树人们"
)
_FULL = (
    "的一是不了在有人我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡"
    "用道行所然家種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心隻只白色黑紅綠藍黃狗貓"
    "車站男女孩兩三手街邊照片坐窗水山花草樹"
)
_HANGUL = "".join(map(chr, range(0xAC00, 0xD7A4)))

CANDIDATES: Sequence[tuple[str, Sequence[str], float]] = (
    ("cp1252", _WEST, LATIN),
    ("cp1250", _CENTRE, LATIN),
    ("cp1254", _TURKISH, LATIN),
    ("mac_roman", _WEST, LATIN),
    ("cp850", _WEST, LATIN),
    ("cp1251", ("оеаинтсрвлкмдпуя",), 0.65),
    ("koi8_r", ("оеаинтсрвлкмдпуя",), 0.65),
    ("cp1253", ("αοιετσνηυρπκμλςάίέόήύώ",), 0.75),
    ("cp1255", ("יוהלאמרתבנשדכ",), 0.65),
    ("cp1256", ("ايلنمرهوتبعدف",), 0.65),
    ("cp874", ("านรอกเงมยลวดทสหั่้ีิ",), 0.7),
    ("cp932", (_KANA,), 0.35),
    ("euc_jp", (_KANA,), 0.35),
    ("gb18030", (_SIMPLE,), 0.35),
    ("big5", (_FULL,), 0.35),
    ("cp949", (_HANGUL,), 0.9),
)
"""Encodings, the more usual first, each with the letters of each of its languages, or with the frequent ones,
and the share of all letters beyond ASCII that they make up there."""


def encoding_of(data: bytes) -> str | None:
    """Return the likeliest encoding of a text's first lines; None where it is UTF-8, has a byte order mark,
    or cannot be told. A text in UTF-8 may hold a few bytes that are not."""
    if data.isascii() and b"\0" not in data:
        return None
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return None
    if data.count(0) > WIDE * len(data):
        return "utf-16-be" if data[::2].count(0) > data[1::2].count(0) else "utf-16-le"
    beyond = [char for char in data.decode("utf-8", "surrogateescape") if char > "\x7f"]
    foreign = sum("\udc80" <= char <= "\udcff" for char in beyond)
    if not foreign or 4 * foreign < len(beyond):
        return None
    sample = b"\n".join(line for line in data.splitlines() if not line.isascii())[:MOST_BYTES]
    scores = {name: _score(sample, name, languages, share) for name, languages, share in CANDIDATES}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= LEAST else None


def _score(sample: bytes, encoding: str, languages: Sequence[str], share: float) -> float:
    """Return how likely the text is in an encoding, from 0 to 1."""
    text = sample.decode(encoding, "replace")
    beyond = [index for index, char in enumerate(text) if char > "\x7f"]
    is_apart = _is_in_a_run if share == LATIN else _is_among_ascii
    letters = [text[index] for index in beyond if not is_apart(text, index)]
    marks = sum(text[index] in _MARKS and not _is_within_a_word(text, index) for index in beyond)
    likely = max(sum(char in language for char in letters) for language in languages)
    return min((likely / share + marks) / max(len(beyond), 1), 1.0)


def _is_in_a_run(text: str, index: int) -> bool:
    """Whether a letter is one of many beyond ASCII in a row, as no language in Latin letters has them."""
    run = longest = 0
    for char in text[max(index - LONGEST_RUN, 0) : index + LONGEST_RUN + 1]:
        run = run + 1 if char > "\x7f" and char.isalpha() else 0
        longest = max(longest, run)
    return longest > LONGEST_RUN


def _is_among_ascii(text: str, index: int) -> bool:
    """Whether a letter stands beside one of ASCII, as letters of another script hardly do."""
    around = text[max(index - 1, 0) : index] + text[index + 1 : index + 2]
    return any(char.isascii() and char.isalpha() for char in around)


def _is_within_a_word(text: str, index: int) -> bool:
    """Whether a mark other than an apostrophe stands between letters."""
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    return text[index] not in "’´" and before.isalpha() and after.isalpha()
