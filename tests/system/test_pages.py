"""The pages that Tarmac writes, as a browser draws them on a desk and on a phone, by day and by night."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from tasks.dataset.building.builder import build
from tasks.dataset.preview import write_look
from tasks.dataset.preview.faults import Checked
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.versions import publish
from tasks.diagnosis.examination import save_doctor_page
from tasks.reporting.report import write_report
from tests.dataset.preview.test_quality_tab import config_of
from tests.diagnosis.test_doctor import examined
from tests.diagnosis.test_verdicts import observation
from tests.reporting.finished_run import finished_run
from tests.services import until
from tests.system.browser import Page

pytestmark = pytest.mark.system
SCREENS = {"desk": (1300, 900, False), "phone": (390, 844, True)}
"""Width and height in CSS pixels, and whether the screen is a phone's."""

WIDER_THAN_THE_SCREEN = """[...document.querySelectorAll('body *')]
    .filter(one => one.getClientRects().length && one.getBoundingClientRect().right > innerWidth + 1)
    .filter(one => {
        for (let above = one.parentElement; above; above = above.parentElement)
            if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(above).overflowX)) return false;
        return true;
    }).map(one => one.tagName + '.' + one.className + ' ' + one.textContent.trim().slice(0, 40))"""
UNMARKED = """[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1
    && (getComputedStyle(one).backgroundImage == 'none' || one.tabIndex < 0)).map(one => one.textContent.trim().slice(0, 40))"""
"""Tables that are cut at the edge of the screen without a shadow there, or that no key scrolls."""
PLACE_OF_TAB = """(panel => {
    const link = document.querySelector(`nav a[href="#${panel}"]`);
    link.scrollIntoView({inline: 'center', block: 'center', behavior: 'instant'});
    const box = link.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2, box.width, box.height];
})"""
SHOWN_TABS = "[...document.querySelectorAll('section.tab')].filter(one => one.getClientRects().length).map(one => one.id)"
FINGER = 24
"""The least side of what is tapped, in CSS pixels (WCAG 2.2, 2.5.8)."""
BROKEN = "[...document.images].filter(one => one.complete && !one.naturalWidth).length"
UNREADABLE = """(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
    const rgba = colour => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const light = ([r, g, b]) => {
        const [R, G, B] = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * R + 0.7152 * G + 0.0722 * B;
    };
    const ground = one => {
        for (; one; one = one.parentElement) {
            const colour = rgba(getComputedStyle(one).backgroundColor);
            if (colour[3] > 0.99) return colour;
        }
        return rgba(getComputedStyle(document.documentElement).backgroundColor);
    };
    return [...document.querySelectorAll('body *')].filter(one => one.getClientRects().length
        && !one.closest('svg') && getComputedStyle(one).textShadow == 'none' && [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim()))
        .filter(one => {
            const [a, b] = [light(rgba(getComputedStyle(one).color)), light(ground(one))];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
        }).map(one => one.className + ' ' + one.textContent.trim().slice(0, 40));
})()"""
"""Texts whose contrast with what is behind them is below 4.5 to 1 (WCAG 2.2, 1.4.3); marks on pictures have a
shadow instead."""


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of photographs with planted faults, of which two were rejected, and of a shard that is torn."""
    folder = tmp_path_factory.mktemp("look")
    config = config_of(folder, reject_budget=0.5)
    for picture in sorted((folder / "raw").glob("*.jpg"))[-2:]:
        picture.write_bytes(b"no picture")
    version = build(config).version
    publish(config.dataset.output, version, keep=2)
    shard = next(version.rglob("*.tar"))
    shard.write_bytes(shard.read_bytes()[:-2000])
    checked = Checked(verify(version, "full"), "full", time.time(), "data")
    return write_look(version, folder / "look.html", checked=checked).path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(finished_run(tmp_path_factory.mktemp("report")))


@pytest.fixture(scope="module")
def doctor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "doctor.html"
    save_doctor_page(examined(observation("no-caption-member-resampled")), path)
    return path


@pytest.fixture(params=SCREENS)
def screen(page: Page, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The tab as wide as a screen."""
    width, height, is_phone = SCREENS[request.param]
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        mobile=is_phone,
        deviceScaleFactor=2 if is_phone else 1,
    )
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    yield page
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setEmulatedMedia", features=[])


def assert_readable(page: Page, path: Path, tab: str, expecting: Sequence[str]) -> None:
    """Assert that a page, or one of its tabs, shows these texts by day and by night, and needs nothing."""
    page.requests.clear()
    for theme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        page.call("Page.navigate", url="about:blank")  # else a fragment alone is no new page
        page.open(f"file://{path}#{tab}", expecting=expecting[0])
        text = page.text()
        assert [one for one in expecting if one not in text] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        assert page.evaluate(WIDER_THAN_THE_SCREEN) == []
        assert page.evaluate(UNMARKED) == [], "nothing shows that they scroll"
        assert page.evaluate(BROKEN) == 0, "pictures are not drawn"
        assert page.evaluate(UNREADABLE) == [], theme
    assert all(asked.startswith(("file:", "data:", "about:")) for asked in page.requests)


LOOK: Mapping[str, Sequence[str]] = {
    "faults": ("A shard is cut", "shard.truncated"),
    "quality": ("split.leak val", "Copies"),
    "samples": ("train",),
    "map": ("marks the copies of",),
    "rejects": ("image.not_an_image",),
    "numbers": ("Caption length",),
    "shards": ("Samples per shard",),
}


@pytest.mark.parametrize("panel", LOOK)
def test_every_tab_of_a_look(screen: Page, look: Path, panel: str) -> None:
    assert_readable(screen, look, panel, LOOK[panel])


def test_the_tabs_are_opened_by_a_finger(screen: Page, look: Path) -> None:
    screen.open(f"file://{look}", expecting="Faults")
    for panel in LOOK:
        until(panel, partial(_is_opened, screen, panel), 10)


def _is_opened(page: Page, panel: str) -> bool:
    """Whether a tab alone is shown; else its place is tapped (again: a page that is still drawn forgets a tap)."""
    if page.evaluate(SHOWN_TABS) == [panel]:
        return True
    x, y, width, height = page.evaluate(f"{PLACE_OF_TAB}({panel!r})")
    assert min(width, height) >= FINGER, f"{panel} is too small for a finger"
    page.tap(x, y)
    return False


def test_a_report(screen: Page, report: Path) -> None:
    assert_readable(screen, report, "", ("Evaluation",))


def test_what_the_doctor_says(screen: Page, doctor: Path) -> None:
    assert_readable(screen, doctor, "", ("filter.spinning", "What to do", "worker 1 of rank 0"))
