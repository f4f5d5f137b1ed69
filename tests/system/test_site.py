"""The site of the docs, as a browser draws it: on a desk and on a phone, by day and by night, on paper, by its search.

Each page is opened once, in one browser for all, and looked at under every circumstance.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import unicodedata
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pypdf import PdfReader

from tests.docs.pages import PAGES, address_of, heading_anchors
from tests.services import BIN, until
from tests.system.browser import Page
from tests.system.conftest import ROOT
from tests.system.test_pages import BROKEN, SCREENS
from tests.web import web_server

pytestmark = pytest.mark.system
COMPLAINTS = ROOT / "tests/docs/complaints.json"
SYMPTOMS = {"docs/symptoms.md": "Paste the end of your log", "docs/zh/symptoms.md": "把日志末尾粘贴到这里"}
"""The page of symptoms in each language, with the words above its box."""

DAILY = {"README.md", "docs/start.md", "docs/benchmarks.md", "docs/models/clip.md", *SYMPTOMS}
"""A page of each kind: the others are made by the same templates."""
STILL = """document.head.insertAdjacentHTML('beforeend', '<style>*{transition:none!important;animation:none!important}</style>')"""
"""A theme is changed at once, and not in the quarter of a second for which colours are neither one's."""
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
AXE_RUN = """axe.run({resultTypes: ['violations']}).then(found => JSON.stringify(found.violations.map(
    one => [one.id, ...one.nodes.slice(0, 3).map(node => node.html.slice(0, 150) + ' ' + node.failureSummary)])))"""
UNLOADED = "[...document.images].filter(one => { one.loading = 'eager'; return !one.complete; }).length"
BLOCKS = """[...document.querySelectorAll('article :is(h1, h2, h3, p, td, th, pre)')]
    .filter(one => !one.closest('.paste-box')).map(one => {
        const copy = one.cloneNode(true);
        copy.querySelectorAll('.headerlink, nav, button').forEach(each => each.remove());
        return copy.textContent;
    })"""
"""The texts of a page: what is to be on paper."""
PASTE = """(log => {
    const box = document.getElementById('pasted');
    box.value = log;
    box.dispatchEvent(new Event('input', {bubbles: true}));
    const output = document.querySelector('.paste-box output');
    return [output.querySelector('a')?.hash.slice(1) ?? '', output.querySelector('.paste-command')?.textContent ?? '', output.textContent];
})"""
ASK = """(words => {
    const box = document.querySelector('.md-search__input');
    document.getElementById('__search').checked = true;
    box.focus();
    box.value = words;
    box.dispatchEvent(new Event('keyup', {bubbles: true}));
})"""
ANSWERS = "[...document.querySelectorAll('.md-search-result__link')].map(one => new URL(one.href).pathname + new URL(one.href).hash)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([BIN / "mkdocs", "build", "-q", "-d", folder], cwd=ROOT, env=env, check=True, timeout=120)
    with web_server(folder, gives_parts=False) as (address, _):
        yield address


@pytest.fixture(scope="module")
def axe() -> str:
    """The program that looks for what a keyboard or a screen reader cannot use."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None and spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text()


@pytest.fixture
def reader(page: Page) -> Iterator[Page]:
    """A tab that keeps its errors, and is a usual one again afterwards."""
    page.watch_errors()
    page.requests.clear()
    page.errors.clear()
    yield page
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setEmulatedMedia", media="", features=[])


def see(page: Page, screen: str, theme: str) -> None:
    """Give the tab the size of a screen, and its reader's theme."""
    width, height, is_phone = SCREENS[screen]
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=is_phone, deviceScaleFactor=1
    )
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    page.call("Runtime.evaluate", expression=DRAWN, awaitPromise=True)


def is_coloured(page: Page, theme: str) -> bool:
    scheme = {"light": "default", "dark": "slate"}[theme]
    return bool(page.evaluate("document.body.dataset.mdColorScheme") == scheme)


def violations(page: Page) -> Any:
    answer = page.call("Runtime.evaluate", expression=AXE_RUN, awaitPromise=True, returnByValue=True)
    return json.loads(answer["result"]["value"])


def letters(text: str) -> str:
    """A text without what a line's or a page's end changes."""
    return re.sub(r"[\s\u00ad\u200b]+", "", unicodedata.normalize("NFKC", text))


@pytest.mark.parametrize(
    "source", [page if page in DAILY else pytest.param(page, marks=pytest.mark.proof) for page in PAGES]
)
def test_a_page_on_every_screen_and_on_paper(reader: Page, site: str, axe: str, source: str) -> None:
    see(reader, "desk", "light")
    reader.open(f"{site}/{address_of(source)}", expecting="Tarmac")
    until("the page", lambda: reader.evaluate("document.readyState") == "complete", 20)
    until("its pictures", lambda: reader.evaluate(UNLOADED) == 0, 20)
    reader.evaluate(f"{axe}; 0")
    reader.evaluate(STILL)
    for screen in SCREENS:
        for theme in ("light", "dark"):
            see(reader, screen, theme)
            where = (screen, theme)
            until(f"{theme} colours", partial(is_coloured, reader, theme), 10)
            assert reader.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                *where,
                "it scrolls sideways",
            )
            assert reader.evaluate(BROKEN) == 0, (*where, "pictures are not drawn")
            assert violations(reader) == [], where
    assert_on_paper(reader)
    assert [one for one in reader.requests if not one.startswith((site, "data:", "about:", "blob:"))] == []
    assert reader.errors == []


