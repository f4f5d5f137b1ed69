"""What a training process inherits, and how a change of code or packages is named."""

from __future__ import annotations

from pathlib import Path

from tasks.runs import provenance
from tasks.runs.environment import rank_environment
from tests.supervision.fakes import make_config


def test_threads_are_the_configs_and_trackers_are_out_of_reach(tmp_path: Path) -> None:
    train = make_config(tmp_path, train={"threads": 3}).train
    assert train is not None
    secrets = {"WANDB_API_KEY": "k", "WANDB_SERVICE": "s", "PREFECT_API_KEY": "p"}
    found = rank_environment(train, {"HOME": "/h", "OMP_NUM_THREADS": "64", **secrets})
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert found["OMP_DYNAMIC"] == found["MKL_DYNAMIC"] == "FALSE"
    assert found["HOME"] == "/h" and not secrets.keys() & found.keys()


def test_differences_between_attempts_are_named() -> None:
    now = provenance.versions()
    code = provenance.code_digest()
    assert provenance.differences(code, now, code, now) == []
    before = {**now, "numpy": "1.0", "gone": "2"}
    assert provenance.differences("other", before, code, now) == [
        "gone 2 → not installed",
        f"numpy 1.0 → {now['numpy']}",
        "Tarmac's own code",
    ]
