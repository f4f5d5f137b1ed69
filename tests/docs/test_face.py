"""README's first screen is true: its pictures were recorded from what exists today, and its badges state the facts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from flows.cli import NAMES
from tasks.diagnosis.verdicts import CAUSES, judge
from tests.conftest import ROOT
from tests.diagnosis.test_verdicts import observation
from tests.docs.badges import FOLDER, badges, counted_badge, path_of
from tests.docs.record_terminal import COLUMNS, DARK, LIGHT, SILENT_S
from tests.docs.terminal import TerminalLines, draw, text_of

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = [LIGHT, DARK, *sorted(FOLDER.glob("*.svg"))]
README = ROOT / "README.md"


def shown(picture: Path) -> list[str]:
    """The lines of text that a picture of a terminal shows."""
    return ["".join(line.itertext()) for line in ET.parse(picture).getroot().iter(f"{SVG}text")]


def test_both_pictures_show_the_same_lines_which_fit() -> None:
    lines = shown(LIGHT)
    assert lines == shown(DARK)
    assert len(lines) <= 30 and max(map(len, lines)) <= COLUMNS


def test_the_terminal_names_what_exists() -> None:
    text = "\n".join(shown(LIGHT))
    [verdict] = re.findall(r"^VERDICT  (\S+): ", text, re.M)
    codes = {cause.code for cause in CAUSES}
    assert verdict == "filter.spinning" and verdict in codes
    assert set(re.findall(r"\b([a-z]+\.[a-z_]+) \(", text)) <= codes
    commands = set(re.findall(r"\btarmac ([a-z]+)", text))
    assert {"doctor", "init", "build"} <= commands <= set(NAMES)


def test_the_doctor_says_today_what_the_terminal_shows() -> None:
    """The picture's training is a row of the stall matrix, whose observation is kept."""
    today = judge(observation("no-caption-member"))
    lines = shown(LIGHT)
    assert f"VERDICT  {today.sentence}" in lines
    [quiet] = [re.search(r"quiet for (\d+) s", line) for line in lines if line.startswith("  log ")]
    assert quiet is not None and int(quiet[1]) >= SILENT_S, "it was asked after a long silence"


def test_the_terminal_ends_with_a_first_step_and_names_no_folder_of_its_machine() -> None:
    lines = shown(LIGHT)
    assert lines.index(next(line for line in lines if line.endswith("Start epoch 0"))) < 4
    assert "Train Epoch: 0 [" in lines[-1]
    assert not re.search(r"/(root|home|work|opt)/|/tmp/terminal-", "\n".join(lines))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_loads_nothing_and_has_a_title(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|href|@import|@font-face|<script|url\((?!#)", text)
    root = ET.parse(picture).getroot()
    assert root.get("role") == "img" and root.findtext(f"{SVG}title")
    for name in (root.get("aria-labelledby") or "").split():
        assert any(child.get("id") == name and child.text for child in root)


@pytest.mark.parametrize("name", badges())
def test_a_badge_states_the_fact(name: str) -> None:
    """`python -m tests.docs.badges` writes them again."""
    assert path_of(name).read_text(encoding="utf-8") == badges()[name].svg()


@pytest.mark.proof
def test_the_badge_of_the_tests_is_not_too_large() -> None:
    stated, collected = (
        int(re.findall(r"over ([\d,]+)<", text)[0].replace(",", ""))
        for text in (path_of("tests").read_text(encoding="utf-8"), counted_badge().svg())
    )
    assert stated <= collected


def test_what_the_readme_shows_and_links_exists() -> None:
    text = README.read_text(encoding="utf-8")
    named = re.findall(r'(?:src|srcset)="([^"]+)"', text) + re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    local = {name for name in named if not name.startswith("http")}
    assert {"docs/terminal-dark.svg", "docs/terminal-light.svg", "docs/report.png"} <= local
    assert {f"docs/badges/{path.name}" for path in FOLDER.iterdir()} <= local
    assert [name for name in sorted(local) if not (ROOT / name).exists()] == []
    assert set(re.findall(r"`tarmac ([a-z]+)", text)) == set(NAMES), "each command, and no other"


def test_the_emulator_erases_as_a_terminal_does() -> None:
    written = "\r\x1b[K  waits…\r\n\x1b[?25l bar \x1b[38;5;70m━━\x1b[0m\r\x1b[2K✓ build\r\na\tb\r\n\x1b[1A\x1b[2Kend\x1b[31m!\x1b[0m"
    assert TerminalLines(written).lines() == ["  waits…", "✓ build", "end!"]
    with pytest.raises(ValueError, match="CSI 2J"):
        TerminalLines("\x1b[2J")


def test_a_drawn_line_keeps_its_text() -> None:
    line = (("$ ", "dim"), ("a && b <c>", "bold"))
    theme = dict.fromkeys(("ground", "bar", "edge", "text", "dim"), "#000")
    root = ET.fromstring(draw([line], 20, "title", "about", theme))
    [drawn] = root.iter(f"{SVG}text")
    assert "".join(drawn.itertext()) == text_of(line) == "$ a && b <c>"
