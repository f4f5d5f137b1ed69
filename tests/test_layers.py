"""Heavy packages stay where they belong: the library runs without Prefect and wandb, verify without torch."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tasks
from tests.soak import many_shards

PACKAGES = [module.name for module in pkgutil.iter_modules(tasks.__path__) if module.ispkg]


def imported(statement: str, *, blocked: tuple[str, ...] = ()) -> set[str]:
    """The top-level packages in a fresh interpreter after `statement`, while `blocked` ones cannot be had."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({list(blocked)!r}))\n{statement}\n"
        "print(*sorted({name.partition('.')[0] for name, module in sys.modules.items() if module}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_the_library_imports_without_prefect_and_wandb() -> None:
    """Every module of every package, training among them; only the gatherer imports wandb, when it runs."""
    modules = [
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages([f"{tasks.__path__[0]}/{package}"], f"tasks.{package}.")
    ]
    assert len(modules) > 150
    statement = f"import importlib\nfor module in {modules!r}: importlib.import_module(module)"
    assert "prefect" not in imported(statement, blocked=("prefect", "wandb"))


@pytest.mark.proof
def test_adapters_bring_no_tracker_into_a_training() -> None:
    """Which peft would import, wherever it is installed."""
    found = imported("from tasks.models import adapters\nadapters._peft()")
    assert "peft" in found and "wandb" not in found


def test_verify_needs_no_torch() -> None:
    blocked = ("torch", "prefect", "wandb", "sklearn", "matplotlib")
    assert "numpy" in imported(
        "import tasks.dataset.verify.verifier, tasks.dataset.verify.shard", blocked=blocked
    )


LIGHT = ("pydantic", "rich", "psutil", "multiprocessing", "PIL", "fsspec")
"""Each of these takes a tenth or more of the 0.15 s that `tarmac verify` takes for a small dataset."""


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ([], (*LIGHT, "numpy", "pyarrow", "omegaconf")),
        (["--quick", "--json"], LIGHT),  # it reads a table
        (["--full"], ("pandas", "scipy", "transformers", "datasets")),  # it decodes
    ],
)
def test_the_command_proves_a_sound_version_without_heavy_imports(
    tmp_path: Path, options: list[str], absent: tuple[str, ...]
) -> None:
    version = many_shards.make(tmp_path / "version", 2, 3)
    words = ["verify", str(version), *options]
    statement = (
        "import contextlib, io\nfrom flows.cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): assert main({words!r}) == 0"
    )
    loaded = imported(statement)
    assert "flows" in loaded and not {*absent, "torch", "prefect", "wandb", "sklearn", "matplotlib"} & loaded


def test_the_agent_is_light() -> None:
    loaded = imported("import tasks.supervision.agent")
    assert not {"torch", "wandb", "tensorboardX", "prefect", "matplotlib", "pandas"} & loaded


def test_no_rank_and_no_evaluation_has_a_tracker() -> None:
    loaded = imported("import tasks.training.rank, tasks.training.external, tasks.evaluation.job")
    assert not {"wandb", "tensorboardX"} & loaded


def test_nothing_heavy_comes_in_before_the_work_is_known_to_be_needed() -> None:
    loaded = imported("import flows.cli, tasks.supervision.status")
    assert not {"torch", "wandb", "prefect", "submitit", "numpy", "pyarrow", "omegaconf"} & loaded


def test_nothing_that_is_installed_here_slows_the_start_of_prefect() -> None:
    """jsonschema, which Prefect imports, takes this package where there is one, and it builds grammars: seconds for
    each process."""
    assert find_spec("rfc3987_syntax") is None, "see which package of constraints.txt brings it"
