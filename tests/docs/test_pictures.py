"""The pictures of the docs are as their script draws them, and show the stages and places that exist."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tests.architecture import PICTURE
from tests.docs.pages import text_of
from tests.docs.pictures import FOLDER, PICTURES, PIPELINE

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_drawn_and_says_what_it_shows(name: str) -> None:
    assert (FOLDER / name).read_text() == PICTURES[name](), "draw it again: python -m tests.docs.pictures"
    root = ET.parse(FOLDER / name).getroot()
    assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")
    assert root.get("aria-labelledby") == "title desc"
    for text in root.iter(f"{SVG}text"):
        assert len(text.text or "") * 7 + float(text.get("x", "0")) < float(root.get("width", "0")), text.text


def test_the_older_picture_has_a_title() -> None:
    assert ET.parse(PICTURE).getroot().findtext(f"{SVG}title")


def test_the_pipeline_shows_the_stages_of_the_glossary() -> None:
    [stages] = re.findall(
        r"\| stage \| A Prefect task of a flow: ([^|]+)\. \|", text_of("docs/architecture.md")
    )
    drawn = [name for row in PIPELINE for names, _ in row for name in names.split(", ")]
    assert sorted(drawn) == sorted([*stages.split(", "), "raw files"])
