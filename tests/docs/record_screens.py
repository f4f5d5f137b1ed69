"""Takes the pictures of pages that the docs show: `python -m tests.docs.record_screens`.

A real Prefect server and worker run the example's pipeline in a new project; Chromium shows the flow run at work, its
page, the report, and the question of a rebuild that lost samples. docs/prefect-*.png and docs/report.png are written
anew. It takes some minutes, and Debian's Chromium.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from pathlib import Path

from tests.conftest import ROOT
from tests.services import until
from tests.system.browser import Page, browsing
from tests.system.lab import Lab

DOCS = ROOT / "docs"
PIPELINE, BUILD = "pipeline/digits-clip", "build/digits-clip"
LOST = 197
"""How many of the 1,797 rows of the table are gone before the rebuild that asks."""
SEEN_STEPS = 250
"""The training is this far in the picture of its page."""
MENU_PX = 64
"""The bar of the menu above Prefect's pages on a narrow window, which the pictures leave out."""


def shoot(page: Page, file: Path, height: int, top: int = 0) -> None:
    """Save this much of the shown page, below `top`, at its whole width."""
    width = page.evaluate("innerWidth")
    clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
    file.write_bytes(base64.b64decode(page.call("Page.captureScreenshot", clip=clip)["data"]))


def resize(page: Page, width: int, height: int) -> None:
    """Give the page a window of this size, with whole pixels of the screen for those of the page."""
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
    )


def settle(page: Page) -> None:
    """Wait until two looks at the page, a second apart, give the same text."""
    texts = [""]

    def is_still() -> bool:
        texts.append(page.text())
        return texts[-1] == texts[-2]

    until("a page that has been drawn", is_still, 30, pause_s=1)


def take(lab: Lab, page: Page) -> None:
    """Let the day pass of which the docs show four moments."""
    flow_run = lab.start(PIPELINE)
    resize(page, 980, 700)

    def progress() -> str:
        found = {one["key"]: str(one["description"]) for one in lab.api.artifacts(flow_run)}
        return found.get(f"train-{flow_run[:8]}", "")

    def steps() -> int:
        done = progress().partition("/")[0].replace(",", "")
        return int(done) if done.isdigit() else 0

    until("a training that is under way", lambda: steps() >= SEEN_STEPS, 300)
    page.open(lab.address_of(flow_run), expecting="Task runs")
    settle(page)
    shoot(page, DOCS / "prefect-run.png", 520, top=MENU_PX)

    lab.api.completed(flow_run, 600)
    outcome = lab.api.page_of(flow_run)
    resize(page, 980, 1500)
    page.open(f"{lab.api.ui}/artifacts/artifact/{outcome['id']}", expecting="Zero-shot classification")
    settle(page)
    shoot(page, DOCS / "prefect-page.png", 1420, top=MENU_PX)

    [report] = lab.project.glob("runs/*/report.html")
    resize(page, 1120, 1300)
    page.open(report.as_uri(), expecting="Zero-shot accuracy")
    settle(page)
    shoot(page, DOCS / "report.png", 1260)

    table = lab.project / "data/raw/digits/captions.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-LOST]))
    asking = lab.start_build(BUILD)
    until("the question", lambda: lab.api.get(f"/flow_runs/{asking}")["state_name"] == "NeedsApproval", 180)
    resize(page, 980, 700)
    page.open(lab.address_of(asking), expecting="NeedsApproval")
    page.click("Resume", expecting="Accept the loss")
    settle(page)
    shoot(page, DOCS / "prefect-approve.png", 600, top=MENU_PX)


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="screens-") as name:
        lab = Lab(Path(name))
        (lab.project / "configs/rival.yaml").unlink()
        try:
            lab.open()
            with browsing(chromium, Path(name), dict(os.environ)) as page:
                take(lab, page)
        finally:
            lab.close()


if __name__ == "__main__":
    main()
