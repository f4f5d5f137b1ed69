"""A repair that is killed at any moment loses nothing, and the next one finishes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.files import blake3_file
from tasks.dataset.repair.run import repair
from tests.dataset import damage
from tests.dataset.damage import Built
from tests.soak.kill_builds import sigkill


def spoil(built: Built) -> list[Path]:
    """Damage of every kind, some of which only the source can mend; returns the tars."""
    for name in ("manifest.json", "inputs.arrow", "index/train.npy"):
        (built.version / name).unlink(missing_ok=True)
    one, two, three, four, five, *_ = built.tars
    damage.swap(one, two)
    damage.flip(three)
    four.unlink()
    five.rename(five.with_name("000099.tar"))
    return built.tars


def start(built: Built) -> subprocess.Popen[bytes]:
    code = f"from tasks.dataset.repair.run import repair; repair({str(built.dataset)!r})"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)


@pytest.mark.parametrize("kills_s", [(0.9,), pytest.param((0.6, 0.9, 1.2), marks=pytest.mark.proof)])
def test_sigkill_leaves_no_trace(tmp_path: Path, kills_s: tuple[float, ...]) -> None:
    """Killed after so long; the start of its interpreter and the whole repair take one to two seconds."""
    built = damage.pictures(tmp_path, 60)
    spoil(built)
    for after_s in kills_s:
        if not sigkill(start(built), after_s):  # it had ended by itself
            built.check(built.tars)
            spoil(built)
    assert repair(built.dataset).ok
    built.check(built.tars)


def test_what_a_killed_repair_left_behind_does_no_harm(built: Built) -> None:
    for folder in ("staging", "good", "tables/draft", "again/versions/0123456789ab", "again/staging"):
        (built.dataset / "repair" / folder).mkdir(parents=True)
    for torn in ("staging/catalogue.sqlite", "good/.1234", f"good/{'0' * 64}.tar", "again/staging/draft"):
        (built.dataset / "repair" / torn).write_bytes(b"torn")
    built.tar(0).unlink()
    damage.flip(built.tar(1))
    (built.version / "rejects.parquet").unlink()
    (built.version / "inputs.arrow").unlink()
    assert built.repair().ok
    built.check(built.tars[:2])


def test_a_shard_that_waits_for_its_place_is_taken_and_one_that_is_torn_is_not(built: Built) -> None:
    good = built.dataset / "repair/good"
    good.mkdir(parents=True)
    built.tar(0).rename(good / f"{blake3_file(built.tar(0))}.tar")
    torn = good / f"{blake3_file(built.tar(1))}.tar"
    built.tar(1).rename(torn)
    damage.flip(torn)
    done = built.repair()
    assert [one.how for one in done.shards][:1] == ["linked from a repair before"]
    assert [one.way for one in done.shards] == ["linked", "converted"]
    built.check(built.tars[:2])
