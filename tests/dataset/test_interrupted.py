"""A build that is killed goes on where it was and ends as if nothing had happened."""

import os
import random
from pathlib import Path

import pytest

from tasks.dataset.build import build
from tasks.dataset.building.assemble import DRAFT
from tasks.dataset.building.convert import Conversion, convert, sidecar_path, tar_path, write_rules
from tasks.dataset.building.leaves import plan_leaves
from tasks.dataset.building.listing import list_samples
from tests.dataset import raw
from tests.soak import kill_builds


@pytest.mark.parametrize("kind", kill_builds.SOURCES)
def test_sigkill_at_random_moments_leaves_no_trace(kind: str, tmp_path: Path) -> None:
    assert kill_builds.episode(kind, tmp_path, random.Random(7), kills=2) >= 2


def test_what_a_killed_build_left_behind_does_no_harm(tmp_path: Path) -> None:
    """Torn temporaries, a tar without sidecar, a sidecar whose tar is cut, a half assembled version."""
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.pictures(folder, 60)
    whole = build(raw.config(folder, tmp_path / "other"))
    started = build(raw.config(folder, output))
    staging = output / "staging"
    staging.mkdir()
    os.rename(started.version, staging / DRAFT)
    for name in (".0123.77", "0123.tar", "4567.arrow"):
        (staging / name).write_bytes(b"torn")
    result = build(raw.config(folder, output))
    assert raw.contents(result.version) == raw.contents(whole.version)
    assert [path.name for path in (output / "versions").iterdir()] == [result.version.name]


def test_a_staged_shard_that_is_damaged_is_made_again(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.pictures(folder, 60)
    config = raw.config(folder, output)
    sound = raw.contents(build(raw.config(folder, tmp_path / "other")).version)
    staging = output / "staging"
    staging.mkdir(parents=True)
    rules = write_rules(staging, config.dataset)
    catalogue = list_samples(config, staging)
    plan_leaves(catalogue, config.dataset)
    leaves = list(catalogue.leaves())
    catalogue.close()
    for leaf in leaves:
        convert(Conversion(staging, rules, leaf.ordinal))
    os.truncate(tar_path(staging, leaves[0].digest), 100)
    sidecar_path(staging, leaves[1].digest).write_bytes(b"torn")
    tar_path(staging, leaves[2].digest).unlink()
    assert raw.contents(build(config).version) == sound
