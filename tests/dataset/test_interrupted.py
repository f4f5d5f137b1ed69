"""A build that is killed goes on where it was and ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tasks.dataset.build import build
from tasks.dataset.convert import Conversion, convert, sidecar_path, tar_path
from tasks.dataset.leaves import plan_leaves
from tasks.dataset.listing import list_samples
from tests.dataset import raw

COUNT = 300
BUILD = """
import sys
from pathlib import Path
from tasks.dataset.build import build
from tasks.dataset.convert import Conversion, convert, sidecar_path, tar_path
from tasks.dataset.leaves import plan_leaves
from tasks.dataset.listing import list_samples
from tests.dataset import raw

if __name__ == "__main__":
    build(raw.config(Path(sys.argv[1]), Path(sys.argv[2]), workers=2, shard={"samples": 4}))
"""


def start(script: Path, folder: Path, output: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(output)], env=environment, start_new_session=True
    )


def wait_for(output: Path, sidecars: int, process: subprocess.Popen[bytes]) -> int:
    """Wait until the build has converted so many shards."""
    while process.poll() is None:
        done = len(list((output / "staging").glob("*.parquet")))
        if done >= sidecars:
            return done
        time.sleep(0.002)
    raise AssertionError("the build ended before it could be killed")


def test_sigkill_at_several_moments_leaves_no_trace(tmp_path: Path) -> None:
    folder, output, script = tmp_path / "raw", tmp_path / "out", tmp_path / "script.py"
    raw.table(folder, COUNT, side=32)
    script.write_text(BUILD)
    for sidecars in (1, 40):
        process = start(script, folder, output)
        done = wait_for(output, sidecars, process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)  # the starter alone; its workers must follow by themselves
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive
        assert done < COUNT / 4 - 5, "the kill came in the middle"
        assert not (output / "versions").exists()
    result = build(raw.config(folder, output, shard={"samples": 4}))
    undisturbed = build(raw.config(folder, tmp_path / "other", workers=2, shard={"samples": 4}))
    assert result.version.name == undisturbed.version.name
    assert raw.contents(result.version) == raw.contents(undisturbed.version)
    assert sorted(path.name for path in output.iterdir()) == ["versions"]


def test_what_a_killed_build_left_behind_does_no_harm(tmp_path: Path) -> None:
    """Torn temporaries, a tar without sidecar, a sidecar whose tar is cut, a half assembled version."""
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.table(folder, 60)
    whole = build(raw.config(folder, tmp_path / "other"))
    started = build(raw.config(folder, output))
    os.rename(started.version, output / "versions" / ".draft")
    staging = output / "staging"
    staging.mkdir()
    for name in (".0123.77", "0123.tar", "4567.parquet"):
        (staging / name).write_bytes(b"torn")
    result = build(raw.config(folder, output))
    assert raw.contents(result.version) == raw.contents(whole.version)
    assert [path.name for path in (output / "versions").iterdir()] == [result.version.name]


def test_a_staged_shard_that_is_damaged_is_made_again(tmp_path: Path) -> None:
    folder, output = tmp_path / "raw", tmp_path / "out"
    raw.table(folder, 60)
    config = raw.config(folder, output)
    sound = raw.contents(build(raw.config(folder, tmp_path / "other")).version)
    staging = output / "staging"
    staging.mkdir(parents=True)
    leaves = plan_leaves(list_samples(config), config.dataset)
    for leaf in leaves:
        convert(Conversion(leaf, config.dataset, staging))
    os.truncate(tar_path(staging, leaves[0].digest), 100)
    sidecar_path(staging, leaves[1].digest).write_bytes(b"torn")
    tar_path(staging, leaves[2].digest).unlink()
    assert raw.contents(build(config).version) == sound
