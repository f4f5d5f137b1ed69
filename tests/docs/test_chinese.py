"""The Chinese pages hold what the English ones hold: sections, blocks of code, commands, figures and links, one to one.

Words are the translator's, so a test cannot compare them. It compares what has no translation, section by section and
row by row: an edit of an English page that forgets the Chinese one fails, unless it changes nothing but words.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import pytest

from tests.docs.pages import FENCE, HEADING, HTML_LINK, INLINE, LINK, heading_anchors, text_of

TWINS = {
    "README.md": "README.zh-CN.md",
    "docs/start.md": "docs/zh/start.md",
    "docs/symptoms.md": "docs/zh/symptoms.md",
}
"""The English pages that have a Chinese one."""
TWIN_OF = {**TWINS, **{chinese: english for english, chinese in TWINS.items()}}
FOREIGN = re.compile(r"[a-z][a-z0-9+.-]*:")
FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:\s?(?:%|[kMGT]?B(?:/s)?|ms|s)(?![A-Za-z]))?")
HAN = "\u3400-\u9fff"
PUNCTUATION = "，。、：；！？（）“”"


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, up to the next heading of any level."""

    heading: str
    level: int
    text: str


def sections(text: str) -> list[Section]:
    """The sections of a page, the first of which begins with its title."""
    masked = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    starts = list(HEADING.finditer(masked))
    ends = [*(found.start() for found in starts[1:]), len(text)]
    return [
        Section(found[1], found[0].index(" "), text[found.start() : end])
        for found, end in zip(starts, ends, strict=True)
    ]


def parts(section: Section) -> dict[str, str]:
    """A section without its blocks: its prose, with the heading, and each row of its tables."""
    lines = FENCE.sub("", section.text).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    return {
        "prose": "\n".join(line for line in lines if not line.startswith("|")),
        **{f"row {number} of its tables": row for number, row in enumerate(rows, 1)},
    }


def facts(page: str, part: str) -> Counter[str]:
    """What of a text is the same in every language; links are paths from the root of the repository."""
    code = [f"code `{' '.join(found[2].split())}`" for found in INLINE.finditer(part)]
    plain = INLINE.sub("", part)
    targets = [found["target"] for rule in (LINK, HTML_LINK) for found in rule.finditer(plain)]
    links = [f"link to {place_of(page, target)}" for target in targets]
    words = re.sub(r"\]\([^)]*\)", "]", re.sub(r"<[^>]*>", "", plain))
    return Counter([*code, *links, *figures(words)])


def figures(text: str) -> list[str]:
    """The numbers of a text with their units."""
    return [f"figure {' '.join(one.split())}" for one in FIGURE.findall(text)]


def place_of(page: str, target: str) -> str:
    """Where a link of a page leads, from the root of the repository."""
    if FOREIGN.match(target):
        return target
    path, mark, anchor = unquote(target).partition("#")
    return (os.path.relpath(os.path.join(os.path.dirname(page), path)) if path else page) + mark + anchor


def translated(fact: str) -> str:
    """What stands in a Chinese page for a fact of the English one: a link to a page leads to its twin, if it has one."""
    if not fact.startswith("link to "):
        return fact
    path, mark, anchor = fact.removeprefix("link to ").partition("#")
    if path in TWINS and anchor:
        anchor = heading_anchors(TWINS[path])[heading_anchors(path).index(anchor)]
    return f"link to {TWIN_OF.get(path, path)}{mark}{anchor}"


