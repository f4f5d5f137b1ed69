"""README's badges, drawn from the project's own facts: `python -m tests.docs.badges`.

They are files of the repository, so that a page that shows them asks no badge service, and a test compares them with
what they state. Counting the tests takes half a minute, and that badge alone is rounded down to hundreds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.conftest import ROOT

FOLDER = ROOT / "docs/badges"
VERDICTS = ROOT / "tests/soak/verdicts.json"
FONTS = "Verdana, 'DejaVu Sans', Geneva, sans-serif"
LETTER_PX, PAD_PX, HEIGHT_PX = 6.6, 8, 20


class Badge(NamedTuple):
    """What a badge states: `label` on grey, `value` on a colour."""

    label: str
    value: str
    colour: str = "#0a5fa8"

    def svg(self) -> str:
        """The badge as an SVG that loads nothing; the width of its texts is given, whatever font draws them."""
        widths = [round(len(text) * LETTER_PX) for text in (self.label, self.value)]
        left, right = (width + 2 * PAD_PX for width in widths)
        about = escape(f"{self.label}: {self.value}")
        texts = "".join(
            f'<text x="{x}" y="14" textLength="{width}">{escape(text)}</text>'
            for x, width, text in zip((PAD_PX, left + PAD_PX), widths, (self.label, self.value), strict=True)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT_PX}" role="img" '
            f'aria-label="{about}">\n<title>{about}</title>\n'
            f'<clipPath id="round"><rect width="{left + right}" height="{HEIGHT_PX}" rx="3"/></clipPath>\n'
            f'<g clip-path="url(#round)"><path fill="#4b535d" d="M0 0h{left}v{HEIGHT_PX}H0z"/>'
            f'<path fill="{self.colour}" d="M{left} 0h{right}v{HEIGHT_PX}H{left}z"/></g>\n'
            f'<g fill="#fff" font-family="{FONTS}" font-size="11">{texts}</g>\n</svg>\n'
        )


def badges() -> dict[str, Badge]:
    """The badges that are quickly made, by the name of their file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [row for row in json.loads(VERDICTS.read_text(encoding="utf-8")) if row["table"] == "stuck"]
    ill, well = ([row for row in rows if bool(row["code"]) is is_ill] for is_ill in (True, False))
    named, doubted = sum(row["score"] == 1 for row in ill), sum(row["score"] != 1 for row in well)
    return {
        "python": Badge("Python", project["requires-python"].removeprefix(">=") + " or newer"),
        "licence": Badge("licence", project["license"]),
        "stalls": Badge("stalled trainings named", f"{named} of {len(ill)}", "#116329"),
        "false-alarms": Badge("healthy ones doubted", f"{doubted} of {len(well)}", "#116329"),
    }


def counted_badge() -> Badge:
    """How many tests pytest collects, rounded down to hundreds."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    found = re.search(r"^(\d+) tests collected", done.stdout, re.M)
    assert found is not None, done.stdout[-2000:]
    return Badge("tests", f"over {int(found[1]) // 100 * 100:,}")


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.svg"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, badge in badges().items():
        path_of(name).write_text(badge.svg(), encoding="utf-8")
    path_of("tests").write_text(counted_badge().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
