"""docs/formats.md names the fields that the code writes, no more and no fewer; its code runs; its upgrade notes hold."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.config import reload
from tasks.core.errors import DataError, TarmacError
from tasks.core.findings import Finding
from tasks.core.lock import Lease
from tasks.core.quarantine_file import read_quarantine
from tasks.dataset.building.builder import build
from tasks.dataset.quality.assessment import kept_assessment, path_of
from tasks.dataset.quality.scored import ScoreSummary, keep_scores, kept_scores, scores_path
from tasks.dataset.version import quarantine
from tasks.dataset.version.build_info import read_build_info, seal_files
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import MANIFEST
from tasks.dataset.version.manifest import read_manifest, version_name
from tasks.dataset.version.tables import read_origins
from tasks.dataset.version.versions import resolve
from tasks.diagnosis.observation.record import Observation
from tasks.diagnosis.run_doctor import examine_run
from tasks.evaluation.job import evaluate_checkpoint
from tasks.evaluation.results import StepSummary, read_result
from tasks.loader.settings import LoaderSettings, Measurement, read_settings, write_settings
from tasks.runs import ledger, phases, record
from tasks.runs.checkpoints import Checkpoint, read_meta
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import read_metrics
from tasks.supervision.attempt.journal import AttemptJournal
from tasks.supervision.ranks.success import TrainingEnd, exit_of, judge_end
from tests.conftest import made_once
from tests.dataset.raw import chat, nifti, shards
from tests.dataset.tampering import reseal
from tests.docs.pages import Block, blocks, text_of
from tests.training.helpers import make_run, train_here

PAGE = "docs/formats.md"
STEPS = 4
SECTION = re.compile(r"^#{2,3} (?P<heading>.+)\n(?P<body>(?:(?!^#{2,3} ).*\n)*)", re.M)
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<kind>[^|]+) \| (?P<meaning>[^|]+) \|$", re.M)
JSON_TYPES = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
}
VERSION_NOTE = "is of the newer format tarmac/2; this Tarmac reads tarmac/1: update it"


def body(heading: str) -> str:
    """The text of a section."""
    return {one["heading"].replace("`", ""): one["body"] for one in SECTION.finditer(text_of(PAGE))}[heading]


def fields(heading: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of each field that a section names."""
    found = {one["name"]: (one["kind"].strip(), one["meaning"]) for one in ROW.finditer(body(heading))}
    assert found, heading
    return found


