import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from PIL import Image

from tasks.core import config as configs
from tasks.core.files import link_atomic, write_atomic, write_json
from tasks.core.lock import Lease
from tasks.core.quarantine_file import Quarantined, to_text
from tasks.core.schema import Config
from tasks.core.schema.judging import BestMetric
from tasks.dataset.building.builder import build
from tasks.dataset.version.index import read_index
from tasks.dataset.version.manifest import read_manifest
from tasks.evaluation.expected import wanted_of
from tasks.evaluation.results import Prediction
from tasks.loader.indexed import IndexedReader
from tasks.reporting.accounts import read_account
from tasks.reporting.gallery import read_items
from tasks.reporting.report import is_current, read_headline, write_report
from tasks.runs import ledger, record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.ledger import LedgerEntry
from tests.core.test_pages import Tags
from tests.reporting.finished_run import finished_run, make_config, write_evaluation, write_metrics

HOSTILE = "<img src=x onerror=alert(1)></p><script>alert(2)</script>\"'"
BAD_LEDGER = b'\xfe\n{}\n{"uid": 1, "step": null, "task": 2, "state": "lost", "job": null, "attempt": 1, "at": 0, "reason": ""}\n'
DESCRIPTION = 0x010E
"""The EXIF tag of a picture's description."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run; half of its captions are hostile."""
    captions = [f"a photo of a {n}" if n % 2 else f"{HOSTILE} {n}" for n in range(40)]
    return finished_run(tmp_path_factory.mktemp("made"), captions)


