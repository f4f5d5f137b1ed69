"""What a person sees and does in Prefect's pages, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import Api, until
from tests.system.browser import Page, browsing
from tests.system.conftest import NIGHTLY, STAGES, STEPS, Run, Watched

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def page(chromium: str, folder: Path, env: dict[str, str]) -> Iterator[Page]:
    """A tab, for the tests of this file in turn."""
    with browsing(chromium, folder, env) as page:
        yield page


def test_the_runs_page_names_the_run_and_its_tasks(page: Page, api: Api, one_click: Watched) -> None:
    name = api.get(f"/flow_runs/{one_click.id}")["name"]
    page.open(f"{api.ui}/runs/flow-run/{one_click.id}", expecting=name)
    page.shows("Completed")
    page.click("Task Runs", expecting=f"{len(STAGES)} Task runs")
    for stage in STAGES:
        page.shows(f"{stage}-")


def test_the_runs_page_leads_to_its_artifacts(page: Page, api: Api, one_click: Watched) -> None:
    page.open(f"{api.ui}/runs/flow-run/{one_click.id}", expecting="Artifacts")
    page.click("Artifacts")
    for stage in one_click.progress:
        page.shows(f"{stage}-{one_click.id[:8]}")
    page.click(f"train-{one_click.id[:8]}")
    page.shows("Progress: 100%")
    [report] = [entry for entry in api.artifacts(one_click.id) if entry["type"] == "markdown"]
    page.open(f"{api.ui}/artifacts/artifact/{report['id']}", expecting="accuracy")


def test_the_deployments_page_says_what_they_do(page: Page, api: Api, deployed: object) -> None:
    api.planned_runs(NIGHTLY)
    page.open(f"{api.ui}/deployments", expecting="nightly-rebuild")
    page.shows("train-and-eval")
    identity = api.deployment(NIGHTLY)["id"]
    page.open(f"{api.ui}/deployments/deployment/{identity}", expecting="Upcoming")
    page.click("Upcoming", expecting="02:00:00 AM")  # which is not shown first once there are runs
    page.click("Description", expecting="only where its sources changed")


def test_a_run_is_started_from_the_form(
    page: Page, api: Api, one_click: Watched, project: Path, run: Run
) -> None:
    """A config whose values make it the run that is there already, but for the steps typed into the form."""
    text = (project / "configs/digits-clip.yaml").read_text()
    (project / "configs/form.yaml").write_text(
        text.replace("checkpoint_every: 200", "checkpoint_every: 20").replace("every: 200", "every: 20")
    )
    assert run("tarmac", "deploy", "configs/form.yaml").returncode == 0
    identity = api.deployment("pipeline/digits-clip")["id"]
    page.open(f"{api.ui}/deployments/deployment/{identity}/run", expecting="Learning rate")
    page.type("Steps", str(STEPS))
    page.click("Submit")
    [started] = until("the run of the form", lambda: api.runs_of("pipeline/digits-clip"), 30)
    assert started["parameters"]["config"] == "configs/form.yaml"
    assert started["parameters"]["overrides"]["steps"] == STEPS
    api.completed(started["id"], 240)
    page.open(f"{api.ui}/runs/flow-run/{started['id']}", expecting="Completed")
