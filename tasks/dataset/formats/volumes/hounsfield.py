"""Judges by a histogram whether numbers can be Hounsfield units, and computes their quantiles.

Air has -1000 HU, soft tissue -200 to 300 HU, and a scan of a body has some of both. Outside the scanner's
round field of view the value is constant, often -1024 or -3024: a constant at or below the value of air that
fills more than PADDING of the volume is ignored. Of the rest, hardly anything can lie far below air, and some
must be soft tissue. A second intercept of -1024 moves air far below and tissue to the value of air; stored
values without their intercept have air at 0 and tissue at 1024; numbers divided by 1000 all lie within a few
units. Minimum and mean show none of these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.formats.npy import INT16
from tasks.dataset.version.rejects import Reject

QUANTILES = {"hu_min": 0.0, "hu_p01": 0.01, "hu_p50": 0.5, "hu_p99": 0.99, "hu_max": 1.0}
SAMPLED = 1 << 22
"""The most voxels that are judged, evenly spread over the volume."""
PADDING = 0.05
TISSUE = (-200.0, 300.0)
TISSUE_SHARE = 0.01
UNSHIFTED_TISSUE = (850.0, 1250.0)
LOWEST_AIR = -1100
FAR_BELOW_AIR = -1500.0
FAR_BELOW_SHARE = 0.05
WIDE = (-900, 300)
"""A window narrower than this leaves too little of the histogram to judge by."""


def require_in_range(voxels: NDArray[np.generic]) -> None:
    """Reject for NaN, infinity, and values beyond int16."""
    low, high = float(voxels.min()), float(voxels.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise Reject("volume.nonfinite", "holds NaN or infinity")
    if low < INT16.min or high > INT16.max:
        raise Reject("volume.hu_range", f"{low:g} to {high:g}, beyond int16")


def is_plausible(voxels: NDArray[np.generic]) -> bool:
    """Whether the values can be HU without any rescaling."""
    try:
        require_in_range(voxels)
    except Reject:
        return False
    return implausible(voxels) is None


def implausible(voxels: NDArray[np.generic], window: tuple[int, int] | None = None) -> str | None:
    """Return why finite values within int16 cannot be HU, after clipping to `window`; None if they can."""
    if window is not None and not (window[0] <= WIDE[0] and window[1] >= WIDE[1]):
        return None
    values = _sample(voxels)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return f"every voxel is {low + 0.0:g}"
    if low >= -10 and np.quantile(values, 0.999) <= 5:
        fix = "for an NPZ source, set source.scale: 1000"
        return f"values from {low:g} to {high:g}, probably HU / 1000; {fix}"
    if low == 0 and 250 <= high <= 255:
        return "values from 0 to 255: grey values of a picture, not HU"
    body = _without_padding(values)
    far_below = body[body < FAR_BELOW_AIR]
    if len(far_below) > FAR_BELOW_SHARE * len(body):
        return f"air lies at about {np.median(far_below):,.0f} HU: rescaled twice"
    is_unshifted = _share(body, *UNSHIFTED_TISSUE) > 2 * TISSUE_SHARE and np.quantile(body, 0.01) > TISSUE[0]
    if is_unshifted:
        return "air at about 0 and tissue at about 1,024: stored values whose intercept was never applied"
    share = _share(body, *TISSUE)
    if share < TISSUE_SHARE:
        found = f"{share:.1%} of the voxels are soft tissue ({TISSUE[0]:g} to {TISSUE[1]:g} HU)"
        return f"{found}: air alone, or rescaled twice"
    return None


def _without_padding(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the values without constants at or below the value of air; all values if nothing else is
    left."""
    levels = np.rint(values).astype(np.int64) - INT16.min
    counts = np.bincount(levels, minlength=1 << 16)
    is_padding = counts > PADDING * len(values)
    is_padding[max(int(levels.min()), LOWEST_AIR - INT16.min) + 1 :] = False
    body = values[~is_padding[levels]]
    return body if len(body) else values


def _sample(voxels: NDArray[np.generic]) -> NDArray[np.float32]:
    step = int(np.ceil((voxels.size / SAMPLED) ** (1 / voxels.ndim)))
    spread = voxels[tuple(slice(step // 2 if side > step else 0, None, step) for side in voxels.shape)]
    return spread.astype(np.float32).ravel()


def _share(values: NDArray[np.float32], low: float, high: float) -> float:
    return float(np.mean((values >= low) & (values <= high)))


def quantiles(voxels: NDArray[np.int16]) -> Mapping[str, int]:
    """Return exact quantiles from a histogram of all int16 values."""
    counts = np.zeros(1 << 16, np.int64)
    for slab in voxels:
        ranked = np.ascontiguousarray(slab).view(np.uint16).ravel() ^ np.uint16(1 << 15)
        counts += np.bincount(ranked, minlength=1 << 16)
    up_to = np.cumsum(counts)
    ranks = {name: max(1, int(np.ceil(share * up_to[-1]))) for name, share in QUANTILES.items()}
    return {name: int(np.searchsorted(up_to, rank)) + INT16.min for name, rank in ranks.items()}