def differences(english: str, first: str, second: str) -> Iterator[str]:
    """What the text `second` of the Chinese page lacks, or has besides, beside the text `first` of the English page."""
    here, there = sections(first), sections(second)
    levels = [[one.level for one in page] for page in (here, there)]
    if levels[0] != levels[1]:
        yield f"its headings are {[one.heading for one in there]}, and in English {[one.heading for one in here]}"
        return
    for one, other in zip(here, there, strict=True):
        where = f"section “{other.heading}” ({one.heading})"
        shown, given = ([found[0] for found in FENCE.finditer(page.text)] for page in (one, other))
        yield from (f"{where}: no block {block}" for block in shown if block not in given)
        yield from (f"{where}: a block besides {block}" for block in given if block not in shown)
        if sorted(shown) == sorted(given) and shown != given:
            yield f"{where}: its blocks stand in another order"
        wanted, written = parts(one), parts(other)
        if wanted.keys() != written.keys():
            yield f"{where}: its tables have {len(written) - 1} rows, and in English {len(wanted) - 1}"
            continue
        for name, text in wanted.items():
            due = Counter(translated(fact) for fact in facts(english, text).elements())
            found = facts(TWINS[english], written[name])
            yield from (f"{where}, {name}: no {fact}" for fact in due - found)
            besides = found - due - Counter(figures(text))  # a heading may put into words what it quotes
            yield from (f"{where}, {name}: a {fact} besides" for fact in besides)


@pytest.mark.parametrize("english", TWINS)
def test_a_chinese_page_holds_what_the_english_one_does(english: str) -> None:
    assert "\n".join(differences(english, text_of(english), text_of(TWINS[english]))) == ""


@pytest.mark.parametrize("page", TWIN_OF)
def test_a_page_begins_with_a_link_to_its_twin(page: str) -> None:
    name = "中文" if page in TWINS else "English"
    target = os.path.relpath(TWIN_OF[page], os.path.dirname(page) or ".")
    assert text_of(page).split("\n\n")[1] == f"[{name}]({target})"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("32 像素", "48 像素", "section “从原始文件到模型” (Raw files to a model), prose: no figure 32"),
        ("\n## 安装\n", "\n### 安装\n", "its headings are"),
        ("## 弄坏一个字节", "##弄坏一个字节", "its headings are"),
        ("loss 4.53", "loss 4.54", "(Raw files to a model): no block ```console\n$ tarmac run"),
        ("`tarmac init PATH`", "`tarmac init`", "(Your own data), prose: no code `tarmac init PATH`"),
        ("](../verify.md)", "](../stalls.md)", "(Break a byte), prose: no link to docs/verify.md"),
        ("](symptoms.md)", "](../symptoms.md)", "prose: no link to docs/zh/symptoms.md"),
        ("## 你自己的数据\n", "## 你自己的数据\n\n5 GB\n", "(Your own data), prose: a figure 5 GB besides"),
        ("## 你自己的数据\n", "## 你自己的数据\n\n| 1 |\n", "its tables have 1 rows, and in English 0"),
    ],
)
def test_what_an_edit_forgets_is_named(before: str, after: str, message: str) -> None:
    english = "docs/start.md"
    chinese = text_of(TWINS[english])
    assert before in chinese
    found = "\n".join(differences(english, text_of(english), chinese.replace(before, after, 1)))
    assert message in found


def test_a_figure_in_another_row_and_another_unit_are_found() -> None:
    english = text_of("README.md")
    rows = (
        english.replace("2.88, 2.62", "x").replace("1.11, 1.23", "2.88, 2.62").replace("| x", "| 1.11, 1.23")
    )
    changed = rows.replace("verifying 4 GB", "verifying 4 MB")
    found = "\n".join(differences("README.md", changed, text_of("README.zh-CN.md")))
    assert "row 3 of its tables: no figure 1.11" in found and "row 4 of its tables: no figure 2.88" in found
    assert "no figure 4 MB" in found and "a figure 4 GB besides" in found


@pytest.mark.parametrize("page", TWINS.values())
def test_chinese_is_set_as_chinese(page: str) -> None:
    """A browser shows the end of a line as a space, so a line ends where a space may stand: beside other letters."""
    text = FENCE.sub("", text_of(page))
    words = INLINE.sub("`code`", text)
    letter = f"[{HAN}{PUNCTUATION}]"
    assert re.findall(f".*{letter}\n{letter}.*", words) == []
    assert re.findall(f".*[{HAN}][,;:!?].*", words) == [], "punctuation of another script"
    assert [line for line in text.splitlines() if len(line) > 120 and line.lstrip()[0] not in "|<"] == []
