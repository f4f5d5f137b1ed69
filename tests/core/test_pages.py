from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest

from tasks.core import pages
from tasks.core.pages import image_uri, render
from tasks.core.units import SPACE, count, counted, duration, number, percent, shorten, size, when

HOSTILE = "</p></style><script>alert(1)</script>\"'<img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """Every tag and attribute of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A template `try/page.html` of a package that brings its own."""
    path = tmp_path / "page.html"
    monkeypatch.setattr(
        pages,
        "_source",
        lambda name, real=pages._source: path.read_text() if name == "try/page.html" else real(name),
    )
    pages._environment.cache_clear()
    yield path
    pages._environment.cache_clear()


def test_a_page_brings_its_style_and_asks_nothing_of_the_network(template: Path) -> None:
    template.write_text('{% extends "core/base.html" %}{% block page %}<p>{{ text }}</p>{% endblock %}')
    page = Tags(render("try/page.html", text="hello"))
    assert "hello" in page.text and "--ink" in page.text
    names = [tag for tag, _ in page.tags]
    assert "style" in names and not {"script", "link", "iframe", "object"} & set(names)
    policy = next(
        attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'") and "script" not in policy
    assert not [
        attrs for _, attrs in page.tags if str(attrs.get("src", attrs.get("href", ""))).startswith("http")
    ]


def test_hostile_text_stays_text_in_content_and_in_attributes(template: Path) -> None:
    template.write_text('<p title="{{ text }}">{{ text }}</p>')
    page = Tags(render("try/page.html", text=HOSTILE))
    assert [tag for tag, _ in page.tags] == ["p"]
    assert page.tags[0][1]["title"] == HOSTILE and page.text == HOSTILE


def test_text_that_utf8_cannot_carry_does_not_break_the_page(template: Path) -> None:
    template.write_text("<p>{{ text }}</p>")
    render("try/page.html", text="lone \ud800 surrogate").encode("utf-8")


def test_a_value_that_is_missing_is_an_error_and_not_a_gap(template: Path) -> None:
    template.write_text("<p>{{ text }}</p>")
    with pytest.raises(jinja2.UndefinedError, match="text"):
        render("try/page.html")


def test_a_template_that_is_not_there_is_named() -> None:
    with pytest.raises(jinja2.TemplateNotFound, match=r"core/nowhere\.html"):
        render("core/nowhere.html")


def test_image_uri() -> None:
    assert image_uri(b"\x89PNG", "image/png") == "data:image/png;base64,iVBORw=="


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(1797), "1,797"),
        (count(None), "–"),
        (counted(1, "worker"), "1 worker"),
        (counted(2, "worker"), "2 workers"),
        (counted(2, "batch", "batches"), "2 batches"),
        (number(0.9571), "0.957"),
        (number(4.1589), "4.16"),
        (number(3410.2), "3,410"),
        (number(1.25e-6), "1.25e-6"),
        (number(1e-5), "1e-5"),
        (number(0), "0"),
        (number(float("nan")), "–"),
        (percent(0.0312), f"3.1{SPACE}%"),
        (percent(0.0001), f"<0.1{SPACE}%"),
        (percent(0.0), f"0.0{SPACE}%"),
        (size(1_256_000), f"1.26{SPACE}MB"),
        (size(12), f"12{SPACE}B"),
        (duration(71.2), f"71{SPACE}s"),
        (duration(0.042), f"0.042{SPACE}s"),
        (when(1_763_630_700), "2025-11-20 09:25 UTC"),
        (when(None), "–"),
        (shorten("two\n lines"), "two lines"),
        (shorten("x" * 200, 10), "x" * 9 + "…"),
    ],
)
def test_figures_read_as_people_write_them(shown: str, expected: str) -> None:
    assert shown == expected
