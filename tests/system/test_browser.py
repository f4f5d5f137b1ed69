"""What a person sees and does in Prefect's pages, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.services import Api, until
from tests.system.browser import Page
from tests.system.conftest import NIGHTLY, STAGES, STEPS, Run, Watched, config_of

pytestmark = pytest.mark.system


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
    report = api.page_of(one_click.id)
    page.open(f"{api.ui}/artifacts/artifact/{report['id']}", expecting="accuracy")


def test_the_deployments_page_says_what_they_do(page: Page, api: Api, deployed: object) -> None:
    api.planned_runs(NIGHTLY)
    page.open(f"{api.ui}/deployments", expecting="pipeline")
    page.shows("digits-clip")
    identity = api.deployment(NIGHTLY)["id"]
    page.open(f"{api.ui}/deployments/deployment/{identity}", expecting="Upcoming")
    page.click("Upcoming", expecting="02:00:00 AM")  # which is not shown first once there are runs
    page.click("Description", expecting="only what changed is redone")


def test_a_run_is_started_from_the_form(
    page: Page, api: Api, one_click: Watched, project: Path, run: Run
) -> None:
    """A config whose one evaluation fits the few steps that are typed into the form, and that measures no
    loader."""
    text = (project / "configs/digits-clip.yaml").read_text()
    for old, new in {
        "name: digits-clip": "name: form",
        "every: 200": f"every: {STEPS}",
        "workers: auto, prefetch: auto": "workers: 0, prefetch: 2",
        "mode: offline": "mode: disabled",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    with config_of(project, run, "form", text):
        _started_from_the_form(page, api)


def _started_from_the_form(page: Page, api: Api) -> None:
    identity = api.deployment("pipeline/form")["id"]
    page.open(f"{api.ui}/deployments/deployment/{identity}/run", expecting="Learning rate")
    page.type("Steps", str(STEPS))

    def submitted() -> list[dict[str, Any]]:
        found = api.runs_of("pipeline/form")
        if not found:
            page.click("Submit")  # which a page that is still drawn forgets
        return found

    [started] = until("the run of the form", submitted, 60, pause_s=5)
    assert started["parameters"]["config"] == "configs/form.yaml"
    assert started["parameters"]["overrides"]["steps"] == STEPS
    api.completed(started["id"], 240)
    page.open(f"{api.ui}/runs/flow-run/{started['id']}", expecting="Completed")
