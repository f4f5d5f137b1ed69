"""Preflight of a training command before it starts, from the tars and the trainer's rules alone."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from flows.cli import main
from tasks.core.config import load_config
from tasks.core.errors import UsageError
from tasks.core.findings import Finding
from tasks.diagnosis.foreign import judgement
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.foreign.mend import mend
from tasks.diagnosis.foreign.probe import Flow, PipelineStage, ProbeReport, Refusal
from tasks.diagnosis.foreign.survey import survey
from tasks.diagnosis.preflight import Preflight, preflight_command
from tasks.trainers import recognise
from tasks.trainers.command import Command
from tests.diagnosis.tars import open_clip, write_tars

PATTERN = "train/{000000..000002}.tar"
UNCAPTIONED = ("jpg", "json", "paug.json")


def examine(folder: Path, options: str = "--workers 1", pattern: str = PATTERN) -> Preflight:
    return preflight_command(open_clip(pattern, options), folder)


def by_code(found: Preflight) -> dict[str, Finding]:
    return {one.code: one for one in found.report.findings}


def case(folder: Path, options: str, answer: ProbeReport | None = None) -> Case:
    """A case whose pipeline has given this answer."""
    command = Command.of(open_clip(PATTERN, options), folder)
    trainer = recognise(command)
    data = trainer.data(command)
    assert data is not None
    seen = survey([str(folder / f"train/{number:06d}.tar") for number in range(3)])
    return Case(command, trainer, data, seen, answer, bytes_per_s=1e6)


def answer_of(
    seen: Case, dropped_by: str = "", failing: Mapping[str, int] | None = None, **facts: Any
) -> ProbeReport:
    """The answer of a pipeline that passes everything, or drops everything at one of its stages."""
    flows = {}
    for kind, examples in seen.survey.examples.items():
        count, stages = (
            len(examples),
            [PipelineStage("tarfile_to_samples_nothrow", "open_clip_train/data.py:222", 1, len(examples))],
        )
        for name in ("select(filter_no_caption_or_no_image)", "decode", "batched"):
            out = 0 if name == dropped_by else count
            stages.append(PipelineStage(name, "open_clip_train/data.py:174", count, out))
            count = out
        flows[kind] = Flow(stages, failing or {}, ["logged by the trainer"] if failing else [])
    given: dict[str, Any] = {"versions": {}, "whole": {}, "assigned": [], "refusal": None, **facts}
    return ProbeReport(flows=flows, **given)


def test_samples_without_a_caption_are_an_error_with_a_config_that_mends_it(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", UNCAPTIONED)
    found = examine(tmp_path)
    finding = by_code(found)["keys.mismatch"]
    assert not found.report.ok
    assert finding.evidence["samples"] == finding.evidence["dropped"] == 12
    assert finding.evidence["found"] == "jpg json paug.json"
    assert finding.where["rule"] == "open_clip_train/data.py, filter_no_caption_or_no_image"
    assert finding.command == "tarmac build fixed.yaml"
    assert found.mended is not None and found.mended.command is not None
    config = load_config(tmp_path / "fixed.yaml")
    assert config.dataset.source is not None
    assert config.dataset.source.members == {"txt": "json:caption"}  # type: ignore[union-attr]
    assert "data/train-fixed/current/train/*.tar" in found.mended.command
    assert any("its rules are those of open_clip_torch 3.3.0" in one for one in found.report.not_seen)


def test_members_of_teachers_are_kept_where_all_are_there_and_named_where_they_are_left_out(
    tmp_path: Path,
) -> None:
    taught = (*UNCAPTIONED, "syn.json", "npz")
    for members, modality, left_out in (
        (UNCAPTIONED, "image_text", ["paug.json"]),
        (taught, "reinforced", []),
    ):
        write_tars(tmp_path / "train", members)
        mended = examine(tmp_path).mended
        assert mended is not None and mended.config is not None
        assert (load_config(mended.config).dataset.modality, mended.left_out) == (modality, left_out)
        assert ("# They leave out paug.json: " in mended.config.read_text()) == bool(left_out)


def test_a_config_of_the_same_name_that_is_somebodys_own_is_left_alone(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", UNCAPTIONED)
    (tmp_path / "fixed.yaml").write_text("name: mine\n")
    examine(tmp_path)
    examine(tmp_path)
    assert (tmp_path / "fixed.yaml").read_text() == "name: mine\n"
    assert load_config(tmp_path / "fixed-2.yaml").name == "train-fixed"
    assert not (tmp_path / "fixed-3.yaml").exists()


@pytest.mark.parametrize(
    ("members", "made"),
    [(("jpg", "caption"), {"txt": "caption"}), (("image.jpg", "txt"), {"image": "image.jpg"})],
)
def test_members_of_other_names_are_renamed(
    tmp_path: Path, members: tuple[str, ...], made: dict[str, str]
) -> None:
    write_tars(tmp_path / "train", members)
    examine(tmp_path)
    source = load_config(tmp_path / "fixed.yaml").dataset.source
    assert source is not None and source.members == made  # type: ignore[union-attr]


def test_without_anything_to_make_a_caption_of_nothing_is_written(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "cls"))
    found = examine(tmp_path)
    assert by_code(found)["keys.mismatch"].command is None
    assert list(tmp_path.glob("*.yaml")) == []


def test_some_samples_without_a_caption_are_a_warning(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    write_tars(tmp_path / "train", ("jpg", "json"), tars=1)
    finding = by_code(examine(tmp_path))["keys.partial"]
    assert (finding.severity, finding.evidence["dropped"], finding.evidence["samples"]) == ("warning", 4, 12)


def test_sound_shards_are_found_sound(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    found = examine(tmp_path, "--workers 3 --batch-size 4")
    assert found.report.findings == []
    assert found.report.ok


def test_fewer_shards_than_workers_is_an_error_and_resampling_is_none(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    finding = by_code(examine(tmp_path, "--workers 4"))["shards.too_few"]
    assert (finding.severity, finding.flags) == ("error", {"--workers": 3})
    resampled = examine(tmp_path, "--workers 4 --dataset-resampled --train-num-samples 12")
    assert "shards.too_few" not in by_code(resampled)


def test_shards_that_are_not_there_are_named(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    (tmp_path / "train/000001.tar").unlink()
    finding = by_code(examine(tmp_path))["shard.missing"]
    assert finding.severity == "warning" and "000001.tar" in finding.where["shard"]
    wild = by_code(examine(tmp_path, pattern="train/*.tar"))["shard.missing"]
    assert wild.severity == "error" and "no *" in wild.remedy


def test_without_any_shard_nothing_else_is_advised(tmp_path: Path) -> None:
    found = examine(tmp_path, "--workers 4")
    assert list(by_code(found)) == ["shard.missing"]
    assert found.report.findings[0].severity == "error" and found.report.findings[0].flags is None


def test_an_image_that_pillow_refuses_is_reported_by_its_header(tmp_path: Path) -> None:
    header = b"IHDR" + (20000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
    start = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + header + crc32(header).to_bytes(4, "big")
    huge = start + (8).to_bytes(4, "big") + b"IDAT" + bytes(64)
    write_tars(tmp_path / "train", ("png", "txt"), png=huge)
    finding = by_code(examine(tmp_path))["image.oversized"]
    assert finding.evidence["largest"] == "400 million pixels"
    assert "refuses 12" in finding.evidence["problem"]


def test_long_tars_are_an_estimate_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.diagnosis.foreign.survey.SAMPLES", 5)
    write_tars(tmp_path / "train", ("jpg", "json"), tars=3, each=20)
    found = examine(tmp_path)
    assert found.samples == 15
    assert any("--deep" in one for one in found.report.not_seen)
    whole = preflight_command(open_clip(PATTERN, "--workers 1"), tmp_path, is_deep=True)
    assert whole.samples == 60


def test_a_worker_with_fewer_samples_than_a_batch_is_starved(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = case(tmp_path, "--workers 3 --batch-size 5")
    tars = list(seen.survey.locations)
    sound = replace(seen, answer=answer_of(seen, assigned=[[[tars[0]], [tars[1]], [tars[2]]]], batches=3))
    (finding,) = [one for one in judgement.judge_command(sound) if one.code == "worker.starved"]
    assert "3 of 3 workers" in finding.evidence["problem"] and finding.flags == {"--workers": 1}
    enough = replace(sound, data=replace(seen.data, batch_size=4))
    assert "worker.starved" not in {one.code for one in judgement.judge_command(enough)}


def test_workers_that_own_far_fewer_samples_than_others_are_a_warning(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = case(tmp_path, "--workers 2 --batch-size 2")
    tars = list(seen.survey.locations)
    uneven = replace(seen, answer=answer_of(seen, assigned=[[[tars[0], tars[2]], [tars[1]]]], batches=6))
    assert {one.code for one in judgement.judge_command(uneven)} >= {"batches.uneven"}


def test_a_warm_up_longer_than_the_training_is_a_warning_with_the_rate_it_ends_at(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = case(tmp_path, "--workers 1 --epochs 4 --accum-freq 2")
    long = replace(seen, answer=answer_of(seen, batches=544))
    (finding,) = [one for one in judgement.judge_command(long) if one.code == "schedule.warmup"]
    assert finding.evidence["problem"] == (
        "10,000 warm-up steps of 1,088: the learning rate ends at 5.4e-5, never 5e-4"
    )
    assert finding.flags == {"--warmup": 108}


def test_json_that_does_not_decode_drops_its_samples(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt", "json"))
    seen = case(tmp_path, "--workers 1")
    broken = replace(seen, answer=answer_of(seen, dropped_by="decode", failing={"json": 6}))
    (finding,) = [one for one in judgement.judge_command(broken) if one.code == "json.conflict"]
    assert finding.severity == "error" and "`json` does not decode" in finding.evidence["problem"]
    image = replace(seen, answer=answer_of(seen, dropped_by="decode", failing={"jpg": 6}))
    assert {one.code for one in judgement.judge_command(image)} == {"member.undecodable"}


@pytest.mark.parametrize("read", [0, 7])
def test_a_webdataset_of_another_line_is_named_where_it_reads_no_tar_to_its_end(
    tmp_path: Path, read: int
) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = case(tmp_path, "--workers 1")
    stages = [PipelineStage("tarfile_to_samples_nothrow", "open_clip_train/data.py:222", 1, read)]
    unread = Flow(stages, {}, error="KeyError: 'fname'", error_place="open_clip_train/data.py:195")
    given = replace(
        answer_of(seen, versions={"webdataset": "1.0.2"}), flows=dict.fromkeys(seen.survey.kinds, unread)
    )
    (finding,) = judgement.judge_command(replace(seen, answer=given))
    assert (
        finding.code == "version.webdataset"
        and "webdataset 1.0.2 reads no tar" in finding.evidence["problem"]
    )
    older = replace(given, versions={"webdataset": "0.2.86"})
    assert {one.code for one in judgement.judge_command(replace(seen, answer=older))} == {
        "member.undecodable"
    }


@pytest.mark.parametrize(
    ("members", "code"),
    [
        (("jpg", "txt", "paug.json", "npz"), "reinforcement.members"),
        (("jpg", "paug.json", "npz"), "keys.mismatch"),
    ],
)
def test_reinforced_samples_need_what_teachers_said(
    tmp_path: Path, members: tuple[str, ...], code: str
) -> None:
    write_tars(tmp_path / "train", members)
    options = (
        "--workers 1 --dataset-reinforcement --distill-teacher-dimension 768 768 --distill-logit-scale 100"
    )
    found = by_code(examine(tmp_path, options))
    assert found[code].severity == "error"
    assert found["reinforcement.teachers"].remedy.startswith("give --distill-logit-scale 100 100")
    assert "reinforcement.teachers" not in by_code(examine(tmp_path, f"{options} 100"))


def test_what_the_trainer_would_end_with_is_reported_as_it_says_it(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = case(tmp_path, "--workers 1")
    refusal = Refusal(
        "RuntimeError", "the number of samples must be specified", "open_clip_train/data.py:330"
    )
    refused = replace(seen, answer=answer_of(seen, refusal=refusal))
    (finding,) = judgement.judge_command(refused)
    assert finding.code == "count.mismatch" and finding.flags == {"--train-num-samples": 12}
    assert finding.where["rule"] == refusal.place


def test_a_number_of_samples_that_is_not_the_shards_is_a_warning(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    wrong = by_code(examine(tmp_path, "--workers 1 --train-num-samples 1200"))["count.mismatch"]
    assert wrong.severity == "warning" and wrong.flags == {"--train-num-samples": 12}
    assert "count.mismatch" not in by_code(examine(tmp_path, "--workers 1 --train-num-samples 12"))


def test_a_slow_disk_makes_the_first_batch_late(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = replace(case(tmp_path, "--workers 2 --dataset-resampled"), bytes_per_s=30_000.0)
    (finding,) = [one for one in judgement.judge_command(seen) if one.code == "shuffle.warmup"]
    assert "1,000 samples" in finding.evidence["problem"]
    fast = replace(seen, bytes_per_s=1e9)
    assert [one["code"] for one in judgement.ruled_out(fast, judgement.judge_command(fast))] == [
        "shuffle.warmup"
    ]


def test_flags_of_all_findings_stand_in_one_command(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    seen = case(tmp_path, "--workers 8 --warmup=10000 --name 'a b'")
    slow = replace(seen, answer=answer_of(seen, batches=20))
    command = mend(slow, judgement.judge_command(slow), tmp_path).command
    assert command is not None and command.endswith("--name 'a b' --workers 3 --warmup 64")
    assert "--warmup=10000" not in command and "--workers 8" not in command


def test_a_command_that_trains_on_no_tars_is_a_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.py: no trainer that Tarmac knows"):
        preflight_command(["python", "train.py"], tmp_path)
    with pytest.raises(UsageError, match="is a command, which preflight does not run"):
        preflight_command(open_clip("pipe:cat {0..1}.tar"), tmp_path)


def test_the_command_says_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tars(tmp_path / "train", UNCAPTIONED)
    words = open_clip(PATTERN, "--workers 1")
    assert main(["preflight", "--", *words]) == 1
    text = capsys.readouterr().out
    assert (
        "✗ keys.mismatch     no caption (txt) in any of 12 samples: all are dropped, no batch ever comes"
        in text
    )
    assert (
        'fix    tarmac build fixed.yaml   (written; txt ← json "caption", present in 12); it leaves out paug.json'
        in text
    )
    assert main(["preflight", "--json", "--", *words]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert not printed["ok"]
    assert [one["code"] for one in printed["findings"]] == ["keys.mismatch"]
    assert printed["mended"]["config"].endswith("fixed.yaml")
    assert main(["preflight"]) == 2


def test_a_torn_tar_does_not_end_the_look(tmp_path: Path) -> None:
    write_tars(tmp_path / "train", ("jpg", "txt"))
    path = tmp_path / "train/000002.tar"
    path.write_bytes(path.read_bytes()[:2000])
    assert tarfile.is_tarfile(path)
    assert examine(tmp_path).samples == 9
