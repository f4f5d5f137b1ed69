"""open_clip's own trainer inside a run, examined as the run: what it stalls of is named, and nothing where it trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tasks.diagnosis.run_doctor import examine_run
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tests.stalls import open_clip
from tests.supervision.test_agent import wait_for
from tests.training.test_external import make_run

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def use_the_real_training(use_fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "AGENT", "tasks.supervision.agent:main")


def started(
    dataset: Path, folder: Path, members: tuple[str, ...], printed: str, is_script: bool = False
) -> RunFolder:
    """Start open_clip's trainer on shards with these members, and wait until its log contains `printed`."""
    shards = open_clip.write_shards(folder / "shards", members)
    words, trainer = ["python", "-m", "open_clip_train.main"], {}
    if is_script:
        script = folder / "train.sh"
        script.write_text(f'{sys.executable} -m open_clip_train.main "$@"\n')
        words, trainer = ["bash", str(script)], {"trainer": "open_clip"}
    command = [*words, "--train-data", shards, "--workers", "2"]
    model = {"name": "tarmac/digits", "command": command, **trainer}
    run = make_run(dataset, folder, "train.steps=100000", model=model)
    launch.start_or_adopt(run)
    log = run.rank_log(1)
    wait_for(lambda: log.exists() and printed in log.read_text(errors="replace"), 180)
    return run


@pytest.mark.parametrize("is_script", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_shards_without_captions_are_named_and_the_fix_is_of_the_run(
    digits_dataset: Path, tmp_path: Path, is_script: bool
) -> None:
    run = started(digits_dataset, tmp_path, open_clip.NO_CAPTIONS, "Start epoch 0", is_script)
    deadline = time.monotonic() + 120
    while (verdict := examine_run(run).verdict).report.ok:  # its workers have to start first
        assert time.monotonic() < deadline, verdict.sentence
    finding = verdict.report.findings[0]
    assert verdict.state == "stalled" and finding.code == "filter.spinning"
    assert "jpg json paug.json" in finding.evidence["data"]
    assert finding.command == f"tarmac cancel {run.handle}; tarmac preflight {run.config}"


@pytest.mark.proof
def test_a_training_that_goes_on_is_healthy(digits_dataset: Path, tmp_path: Path) -> None:
    run = started(digits_dataset, tmp_path, ("jpg", "txt"), "Train Epoch: 0 [")
    examined = examine_run(run)
    assert examined.verdict.report.ok, examined.verdict.sentence
    assert examined.verdict.state == "works"
    assert examined.observation is not None and "open_clip_train.main" in examined.observation.command