def compare(heading: str, row: dict[str, Any]) -> None:
    """Whether the fields of a JSON object are those of the section, with its types; null is any of them."""
    named = fields(heading)
    needed = {name for name, (_, meaning) in named.items() if "may be absent" not in meaning}
    assert needed <= row.keys() <= named.keys(), heading
    for name, value in row.items():
        assert value is None or isinstance(value, JSON_TYPES[named[name][0]]), f"{heading}: {name}"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def project(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo: data/digits, and runs/ with a run of four steps that was trained and evaluated here."""

    def make(folder: Path) -> None:
        (folder / "data").mkdir()
        shutil.copytree(digits_dataset, folder / "data/digits", symlinks=True)
        every = [f"train.{key}={STEPS}" for key in ("steps", "checkpoint_every")]
        sparse = ("train.log_every=1", "train.warmup=1", f"evaluate.every={STEPS}")
        run = make_run(folder / "data/digits", folder, *every, *sparse)
        measured = Measurement(workers=0, samples_per_s=1.0, first_batch_s=1.0)
        chosen = LoaderSettings(workers=0, prefetch=2, reason="for a test", measurements=(measured,))
        write_settings(run.loader, chosen)
        with Lease(run.lease) as lease:
            journal = AttemptJournal(run, lease)
            journal.begin()
            journal.add_findings([Finding("unknown", "info", "nothing")])
            ended = TrainingEnd(0, train_here(run), STEPS, 1.0, STEPS)
            journal.training_ended(exit_of(ended, judge_end(ended), 1.0, 2.0), "succeeded", None, None)
            ledger.append(run.ledger, ledger.LedgerEntry("uid", STEPS, "zero_shot", "done", None, 1, 3.0))
            evaluate_checkpoint(run.path, STEPS, "zero_shot")

    return made_once(tmp_path_factory, "formats", make)


@pytest.fixture
def version(project: Path) -> Path:
    return resolve(project / "data/digits")


@pytest.fixture
def run(project: Path) -> RunFolder:
    (found,) = (project / "runs").glob("digits-clip-*")
    return RunFolder(found)


def copied(project: Path, folder: Path) -> tuple[Path, RunFolder]:
    """A version and a run that a test may change."""
    shutil.copytree(project, folder / "copy", symlinks=True)
    (found,) = (folder / "copy/runs").glob("digits-clip-*")
    return resolve(folder / "copy/data/digits"), RunFolder(found)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_the_files_of_a_version_have_the_fields_of_the_page(version: Path) -> None:
    compare("manifest.json", json.loads((version / "manifest.json").read_text()))
    info = json.loads((version / "build.json").read_text())
    compare("build.json", {name: info[name] for name in fields("build.json")})
    for heading, name in (
        ("shards.parquet", "shards.parquet"),
        ("rejects.parquet", "rejects.parquet"),
        ("samples/SPLIT.parquet", "samples/train.parquet"),
    ):
        schema = pq.read_schema(version / name)
        own = schema.names if heading != "samples/SPLIT.parquet" else schema.names[:6]
        assert {name: str(schema.field(name).type) for name in own} == {
            name: kind for name, (kind, _) in fields(heading).items()
        }
    index = np.load(version / "index/train.npy")
    assert [(name, kind.strip("<")) for name, kind in index.dtype.descr] == [
        (name, kind) for name, (kind, _) in fields("index/SPLIT.npy").items()
    ]


def test_the_entries_of_a_quarantine_have_the_fields_of_the_page(tmp_path: Path) -> None:
    quarantine.add(tmp_path, [quarantine.Quarantined("e5a4cb7edf18", "train", "train/000000.tar", "a", "b")])
    compare("quarantine.jsonl", rows(tmp_path / "quarantine.jsonl")[0])


def test_the_files_of_a_run_have_the_fields_of_the_page(run: RunFolder) -> None:
    for heading, path in (
        ("run.json", run.record),
        ("meta.json", run.latest / "meta.json"),
        ("Evaluations", run.evaluation(STEPS, "zero_shot")),
        ("exit.json", run.exit(1)),
        ("loader.json", run.loader),
        ("phases/rank_0.json", run.phase()),
    ):
        compare(heading, json.loads(path.read_text()))
    compare("ledger.jsonl", rows(run.ledger)[0])
    compare("findings.jsonl", rows(run.findings)[0])
    seen = Observation(1, 1.0, 5.0, ["python"], "/", [])
    compare("observation.json", json.loads(json.dumps(seen.to_json())))
    compare("eval_results/", json.loads(StepSummary(global_step=1, results={"a": 1.0}).model_dump_json()))


def test_the_page_names_what_each_row_of_metrics_has(run: RunFolder) -> None:
    trained = [row for row in rows(run.metrics) if row["uid"].endswith(":train")]
    named = fields("metrics.jsonl")
    needed = {name for name, (_, meaning) in named.items() if "may be absent" not in meaning}
    assert len(trained) == STEPS and all(needed <= row.keys() for row in trained)
    assert any("val/loss" in row for row in rows(run.metrics))
    assert set(named) <= set().union(*rows(run.metrics))


def test_a_measurement_of_the_loader_has_the_keys_of_the_page(run: RunFolder) -> None:
    meaning = fields("loader.json")["measurements"][1]
    assert set(re.findall(r"`(\w+)`", meaning)) == set(read_settings(run.loader).measurements[0].model_dump())


def reinforced(folder: Path) -> Any:
    members = [member for n in range(3) for member in shards.pair(f"{n:09d}", n)]
    extra = [(f"{n:09d}.{name}", value) for n in range(3) for name, value in shards.reinforcement().items()]
    folder.mkdir(parents=True)
    (folder / "00000.tar").write_bytes(shards.tar_bytes(sorted(members + extra)))
    return shards.config(folder / "00000.tar", "reinforced", output=folder / "out")


@pytest.mark.parametrize(
    ("modality", "make", "members"),
    [
        ("image_text", shards.make, {"jpg", "txt", "json"}),
        ("reinforced", reinforced, {"jpg", "txt", "json", "syn.json", "paug.json", "npz"}),
        ("volume_report", nifti.make, {"volume.b2nd", "txt", "json"}),
        ("chat", chat.make, {"000.png", "json"}),
    ],
)
def test_members_and_columns_of_each_modality_are_those_of_the_page(
    modality: str, make: Callable[[Path], Any], members: set[str], tmp_path: Path
) -> None:
    built = build(make(tmp_path / "raw")).version
    tars = sorted(built.glob("*/*.tar"))
    headers = []
    for tar in tars:
        with tarfile.open(tar) as file:
            headers += file.getmembers()
    assert {entry.name.partition(".")[2] for entry in headers} == members
    assert {(one.mode, one.uid, one.gid, one.mtime) for one in headers} == {(0o644, 0, 0, 0)}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", one.name.partition(".")[0]) for one in headers)
    page = body("Shards")
    own = re.search(rf"^\| `{modality}` .*\n(?:\| \| .*\n)*", page, re.M)
    assert own is not None
    listed = own[0]
    if modality == "reinforced":  # which has those of image_text too
        listed = page[page.index("| `image_text`") : page.index("| `volume_report`")]
    assert all(f"`{name.replace('000.png', '001.png')}`" in listed for name in members)
    columns = dict(
        re.findall(r"^\| `(\w+)` \| ((?:those of `image_text`, and )?`.+`) \|$", body_of_columns(), re.M)
    )
    wanted = re.findall(r"`(\w+)`", columns[modality])
    if wanted[0] == "image_text":
        wanted = re.findall(r"`(\w+)`", columns["image_text"]) + wanted[1:]
    assert pq.read_schema(next(built.glob("samples/*.parquet"))).names[6:] == wanted


def body_of_columns() -> str:
    return body("samples/SPLIT.parquet")


def own_blocks(language: str) -> list[Block]:
    found = [block for block in blocks(language) if block.page == PAGE]
    assert found
    return found


@pytest.mark.parametrize("block", own_blocks("python"), ids=str)
def test_each_python_of_the_page_runs(
    block: Block,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("data", "runs"):
        (tmp_path / name).symlink_to(project / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "block.py").write_text(block.text)
    left = runpy.run_path("block.py")
    printed = capsys.readouterr().out
    if "samples" in left:
        assert "True" in printed
    if "caption" in left:
        assert left["image"].size == (32, 32) and "digit" in left["caption"]
    if "one_sample" in left:
        assert left["one_sample"][257:262] == b"ustar" and len(left["one_sample"]) == left["length"]
    if "weights" in left:
        assert left["weights"] and printed.count("train/loss") == 1


@pytest.mark.system
@pytest.mark.parametrize("line", [one for block in own_blocks("bash") for one in block.text.splitlines()])
def test_each_command_of_the_page_prints_something(line: str, project: Path) -> None:
    done = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip()


def test_the_upgrade_notes_are_signed_by_this_release() -> None:
    assert f"**Tarmac {version_of('tarmac')}, " in body("Upgrade notes")


def said(path: Path, call: Callable[[], object]) -> str:
    """What the user reads, without the folder: the page has it word for word."""
    with pytest.raises(TarmacError) as error:
        call()
    text = str(error.value).splitlines()[0]
    return text[text.index(path.name) :]


def assert_on_page(text: str) -> None:
    assert f"`{text}`" in body("Upgrade notes"), text


def test_a_version_of_a_newer_format_is_refused_by_each_reader(project: Path, tmp_path: Path) -> None:
    """Its bytes are sealed and its folder is named as by the Tarmac that built it."""
    old, _ = copied(project, tmp_path)
    edit(old / MANIFEST, lambda value: value.update(format="tarmac/2"))
    reseal(old / "build.json", files={name: asdict(seal) for name, seal in seal_files(old).items()})
    version = old.rename(old.with_name(version_name((old / MANIFEST).read_bytes())))
    manifest = version / MANIFEST
    assert_on_page(said(manifest, lambda: read_manifest(version)))
    assert said(manifest, lambda: read_index(version, "train")) == f"manifest.json {VERSION_NOTE}"
    for command in (["rejects", version], ["verify", version], ["trace", "digit_0688", version]):
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *map(str, command)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1 and VERSION_NOTE in done.stdout + done.stderr, command


def test_fields_that_a_newer_tarmac_adds_are_skipped(project: Path, tmp_path: Path) -> None:
    version, run = copied(project, tmp_path)
    result, meta = run.evaluation(STEPS, "zero_shot"), run.checkpoint(STEPS) / "meta.json"
    for path in (version / MANIFEST, run.record, meta, result, run.phase()):
        edit(path, lambda value: value.update(added=1))
    reseal(version / "build.json", added=1, converter=13)
    for path in (run.ledger, run.metrics):
        path.write_text("".join(json.dumps({**row, "added": 1}) + "\n" for row in rows(path)))
    assert read_manifest(version).accepted == 1797
    assert read_build_info(version).converter == 13
    assert record.load_record(run).state == "succeeded"
    assert read_meta(Checkpoint(STEPS, run.checkpoint(STEPS))) is not None
    assert read_result(result) is not None
    assert [entry.state for entry in ledger.read_ledger(run.ledger)] == ["done"]
    assert len(read_metrics(run.metrics)[0]) > STEPS
    assert phases.read_phase(run.phase()) is None, "the page says that it counts as no sign of life"


def test_files_that_would_mislead_are_refused_in_the_words_of_the_page(project: Path, tmp_path: Path) -> None:
    version, run = copied(project, tmp_path)
    edit(run.loader, lambda value: value.update(added=1))
    assert_on_page(said(run.loader, lambda: read_settings(run.loader)))
    listed = tmp_path / "quarantine.jsonl"
    listed.write_text(
        '{"version": "1", "split": "1", "shard": "1", "key": "1", "reason": "1", "added": "1"}\n'
    )
    assert_on_page(said(listed, lambda: read_quarantine(listed)))
    run.config.write_text(run.config.read_text() + "added: 1\n")
    assert said(run.config, lambda: reload(run.config)).startswith(
        "config.yaml: added: unknown key; there are: "
    )
    edit(run.record, lambda value: value.update(state="paused"))
    assert said(run.record, lambda: record.load_record(run)).startswith("run.json: is no run record ")
    index = np.load(version / "index/train.npy")
    wider = np.zeros(len(index), [*index.dtype.descr, ("added", "<u4")])
    np.save(version / "index/train.npy", wider)
    with pytest.raises(DataError, match=r"train\.npy is no index \(dtype .*\); build the dataset again"):
        read_index(version, "train")


@pytest.mark.parametrize("content", ['{"format": 2}', '{"for', "[]"])
def test_an_observation_that_cannot_be_read_is_reported_as_not_seen(
    content: str, project: Path, tmp_path: Path
) -> None:
    _, run = copied(project, tmp_path)
    run.observation(1).write_text(content)
    seen = examine_run(run)
    assert seen.observation is None
    (unseen,) = seen.verdict.report.not_seen
    assert "observation.json: " in unseen
    if content == '{"format": 2}':
        assert_on_page(unseen[unseen.index("observation.json") :].rstrip(")"))


def test_another_number_counts_as_no_assessment_and_no_scores(project: Path, tmp_path: Path) -> None:
    version, _ = copied(project, tmp_path)
    keep_scores(version, {"version": version.name, "model": "m", "samples": 1, "scored": 1, "format": 1})
    assert isinstance(kept_scores(version), ScoreSummary)
    edit(scores_path(version), lambda value: value.update(format=2))
    assert kept_scores(version) is None
    path_of(version).write_text(json.dumps({"version": version.name, "samples": {}, "format": 2}))
    assert kept_assessment(version) is not None
    edit(path_of(version), lambda value: value.update(format=3))
    assert kept_assessment(version) is None


def test_what_an_older_tarmac_did_not_write_counts_as_unknown(project: Path, tmp_path: Path) -> None:
    version, run = copied(project, tmp_path)
    lacking = ("wandb_id", "stopped_early", "started_by", "asked", "goal")
    edit(run.record, lambda value: [value.pop(name) for name in lacking])
    assert record.load_record(run).goal == "train"
    result = run.evaluation(STEPS, "zero_shot")
    edit(result, lambda value: [value.pop(name) for name in ("chance", "split", "notes", "question")])
    assert read_result(result) is not None
    edit(run.checkpoint(STEPS) / "meta.json", lambda value: value.pop("seconds"))
    assert read_meta(Checkpoint(STEPS, run.checkpoint(STEPS))) is not None
    run.ledger.write_text(
        '{"uid": "u", "step": 4, "task": "t", "state": "done", "job": null, "attempt": 1, "at": 1}\n'
    )
    assert len(ledger.read_ledger(run.ledger)) == 1
    facts = json.loads((version / "build.json").read_text())
    facts = {
        name: value for name, value in facts.items() if name not in ("changes", "containers", "unscored")
    }
    (version / "build.json").write_text(json.dumps(facts))
    reseal(version / "build.json")
    assert read_build_info(version).changes is None
    table = pq.read_table(version / "samples/train.parquet")
    os.unlink(version / "samples/train.parquet")
    pq.write_table(table.drop_columns(["source"]), version / "samples/train.parquet")
    assert read_origins(version, "train", [0])[0].source == ""
    assert isinstance(table, pa.Table)
