"""Preflight of a config of Tarmac's own, from the version's manifest, index and tables."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from tasks.core.config import load_config
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.version.index import INDEX
from tasks.dataset.version.manifest import read_manifest
from tasks.diagnosis import own_run, preflight
from tasks.diagnosis.memory import LoaderCost, MachineLimits
from tasks.diagnosis.own_run import OwnCase
from tasks.diagnosis.preflight import preflight_config
from tasks.runs import gpus
from tasks.runs.footprint import Footprint
from tasks.trainers.command import Command

ROOM = MachineLimits(memory=1e12, by="the machine", shared=1e12, descriptors=1 << 20)


def write_version(folder: Path, shards: int = 4, samples: int = 400, side: int = 8, **facts: Any) -> Path:
    """A version of so many shards without the tars, which preflight does not read."""
    version = folder / "data/version"
    for name in ("index", "samples", "train"):
        (version / name).mkdir(parents=True)
    split = {"shards": shards, "samples": samples, "bytes": samples * 1000}
    manifest = {
        "format": "tarmac/1", "name": "a", "modality": "image_text", "digest": "0", "splits": {"train": split},
        "read": samples, "accepted": samples, "filtered": 0, "rejects": {}, "config_digest": "0",
        "source": {"kind": "table", "digest": "0"}, **facts,
    }  # fmt: skip
    (version / "manifest.json").write_text(json.dumps(manifest))
    np.save(version / "index/train.npy", np.zeros(samples, INDEX))
    each = samples // shards
    sizes = {f"{number:06d}.tar": each for number in range(shards)}
    sizes["000000.tar"] += samples - each * shards
    (version / "train/sizes.json").write_text(json.dumps(sizes))
    sides = pa.array(np.full(samples, side, np.int32))
    pq.write_table(pa.table({"width": sides, "height": sides}), version / "samples/train.parquet")
    return version


def config(folder: Path, **changes: Any) -> Config:
    train = {
        "recipe": "clip",
        "model": {"name": "tarmac/digits"},
        "batch_size": 64,
        "steps": 100,
        "lr": 1.0e-3,
    }
    train |= {"checkpoint_every": 50, **changes.pop("train", {})}
    source = {"kind": "table", "path": "t.csv", "image": "f", "caption": "c"}
    dataset = {"output": str(folder / "data/version"), "modality": "image_text", "source": source}
    return Config.model_validate(
        {"name": "a", "runs": str(folder / "runs"), "dataset": dataset, "train": train, **changes}
    )


def judge(
    folder: Path, limits: MachineLimits = ROOM, free: float = 1e15, **changes: Any
) -> dict[str, Finding]:
    settings = config(folder, **changes)
    assert settings.train is not None
    version = folder / "data/version"
    case = OwnCase(settings, settings.train, version, read_manifest(version), 2, limits, free)
    return {one.code: one for one in own_run.judge_own_run(case)}


def test_a_sound_run_has_no_finding(tmp_path: Path) -> None:
    write_version(tmp_path)
    assert judge(tmp_path) == {}


def test_a_recipe_that_reads_another_modality_is_an_error(tmp_path: Path) -> None:
    write_version(tmp_path, modality="chat")
    assert "reads image_text, the dataset holds chat" in judge(tmp_path)["keys.mismatch"].evidence["problem"]


@pytest.mark.parametrize("recipe", ["clip", "clip_reinforced"])
def test_reinforced_samples_are_image_text_pairs_too(tmp_path: Path, recipe: str) -> None:
    write_version(tmp_path, modality="reinforced")
    model = {"name": "tarmac/digits", **({"teachers": [{"width": 8}]} if recipe != "clip" else {})}
    assert judge(tmp_path, train={"recipe": recipe, "model": model}) == {}


def test_other_teachers_than_the_data_was_made_with_are_an_error(tmp_path: Path) -> None:
    """By all samples, as one that differs ends a training hours later."""
    version = write_version(tmp_path, modality="reinforced")
    widths = pa.array([80] * 397 + [48, 48, None], pa.int32())
    pq.write_table(pa.table({"embedding_width": widths}), version / "samples/train.parquet")
    for teachers, problem in (
        ([48, 32], "2 samples of 400 with embeddings 48"),
        ([48], "397 samples of 400"),
    ):
        model = {"name": "tarmac/digits", "teachers": [{"width": width} for width in teachers]}
        found = judge(tmp_path, train={"recipe": "clip_reinforced", "model": model})["reinforcement.teachers"]
        assert found.severity == "error" and problem in found.evidence["problem"]


@pytest.mark.parametrize("damage", ["shorter", "missing", "sizes"])
def test_an_index_or_sizes_other_than_the_manifest_are_an_error(tmp_path: Path, damage: str) -> None:
    version = write_version(tmp_path)
    if damage == "shorter":
        np.save(version / "index/train.npy", np.zeros(399, INDEX))
    elif damage == "missing":
        (version / "index/train.npy").unlink()
    else:
        (version / "train/sizes.json").write_text('{"000000.tar": 1}')
    finding = judge(tmp_path)["count.mismatch"]
    assert finding.severity == "error" and finding.command == f"tarmac repair {version}"


def test_a_batch_larger_than_the_split_is_an_error(tmp_path: Path) -> None:
    write_version(tmp_path, samples=40)
    assert judge(tmp_path)["worker.starved"].config == {"train.batch_size": 20}


def test_batches_of_a_validation_count_too(tmp_path: Path) -> None:
    """Of conversations 256 were judged at once, where two are trained on in a pass."""
    splits = {
        "train": {"shards": 4, "samples": 400, "bytes": 400_000},
        "val": {"shards": 1, "samples": 100_000, "bytes": 40_000},
    }
    write_version(tmp_path, splits=splits)
    tight = replace(ROOM, memory=1.5e9)
    loader = {"workers": 1, "prefetch": 1}
    evaluate = {"every": 50, "tasks": ["zero_shot"], "batch_size": 100_000}
    assert judge(tmp_path, tight, loader=loader) == {}
    found = judge(tmp_path, tight, loader=loader, evaluate=evaluate)["memory.exceeded"]
    assert found.config is not None and found.config["evaluate.batch_size"] <= 64


def test_a_streaming_reader_with_fewer_shards_than_workers_is_a_warning(tmp_path: Path) -> None:
    write_version(tmp_path, shards=2)
    found = judge(tmp_path, loader={"reader": "streaming", "workers": 4})
    assert found["shards.too_few"].config == {"loader.workers": 2}
    assert "shards.too_few" not in judge(tmp_path, loader={"workers": 4})


def test_a_warm_up_that_never_ends_is_a_warning(tmp_path: Path) -> None:
    write_version(tmp_path)
    assert judge(tmp_path, train={"warmup": 500})["schedule.warmup"].config == {"train.warmup": 10}
    by_epochs = judge(tmp_path, train={"warmup": 13, "epochs": 2, "steps": None})
    assert "13 warm-up steps of 13" in by_epochs["schedule.warmup"].evidence["problem"]


def test_large_images_are_known_from_the_tables_statistics(tmp_path: Path) -> None:
    write_version(tmp_path, side=8000)
    assert judge(tmp_path)["image.oversized"].evidence["problem"] == "images of up to 64 million pixels"


def test_what_does_not_fit_is_refused_with_the_settings_that_do(tmp_path: Path) -> None:
    write_version(tmp_path, samples=100_000)
    loader = {"workers": 8, "prefetch": 4}
    train = {"model": {"name": "ViT-B-32"}, "batch_size": 512}
    tight = replace(ROOM, memory=8e9, by="/sys/fs/cgroup/memory.max")
    finding = judge(tmp_path, tight, loader=loader, train=train)["memory.exceeded"]
    assert "memory.max" in finding.evidence["problem"]
    assert finding.config is not None
    fixed = {key.removeprefix("loader."): value for key, value in finding.config.items()}
    assert "memory.exceeded" not in judge(tmp_path, tight, loader={**loader, **fixed}, train=train)
    assert "shm.too_small" not in judge(tmp_path, replace(ROOM, shared=1e6), loader=loader, train=train)
    few = judge(tmp_path, replace(ROOM, descriptors=140), loader=loader, train=train)["fds.too_few"]
    assert few.remedy.startswith("ulimit -n ")


def test_ranks_share_the_machine(tmp_path: Path) -> None:
    write_version(tmp_path, samples=100_000)
    tight = replace(ROOM, memory=2.5e9)
    several = {"engine": {"train": {"ranks": 4}}, "loader": {"workers": 1}, "train": {"batch_size": 64}}
    assert "memory.exceeded" in judge(tmp_path, tight, **several)
    assert "memory.exceeded" not in judge(tmp_path, tight, loader={"workers": 1})


def test_checkpoints_that_do_not_fit_the_disk_are_an_error(tmp_path: Path) -> None:
    write_version(tmp_path)
    train = {"model": {"name": "ViT-B-32"}, "steps": 1000, "checkpoint_every": 10}
    finding = judge(tmp_path, free=20e9, train=train)["disk.too_small"]
    assert finding.config is not None
    every = finding.config["train.checkpoint_every"]
    assert "disk.too_small" not in judge(tmp_path, free=20e9, train={**train, "checkpoint_every": every})


def test_checkpoints_that_wait_to_be_evaluated_count_although_few_are_kept(tmp_path: Path) -> None:
    train = {"model": {"name": "ViT-B-32"}, "steps": 1000, "checkpoint_every": 10, "keep": {"latest": 2}}
    tasks = ["zero_shot"]
    at_once, after = (
        config(tmp_path, train=train, evaluate={"every": 50, "tasks": tasks, "when": when})
        for when in ("beside", "after")
    )
    assert at_once.train is not None and after.train is not None
    few, each = own_run.checkpoints_of(at_once, at_once.train, 1000)
    assert own_run.checkpoints_of(after, after.train, 1000) == (few + 20, each)


@pytest.mark.parametrize(
    ("room", "when", "severity"),
    [(80e9, "beside", None), (40e9, "beside", "warning"), (40e9, "idle", None), (24e9, "idle", "error")],
)
def test_a_gpu_too_small_for_a_rank_or_for_both_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float, when: str, severity: str | None
) -> None:
    monkeypatch.setattr(gpus, "gpus_here", lambda: 1)
    monkeypatch.setattr(preflight, "memory_of_gpu", lambda: room)
    cost = {"sample": 1e6, "working": 1e6, "worker": 1e6, "main": 1e6}
    monkeypatch.setattr(preflight, "call", lambda *_: {"cost": cost, "rows": None})
    taken = Footprint(10**9, 10**9, 2 * 10**9, 10**9, 29 * 10**9, 12 * 10**9, 10**9, 3 * 10**9, 10**12)
    monkeypatch.setattr(preflight, "footprint_of", lambda config: taken)
    write_version(tmp_path)
    evaluate = {"every": 50, "tasks": ["zero_shot"], "when": when}
    settings = config(tmp_path, evaluate=evaluate)
    assert preflight.GPU_UNSEEN in preflight_config(settings).report.not_seen
    found = [
        one
        for one in preflight_config(settings, is_deep=True).report.findings
        if one.code == "memory.exceeded"
    ]
    assert [one.severity for one in found] == ([] if severity is None else [severity])
    if severity == "warning":
        assert found[0].config == {"evaluate.when": "idle"}


def test_weights_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    write_version(tmp_path)
    weights = tmp_path / "w.safetensors"
    model = {"name": "ViT-B-32", "pretrained": str(weights)}
    assert str(weights) in judge(tmp_path, train={"model": model})["weights.missing"].evidence["problem"]
    weights.touch()
    assert "weights.missing" not in judge(tmp_path, train={"model": model})


def test_the_parameters_of_a_clip_are_known_to_a_few_percent() -> None:
    from tasks.models.clip.clip_options import model_config

    published = {"ViT-B-32": 151.28e6, "ViT-L-14": 427.62e6}  # open_clip docs/model_profile.csv
    for name, parameters in published.items():
        assert abs(own_run.weights(model_config(name) or {}) - parameters) < 0.04 * parameters, name


def test_ten_thousand_shards_take_less_than_two_seconds(tmp_path: Path) -> None:
    write_version(tmp_path, shards=10_000, samples=1_000_000)
    began = time.process_time()
    assert preflight_config(config(tmp_path)).report.ok
    assert time.process_time() - began < 2.0


def test_the_command_takes_a_config_and_its_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {
        "train": {"shards": 4, "samples": 400, "bytes": 400_000},
        "val": {"shards": 1, "samples": 40, "bytes": 40_000},
    }
    write_version(tmp_path, splits=splits)
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps(config(tmp_path).model_dump(mode="json", by_alias=True, exclude_unset=True)))
    assert load_config(file).train is not None
    assert main(["preflight", str(file)]) == 0
    assert "✓ every worker of every rank gets a batch: 400 samples of 4 shards by the manifest" in (
        capsys.readouterr().out
    )
    assert main(["preflight", str(file), "--set", "train.batch_size=512", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "worker.starved"
    shutil.rmtree(tmp_path / "data")
    assert main(["preflight", str(file)]) == 2


def test_of_another_trainers_command_that_reads_no_tars_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_version(tmp_path)
    file = tmp_path / "a.yaml"
    train = {
        "recipe": "external",
        "model": {"command": ["python", "own.py"]},
        "checkpoint_every": 50,
        "steps": 100,
    }
    given = config(tmp_path, train=train).model_dump(mode="json", by_alias=True, exclude_unset=True)
    file.write_text(json.dumps(given))
    assert main(["preflight", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == [] and "own.py: no trainer that Tarmac knows" in found["not_seen"][0]


def test_what_mends_another_trainers_command_is_named_by_the_configs_keys() -> None:
    found = Finding(
        "worker.starved", "error", "take --workers 1 or a smaller --batch-size", flags={"--workers": 1}
    )
    by_config = preflight._by_config(found, Command.of(["python", "-m", "open_clip_train.main"]))
    assert by_config.remedy == "take loader.workers 1 or a smaller train.batch_size"
    assert (by_config.flags, by_config.config) == (None, {"loader.workers": 1})
    own = preflight._by_config(found, Command.of(["python", "-m", "open_clip_train.main", "--workers", "2"]))
    assert own.remedy == "take --workers 1 or a smaller train.batch_size" and own.flags == {"--workers": 1}


@pytest.mark.system
def test_a_deep_look_measures_what_a_sample_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By loading digits in a child, whose costs then stand in for the estimate."""
    raw = tmp_path / "raw"
    assert main(["example", "digits", str(raw)]) == 0
    file = Path(__file__).parents[2] / "configs/digits-clip.yaml"
    changes = [f"dataset.source.path={raw}/captions.csv", f"runs={tmp_path}/runs"]
    version = build(load_config(file, [*changes, f"dataset.output={tmp_path}/data"])).version
    costs: list[LoaderCost | None] = []
    monkeypatch.setattr(own_run, "judge_own_run", lambda case: costs.append(case.cost) or [])
    assert preflight_config(
        load_config(file, [*changes, f"dataset.output={version}"]), is_deep=True
    ).report.ok
    (cost,) = costs
    assert cost is not None
    assert 100 < cost.sample < 100_000
    assert cost.main > 1e8 > cost.worker > 1e6