def assert_on_paper(page: Page) -> None:
    """Assert that a print of the page has all its text, and nothing that only a screen can use."""
    printed = base64.b64decode(page.call("Page.printToPDF", printBackground=False)["data"])
    paper = letters("".join(one.extract_text() for one in PdfReader(io.BytesIO(printed)).pages))
    texts: Sequence[str] = page.evaluate(BLOCKS)
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    assert [line for line in lines if not is_printed(line, paper)] == []
    assert not [
        chrome for chrome in ("Tableofcontents", "Backtotop", "Pastetheendofyourlog") if chrome in paper
    ]


def is_printed(line: str, paper: str) -> bool:
    """Whether a line is on paper, whole, or in two parts where a page ends: a PDF has a page's code after its prose."""
    words = [letters(word) for word in line.split()]
    return any("".join(words[:at]) in paper and "".join(words[at:]) in paper for at in range(len(words)))


def complaints() -> list[dict[str, str]]:
    """What people pasted, with the section that helps and its command."""
    found: list[dict[str, str]] = json.loads(COMPLAINTS.read_text())
    return found


@pytest.mark.parametrize("source", SYMPTOMS)
@pytest.mark.parametrize("complaint", complaints(), ids=lambda one: one["section"])
def test_the_end_of_a_log_leads_to_its_section(
    reader: Page, site: str, complaint: dict[str, str], source: str
) -> None:
    reader.open(f"{site}/{address_of(source)}", expecting=SYMPTOMS[source])
    until("the box", lambda: reader.evaluate("Boolean(document.getElementById('pasted'))"), 20)
    reader.requests.clear()
    section, command, said = reader.evaluate(f"{PASTE}({json.dumps(complaint['log'])})")
    section = unquote(section)
    number = heading_anchors("docs/symptoms.md").index(complaint["section"])
    assert section == heading_anchors(source)[number], said
    assert command.startswith(complaint["command"]), said
    assert reader.evaluate(f"Boolean(document.getElementById({json.dumps(section)}))")
    assert reader.requests == [], "what was pasted stays in the page"


def test_a_log_that_fits_no_section_leads_to_the_doctor(reader: Page, site: str) -> None:
    reader.open(f"{site}/symptoms/", expecting="Paste the end of your log")
    section, command, _ = reader.evaluate(f"{PASTE}('zsh: no matches')")
    assert (section, command) == ("", "tarmac doctor --pid PID")


@pytest.mark.parametrize("source", SYMPTOMS)
def test_the_search_finds_each_heading_of_the_symptoms(reader: Page, site: str, source: str) -> None:
    reader.open(f"{site}/{address_of(source)}", expecting=SYMPTOMS[source])
    headings = reader.evaluate(
        "[...document.querySelectorAll('article h2[id]')].map(one => [one.id, one.textContent.replace('¶', '')])"
    )
    assert len(headings) > 5
    for identity, heading in headings:
        reader.evaluate(f"{ASK}('')")
        until("no answers", lambda: reader.evaluate(ANSWERS) == [], 20)
        reader.evaluate(f"{ASK}({json.dumps(heading)})")
        until(heading, partial(is_found, reader, f"/{address_of(source)}#{identity}"), 20)


TYPED = {
    "没有任何输出": "start-epoch-0-and-nothing-more",
    "GPU利用率为0": "gpu-util-0",
    "共享内存不足": "unexpected-bus-error-encountered-in-worker-shared-memory-shm",
    "DataLoader worker被杀掉": "dataloader-worker-pids-26869-exited-unexpectedly",
    "NCCL超时": "watchdog-caught-collective-operation-timeout-nccl-worknccl",
    "卡在epoch": "stuck-at-the-end-of-an-epoch-or-during-validation",
    "显存不足": "cuda-out-of-memory",
}
"""What people type in Chinese, without a space beside other letters, and the English name of the section they want."""


@pytest.mark.parametrize("words", TYPED)
def test_the_search_parts_chinese_into_words(reader: Page, site: str, words: str) -> None:
    reader.open(f"{site}/zh/symptoms/", expecting=SYMPTOMS["docs/zh/symptoms.md"])
    number = heading_anchors("docs/symptoms.md").index(TYPED[words])
    section = heading_anchors("docs/zh/symptoms.md")[number]
    reader.evaluate(f"{ASK}({json.dumps(words)})")
    until(words, partial(is_found, reader, f"/zh/symptoms/#{section}"), 20)


def is_found(page: Page, address: str) -> bool:
    """Whether a section is among the first answers of the search, the first of which is its page."""
    return address in map(unquote, page.evaluate(ANSWERS)[:3])