@pytest.fixture
def run(made: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, with a copy of its data, to be broken."""
    root = made.path.parent.parent
    shutil.copytree(root / "data", tmp_path / "data", symlinks=True)
    folder = tmp_path / "runs" / made.path.name
    shutil.copytree(made.path, folder, symlinks=True)
    for name in ("run.json", "config.yaml"):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace(str(root), str(tmp_path)), encoding="utf-8")
    return RunFolder(folder)


def page_of(run: RunFolder) -> str:
    return write_report(run).read_text(encoding="utf-8")


def text_of(run: RunFolder) -> str:
    """What a reader sees: the text of the page, without the style, spaces made one."""
    tags = Tags(re.sub(r"<style>.*?</style>", "", page_of(run), flags=re.S))
    return " ".join(" ".join(tags.pieces).split())


def version_of(run: RunFolder) -> Path:
    return version_path(record.load_record(run).data[0])


def make_private(run: RunFolder) -> None:
    values = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    values["dataset"]["private"] = True
    run.config.write_text(yaml.safe_dump(values), encoding="utf-8")


def note_lost(run: RunFolder, step: int, reason: str) -> None:
    [uid] = [want.uid for want in wanted_of(run.id, configs.reload(run.config)) if want.step == step]
    entry = LedgerEntry(uid, step, "zero_shot", "lost", None, 3, 1_763_630_760.0, reason=reason)
    ledger.append(run.ledger, entry)


def test_the_page_says_what_came_of_the_run(run: RunFolder) -> None:
    text = text_of(run)
    assert "Zero-shot accuracy 0.957 0.927 to 0.977" in text
    assert "guessing gives 0.10" in text and "held-out samples" in text
    assert "picks the right one of 10 names in 96 of 100 cases" in text
    assert "succeeded" in text and "Nothing is missing" in text
    assert "41 read = 40 accepted + 0 filtered + 1 rejected" in text
    assert "image.not_an_image" in text and "images/broken.png" in text
    ceiling = "The training reaches 1,240 of 1,310 samples/s that it would with batches that cost nothing (95"
    assert ceiling in text
    assert "1 worker: within 10 % of the fastest" in text and "1 ✓ chosen 3,301" in text
    assert "1 wrong" in text and "✗ wrong: says one, is two" in text and "✓ right: two" in text
    for word in (run.id, "clip: tarmac/digits", "Seed 0", "node7", "torch 2.15.0", version_of(run).name):
        assert word in text


def test_what_the_run_left_out_is_told_with_its_splits(run: RunFolder) -> None:
    assert "left out: quarantine.jsonl" not in text_of(run) and is_current(run)
    version = version_of(run)
    entries = [
        Quarantined(version.name, split, f"{split}/000000.tar", f"secret_{number}", "shard.missing")
        for split, samples in (("train", 4), ("val", 2))
        for number in range(samples)
    ]
    run.quarantine.write_text(to_text(entries))
    assert not is_current(run)
    text, splits = text_of(run), read_manifest(version).splits
    left_out = (
        f"4 of {splits['train'].samples} train samples and 2 of {splits['val'].samples} val samples are left"
    )
    assert text.count(left_out) == 2, "among what to know first, and beside the splits"
    assert "train/000000.tar (shard.missing): 4 samples" in text and f"tarmac repair {version}" in text
    assert f"{left_out} out: quarantine.jsonl. Neither training nor evaluation reads them." in text
    make_private(run)
    assert left_out in text_of(run) and "secret" not in text_of(run)
    shutil.rmtree(version)
    assert "! 4 train samples and 2 val samples are left out: quarantine.jsonl" in text_of(run)


def test_a_torn_quarantine_is_told(run: RunFolder) -> None:
    run.quarantine.write_text("{")
    assert "quarantine.jsonl cannot be read" in text_of(run)


def test_the_figure_of_the_page_is_there_for_others(run: RunFolder) -> None:
    found = read_headline(run)
    assert found is not None
    assert (found.value, found.result.step, found.chance, found.is_best) == (0.957, 600, 0.1, True)


def test_every_chart_is_labelled_and_every_table_has_a_caption(run: RunFolder) -> None:
    page = page_of(run)
    tags = Tags(page)
    charts = [attrs for tag, attrs in tags.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(charts) == 5 and all(attrs.get("aria-label") for attrs in charts)
    assert page.count("<table") == page.count("<caption") >= 4
    images = [attrs for tag, attrs in tags.tags if tag == "img"]
    assert images and all(attrs.get("alt") and attrs.get("class") == "tiny" for attrs in images)
    anchors = {attrs["href"] for tag, attrs in tags.tags if tag == "a"}
    assert anchors <= {f"#{attrs['id']}" for _, attrs in tags.tags if attrs.get("id")}


def test_the_page_is_one_file_that_acts_and_asks_nothing(run: RunFolder) -> None:
    tags = Tags(page_of(run))
    for tag, attrs in tags.tags:
        assert tag not in ("script", "link", "iframe", "object", "form", "base")
        assert not [name for name in attrs if name.startswith("on")]
        assert str(attrs.get("src") or "data:image/").startswith("data:image/")
        assert str(attrs.get("href") or "#").startswith("#")
    assert "url(" not in page_of(run) and "@import" not in page_of(run)


def test_a_hostile_caption_is_shown_as_it_is_written(run: RunFolder) -> None:
    assert HOSTILE in text_of(run)


def test_a_private_dataset_shows_counts_and_nothing_of_its_samples(run: RunFolder) -> None:
    make_private(run)
    note_lost(run, 400, "sample images_0007 cannot be decoded")
    run.evaluation(400, "zero_shot").unlink()
    finding = {
        "code": "sample.poison",
        "severity": "error",
        "where": {"key": "images_0007"},
        "remedy": "drop images_0007",
    }
    run.findings.write_text(json.dumps(finding) + "\n", encoding="utf-8")
    state = record.load_record(run)
    record.save_record(run, state.having(state="failed", reason="images_0007 is broken"))
    page, text = page_of(run), text_of(run)
    assert "41 read = 40 accepted" in text and "image.not_an_image" in text and "0.957" in text
    assert "sample.poison (error)" in text and "Evaluation lost: zero_shot at step 400" in text
    for secret in ("<img", "a photo of", "alert(", "images_00", "images/", "broken.png"):
        assert secret not in page, secret


def test_without_a_readable_config_nobody_knows_that_it_is_not_private(run: RunFolder) -> None:
    run.config.write_text("dataset: [", encoding="utf-8")
    page = page_of(run)
    assert "<img" not in page and "a photo of" not in page and "broken.png" not in page
    assert "config.yaml cannot be read" in page and "0.957" in page


def test_a_lost_evaluation_is_named_with_its_reason_and_the_command(run: RunFolder) -> None:
    run.evaluation(400, "zero_shot").unlink()
    note_lost(run, 400, "3 of 3 tries used; its job left no trace")
    text = text_of(run)
    assert "Evaluation lost: zero_shot at step 400" in text and "its job left no trace" in text
    assert f"tarmac evaluate {run.handle} --step 400 --task zero_shot" in text
    assert "0.957" in text and "Nothing is missing" not in text


def test_a_run_that_goes_on_shows_how_far_it_is(run: RunFolder) -> None:
    shutil.rmtree(run.evaluations)
    shutil.rmtree(run.checkpoint(600))
    run.best.unlink()
    run.metrics.unlink()
    write_metrics(run, steps=400)
    write_evaluation(run, version_of(run), 200, 0.85)
    [uid] = [want.uid for want in wanted_of(run.id, configs.reload(run.config)) if want.step == 400]
    ledger.append(run.ledger, LedgerEntry(uid, 400, "zero_shot", "running", None, 1, 1_763_630_760.0))
    saved = record.load_record(run)
    ended = saved.attempts[0].model_copy(update={"outcome": None})
    alive = ended.model_copy(update={"ended": None})
    record.save_record(run, saved.having(state="running", attempts=[ended, alive]))
    with Lease(run.lease):
        text = text_of(run)
    assert re.search(
        r"\b1 2025.* 83.s node7 local 4711 no outcome recorded 2 2025.* – node7 local 4711 not over", text
    )
    assert "The run is not over: running" in text and "Training steps 400 of 600" in text
    assert "0.850" in text and "the last one evaluated" in text
    assert "Evaluation under way: zero_shot at step 400" in text
    assert "1 evaluation to come Training has not reached zero_shot at step 600" in text


def test_a_failed_run_says_why_and_where_its_logs_are(run: RunFolder) -> None:
    record.save_record(
        run, record.load_record(run).having(state="failed", reason="loss is not finite at step 120")
    )
    text = text_of(run)
    assert "The run failed" in text and "loss is not finite at step 120" in text and "attempts/1/logs" in text


def test_findings_come_before_the_figures(run: RunFolder) -> None:
    finding = {
        "code": "loader.bound", "severity": "warning", "where": {"rank": 0}, "evidence": {"data_wait": "31 %"},
        "remedy": "give the loader more workers", "command": "tarmac run configs/digits-clip.yaml",
    }  # fmt: skip
    run.findings.write_text(json.dumps(finding) + "\n", encoding="utf-8")
    text = text_of(run)
    assert "loader.bound (warning) rank 0 data_wait 31 % give the loader more workers tarmac run" in text
    assert text.index("loader.bound") < text.index("Held-out samples")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "said", "kept"),
    [
        (lambda run: run.record.unlink(), "The run's record is missing", "0.957"),
        (lambda run: truncate(run.record), "run.json cannot be read", "0.957"),
        (lambda run: run.config.unlink(), "The run's config is missing", "0.957"),
        (lambda run: run.loader.unlink(), "loader.json is missing", "0.957"),
        (lambda run: truncate(run.loader), "loader.json cannot be read", "0.957"),
        (lambda run: run.metrics.unlink(), "No training metrics", "0.957"),
        (lambda run: run.metrics.write_bytes(b"\xff\x00{not json\n" * 9), "No training metrics", "0.957"),
        (lambda run: shutil.rmtree(run.evaluations), "No evaluation has a result yet", "Waiting for data 0.6"),
        (lambda run: truncate(run.evaluation(400, "zero_shot")), "step_400/zero_shot.json cannot be read", "0.957"),
        (lambda run: truncate(run.predictions(600, "zero_shot")), "No predictions were kept", "0.957"),
        (lambda run: run.best.unlink(), "the last one evaluated", "0.957"),
        (lambda run: run.ledger.write_bytes(BAD_LEDGER), "Evaluation lost: zero_shot at step 600", "0.957"),
        (lambda run: run.findings.write_text('{"code": 3}\n[]\n'), "3 (info)", "0.957"),
        (lambda run: shutil.rmtree(version_of(run)), "The data of data cannot be read", "0.957"),
        (lambda run: truncate(version_of(run) / "manifest.json"), "damaged or newer", "0.957"),
        (lambda run: truncate(version_of(run) / "rejects.parquet"), "rejects.parquet: cannot be read", "image.not_an_image"),
        (lambda run: truncate(version_of(run) / "val/000000.tar"), "of these held-out samples cannot be read", "0.957"),
        (lambda run: truncate(version_of(run) / "index/val.npy"), "The held-out samples cannot be read", "0.957"),
    ],
)  # fmt: skip
def test_a_part_that_is_missing_or_torn_is_named_and_costs_only_its_section(
    run: RunFolder, damage: object, said: str, kept: str
) -> None:
    assert callable(damage)
    damage(run)
    text = text_of(run)
    assert said in text and kept in text


def test_a_folder_that_was_only_planned_has_a_page(run: RunFolder) -> None:
    for path in (run.metrics, run.loader, run.best):
        path.unlink()
    shutil.rmtree(run.evaluations)
    shutil.rmtree(run.checkpoints)
    record.save_record(run, record.load_record(run).having(state="planned", attempts=[]))
    text = text_of(run)
    assert "not over: planned" in text and "No evaluation has a result yet" in text and "40 accepted" in text


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "digits-clip-0123456789ab"
    folder.mkdir()
    assert "The run's record is missing" in text_of(RunFolder(folder))


def test_the_page_says_by_what_the_best_checkpoint_was_chosen(run: RunFolder) -> None:
    for step, loss in ((200, 0.5), (400, 0.7), (600, 0.4)):
        write_json(
            run.checkpoint(step) / "meta.json", {"step": step, "files": {}, "val_loss": loss, "time": 0.0}
        )
    text = text_of(run)
    assert "the best by validation loss. " in text and "Best: step 600 by validation loss 0.400." in text
    settings = configs.reload(run.config)
    assert settings.evaluate is not None
    evaluate = settings.evaluate.model_copy(update={"best": BestMetric(metric="zero_shot_top1")})
    write_atomic(run.config, configs.dump(settings.model_copy(update={"evaluate": evaluate})))
    assert "by validation loss 0.400, until zero_shot_top1 has a result." in text_of(run)
    write_json(run.eval_result(600), {"global_step": 600, "results": {"zero_shot_top1": 0.957}})
    text = text_of(run)
    assert "the best by zero_shot_top1, which this figure itself chose, so it is slightly too good." in text
    assert "Best: step 600 by zero_shot_top1 0.957." in text


@pytest.mark.parametrize(
    "change",
    [
        lambda run: write_metrics(run, every=3),
        lambda run: write_evaluation(run, version_of(run), 600, 0.5),
        lambda run: link_atomic(run.best, run.checkpoint(400).name),
        lambda run: note_lost(run, 400, "gone"),
        lambda run: make_private(run),
        lambda run: run.report.unlink(),
    ],
)
def test_a_page_holds_until_what_it_was_made_from_changes(run: RunFolder, change: object) -> None:
    assert not is_current(run)
    write_report(run)
    assert is_current(run)
    assert callable(change)
    change(run)
    assert not is_current(run)


def test_a_new_row_while_the_page_is_written_makes_it_out_of_date(run: RunFolder) -> None:
    write_report(run, lambda done, total, note: write_metrics(run, every=7))
    assert not is_current(run)


def test_photographs_are_scaled_down_and_lose_their_metadata(tmp_path: Path) -> None:
    config = make_config(tmp_path, ["a photo"] * 60, splits={"val": 0.5})
    exif = Image.Exif()
    exif[DESCRIPTION] = "taken at home"
    for path in sorted((tmp_path / "raw/images").glob("0*.png")):
        Image.effect_noise((320, 240), 80).save(path, "PNG", exif=exif)
    items = read_items(build(config).version, "val", {})
    assert len(items) == 24 and not any(item.tiny for item in items)
    assert {(item.width, item.height) for item in items} == {(240, 180)}
    assert sum(len(item.image or "") for item in items) < 1_000_000
    assert all(item.right is None for item in items)
    assert b"taken at home" not in base64.b64decode(str(items[0].image).partition(",")[2])


def test_a_bad_sample_does_not_hide_the_others(run: RunFolder) -> None:
    version = version_path(record.load_record(run).data[0])
    bad, entry = IndexedReader(version, "val").read(1).key, read_index(version, "val")[1]
    shard = version / f"val/{int(entry['shard']):06d}.tar"
    content = bytearray(shard.read_bytes())
    content[int(entry["offset"]) + 512] ^= 0x80
    shard.unlink()  # it may be a hard link
    shard.write_bytes(content)
    items = read_items(version, "val", {})
    assert len(items) == min(24, len(IndexedReader(version, "val")))
    assert [item.image is None for item in items] == [number == 1 for number in range(len(items))]
    assert items[1].is_bad and items[1].caption.startswith(
        f"val/{shard.name} row 1, key {bad!r}, member json: "
    )
    assert "1 of these held-out samples cannot be read" in text_of(run)


def test_a_report_takes_seconds_and_stays_small_for_a_huge_run(run: RunFolder) -> None:
    run.metrics.unlink()
    with run.metrics.open("w", encoding="utf-8") as file:
        for step in range(1, 100_001):
            row = {
                "uid": f"train/step:{step}:train",
                "t": 1.0,
                "train/step": step,
                "train/loss": 1.0 + step % 7,
            }
            file.write(
                json.dumps({**row, "train/lr": 1e-3, "train/samples_per_s": 9e2, "train/data_wait": 0.1})
                + "\n"
            )
    started = time.monotonic()
    path = write_report(run)
    assert time.monotonic() - started < 60 and path.stat().st_size < 300_000
    assert "mean of 667 rows" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("tasks.reporting.page", ["torch", "prefect", "wandb", "matplotlib", "submitit"]),
        ("tasks.reporting.report", ["torch", "prefect", "wandb", "matplotlib", "pyarrow", "PIL", "jinja2"]),
    ],
)
def test_the_report_loads_no_more_than_it_needs(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_account_of_private_data_holds_no_examples(run: RunFolder) -> None:
    (ref,) = record.load_record(run).data
    (shown,) = read_account(ref, private=False).rejects
    (hidden,) = read_account(ref, private=True).rejects
    example = shown.causes[0].examples[0]
    assert example.original_key == "images/broken.png" and "captions.csv" in example.source
    assert (hidden.reason, hidden.count) == ("image.not_an_image", 1)
    assert not any(cause.examples for cause in hidden.causes) and "broken" not in str(hidden)


def test_a_conversation_is_shown_with_what_was_asked_and_said(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(2):
        Image.effect_noise((16, 16), 80).save(raw / f"{number}.png")
    second = {"user": "Is it odd?", "assistant": "Yes."}
    for number in range(8):
        turns = [{"user": f"Which digit, {number}?", "assistant": "Seven."}, second]
        with (raw / "rows.jsonl").open("a") as file:
            file.write(json.dumps({"images": ["0.png", "1.png"], "texts": turns}) + "\n")
    dataset = {"output": str(tmp_path / "data"), "modality": "chat", "splits": {"val": 0.5}}
    config = Config.model_validate(
        {"name": "chat", "dataset": {**dataset, "source": {"kind": "chat", "path": str(raw)}}}
    )
    version = build(config).version
    key = IndexedReader(version, "val").read(0).key
    said = [
        Prediction(key=key, question="Which digit?", label="Seven.", predicted="seven."),
        Prediction(key=key, question="Is it odd?", label="Yes.", predicted="No."),
    ]
    item = read_items(version, "val", {key: said})[0]
    assert item.is_conversation and item.verdicts == [True, False] and item.right is False
    assert item.image is not None and len(item.others) == 1 and item.caption.startswith("Which digit, ")
