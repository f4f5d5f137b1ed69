"""The pages of the docs: where they lie in the repository, their blocks and headings, and their place in the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "readme/",
    "README.zh-CN.md": "zh/readme/",
    "CONTRIBUTING.md": "contributing/",
    "CHANGELOG.md": "changelog/",
    "deploy/README.md": "deploy/",
}
"""The pages that lie beside docs/, and their addresses in the site."""
PAGES = [*OUTSIDE, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*) *\n(?P<text>.*?)^ *```$", re.M | re.S)
INLINE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+(?:\([^()]*\)[^()\s]*)*)\)")
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"(?P<target>[^\"\s]+)")
ANCHOR = re.compile(r"<a id=\"([^\"]+)\"")


def address_of(source: str) -> str:
    """The address of a page in the site, from its root."""
    if source in OUTSIDE:
        return OUTSIDE[source]
    return re.sub(r"(^|/)index/$", r"\1", source.removeprefix("docs/").removesuffix(".md") + "/")


def github_anchor(heading: str) -> str:
    """GitHub's id of a heading: lower case, letters, digits, `-` and `_` only, a dash for each space."""
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", text_of(page))


def blocks(*languages: str) -> Iterator[Block]:
    """The fenced blocks of all pages, or those in these languages."""
    for page in PAGES:
        text = text_of(page)
        for found in FENCE.finditer(text):
            if not languages or found["language"] in languages:
                indent = len(found["indent"])
                lines = [line[indent:] for line in found["text"].splitlines()]
                yield Block(
                    page, text.count("\n", 0, found.start()) + 1, found["language"], "\n".join(lines) + "\n"
                )


def heading_anchors(page: str) -> list[str]:
    """The ids of a page's headings in their order, by GitHub's rule; of equal headings the later ones are numbered."""
    found: dict[str, int] = {}
    ids = []
    for heading in HEADING.findall(prose(page)):
        name = github_anchor(heading)
        number = found.get(name, 0)
        ids.append(f"{name}-{number}" if number else name)
        found[name] = number + 1
    return ids


def anchors(page: str) -> set[str]:
    """The ids that a link to a page may name."""
    return {*heading_anchors(page), *ANCHOR.findall(prose(page))}


def links(page: str) -> list[str]:
    """The targets of a page's links and pictures, code left out."""
    text = INLINE.sub(lambda code: "`code`", prose(page))
    return [one["target"] for rule in (LINK, HTML_LINK) for one in rule.finditer(text)]
