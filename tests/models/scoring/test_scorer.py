"""`tarmac score`: from a built dataset to files of scores, and what they say of the captions."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file, save_model

from tasks.core.errors import DataError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.schema import Config
from tasks.core.screen import no_progress
from tasks.dataset.building.builder import is_up_to_date
from tasks.dataset.indexing import index_tars
from tasks.dataset.quality.scored import judge_scores, kept_scores, score_chart
from tasks.dataset.quality.verdict import kept_findings
from tasks.dataset.scores import VersionSamples
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.tables import ArrowBatches, read_shards
from tasks.loader.decoders import decode_text, image_of
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tasks.models.scoring import scorer
from tests.conftest import ROOT
from tests.dataset import raw
from tests.dataset.building.prepared import COUNT, pictures, published
from tests.models.examples import train_block

NAME = "tarmac/digits"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_model(recipes.load_recipe(train_block("clip", name=NAME)).build_model(), str(path))
    return path


@pytest.fixture
def config(tmp_path: Path, weights: Path) -> Config:
    """Sixty pictures in several shards, built, and a score block."""
    config = pictures(tmp_path)
    published(config)
    return scoring(config, weights)


def scoring(config: Config, weights: Path, **block: Any) -> Config:
    model = {"name": NAME, "pretrained": str(weights)}
    given = config.model_dump(mode="json", by_alias=True)
    return Config.model_validate({**given, "score": {"model": model, "batch_size": 7, **block}})


def filtered(config: Config, **rules: Any) -> Config:
    given = config.model_dump(mode="json", by_alias=True)
    return Config.model_validate({**given, "dataset": {**given["dataset"], "filter": rules}})


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    tables = [pq.read_table(path) for path in folder.glob("*.parquet") if path.name != "duplicates.parquet"]
    return {row["key"]: row for table in tables for row in table.to_pylist()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_scores_are_those_of_a_plain_loop_of_open_clip(config: Config, weights: Path) -> None:
    done = scorer.score(config, no_progress)
    version = versions.current(config.dataset.output)
    assert (done.samples, done.computed, done.copied, done.left_out) == (COUNT, COUNT, 0, 0)
    assert {path.stem for path in done.folder.iterdir()} == {one.blake3[:16] for one in read_shards(version)}
    model = open_clip.create_model("tarmac-digits", pretrained=str(weights)).eval()
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(size=32), is_train=False
    )
    tokenize = open_clip.get_tokenizer("tarmac-digits")
    found = rows_of(done.folder)
    known = {
        key: one
        for one in ArrowBatches(version / "inputs.arrow")
        for key, one in zip(one["key"].to_pylist(), one["content"].to_pylist(), strict=True)
    }
    for split in ("train", "val"):
        reader = IndexedReader(version, split)
        for number in range(len(reader)):
            sample = reader.read(number)
            with torch.no_grad():
                image = model.encode_image(transform(image_of(sample.members))[None], normalize=True)
                text = model.encode_text(tokenize([decode_text(sample.members["txt"])]), normalize=True)
            row = found.pop(sample.key)
            assert row["clip_score"] == pytest.approx(float((image * text).sum()), abs=1e-5)
            assert row["content"] == known[sample.key] and "embedding" not in row
    assert not found


def test_others_score_is_the_mean_of_all_other_captions() -> None:
    draw = np.random.default_rng(0)
    images, texts = draw.normal(size=(5, 8)).astype(np.float32), draw.normal(size=(3, 8)).astype(np.float32)
    captions = np.array([0, 1, 2, 0, 1])
    own, others = scorer.compared(images, texts, captions)
    for row, caption in enumerate(captions):
        assert own[row] == pytest.approx(images[row] @ texts[caption], abs=1e-5)
        rest = [images[row] @ text for number, text in enumerate(texts) if number != caption]
        assert others[row] == pytest.approx(np.mean(rest), abs=1e-5)
    assert np.isnan(scorer.compared(images, texts[:1], np.zeros(5, int))[1]).all()


def test_only_what_has_no_scores_is_computed(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = scorer.score(config, no_progress)
    before = contents(done.folder)
    with monkeypatch.context() as patch:
        patch.setattr(scorer, "LoadedClip", None)  # none is loaded where nothing is to be done
        assert scorer.score(config, no_progress).computed == 0
    victim = sorted(before)[1]
    (done.folder / victim).unlink()
    again = scorer.score(config, no_progress)
    assert 0 < again.computed < COUNT and contents(done.folder) == before
    cut = done.folder / victim
    cut.write_bytes(before[victim][:-30])
    assert scorer.score(config, no_progress).computed == again.computed and contents(done.folder) == before
    (tmp_path / "raw/0007.png").write_bytes(raw.png(7007))
    published(config)
    changed = scorer.score(config, no_progress)
    assert 0 < changed.computed <= 16 and changed.samples == COUNT


@pytest.mark.system
def test_a_killed_run_goes_on_with_the_next_shard(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json(by_alias=True))
    script = (
        "import sys, time, torch\n"
        "torch.set_num_threads(1)\n"  # as this process, or sums are rounded differently
        "from tasks.core.schema import Config\n"
        "from tasks.models.scoring import scorer\n"
        "write = scorer._write\n"
        "scorer._write = lambda *given: (write(*given), time.sleep(0.5))\n"
        "scorer.score(Config.model_validate_json(open(sys.argv[1]).read()), lambda *_: None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(file)], cwd=ROOT)
    scores, deadline = config.dataset.output / "scores", time.monotonic() + 300
    while not list(scores.glob("*/*.parquet")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = {path.name for path in scores.glob("*/*.parquet")}
    whole = sum(len(pq.read_table(path)) for path in scores.glob("*/*.parquet"))
    torch.set_num_threads(1)
    rest = scorer.score(config, no_progress)
    assert 0 < len(there) < len(read_shards(versions.current(config.dataset.output)))
    assert rest.computed == COUNT - whole
    resumed = contents(rest.folder)
    for path in rest.folder.iterdir():
        path.unlink()
    scorer.score(config, no_progress)
    assert contents(rest.folder) == resumed, "no rest is left behind, and the scores are those of one run"


def test_after_a_rule_the_scores_are_taken_from_before(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = scorer.score(config, no_progress)
    before = rows_of(done.folder)
    limit = sorted(row["clip_score"] for row in before.values())[COUNT // 3]
    ruled = filtered(config, clip_score=limit)
    built = published(ruled)
    kept = {key for key, row in before.items() if row["clip_score"] >= np.float32(limit)}
    assert built.accepted == len(kept) == COUNT - COUNT // 3 and built.filtered == COUNT // 3
    assert {key for one in VersionSamples(built.version) for key in one.keys} == kept
    with monkeypatch.context() as patch:
        patch.setattr(scorer, "LoadedClip", None)
        again = scorer.score(ruled, no_progress)
    assert (again.computed, again.copied, again.samples) == (0, len(kept), len(kept))
    assert published(ruled).shards_rewritten == 0
    scorer.score(ruled, no_progress)
    assert is_up_to_date(ruled) == versions.current(ruled.dataset.output)


def test_a_new_sample_stays_until_it_is_scored(config: Config, tmp_path: Path) -> None:
    ruled = filtered(config, clip_score=1)
    scorer.score(config, no_progress)
    (tmp_path / "raw/new.png").write_bytes(raw.png(999))
    with (tmp_path / "raw/captions.csv").open("a") as file:
        file.write("new.png,a new picture,label 0\n")
    built = published(ruled)
    assert (built.accepted, read_build_info(built.version).unscored) == (1, 1)
    assert scorer.score(ruled, no_progress).computed == 1
    with pytest.raises(DataError, match="none of 61 samples is left: 61 filtered"):
        published(ruled)


def test_a_damaged_version_beside_it_costs_nothing(config: Config) -> None:
    version = versions.resolve(config.dataset.output)
    done = scorer.score(config, no_progress)
    first = next(done.folder.glob("*.parquet"))
    shutil.copy(first, stray := first.with_name(f"{'0' * len(first.stem)}.parquet"))
    other = version.with_name("0" * len(version.name))
    shutil.copytree(version, other, ignore=shutil.ignore_patterns("*.parquet"))
    assert scorer.score(config, no_progress).summary == done.summary
    assert stray.exists(), "the damaged version may know its samples"


def test_embeddings_are_of_length_one_and_make_files_anew(config: Config, weights: Path) -> None:
    scorer.score(config, no_progress)
    done = scorer.score(scoring(config, weights, embeddings=True), no_progress)
    assert done.computed == COUNT
    embeddings = np.array([row["embedding"] for row in rows_of(done.folder).values()])
    assert embeddings.shape == (COUNT, 64) and np.allclose(np.linalg.norm(embeddings, axis=1), 1, atol=2e-3)
    schema = pq.read_schema(next(done.folder.glob("*.parquet")))
    assert str(schema.field("embedding").type.value_type) == "halffloat"
    assert scorer.score(config, no_progress).computed == 0, (
        "more than is asked for is no reason to score again"
    )


def test_a_linear_head_scores_pictures(config: Config, weights: Path, tmp_path: Path) -> None:
    head = {"weight": torch.randn(1, 64), "bias": torch.tensor([5.0])}
    save_file(head, tmp_path / "head.safetensors")
    torch.save(head, tmp_path / "head.pth")
    judged = scoring(config, weights, embeddings=True, aesthetic=str(tmp_path / "head.safetensors"))
    done = scorer.score(judged, no_progress)
    rows = rows_of(done.folder).values()
    middle = sorted(row["aesthetic_score"] for row in rows)[COUNT // 2]
    for row in rows:
        expected = float(torch.tensor(row["embedding"]).float() @ head["weight"][0] + 5)
        assert row["aesthetic_score"] == pytest.approx(expected, abs=0.02)
    other = scoring(config, weights, embeddings=True, aesthetic=str(tmp_path / "head.pth"))
    assert scorer.score(other, no_progress).computed == COUNT, "another file may be another head"
    assert 0 < published(filtered(other, aesthetic_score=middle)).filtered < COUNT


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file"),
        (b"torn", "cannot be loaded"),
        ({"layers.0.weight": torch.zeros(2, 64)}, "has no weight and bias of a linear layer"),
        ({"weight": torch.zeros(3, 64), "bias": torch.zeros(3)}, r"gives \(3, 64\) weights; one row"),
        (
            {"weight": torch.zeros(1, 8), "bias": torch.zeros(1)},
            "is for embeddings of 8, and the model's are 64",
        ),
    ],
)
def test_a_head_that_is_none_is_one_line(
    config: Config, weights: Path, tmp_path: Path, content: Any, says: str
) -> None:
    path = tmp_path / "head.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(UsageError, match=f"score.aesthetic: .*{says}"):
        scorer.score(scoring(config, weights, aesthetic=str(path)), no_progress)


def test_samples_in_quarantine_have_no_score(config: Config) -> None:
    version = versions.current(config.dataset.output)
    shard = read_shards(version)[1]
    (one,) = VersionSamples(version).of({shard.name})
    entry = Quarantined(version.name, shard.split, shard.name, one.keys[2], "member.undecodable")
    quarantine.add(config.dataset.output, [entry])
    done = scorer.score(config, no_progress)
    assert (done.computed, done.left_out) == (COUNT - 1, 1) and one.keys[2] not in rows_of(done.folder)
    assert scorer.score(config, no_progress).computed == 0


def test_tars_of_others_are_scored_where_they_lie(config: Config, tmp_path: Path) -> None:
    own = scorer.score(config, no_progress)
    version = versions.current(config.dataset.output)
    index_tars({"train": str(version / "train"), "val": str(version / "val")}, tmp_path / "theirs")
    theirs = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"output": tmp_path / "theirs"})}
    )
    done = scorer.score(theirs, no_progress)
    assert done.computed == COUNT
    mine, found = rows_of(own.folder), rows_of(done.folder)
    assert {key: row["clip_score"] for key, row in found.items()} == {
        key: pytest.approx(row["clip_score"], abs=1e-6) for key, row in mine.items()
    }
    assert scorer.score(theirs, no_progress).computed == 0


@pytest.fixture
def copied(config: Config, weights: Path, tmp_path: Path) -> Config:
    """Ten more pictures with one pixel changed, which have nearly the embedding of the original; built."""
    with (tmp_path / "raw/captions.csv").open("a") as file:
        for number in range(10):
            picture = Image.open(tmp_path / f"raw/{number:04d}.png")
            picture.putpixel((0, 0), (number, 0, 0))
            picture.save(tmp_path / f"raw/copy{number}.png")
            file.write(f"copy{number}.png,copy {number},label 0\n")
    published(config)
    return scoring(config, weights, semdedup={"threshold": 0.99})


def similarities(folder: Path) -> dict[str, float]:
    rows = pq.read_table(folder / "duplicates.parquet").to_pylist()
    return {row["key"]: row["duplicate_similarity"] for row in rows}


def test_duplicates_are_left_out_and_stay_out(copied: Config) -> None:
    done = scorer.score(copied, no_progress)
    by_key = similarities(done.folder)
    for number in range(10):
        assert max(by_key[f"copy{number}"], by_key[f"{number:04d}"]) > 0.99, (
            "one of the two repeats the other"
        )
    repeats = sum(similarity > 0.99 for similarity in by_key.values())
    assert done.summary.duplicates["0.99"] == pytest.approx(repeats / 70) and repeats >= 10
    ruled = filtered(copied, duplicate_similarity={"max": 0.99})
    built = published(ruled, accept_loss=True)
    assert built.filtered == repeats
    again = scorer.score(ruled, no_progress)
    assert again.computed == 0 and again.summary.duplicates["0.99"] == 0
    assert published(ruled).accepted == built.accepted, "what was left out does not come back"


def test_of_a_pair_one_stays_although_another_rule_leaves_out_the_first(copied: Config) -> None:
    done = scorer.score(copied, no_progress)
    rows = pq.read_table(done.folder / "duplicates.parquet").to_pylist()
    repeated = next(row for row in rows if row["duplicate_similarity"] > 0.99)
    scores = {key: row["clip_score"] for key, row in rows_of(done.folder).items()}
    one, other = scores[repeated["key"]], scores[repeated["duplicate_of"]]
    limit = {"min" if other < one else "max": (one + other) / 2}
    ruled = filtered(copied, clip_score=limit, duplicate_similarity={"max": 0.99})
    scorer.score(ruled, no_progress)
    built = published(ruled, accept_loss=True)
    kept = {key for samples in VersionSamples(built.version) for key in samples.keys}
    assert repeated["duplicate_of"] not in kept and not {repeated["key"]} - kept


@pytest.fixture(scope="module")
def shuffled(
    raw_digits: Path, judge: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, set[str]]:
    """The digits, a tenth of which have the caption of another digit, built and scored."""
    folder = tmp_path_factory.mktemp("shuffled")
    rows = list(csv.DictReader((raw_digits / "captions.csv").open()))
    draw = random.Random(0)
    wrong = set()
    for row in draw.sample(rows, len(rows) // 10):
        other = draw.choice([one for one in rows if one["label"] != row["label"]])
        row["caption"] = other["caption"]
        wrong.add(row["file"])
    table = [(str(raw_digits / row["file"]), row["caption"]) for row in rows]
    raw.write_table(folder / "raw", table, ("file", "caption"))
    config = scoring(
        raw.config(folder / "raw", folder / "out", shard={"samples": 256}), judge, batch_size=128
    )
    published(config)
    scorer.score(config, no_progress)
    return config, wrong


def test_captions_of_other_pictures_are_found(shuffled: tuple[Config, set[str]]) -> None:
    config, wrong = shuffled
    version = versions.current(config.dataset.output)
    (finding,) = judge_scores(kept_scores(version))
    assert finding.code == "captions.misaligned" and finding.severity == "warning"
    found = kept_scores(version).misaligned
    assert 0.5 * len(wrong) < found.count < 1.2 * len(wrong)
    assert all(Path(one.key).name in wrong for one in found.examples[:3])
    limit = finding.config["dataset.filter.clip_score"]
    rows = rows_of(config.dataset.output / "scores" / kept_scores(version).model)
    below = {Path(key).name for key, row in rows.items() if row["clip_score"] < limit}
    names = {name.removesuffix(".png") for name in wrong}
    right = sum(any(name in key for name in names) for key in below)
    assert right > 0.8 * len(below) and right > 0.9 * len(wrong), "the limit that is proposed separates them"
    assert finding in kept_findings(config, version), "a build shows it, too"
    assert score_chart(kept_scores(version)).bars.heights


def test_right_captions_give_no_finding(digits_dataset: Path, judge: Path, tmp_path: Path) -> None:
    version = versions.current(digits_dataset)
    index_tars({"val": str(version / "val"), "train": str(version / "val")}, tmp_path / "clean")
    config = scoring(pictures(tmp_path), judge)
    config = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"output": tmp_path / "clean"})}
    )
    assert judge_scores(scorer.score(config, no_progress).summary) == []


def test_a_model_that_knows_nothing_of_the_data_is_said_to(config: Config) -> None:
    (finding,) = judge_scores(scorer.score(config, no_progress).summary)
    assert finding.remedy.startswith("look at some: either the model knows nothing of such data")
    assert finding.config is None


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            {"name": "ViT-B-23", "pretrained": "openai"},
            "score.model: ViT-B-23: unknown model .* did you mean ViT-B-32",
        ),
        (
            {"name": NAME, "pretrained": "runs/gone.pt"},
            r"score\.model\.pretrained: there is no file runs/gone\.pt; name a file that is there",
        ),
        (
            {"name": "ViT-B-32", "pretrained": "laion2b_s34b_b79k"},
            r"score\.model\.pretrained: weights of laion/CLIP-\S+ not on this machine; tarmac fetch CONFIG",
        ),
    ],
)
def test_a_model_that_is_not_there_is_one_line(
    config: Config, model: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    given = config.model_dump(mode="json", by_alias=True)
    with pytest.raises(UsageError, match=says) as caught:
        scorer.score(Config.model_validate({**given, "score": {"model": model}}), no_progress)
    assert "\n" not in str(caught.value)
    assert not list((config.dataset.output / "scores").glob("*/*"))


def test_what_has_no_captions_to_score_is_one_line(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"score: is required: it names the model"):
        scorer.score(config.model_copy(update={"score": None}), no_progress)
    raw.volumes(tmp_path / "volumes", 4)
    volumes = raw.volume_config(tmp_path / "volumes", tmp_path / "ct")
    published(volumes)
    with pytest.raises(UsageError, match=r"compares pictures with captions, which volume_report has none of"):
        scorer.score(volumes.model_copy(update={"score": config.score}), no_progress)


def test_weights_are_named_by_their_content(config: Config, weights: Path, tmp_path: Path) -> None:
    done = scorer.score(config, no_progress)
    tensors = load_file(weights)
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, tmp_path / "other.safetensors")
    other = scorer.score(scoring(config, tmp_path / "other.safetensors"), no_progress)
    assert other.computed == COUNT and other.folder != done.folder
    assert json.dumps(other.summary.model) != json.dumps(done.summary.model)
