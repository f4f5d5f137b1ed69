"""An undisturbed training, to which all others are compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runs.folder import RunFolder
from tests.conftest import ROOT
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
    """A finished run without loader workers; nobody may change it. Its process saw neither wandb nor prefect."""
    run = make_run(digits_dataset, tmp_path_factory.mktemp("undisturbed"))
    subprocess.run(
        [sys.executable, "-c", CODE, str(run.path)],
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    return run
