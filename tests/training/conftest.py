"""An undisturbed training, to which all others are compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runs.folder import RunFolder
from tests.conftest import ROOT, made_once
from tests.training.helpers import make_run

CODE = """
import sys
from tasks.training import rank
code = rank.main([sys.argv[1]])
assert not {"wandb", "prefect"} & {name.partition(".")[0] for name in sys.modules}, "imported in training"
sys.exit(code)
"""


@pytest.fixture(scope="session")
def undisturbed(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run without loader workers. Its process saw neither wandb nor prefect."""

    def make(folder: Path) -> None:
        subprocess.run(
            [sys.executable, "-c", CODE, str(make_run(digits_dataset, folder).path)],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            check=True,
            timeout=120,
        )

    (run,) = made_once(tmp_path_factory, "undisturbed", make).glob("runs/digits-clip-*")
    return RunFolder(run)
