"""The pages of docs/tour/ are linked, harm nobody, name no machine, and are what today's templates write.

A change of the templates' sections, of the notice at a page's foot or of its policy makes them out of date; a change of
colours does not, because recording all of them takes twenty minutes.
"""

from __future__ import annotations

import ast
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.record_tour import BREAK, HOME, RECORDINGS, TOUR

PAGES = sorted(TOUR.glob("*.html"))
SCREENS = {path.stem: path.read_text() for path in TOUR.glob("*.txt")}
DOCUMENTS = [
    ROOT / "docs/tour.md",
    ROOT / "docs/fine-tuning.md",
    *sorted((ROOT / "docs/models").glob("*.md")),
]
TEMPLATES = ROOT / "tasks"
KINDS = {"look": "dataset/look", "bench": "diagnosis/bench", "doctor": "diagnosis/doctor"}
REPORT = "reporting/report"
PAGE_BYTES, ALL_BYTES = 1_000_000, 4_000_000
ANYWHERE = re.compile(r"(?<![\w.&;/])/(?:home|root|Users|work|mnt|tmp|opt|srv|data)/[\w.-]+")
ID = re.compile(r'id="([^"]+)"')


def template_of(name: str) -> str:
    package, _, file = KINDS.get(name, REPORT).partition("/")
    return (TEMPLATES / package / "templates" / f"{file}.html").read_text()


class Parsed(HTMLParser):
    """What a page would load or run, its links, the places to link to, and its headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster", "action", "background", "xlink:href"):
                self.loads.append(value or "")
            elif name == "href":
                (self.links if tag == "a" else self.loads).append(value or "")
            elif name.startswith("on"):
                self.scripts.append(f"{tag} {name}")
            elif name == "id":
                self.ids.add(value or "")
        if tag in ("script", "iframe", "object", "embed", "link", "base", "form"):
            self.scripts.append(tag)


def test_every_recording_has_a_page_and_a_screen_and_the_tour_links_them() -> None:
    tour = (ROOT / "docs/tour.md").read_text()
    assert {page.stem for page in PAGES} == set(RECORDINGS) == set(SCREENS)
    for name in RECORDINGS:
        assert f"(tour/{name}.html)" in tour
        assert f"(tour/{name}.txt)" in tour


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_one_small_file_that_loads_and_runs_nothing(page: Path) -> None:
    text = page.read_text()
    parsed = Parsed(text)
    assert parsed.scripts == []
    assert [one[:60] for one in parsed.loads if not one.startswith("data:")] == []
    assert {one for one in parsed.links if not (one.startswith("#") and one[1:] in parsed.ids)} == set()
    assert not re.search(r"@import|url\((?!['\"]?data:)", text)
    assert page.stat().st_size < PAGE_BYTES


def test_all_pages_together_are_small() -> None:
    assert sum(page.stat().st_size for page in TOUR.iterdir()) < ALL_BYTES


@pytest.mark.parametrize("path", sorted(TOUR.iterdir()), ids=lambda path: path.name)
def test_nothing_names_the_machine_that_made_it(path: Path) -> None:
    text = unescape(re.sub(r"data:image/[^\"']+", "", path.read_text()))
    assert {found for found in ANYWHERE.findall(text) if not found.startswith(HOME)} == set()
    if path.suffix == ".html" and path.stem not in KINDS:
        hosts = re.findall(r"<td>([^<]*)</td><td>\d*</td><td>(?:succeeded|cancelled|failed)", text)
        assert hosts and set(hosts) == {"tarmac"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_sections_that_todays_template_writes(page: Path) -> None:
    text, template = page.read_text(), template_of(page.stem)
    base = (TEMPLATES / "core/templates/base.html").read_text()
    again = f"; python -m tests.docs.record_tour {page.stem} writes it anew"
    for pattern in (
        r"<meta http-equiv=[^>]+>",
        r"This file holds all it shows[^<]+",
        r'<meta name="generator"[^>]+>',
    ):
        (line,) = re.findall(pattern, base)
        assert line in text, f"{line} is not on the page{again}"
    listed = re.search(r"set sections = (\[.*?\]) %\}", template)
    if listed is not None:
        nav = re.search(r'<ul class="contents">(.*?)</ul>', text, re.DOTALL)
        assert nav is not None
        found = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', nav.group(1))
        assert found == ast.literal_eval(listed.group(1)), again
    else:
        tabs = set(re.findall(r'call panel\("([\w-]+)"', template)) | {"faults", "quality"}
        assert set(re.findall(r'<section class="tab[^"]*" id="([^"]+)"', text)) == tabs, again
    wanted = {one for one in re.findall(r"<h2[^>]*>([^<{]+)</h2>", template) if one != "What to know first"}
    assert wanted <= set(re.findall(r"<h2[^>]*>([^<]+)</h2>", text)), again


def blocks(document: Path) -> list[list[str]]:
    """The blocks that show a command and what it printed."""
    found = re.findall(r"^```\n(\$ .*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    return [block.splitlines() for block in found]


def is_shown(line: str, screens: str) -> bool:
    """Whether a recorded screen has this line; `…` stands for what was left out of it."""
    parts = [re.escape(part.strip()) for part in line.split("…")]
    return re.search(r"[^\n]*".join(parts), screens) is not None


def test_what_the_documents_show_was_recorded() -> None:
    screens, shown = "\n".join(SCREENS.values()), 0
    for document in DOCUMENTS:
        for line in (line for block in blocks(document) for line in block if line.strip(" …")):
            assert is_shown(line, screens), f"{document.name}: {line}"
            shown += 1
    assert shown > 50


def test_the_damage_of_the_look_is_what_the_tour_says() -> None:
    assert "files[:6]" in BREAK and "rows[61:65]" in BREAK and "files[20:28]" in BREAK
    assert "6 image.undecodable" in SCREENS["look"] and "4 caption.empty" in SCREENS["look"]
