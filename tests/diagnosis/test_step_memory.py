"""A step that does not fit into memory is refused by what a small one takes, with the keys to lower."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from tasks.core.errors import UsageError
from tasks.diagnosis import bench, memory
from tasks.diagnosis.memory import MachineLimits, own_bytes
from tasks.diagnosis.step_memory import Room, StepCost, cost_of, require_room
from tests.diagnosis.test_bench import config_with
from tests.loader.conftest import MakeVersion
from tests.models.examples import train_block

GB = 1e9
LARGE = {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2, "max_side": 64}


@pytest.mark.parametrize(
    ("sample", "noise", "room", "counts", "fits"),
    [
        (0.01 * GB, 0.0, 8 * GB, [2], True),
        (0.5 * GB, 0.0, 8 * GB, [2, 4], False),
        (5.0 * GB, 0.0, 8 * GB, [2], False),
        (0.001 * GB, 0.5 * GB, 8 * GB, [2, 4, 8], True),
    ],
    ids=["small", "large", "at once", "noise"],
)
def test_larger_passes_are_measured_before_a_training_is_refused(
    sample: float, noise: float, room: float, counts: list[int], fits: bool
) -> None:
    """What a small peak drowns in must not refuse a training, and none that is measured may run out."""
    measured: list[int] = []

    def peak_of(count: int) -> float:
        measured.append(count)
        return GB + noise + count * sample

    found = cost_of(peak_of, GB, 64, Room(room, "a test"))
    assert measured == counts and found.fits(64, Room(room, "a test")) == fits
    assert all(GB + noise + count * sample <= room / 2 for count in counts[1:])


def test_a_pass_that_does_not_fit_names_what_to_lower() -> None:
    config = config_with()
    vlm = config.model_copy(update={"train": train_block("vlm", {"batch_size": 16}, **LARGE)})
    cost, room = StepCost(0.3 * GB, 1.2 * GB, 2), Room(8 * GB, "/sys/fs/cgroup/memory.max")
    require_room(vlm, cost, 4, room, "samples")
    with pytest.raises(UsageError) as refused:
        require_room(vlm, cost, 16, room, "samples")
    assert str(refused.value) == (
        "train.micro_batch: a pass of 16 samples takes 19.5 GB, by the peak of 2 samples, and there are 8.0 GB "
        "(/sys/fs/cgroup/memory.max); about 5 fit: lower train.micro_batch (unset) or train.model.max_side"
    )
    with pytest.raises(UsageError, match=r"a pass of 2 samples takes more memory than there is, 8\.0 GB"):
        require_room(vlm, StepCost(GB, math.inf, 2), 16, room, "samples")
    with pytest.raises(UsageError, match=r"on each of 2 ranks.*; not even one fits"):
        require_room(vlm, StepCost(5 * GB, GB, 2), 4, Room(8 * GB, "this machine", 2), "samples")


PROGRAM = """
from tasks.diagnosis.memory import SPARE, own_bytes
from tasks.diagnosis.step_memory import Room, cost_of
from tasks.diagnosis.step_rate import Trial
from tasks.loader.collate import pack, unpack
from tasks.models import recipes
from tests.models.examples import SAMPLES, train_block

train = train_block("vlm", {"batch_size": 8, "threads": 1}, **LARGE, upscale=True)
recipe = recipes.load_recipe(train)
transform = recipe.transform(is_train=True)
samples = [{"key": "a", **transform(SAMPLES["vlm"][1], None)} for _ in range(8)]
trial = Trial(recipe, train)
batch_of = lambda count: unpack(pack(samples[:count], collate=recipe.collate))[0]
peak_of = lambda count, room=1e15: trial.peak_bytes(batch_of(count), Room(room, ""))
few = cost_of(peak_of, trial.fixed_bytes, 8, Room(1e15, ""))
tight = peak_of(8, (own_bytes("VmRSS") + 5e6) / SPARE)
print(few.measured, few.peak(8) - few.fixed, peak_of(8) - few.fixed, tight)
"""


@pytest.mark.proof
def test_two_conversations_show_what_eight_take() -> None:
    """Of a real model, in a process of its own as tuning has it: memory that others freed would hide a peak."""
    program = PROGRAM.replace("LARGE", repr(LARGE))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    measured, foretold, seen, tight = map(float, done.stdout.split())
    assert tight == math.inf, "it is kept to the room, or the kernel would kill something"
    assert measured == 2 and 20e6 < seen < 200e6 and 0.5 < foretold / seen < 2, done.stdout


def test_tuning_refuses_what_does_not_fit(make_version: MakeVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a rank is started that the kernel would kill."""
    limits = MachineLimits(0.5 * own_bytes("VmRSS"), "half of what this process has", 1e12, 1 << 20)
    monkeypatch.setattr(memory, "limits", lambda: limits)
    with pytest.raises(UsageError, match=r"train\.model: with gradients .*half of what"):
        bench.tune(config_with(), make_version(train=[20]))
