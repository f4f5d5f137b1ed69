"""Rules on scores: what they leave out, what stays, and which shards are converted again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.core.schema.score import Scoring
from tasks.dataset.building.builder import is_up_to_date
from tasks.dataset.building.conversion import convert
from tasks.dataset.building.forecast import forecast
from tasks.dataset.repair.run import repair
from tasks.dataset.scores import VersionSamples, remove_unknown, score_file, scores_folder
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import versions
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.manifest import read_manifest
from tests.dataset import raw
from tests.dataset.building.prepared import COUNT, changed, pictures, published

BLOCK = Scoring.model_validate({"model": {"name": "tarmac/digits", "pretrained": "some tag"}})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Pictures with captions, built; the score block names a model."""
    config = pictures(tmp_path).model_copy(update={"score": BLOCK})
    published(config)
    return config


def by_number(key: str) -> float:
    """0.00 for the first picture to 0.59 for the last."""
    return int(key) / 100


def write_scores(
    config: Config, score_of: Callable[[str], float | None] = by_number, only: int | None = None
) -> Path:
    """Write scores as `tarmac score` does, of `only` some shards; None is no score."""
    folder = scores_folder(config.dataset.output, config.score.model)  # type: ignore[union-attr]
    folder.mkdir(parents=True, exist_ok=True)
    for one in list(VersionSamples(versions.current(config.dataset.output)))[:only]:
        rows = [row for row, key in enumerate(one.keys) if score_of(key) is not None]
        table = {
            "key": [one.keys[row] for row in rows],
            "content": pa.array([one.contents[row].tobytes() for row in rows], pa.binary(16)),
            "crc32c": pa.array(one.checksums[rows]),
            "clip_score": pa.array([score_of(one.keys[row]) for row in rows], pa.float32()),
        }
        pq.write_table(pa.table(table), score_file(folder, one.shard))
    return folder


def ruled(config: Config, **rules: Any) -> Config:
    block = config.dataset.model_dump(mode="json") | {"filter": rules}
    return config.model_copy(update={"dataset": type(config.dataset).model_validate(block)})


def keys(config: Config) -> set[int]:
    samples = VersionSamples(versions.current(config.dataset.output))
    return {int(key) for one in samples for key in one.keys}


def test_what_scores_less_than_the_minimum_is_left_out_and_counted(config: Config) -> None:
    write_scores(config)
    strict = ruled(config, clip_score=0.2)
    assert is_up_to_date(strict) is None
    built = published(strict)
    assert keys(strict) == set(range(20, COUNT))
    assert (built.read, built.accepted, built.filtered, built.rejected) == (COUNT, 40, 20, 0)
    assert read_build_info(built.version).unscored == 0
    assert not verify(built.version, "full").findings
    assert is_up_to_date(strict) == versions.current(strict.dataset.output)
    again = published(strict)
    assert again.up_to_date and not again.shards_rewritten


def test_limits_have_both_ends(config: Config) -> None:
    write_scores(config)
    limits = ruled(config, clip_score={"min": 0.1, "max": 0.3})
    published(limits)
    assert keys(limits) == set(range(10, 31))


def test_samples_without_a_score_stay_and_are_counted(config: Config) -> None:
    write_scores(config, only=1)
    scored = {int(key) for key in next(iter(VersionSamples(versions.current(config.dataset.output)))).keys}
    strict = ruled(config, clip_score=1)
    built = published(strict)
    assert keys(strict) == set(range(COUNT)) - scored
    assert read_build_info(built.version).unscored == COUNT - len(scored) == built.accepted


def test_a_new_score_converts_only_the_shards_that_it_changes(config: Config) -> None:
    write_scores(config, lambda key: 0.5)
    lax = ruled(config, clip_score=0.3)
    built = published(lax)
    assert built.shards_rewritten == 0, "nothing is left out"
    write_scores(lax, lambda key: 0.1 if key == "0007" else 0.5)
    seen = forecast(lax)
    assert seen.why == "samples or their scores have changed, come or gone"
    assert seen.work is not None and seen.work.to_convert_shards == 1
    built = published(lax)
    assert built.shards_rewritten == 1 and keys(lax) == set(range(COUNT)) - {7}
    built = published(ruled(lax, clip_score=0.05))
    assert built.shards_rewritten == 0 and built.accepted == COUNT, "the first version has that shard"
    built = published(config)
    assert built.accepted == COUNT and not built.shards_rewritten, "without the rule all is as before"


def test_a_sample_that_was_left_out_stays_out_whoever_scores_the_rest(config: Config) -> None:
    folder = write_scores(config)
    strict = ruled(config, clip_score=0.2)
    published(strict)
    write_scores(strict)
    for version in versions.list_versions(strict.dataset.output)[1:]:
        versions.remove(version)
    remove_unknown(folder, versions.list_versions(strict.dataset.output))
    built = published(strict)
    assert built.accepted == 40 and keys(strict) == set(range(20, COUNT))
    published(config, accept_loss=True)
    assert len(keys(config)) == COUNT


