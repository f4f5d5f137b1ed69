"""What is registered: of a config, of deploy/prefect.yaml, and what is refused with a line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.offers import JOB_VARIABLES, POOL, from_configs, from_file
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


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a config into the working directory and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "one", file: str = "one.yaml") -> Path:
        path = Path(file)
        path.write_text(text.format(name=name))
        return path

    return write


def test_data_alone_is_only_built(write) -> None:
    [offer] = from_configs([write(DATA_ONLY)])
    assert (offer.name, offer.entrypoint) == ("one", "flows.build.build_flow")
    assert offer.schedules == []
    assert "data/made" in offer.description


def test_what_trains_has_a_pipeline_with_an_open_form(write) -> None:
    build, pipeline = from_configs([write(TRAINED)])
    assert pipeline.entrypoint == "flows.pipeline.pipeline"
    assert pipeline.parameters == {"config": "one.yaml", "overrides": {}}
    assert {build.work_pool.name, pipeline.work_pool.name} == {POOL}


@pytest.mark.parametrize(
    ("then", "scheduled"), [("build", "flows.build.build_flow"), ("train", "flows.pipeline.pipeline")]
)
def test_the_schedule_starts_what_then_says(write, then: str, scheduled: str) -> None:
    offers = from_configs([write(TRAINED + f'schedule: {{{{cron: "30 3 * * *", then: {then}}}}}\n')])
    assert {offer.entrypoint: [entry.cron for entry in offer.schedules] for offer in offers} == {
        "flows.build.build_flow": ["30 3 * * *"] if scheduled.endswith("build_flow") else [],
        "flows.pipeline.pipeline": ["30 3 * * *"] if scheduled.endswith("pipeline") else [],
    }


def test_a_path_outside_the_working_directory_stays_absolute(write, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / write(DATA_ONLY)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert from_configs([path])[0].parameters["config"] == str(path)
    assert from_configs([Path("../one.yaml")])[0].parameters["config"] == str(path)


@pytest.mark.parametrize("cron", ["99 2 * * *", "nightly", "0 2 * *"])
def test_no_cron_expression_names_the_key(write, cron: str) -> None:
    with pytest.raises(UsageError, match=r"one\.yaml: schedule\.cron: .*0 2 \* \* \*") as caught:
        from_configs([write(DATA_ONLY + f'schedule: {{{{cron: "{cron}"}}}}\n')])
    assert "\n" not in str(caught.value)


def test_two_configs_of_one_name(write) -> None:
    paths = [write(DATA_ONLY), write(DATA_ONLY, file="two.yaml")]
    with pytest.raises(UsageError, match=r"two\.yaml: name: one\.yaml is called one too"):
        from_configs(paths)


def test_the_file_and_the_configs_start_runs_alike() -> None:
    nightly, one_click = from_file(ROOT / "deploy/prefect.yaml")
    assert [entry.cron for entry in nightly.schedules] == ["0 2 * * *"]
    assert one_click.schedules == []
    for offer in (nightly, one_click):
        assert offer.work_pool.name == POOL
        assert offer.work_pool.job_variables == JOB_VARIABLES
        assert (ROOT / offer.parameters["config"]).exists()
        assert (offer.concurrency_limit.limit, offer.concurrency_limit.collision_strategy) == (1, "ENQUEUE")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("    schedules:", "    schedule:", r"deployments\.0\.schedule: .*prefect deploy"),
        ("collision_strategy: ENQUEUE", "collision_strategy: WAIT", "collision_strategy"),
        ("0 2 * * *", "0 25 * * *", r"nightly-rebuild: schedules\.cron"),
        ("timezone: UTC", "timezone: Mars/Olympus", "Mars/Olympus"),
        ("deployments:", "deployments: [", "no valid YAML"),
    ],
)
def test_what_the_file_gets_wrong_is_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    path = tmp_path / "prefect.yaml"
    text = (ROOT / "deploy/prefect.yaml").read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=says) as caught:
        from_file(path)
    assert "\n" not in str(caught.value)


def test_no_file() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: cannot be read .*tarmac deploy CONFIG"):
        from_file(Path("nowhere.yaml"))
