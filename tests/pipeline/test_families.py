"""Each model family from raw files to a model that has learnt, by one command on the config that is shipped; and
the trained checkpoint as other libraries read it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from tasks.core.files import read_json
from tests.conftest import ROOT
from tests.export.test_formats import VARIABLE
from tests.models.test_ct_clip import bert
from tests.pipeline.conftest import Project

pytestmark = pytest.mark.proof


def trained(
    folder: Path,
    env: dict[str, str],
    config: str,
    example: str,
    *overrides: str,
    prepare: Callable[[Path], None] = lambda raw: None,
) -> Project:
    """The project with the run that the shipped config came to, on the example that it names, whose raw files
    `prepare` may change."""
    (folder / "configs").mkdir()
    shutil.copy(ROOT / "configs" / config, folder / "configs")
    assert f"tarmac example {example}\n" in (ROOT / "configs" / config).read_text()
    project = Project(folder, env, [*overrides])
    assert project.tarmac("example", example).returncode == 0
    prepare(folder / "data/raw" / example)
    done = project.tarmac("run", f"configs/{config}")
    assert done.returncode == 0, done.stderr
    return project


def exported(project: Project, target: str, *words: str) -> Path:
    """The best checkpoint of the project's run in another library's form, proven equal there."""
    out = project.path / "exports" / target
    done = project.tarmac("export", project.run.name, "--to", target, "--out", str(out), *words)
    assert done.returncode == 0 and "Equal in " in done.stdout, done.stderr
    return out


@pytest.mark.parametrize(
    ("config", "example", "step", "metric", "least", "targets", "shows"),
    [
        (
            "reinforced-clip.yaml",
            "reinforced",
            300,
            "zero_shot_top1",
            0.85,
            ["open_clip", "hf"],
            ["Student and teachers", "teachers [{width: 48, logit_scale: 20}"],
        ),
        (
            "digits-chat.yaml",
            "digits-chat",
            600,
            "vlm_exact_match",
            0.6,
            ["hf", *(["nanovlm"] if VARIABLE in os.environ else [])],
            ["with their questions", "Which digit is shown?", "right: It is a", "wrong: says “"],
        ),
        (
            "open-clip-external.yaml",
            "digits",
            300,
            "zero_shot_top1",
            0.85,
            ["open_clip", "hf"],
            ["command python -m open_clip_train.main"],
        ),
    ],
)
def test_a_family_learns(
    config: str,
    example: str,
    step: int,
    metric: str,
    least: float,
    targets: list[str],
    shows: list[str],
    tmp_path: Path,
    no_server: dict[str, str],
) -> None:
    project = trained(tmp_path, no_server, config, example)
    run = project.run
    assert read_json(run / f"eval_results/step_{step}.json")["results"][metric] > least
    page = (run / "report.html").read_text()
    assert [text for text in shows if text not in page] == []
    for target in targets:
        exported(project, target, *(["--source", os.environ[VARIABLE]] if target == "nanovlm" else []))


def test_phantoms_from_raw_scans_to_a_report(tmp_path: Path, no_server: dict[str, str]) -> None:
    run = trained(tmp_path, no_server, "phantoms-ct.yaml", "phantoms").run
    found = read_json(run / "evaluations/step_200/multilabel.json")
    assert found["metrics"]["auroc_mean"] > 0.7 and found["intervals"]["auroc_mean"][0] > 0.5
    assert (run / "evaluations/step_200/multilabel/aurocs.xlsx").exists()
    probed = read_json(run / "evaluations/step_200/linear_probe.json")
    assert probed["metrics"]["auroc_mean"] > found["metrics"]["auroc_mean"], "a probe needs no words"
    assert read_json(run / "eval_results/step_200.json")["results"]["multilabel_auroc_Cardiomegaly"] > 0.5
    page = (run / "report.html").read_text()
    assert "Findings by label" in page and "Held-out scan 1, another picture" in page
    assert "with their reports" in page


def test_phantoms_with_unknown_labels_are_trained_on_and_judged_where_they_are_known(
    tmp_path: Path, no_server: dict[str, str]
) -> None:
    def blank(raw: Path) -> None:
        head, *rows = [line.split(",") for line in (raw / "labels.csv").read_text().splitlines()]
        for number, row in enumerate(rows):
            row[head.index("Lung nodule")] = "" if number % 3 else row[head.index("Lung nodule")]
        (raw / "labels.csv").write_text("\n".join(",".join(row) for row in (head, *rows[:-2])) + "\n")

    skip = ("dataset.source.labels.missing=skip", "train.steps=20", "train.checkpoint_every=20")
    every = ("evaluate.every=20", "train.warmup=2")
    project = trained(tmp_path, no_server, "phantoms-ct.yaml", "phantoms", *skip, *every, prepare=blank)
    for task in ("multilabel", "linear_probe"):
        found = read_json(project.run / f"evaluations/step_20/{task}.json")
        counts = found["samples_by_label"]
        assert 0 < counts["Lung nodule"] < 0.6 * counts["Cardiomegaly"] <= found["samples"]
        assert any("lack some of the labels" in note for note in found["notes"])
        path = project.run / f"evaluations/step_20/{task}.samples.parquet"
        rows = pq.read_table(path, columns=["truth_Lung nodule", "score_Lung nodule"]).to_pandas().dropna()
        assert len(rows) == counts["Lung nodule"]
        auroc = roc_auc_score(rows["truth_Lung nodule"], rows["score_Lung nodule"])
        assert found["metrics"]["auroc_Lung nodule"] == pytest.approx(auroc, abs=1e-9)
    page = (project.run / "report.html").read_text()
    assert '<th scope="col" class="figure">Samples</th>' in page and "lack some of the labels" in page


def test_a_trained_tower_of_reports_is_read_by_transformers(
    tmp_path: Path, no_server: dict[str, str]
) -> None:
    (tmp_path / "bert").mkdir()
    text = f"train.model.text={bert(tmp_path / 'bert', 'bert')}"
    project = trained(tmp_path, no_server, "phantoms-ct.yaml", "phantoms", text, "train.steps=100")
    weights = load_file(exported(project, "hf") / "model.safetensors")
    before = load_file(tmp_path / "bert/model.safetensors")
    changed = [name for name in weights if name in before and not torch.equal(weights[name], before[name])]
    assert len(changed) > 10