def ct_version(folder: Path, **sides: int) -> Path:
    """A version of CT volumes of those sides, the largest of 30 MB as stored."""
    version = write_version(folder, modality="volume_report")
    index = np.load(version / "index/train.npy")
    index["length"] = 30_000_000
    np.save(version / "index/train.npy", index)
    columns = {side: pa.array(np.full(len(index), length, np.int32)) for side, length in sides.items()}
    pq.write_table(pa.table(columns), version / "samples/train.parquet")
    return version


CTVIT = {"recipe": "ct_clip", "model": {"vision": "ctvit"}, "batch_size": 32}


def test_volumes_count_in_memory_with_all_their_voxels(tmp_path: Path) -> None:
    """Four workers with two batches of 32 volumes of 111 MB each under way, and one each that the training may have."""
    ct_version(tmp_path, depth=240, height=480, width=480)
    loader = {"workers": 4, "prefetch": 2}
    assert judge(tmp_path, replace(ROOM, memory=80e9), train=CTVIT, loader=loader).keys() == set()
    found = judge(tmp_path, replace(ROOM, memory=45e9), train=CTVIT, loader=loader)["memory.exceeded"]
    assert "44.3 GB at the peak" in found.evidence["problem"] and found.config is not None
    small = {**CTVIT, "model": {"vision": "tarmac/phantoms"}}
    assert judge(tmp_path, replace(ROOM, memory=45e9), train=small, loader=loader) == {}


def test_volumes_that_are_smaller_than_the_model_reads_are_named(tmp_path: Path) -> None:
    ct_version(tmp_path, depth=240, height=479, width=512)
    found = judge(tmp_path, train=CTVIT)["keys.mismatch"]
    assert found.evidence["problem"] == (
        "volumes of no more than 240 x 479 x 512 voxels, and the model reads 240 x 480 x 480"
    )
    assert found.config == {"dataset.volume.shape": [240, 480, 480]}
