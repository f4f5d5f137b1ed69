"""The deployments that a project offers: for each config, for the whole project, and which are refused or left
out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.operate.deployments import form
from flows.operate.offers import FLOWS, JOB_VARIABLES, POOL, Offer, of_project, prefect_file
from tasks.core.errors import UsageError

ROOT = Path(__file__).parents[2]
DATA_ONLY = """
name: {name}
dataset:
  output: data/made
  modality: image_text
  source: {{kind: table, path: raw/table.csv, image: file, caption: caption}}
  shard: {{samples: 64}}
"""
TRAINED = (
    DATA_ONLY
    + "train: {{recipe: clip, model: {{name: tarmac/digits}}, batch_size: 8, steps: 10, lr: 1.0e-3, checkpoint_every: 5}}\n"
)
SHARED = ["verify/project", "evaluate/project", "doctor/project"]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a config into the working directory and returns its path."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def write(text: str, name: str = "one", file: str = "one.yaml") -> Path:
        path = Path(file)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(name=name))
        return path

    return write


def names(offers: tuple[Offer, ...]) -> list[str]:
    return [offer.full_name for offer in offers]


def test_data_alone_is_only_built(write) -> None:
    offers = of_project([write(DATA_ONLY)]).offers
    assert names(offers) == ["build/one", *SHARED]
    assert offers[0].entrypoint == "tarmac.build_flow" and offers[0].cron is None
    assert "data/made" in offers[0].description


def test_what_trains_has_a_pipeline_with_an_open_form(write) -> None:
    _, pipeline, *_ = of_project([write(TRAINED)]).offers
    assert pipeline.full_name == "pipeline/one"
    assert pipeline.parameters == {"config": "one.yaml", "overrides": {}}


@pytest.mark.parametrize(("then", "trains_after"), [("build", None), ("train", "data/made")])
def test_the_schedule_rebuilds_and_then_trains_if_the_config_asks_for_it(
    write, tmp_path: Path, then: str, trains_after: str | None
) -> None:
    text = TRAINED + f'schedule: {{{{cron: "30 3 * * *", timezone: Europe/Berlin, then: {then}}}}}\n'
    build, pipeline, *_ = of_project([write(text)]).offers
    assert build.cron is not None and (build.cron.cron, build.cron.timezone) == (
        "30 3 * * *",
        "Europe/Berlin",
    )
    assert pipeline.cron is None, "the rebuild starts it, and only when something changed"
    assert pipeline.trains_after == (None if trains_after is None else tmp_path / "project" / trains_after)


def test_without_names_all_configs_that_can_be_deployed_are(write) -> None:
    write(DATA_ONLY, "data", "configs/a.yaml")
    write(TRAINED.replace("recipe: clip", "recipe: futurist"), "later", "configs/b.yaml")
    write(TRAINED, "clip", "configs/c.yaml")
    write("nonsense: {name}", "bad", "configs/d.yaml")
    project = of_project()
    assert names(project.offers) == ["build/data", "build/clip", "pipeline/clip", *SHARED]
    assert list(project.left_out) == ["configs/b.yaml", "configs/d.yaml"]
    assert all(why.startswith(path) and "\n" not in why for path, why in project.left_out.items())
    with pytest.raises(UsageError, match=r"futurist"):
        of_project([Path("configs/b.yaml")])


def test_a_path_outside_the_working_directory_stays_absolute(write, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "project" / write(DATA_ONLY)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert of_project([path]).offers[0].parameters["config"] == str(path)
    assert of_project([Path("../project/one.yaml")]).offers[0].parameters["config"] == str(path)


@pytest.mark.parametrize("cron", ["99 2 * * *", "nightly", "0 2 * *"])
def test_no_cron_expression_names_the_key(write, cron: str) -> None:
    with pytest.raises(UsageError, match=r"one\.yaml: schedule\.cron: .*0 2 \* \* \*") as caught:
        of_project([write(DATA_ONLY + f'schedule: {{{{cron: "{cron}"}}}}\n')])
    assert "\n" not in str(caught.value)


def test_no_time_zone_names_the_key(write) -> None:
    text = DATA_ONLY + 'schedule: {{cron: "0 2 * * *", timezone: Europe/Berln}}\n'
    with pytest.raises(UsageError, match=r"schedule\.timezone: .*such as Europe/Berlin"):
        of_project([write(text)])


def test_two_configs_of_one_name(write) -> None:
    paths = [write(DATA_ONLY), write(DATA_ONLY, file="two.yaml")]
    with pytest.raises(UsageError, match=r"two\.yaml: name: one\.yaml is called one too"):
        of_project(paths)


def test_the_form_offers_the_projects_configs_and_takes_no_other_parameter(write) -> None:
    write(DATA_ONLY, "data", "configs/a.yaml")
    write(TRAINED, "clip", "configs/c.yaml")
    forms = {offer.full_name: form(offer) for offer in of_project([write(TRAINED, "mine")]).offers}
    assert forms["build/mine"]["properties"]["config"]["enum"] == [
        "configs/a.yaml",
        "configs/c.yaml",
        "one.yaml",
    ]
    trained = forms["pipeline/mine"]
    assert trained["properties"]["config"]["enum"] == ["configs/c.yaml", "one.yaml"], "a.yaml trains nothing"
    assert {"overrides", "accept_loss", "rehash", "fresh"} < set(trained["properties"])
    assert forms["verify/project"]["properties"]["level"]["enum"] == ["quick", "default", "full"]
    assert all(schema["additionalProperties"] is False for schema in forms.values())
    fields = [field for schema in forms.values() for field in schema["properties"].values()]
    assert all(field["description"] for field in fields)
    overrides = trained["definitions"]["Overrides"]
    assert overrides["additionalProperties"] is False
    assert all(field["description"] for field in overrides["properties"].values())


def test_the_file_of_this_repository_is_the_generated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    project = of_project()
    assert not project.left_out
    text = prefect_file(project.offers)
    assert Path("deploy/prefect.yaml").read_text() == text, "tarmac deploy --write deploy/prefect.yaml"
    for entry in yaml.safe_load(text)["deployments"]:
        queue = "{{ folder.queue }}"
        assert entry["work_pool"] == {"name": POOL, "work_queue_name": queue, "job_variables": JOB_VARIABLES}
        assert entry["entrypoint"] in FLOWS.values()
