"""How a volume is prepared: against CT-CLIP's own way, and by what a user sees."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tasks.core.schema import VolumeRules
from tasks.dataset.formats.volumes.geometry import Axis, pad_fraction, plan, spacing_of
from tasks.dataset.formats.volumes.hounsfield import implausible, quantiles
from tasks.dataset.formats.volumes.resample import resample
from tasks.dataset.version.rejects import Reject
from tests.dataset import ct_clip, raw


def rules(**keys: Any) -> VolumeRules:
    return VolumeRules.model_validate(keys)


def prepared(volume: np.ndarray, spacing: Any, wanted: VolumeRules) -> np.ndarray:
    return resample(volume, plan(volume.shape, spacing, wanted), wanted)


@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
@pytest.mark.parametrize(
    ("spacing", "target", "shape"),
    [
        ((3.0, 0.5, 0.5), (1.5, 0.75, 0.75), (20, 16, 16)),  # up in z, down in plane, cropped
        ((1.0, 0.9, 0.9), (1.5, 0.75, 0.75), (16, 40, 40)),  # padded
        ((2.5, 0.7, 0.8), (1.5, 0.75, 0.75), (17, 23, 19)),  # odd sides
        ((1.5, 0.75, 0.75), (1.5, 0.75, 0.75), (12, 30, 22)),  # nothing to resample
        ((1.5, 0.4, 0.75), (1.5, 0.75, 0.75), (5, 11, 64)),
    ],
)
def test_equals_ct_clip_up_to_rounding(spacing: Any, target: Any, shape: Any, dtype: str) -> None:
    volume = (raw.volume(0, (13, 29, 31)) * 1.3).astype(dtype)
    expected = ct_clip.prepared(volume, spacing, target, shape)
    found = prepared(volume, spacing, rules(window=[-1000, 1000], spacing_mm=target, shape=shape))
    assert found.dtype == np.int16 and found.shape == tuple(shape)
    assert np.abs(found - expected).max() <= 0.501
    assert (found == np.rint(expected)).mean() > 0.98, "but where a half is rounded"


def test_without_rules_nothing_changes() -> None:
    volume = raw.volume(0)
    np.testing.assert_array_equal(prepared(volume, None, rules()), volume)
    np.testing.assert_array_equal(prepared(volume + 0.4, None, rules()), volume)


def test_padding_is_the_windows_lower_end_or_air() -> None:
    volume = raw.volume(0)
    assert prepared(volume, None, rules(shape=[10, 10, 10]))[0, 0, 0] == -1000
    assert prepared(volume, None, rules(shape=[10, 10, 10], window=[-150, 250]))[0, 0, 0] == -150


def test_what_is_cropped_and_padded() -> None:
    axes = plan((251, 1024, 3), (1.5, 0.4, 0.75), rules(spacing_mm=[1.5, 0.75, 0.75], shape=[240, 480, 8]))
    assert axes == (
        Axis(251, 251, 5, 240, 0, 240),
        Axis(1024, 546, 33, 480, 0, 480),
        Axis(3, 3, 0, 3, 2, 8),
    )
    assert pad_fraction(axes) == 0.625


@pytest.mark.parametrize(
    "value", [[0, 1, 1], [1, -1, 1], [1, 1, float("nan")], [1, 1], "1.5", [1, 1, 1e6], 3]
)
def test_a_spacing_that_cannot_be(value: Any) -> None:
    with pytest.raises(Reject, match=r"volume\.spacing"):
        spacing_of(value)


def test_what_the_rules_need_must_be_known() -> None:
    with pytest.raises(Reject, match=r"volume\.spacing: unknown"):
        plan((4, 4, 4), None, rules(spacing_mm=[1, 1, 1]))
    with pytest.raises(Reject, match=r"volume\.spacing.*leaves no voxel"):
        plan((4, 4, 4), (0.1, 1, 1), rules(spacing_mm=[1, 1, 1]))
    with pytest.raises(Reject, match=r"volume\.shape.*more than"):
        plan((1000, 1000, 1000), (50.0, 50, 50), rules(spacing_mm=[1, 1, 1]))


def body(shape: tuple[int, int, int] = (40, 60, 60), noise: float = 20) -> np.ndarray:
    """Air, a body with fat, two lungs and bone, in HU."""
    z, y, x = np.ogrid[tuple(slice(-1, 1, side * 1j) for side in shape)]
    volume = np.full(shape, -1000.0)
    volume[np.broadcast_to(y**2 + x**2 < 0.6, shape)] = -100
    volume[np.broadcast_to(y**2 + x**2 < 0.5, shape)] = 40
    for side in (-0.35, 0.35):
        volume[z**2 + (y / 0.5) ** 2 + ((x - side) / 0.25) ** 2 < 1] = -850
    volume[np.broadcast_to((y - 0.55) ** 2 + x**2 < 0.01, shape)] = 700
    return volume + np.random.default_rng(0).normal(0, noise, shape)


def outside(volume: np.ndarray, value: float) -> np.ndarray:
    """With a constant outside the scanner's round field of view."""
    y, x = np.ogrid[-1 : 1 : volume.shape[1] * 1j, -1 : 1 : volume.shape[2] * 1j]
    return np.where(y**2 + x**2 > 1, value, volume)