def test_scores_go_with_the_last_version_that_knows_a_sample(config: Config, tmp_path: Path) -> None:
    folder = write_scores(config)
    assert remove_unknown(folder, versions.list_versions(config.dataset.output)) == 0
    there = len(list(folder.iterdir()))
    for number in range(COUNT):
        (tmp_path / f"raw/{number:04d}.png").write_bytes(raw.png(1000 + number))
    published(config, accept_loss=True)
    assert remove_unknown(folder, versions.list_versions(config.dataset.output)) == 0, "one version has them"
    versions.prune(config.dataset.output, 1)
    assert remove_unknown(folder, versions.list_versions(config.dataset.output)) == there
    assert not list(folder.iterdir())


def test_a_shard_that_a_killed_build_staged_by_other_scores_is_converted_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scores(config)
    other = changed(config, image=config.dataset.image.model_copy(update={"min_side": 2}))

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tasks.dataset.building.conversion.assemble.describe", stop)
        with pytest.raises(KeyboardInterrupt):
            published(ruled(other, clip_score=0.5))
    assert list((config.dataset.output / "staging").glob("*.tar"))
    published(ruled(other, clip_score=0.2))
    assert keys(config) == set(range(20, COUNT))


def test_workers_of_their_own_know_the_decisions(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.core.engines import map_groups

    monkeypatch.setattr(convert, "map_groups", map_groups)
    write_scores(config)
    strict = ruled(config, clip_score=0.2)
    assert published(strict).accepted == 40


def test_a_damaged_shard_is_repaired_without_the_model(config: Config) -> None:
    folder = write_scores(config)
    built = published(ruled(config, clip_score=0.2))
    for path in folder.iterdir():
        path.unlink()
    tar = built.version / "train/000000.tar"
    before = tar.read_bytes()
    tar.write_bytes(before[:600] + bytes(600) + before[1200:])
    for version in versions.list_versions(config.dataset.output):
        if version.name != built.version.name:
            versions.remove(version)
    assert repair(built.version).ok and tar.read_bytes() == before
    assert not verify(built.version, "full").findings


def test_a_column_of_the_source_comes_before_a_score(tmp_path: Path) -> None:
    rows = raw.pictures(tmp_path / "raw", 8)
    table = [(*row, number / 10) for number, row in enumerate(rows)]
    raw.write_table(tmp_path / "raw", table, ("file", "caption", "label", "clip_score"))
    config = ruled(raw.config(tmp_path / "raw", tmp_path / "out"), clip_score=0.5)
    assert published(config).accepted == 3, "no score block is needed"


@pytest.mark.parametrize(
    ("rules", "block", "says"),
    [
        (
            {"clip_score": 0.3},
            None,
            r"dataset\.filter\.clip_score: a model gives it, and no score block names",
        ),
        (
            {"duplicate_similarity": {"max": 0.9}},
            {},
            r"duplicate_similarity: is only given where score\.semdedup",
        ),
        ({"aesthetic_score": 5}, {}, r"aesthetic_score: is only given where score\.aesthetic is set"),
        ({"clip_score": "high"}, {}, r"dataset\.filter\.clip_score: is a number; give a minimum"),
        ({"clip_scor": 0.3}, {}, r"did you mean clip_score"),
    ],
)
def test_a_rule_that_no_score_can_meet_is_one_line(
    tmp_path: Path, rules: dict[str, Any], block: dict[str, Any] | None, says: str
) -> None:
    config = ruled(pictures(tmp_path), **rules)
    if block is not None:
        config = config.model_copy(update={"score": BLOCK})
    with pytest.raises(UsageError, match=says) as caught:
        published(config)
    assert "\n" not in str(caught.value)


def test_weights_that_are_gone_do_not_undo_a_rule(config: Config) -> None:
    write_scores(config)
    gone = Scoring.model_validate({"model": {"name": "tarmac/digits", "pretrained": "runs/gone.safetensors"}})
    with pytest.raises(UsageError, match=r"there is no file runs/gone\.safetensors, whose content names"):
        published(ruled(config, clip_score=0.2).model_copy(update={"score": gone}))
    assert read_manifest(versions.current(config.dataset.output)).accepted == COUNT


def test_damaged_scores_stop_a_build_by_their_name(config: Config) -> None:
    folder = write_scores(config)
    victim = min(folder.iterdir())
    victim.write_bytes(victim.read_bytes()[:-20])
    with pytest.raises(DataError, match=rf"{victim.name}: cannot be read .*`tarmac score` makes it again"):
        published(ruled(config, clip_score=0.2))
