"""What a checkpoint holds, who can read it, and what a full disk leaves."""

from __future__ import annotations

import math
import pickle
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tasks.core.errors import DataError, TarmacError
from tasks.core.files import read_json
from tasks.core.process import child_environment
from tasks.runs.checkpoints import is_sound, list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
from tests.training.helpers import STEPS


class Tied(nn.Module):
    """Two layers that share their weight, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight


def one_step(model: Tied) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    output: torch.Tensor = model.second(model.first(torch.rand(3, 4)))
    output.square().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return optimizer


def test_takes_up_weights_optimizer_and_generator(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    torch.manual_seed(1)
    model = Tied()
    optimizer = one_step(model)
    checkpoints.save_checkpoint(run, 7, model, {"optimizer": optimizer.state_dict()})
    expected = torch.rand(4)

    found = checkpoints.newest(run)
    assert found is not None and found.step == 7
    other = Tied()
    again = torch.optim.AdamW(other.parameters(), lr=0.1)
    again.load_state_dict(checkpoints.restore(found, other)["optimizer"])
    assert torch.equal(torch.rand(4), expected)
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), other.parameters(), strict=True)
    )
    assert other.second.weight is other.first.weight
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert all(torch.equal(a, s["exp_avg"]) for a, s in zip(moments, again.state.values(), strict=True))


def test_is_whole_and_named_by_latest(undisturbed: RunFolder) -> None:
    checkpoint = list_checkpoints(undisturbed)[-1]
    assert checkpoint.step == STEPS and is_sound(checkpoint)
    assert undisturbed.latest.resolve() == checkpoint.path.resolve()
    meta = read_json(checkpoint.path / "meta.json")
    assert set(meta) == {"step", "files", "val_loss", "time", "seconds"} and 0 < meta["val_loss"] < math.log(
        256
    )
    assert {path.name for path in checkpoint.path.iterdir()} == {"meta.json", *meta["files"]}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in checkpoint.path.iterdir())


def test_others_read_it_without_tarmac_and_without_running_code(undisturbed: RunFolder) -> None:
    folder = undisturbed.checkpoint(STEPS)
    weights = load_file(folder / "model.safetensors")
    assert weights["visual.conv1.weight"].dtype == torch.float32 and "logit_scale" in weights
    state = torch.load(folder / "state.pt", weights_only=True)
    assert set(state) == {"optimizer", "feed", "random"}
    assert state["feed"] == {"position": STEPS * 32, "unit": "sample"}


def test_a_state_that_would_run_code_is_refused(undisturbed: RunFolder, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path(tmp_path / "sprung").touch, ())  # type: ignore[return-value]

    run = RunFolder(tmp_path)
    checkpoints.save_checkpoint(run, 1, Tied(), {})
    torch.save(Trap(), run.checkpoint(1) / "state.pt")
    model = Tied()
    with pytest.raises(pickle.UnpicklingError):
        checkpoints.restore(list_checkpoints(run)[0], model)
    assert not (tmp_path / "sprung").exists()


def test_a_validation_loss_is_added_to_what_is_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    checkpoints.save_checkpoint(run, 1, Tied(), {})
    before = read_json(run.checkpoint(1) / "meta.json")
    checkpoints.add_val_loss(run, 1, 0.5)
    assert read_json(run.checkpoint(1) / "meta.json") == {**before, "val_loss": 0.5}
    assert is_sound(list_checkpoints(run)[0])


@pytest.mark.parametrize("link", ["latest", "best"])
def test_a_link_that_a_copy_made_a_folder_is_named_with_the_fix(tmp_path: Path, link: str) -> None:
    run = RunFolder(tmp_path)
    checkpoints.save_checkpoint(run, 1, Tied(), {})
    (run.checkpoints / link).unlink(missing_ok=True)
    shutil.copytree(run.checkpoint(1), run.checkpoints / link)
    with pytest.raises(DataError, match=f"checkpoints/{link}: is a folder.*remove it and resume"):
        checkpoints.newest(run)


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size_bytes", [10, 1500], ids=["model", "state"])
def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint(tmp_path: Path, size_bytes: int) -> None:
    run = RunFolder(tmp_path)
    model = Tied()
    optimizer = one_step(model)
    checkpoints.save_checkpoint(run, 1, model, {"optimizer": optimizer.state_dict()})
    with files_no_larger_than(size_bytes), pytest.raises(TarmacError, match=r"step_00000002.*disk"):
        checkpoints.save_checkpoint(run, 2, model, {"optimizer": optimizer.state_dict()})
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["latest", "step_00000001"]
    found = checkpoints.newest(run)
    assert found is not None and found.step == 1


SAVER = """
import resource, sys
from pathlib import Path
import torch
from tasks.core.errors import TarmacError
from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
model = torch.nn.Linear(4096, 4096)
model.weight.data = model.weight.data.t()  # which is copied before it is written
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20),) * 2)
try:
    checkpoints.save_checkpoint(RunFolder(Path(sys.argv[1])), 1, model, {"optimizer": optimizer.state_dict()})
except TarmacError as error:
    print(error)
"""


@pytest.mark.proof
def test_a_lack_of_memory_is_not_called_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, env=child_environment())
    assert re.search(r"step_00000001: cannot be written: .*memory ran out while saving", said.stdout), said
    assert "make room" not in said.stdout and not list(tmp_path.glob("checkpoints/*"))