HU = body()


@pytest.mark.parametrize(
    "volume",
    [
        HU,
        np.rint(HU).astype(np.int16),
        np.maximum(HU, -1024),
        np.clip(HU, -1000, 1000),
        np.clip(HU, -1000, 200),  # CT-CLIP's first release
        np.clip(HU, -160, 240),
        outside(HU, -1024),
        outside(HU, -2048),
        outside(HU, -3024),
        outside(HU, -8192),
        HU[15:25, 20:40, 20:40],
        body(noise=80),
        body(noise=0),
    ],
)
def test_scans_are_plausible(volume: np.ndarray) -> None:
    assert implausible(volume) is None


@pytest.mark.parametrize(
    ("volume", "problem"),
    [
        (HU - 1024, "rescaled twice"),
        (body(noise=0) - 1024, "rescaled twice"),
        (outside(HU, -1024) - 1024, "rescaled twice"),
        (outside(HU, -3024) - 1024, "rescaled twice"),
        (np.clip(HU - 1024, -1000, 1000), "rescaled twice"),
        (np.clip(HU - 1024, -1024, 3071), "rescaled twice"),
        (HU * 2, "rescaled twice"),
        (HU + 1024, "intercept was never applied"),
        (np.maximum(HU + 1024, 0), "intercept was never applied"),
        (outside(HU + 1024, -2000), "intercept was never applied"),
        (outside(np.maximum(HU + 1024, 0), 0), "intercept was never applied"),
        (HU / 1000, "scale: 1000"),
        (np.clip(HU, -1000, 200) / 1000, "scale: 1000"),
        (np.rint(HU / 1000).astype(np.int16), "scale: 1000"),
        (np.clip((HU + 1000) / 6, 0, 255).astype(np.uint8), "grey values"),
        (np.full((4, 4, 4), -1000), "every voxel is -1000"),
        (np.minimum(HU, -900), "air alone"),
    ],
)
def test_what_was_done_wrong_is_named(volume: np.ndarray, problem: str) -> None:
    assert problem in str(implausible(volume))


def test_quantiles_are_exact() -> None:
    volume = raw.volume(0, (7, 11, 13))
    values = np.sort(volume.ravel())
    found = quantiles(volume)
    assert (found["hu_min"], found["hu_max"]) == (values[0], values[-1])
    assert found["hu_p50"] == values[len(values) // 2]
    assert found["hu_p01"] == values[int(np.ceil(0.01 * len(values))) - 1]


HERE_AND_THERE = """
import hashlib, sys, numpy
from tasks.core.schema import VolumeRules
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import plan
from tasks.dataset.formats.volumes.resample import resample
rules = VolumeRules(window=(-1000, 1000), spacing_mm=(1.5, 0.75, 0.75), shape=(33, 150, 121))
volume = numpy.random.default_rng(0).integers(-1000, 1000, (21, 160, 121)) * 1.1
found = resample(volume, plan(volume.shape, (2.5, 0.6, 0.7), rules), rules)
digests = [hashlib.sha256(content).hexdigest() for content in (found.tobytes(), stored.encode(found, "blosc2")[1])]
"""


def test_stored_bytes_depend_neither_on_the_processor_nor_on_threads() -> None:
    here: dict[str, Any] = {}
    exec(HERE_AND_THERE, here)
    program = "import blosc2; blosc2.set_nthreads(2)" + HERE_AND_THERE + "print(digests)"
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512_SKX X86_V3 X86_V4"}
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True
    )
    assert there.stdout.strip() == str(here["digests"]), there.stderr
    assert here["digests"][0].startswith("0801952c656056a7"), "as on other machines"


def test_heavy_packages_are_imported_only_where_they_are_used() -> None:
    program = """
import sys, tasks.dataset.modalities, tasks.dataset.sources, tasks.loader.decoders
print({"blosc2", "nibabel", "torch"} & set(sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
