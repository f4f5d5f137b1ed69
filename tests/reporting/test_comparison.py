"""`tarmac compare` on run folders that real writers made: what differs, how certain it is, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows import cli
from tasks.core import config as configs
from tasks.core.files import link_atomic
from tasks.dataset.building.builder import build
from tasks.dataset.version.versions import publish
from tasks.evaluation import results
from tasks.evaluation.results import EvaluationResult
from tasks.evaluation.samples import Formula, JudgedSamples, read_samples
from tasks.runs import record
from tasks.runs.data import data_of
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import MetricsWriter, make_row
from tasks.runs.plan import plan
from tasks.runs.record import Attempt
from tests.reporting.finished_run import make_config

SAMPLES = 300
SECRET = "patient_0817"


class Runs:
    """Runs on one dataset, each with evaluations of steps 200 and 400 by hand."""

    def __init__(self, folder: Path, captions: int = 60, **dataset: Any) -> None:
        self.folder = folder
        self.config = make_config(folder, [f"a photo {n}" for n in range(captions)], **dataset)
        self.version = build(self.config).version
        publish(self.config.dataset.output, self.version, keep=2)
        self.path = folder / "runs"

    def add(
        self,
        right: Sequence[float],
        *overrides: tuple[str, Any],
        losses: float = 1.0,
        version: Path | None = None,
        with_samples: bool = True,
        **attempt: Any,
    ) -> RunFolder:
        """A run whose best checkpoint is right with these shares of SAMPLES, which are hard in the same order."""
        values = self.config.model_dump(mode="json", exclude_unset=True)
        for key, value in overrides:
            *above, name = key.split(".")
            place = values
            for part in above:
                place = place[part]
            place[name] = value
        version = version or self.version
        run = plan(configs.validate(values, "test"), version)
        for step, share in zip((200, 400), right, strict=True):
            run.checkpoint(step).mkdir(parents=True)
            evaluate(run, step, share, data_of(version)[0].version, with_samples=with_samples)
        link_atomic(run.best, run.checkpoint(200).name)
        writer = MetricsWriter(run.metrics)
        for step in range(10, 401, 10):
            figures = {
                "loss": losses * 40 / step,
                "lr": 1e-3,
                "samples_per_s": 900 * losses,
                "data_wait": 0.01 * losses,
            }
            writer.append(
                make_row(
                    "train/step",
                    step,
                    "train",
                    {f"train/{k}": v for k, v in figures.items()} | {"train/step_s": 0.07},
                )
            )
        given = {"code_digest": "77ab12cd99ef", "versions": {"torch": "2.15.0"}} | attempt
        last = Attempt(
            started=1.0,
            ended=9.0,
            host="n",
            boot_id="b",
            pid=1,
            pid_started=1.0,
            job=None,
            outcome="succeeded",
            **given,
        )
        record.save_record(run, record.load_record(run).having(state="succeeded", attempts=[last]))
        return run


def evaluate(run: RunFolder, step: int, share: float, data: str, with_samples: bool = True) -> None:
    draws = np.random.default_rng(0)
    values = (draws.random(SAMPLES) < share).astype(float)  # the same draws: what is hard is hard for all
    result = EvaluationResult(
        task="zero_shot", step=step, checkpoint=f"checkpoints/step_{step:08d}",
        metrics={"top1": float(values.mean())}, split="val", samples=SAMPLES, seconds=1.0, versions={},
    )  # fmt: skip
    judged = JudgedSamples(
        [f"{SECRET}_{n}" for n in range(SAMPLES)],
        {"top1": values},
        {"top1": Formula("mean", ["top1"])},
        data=f"{data} val",
    )
    results.write_result(run, result, [], by_sample=judged.to_bytes() if with_samples else None)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def compared(capsys: pytest.CaptureFixture[str], runs: Runs, *of: RunFolder) -> tuple[str, dict[str, Any]]:
    """What the terminal shows and what a program reads."""
    capsys.readouterr()
    arguments = ["compare", *(run.name for run in of), "--runs", str(runs.path)]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 0
    return text, json.loads(capsys.readouterr().out)


def test_what_differs_is_named_and_what_is_the_same_is_not(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    one = runs.add((0.80, 0.82))
    two = runs.add(
        (0.90, 0.83),
        ("train.lr", 3e-3),
        losses=0.5,
        code_digest="other",
        versions={"torch": "2.16.0", "peft": "0.21"},
    )
    text, facts = compared(capsys, runs, one, two)
    assert facts["config"] == {"train.lr": [0.001, 0.003]} and facts["data"] == {}
    assert facts["code"] == {
        "Tarmac's code": ["77ab12cd99ef", "other"],
        "torch": ["2.15.0", "2.16.0"],
        "peft": ["–", "0.21"],
    }
    assert (
        re.search(r"train\.lr +0\.001 +0\.003", text)
        and "DATA" not in text
        and "train.batch_size" not in text
    )
    assert [row["samples_per_s"] for row in facts["runs"]] == [900, 450]
    assert [row["step_s"] for row in facts["runs"]] == [0.07, 0.07]
    assert [row["waiting"] for row in facts["runs"]] == pytest.approx([0.01, 0.005])


def test_scores_of_the_same_samples_are_compared_sample_by_sample(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = runs.add((0.80, 0.82)), runs.add((0.90, 0.823), ("train.lr", 3e-3))
    text, facts = compared(capsys, runs, one, two)
    best, last = facts["scores"]
    assert (best["at"], best["steps"], last["at"], last["steps"]) == ("best", [200, 200], "last", [400, 400])
    ((difference,), (small,)) = best["differences"], last["differences"]
    low, high = difference["interval"]
    assert (
        0 < low < difference["difference"] < high < 0.2
        and difference["is_shown"]
        and difference["drawn_from"] == SAMPLES
    )
    shown = f"better by {difference['difference'] * 100:.1f} points, 95 % interval {low * 100:.1f} to {high * 100:.1f}"
    assert difference["text"] == shown and shown in text
    assert (
        not small["is_shown"] and small["text"].startswith("no difference shown: ") and small["text"] in text
    )
    _, back = compared(capsys, runs, two, one)
    assert back["scores"][0]["differences"][0]["text"] == shown.replace("better", "worse")
    assert compared(capsys, runs, one, two)[1] == facts, "the same each time"


def test_without_the_same_samples_the_figures_stand_unpaired_with_the_reason(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = runs.add((0.80, 0.80)), runs.add((0.90, 0.90), ("train.lr", 3e-3), with_samples=False)
    three = runs.add((0.90, 0.90), ("train.lr", 4e-3))
    evaluate(three, 200, 0.9, "another version")
    path = three.judged_samples(400, "zero_shot")
    torn = path.read_bytes()[:-20]
    path.write_bytes(torn)
    _, facts = compared(capsys, runs, one, two, three)
    best, last = facts["scores"]
    assert [d["is_paired"] for row in (best, last) for d in row["differences"]] == [False] * 4
    text = best["differences"][0]["text"]
    assert (
        text
        == f"+{best['differences'][0]['difference'] * 100:.1f} points, unpaired: the file of samples of step 200 of {facts['runs'][1]['label']} is missing"
    )
    assert "the data differ" in best["differences"][1]["text"]
    assert "cannot be read" in last["differences"][1]["why_unpaired"]
    other = read_samples(one.judged_samples(200, "zero_shot"))
    assert other is not None
    wrong = replace(other, columns={"top1": 1 - other.columns["top1"]})
    two.judged_samples(200, "zero_shot").write_bytes(wrong.to_bytes())
    _, facts = compared(capsys, runs, one, two)
    assert "belongs to another result" in facts["scores"][0]["differences"][0]["why_unpaired"]


def test_versions_of_the_data_are_compared_by_their_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(tmp_path)
    one = runs.add((0.8, 0.8))
    table = tmp_path / "raw/captions.csv"
    lines = table.read_text().splitlines()
    changed = lines[4].replace("a photo", "another photo")
    table.write_text("\n".join([lines[0], *lines[3:4], changed, *lines[5:]]) + "\n")
    newer = build(runs.config).version
    publish(runs.config.dataset.output, newer, keep=2)
    two = runs.add((0.9, 0.9), version=newer)
    text, facts = compared(capsys, runs, one, two)
    (said,) = facts["data"].values()
    found = [tuple(map(int, one)) for one in re.findall(r"\+(\d+) −(\d+)", said[1])]
    assert sum(gained for gained, _ in found) == 0 and sum(lost for _, lost in found) == 2
    assert "1 changed" in said[1] and "+" not in said[0] and "DATA" in text
    assert "the data differ" in facts["scores"][0]["differences"][0]["text"]


def test_three_seeds_have_a_mean_and_a_spread(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    shares = (0.80, 0.84, 0.88)
    three = [runs.add((share, share), ("train.seed", seed)) for seed, share in enumerate(shares)]
    text, facts = compared(capsys, runs, *three)
    values = next(row["values"] for row in facts["scores"] if row["at"] == "best")
    best = next(one for one in facts["seeds"] if one["at"] == "best")
    assert best["mean"] == pytest.approx(np.mean(values)) and best["deviation"] == pytest.approx(
        np.std(values, ddof=1)
    )
    assert "3 seeds" in text and facts["config"].keys() == {"train.seed"}
    _, facts = compared(capsys, runs, *three[:2], runs.add((0.8, 0.8), ("train.lr", 3e-3)))
    assert facts["seeds"] == []


def test_the_page_has_the_curves_of_all_runs_and_no_key(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = runs.add((0.80, 0.82)), runs.add((0.90, 0.83), ("train.lr", 3e-3))
    text, facts = compared(capsys, runs, *two)
    assert Path(facts["page"]).parent == runs.path
    page = Path(facts["page"]).read_text()
    for run in facts["runs"]:
        assert page.count(run["label"]) > 5
    for title in ("Training loss", "Learning rate", "Throughput", "Zero-shot classification: Accuracy"):
        chart = page[page.index(f"<h3>{title}</h3>") :].partition("</figure>")[0]
        assert 'class="series-0"' in chart and 'class="series-1"' in chart
    assert "better by" in page and "<script" not in page
    for shown in (page, text, json.dumps(facts)):
        assert SECRET not in shown
    other = tmp_path / "mine.html"
    assert cli.main(["compare", *(str(run.path) for run in two), "--page", str(other)]) == 0
    assert "comparison" in other.read_text()


def test_bad_input_is_one_line(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = runs.add((0.80, 0.82))
    empty = plan(
        configs.validate(
            {**runs.config.model_dump(mode="json", exclude_unset=True), "name": "empty"}, "test"
        ),
        runs.version,
    )

    def said(*names: str) -> tuple[int, str]:
        code = cli.main(["compare", *names, "--runs", str(runs.path)])
        caught = capsys.readouterr()
        assert caught.out == "" and caught.err.count("\n") == 1, caught.err
        return code, caught.err

    assert said()[0] == 2 and "two runs or more" in said(one.name)[1]
    assert said(one.name, str(one.path))[0] == 2 and "named twice" in said(one.name, str(one.path))[1]
    assert said(one.name, "zzz")[0] == 2 and "'zzz'" in said(one.name, "zzz")[1]
    assert said(*[one.name] * 9)[0] == 2
    assert (
        said(one.name, "empty")[0] == 1 and f"{empty.name} has neither a result" in said(one.name, "empty")[1]
    )
    model = {"command": ["true"], "checkpoints": "out", "log": "out.log"}
    values = runs.config.model_dump(mode="json", exclude_unset=True)
    values["train"] |= {"recipe": "external", "model": model}
    other = plan(configs.validate({**values, "evaluate": None}, "test"), runs.version)
    MetricsWriter(other.metrics).append(make_row("train/step", 1, "train", {"train/loss": 1.0}))
    code, line = said(one.name, other.name)
    assert code == 1 and "different recipes and have no metric in common" in line and "(external)" in line


def test_a_run_without_results_is_compared_by_loss_and_speed(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = runs.add((0.80, 0.82)), runs.add((0.9, 0.9), ("train.lr", 3e-3))
    for step in (200, 400):
        two.evaluation(step, "zero_shot").unlink()
    text, facts = compared(capsys, runs, one, two)
    assert (
        f"! {facts['runs'][1]['label']} has no result of an evaluation, so only loss and speed are compared\n"
        in text
    )
    assert facts["scores"][0]["values"][1] is None and facts["scores"][0]["differences"] == [None]


def test_lower_is_better_for_losses_and_ranks(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ("evaluate", {"every": 200, "tasks": ["validation_loss"]})
    one, two = runs.add((0.8, 0.8), tasks), runs.add((0.8, 0.8), tasks, ("train.lr", 3e-3))
    draws = np.random.default_rng(0)
    hard = draws.random(50)
    for run, factor in ((one, 1.0), (two, 0.9)):
        judged = JudgedSamples(
            [str(n) for n in range(50)],
            {"loss": factor * hard},
            {"loss": Formula("mean", ["loss"])},
            data="v",
        )
        loss = float(np.mean(factor * hard))
        result = EvaluationResult(
            task="validation_loss",
            step=200,
            checkpoint="",
            metrics={"loss": loss},
            samples=50,
            seconds=1,
            versions={},
        )
        results.write_result(run, result, [], by_sample=judged.to_bytes())
    text, facts = compared(capsys, runs, one, two)
    row = next(row for row in facts["scores"] if row["task"] == "validation_loss")
    said = row["differences"][0]["text"]
    assert said.startswith("better by 0.0") and "points" not in said and said in text
