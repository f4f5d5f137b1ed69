"""Causes of a loader that works and is too slow: decoding, the disk, one of its workers, or all of them."""

from __future__ import annotations

import os
from collections import Counter

from tasks.core.units import counted, size
from tasks.diagnosis.causes.cause import Cause, Support
from tasks.diagnosis.causes.loading import workers_are_served, workers_compute_nothing
from tasks.diagnosis.causes.signs import DISKS, LOCKS, POLLS, STEADY, Signs
from tasks.diagnosis.observation.record import ObservedProcess

LARGE_PIXELS = 12_000_000
SLOW_BYTES_PER_S = 50e6
"""A single hard disk reads tars at twice that rate."""
DECODING = ("PIL/ImageFile.py", "PIL/Image.py", "torchvision/", "turbojpeg", "cv2", "albumentations")


def _decoding(signs: Signs) -> Support | None:
    working = [one for one in signs.readers if one.share("runs") >= STEADY]
    if not signs.is_waiting_for_data or len(working) < len(signs.readers) or not working:
        return None
    pixels, found = signs.pixels, signs.filtered
    if pixels < LARGE_PIXELS or (found is not None and found.drops_all):
        return None
    calls = (signs.calls(one, *DECODING) for one in working)
    return Support(
        f"decoding holds the training up: images of {pixels / 1e6:.0f} megapixels",
        "store them smaller: tarmac build with dataset.image.max_side, such as 512",
        {
            "workers": f"{len(working)} of {len(signs.readers)} compute all the time",
            "read": f"{size(signs.read_rate)}/s",
            "stacks": next((call for call in calls if call is not None), None),
        },
        severity="warning" if signs.is_delivered else "error",
    )


def _disk(signs: Signs) -> Support | None:
    slow = [one for one in signs.readers if one.share(*DISKS) >= 0.5 and not _only_writes(signs, one)]
    rate = signs.read_rate
    if not slow or rate is None or rate >= SLOW_BYTES_PER_S:
        return None
    # A training that still gets some batches does not wait all the time, and without a stack only its polls
    # show it.
    main = signs.main
    polls = main is not None and main.share(*POLLS) >= 0.5 and not signs.runs(main)
    if signs.living_workers and not signs.is_waiting_for_data and not polls:
        return None
    opened = [file for one in slow for file in one.files]
    tars = [file.path for file in opened if file.is_regular and not file.is_writable]
    return Support(
        f"{len(slow)} of {len(signs.readers)} readers wait for the disk, which gives {size(rate)}/s",
        "copy the shards to a local disk, or look for who else uses this one",
        {"rate": f"{size(rate)}/s", "folder": min(map(os.path.dirname, tars), default=None)},
        {"file": tars[0]} if tars else {},
        severity="warning" if rate > 0 else "error",
    )


def _only_writes(signs: Signs, process: ObservedProcess) -> bool:
    return signs.writes(process) and not signs.moves(process)


def _disk_is_fast(signs: Signs) -> str | None:
    rate = signs.read_rate
    if not signs.readers or rate is None or any(one.share(*DISKS) >= 0.2 for one in signs.readers):
        return None
    return f"{size(rate)}/s" if rate > 0 else "nobody waits for a disk"


def _loader_bound(signs: Signs) -> Support | None:
    main = signs.main
    if main is None or not signs.is_delivered or not signs.is_waiting_for_data or signs.runs(main):
        return None
    waits = main.share("poll_schedule_timeout", "do_poll", "do_sys_poll", *LOCKS)
    workers, cores = len(signs.living_workers), os.cpu_count() or 1
    used = sum(one.cpu for one in signs.readers)
    option = signs.trainer.workers_option.replace("N", str(max(2 * workers, 2)))
    remedy = f"take more workers, {option}: its loader uses {used:.1f} of {cores} cores"
    if cores - used < 1:
        remedy = "give each sample less work: smaller stored images, uncompressed arrays, a lighter transform"
    return Support(
        f"it trains, and waits for data {waits:.0%} of the time",
        remedy,
        {"read": f"{size(signs.read_rate)}/s", "workers": workers, **_stage(signs)},
    )


def _stage(signs: Signs) -> dict[str, str]:
    """Return where Tarmac's own workers spend their time, as far as they report it."""
    stages = Counter(state.stage for state in signs.seen.states or ())
    if not stages:
        return {}
    stage, count = stages.most_common(1)[0]
    return {"stage": f"{count} of {counted(sum(stages.values()), 'worker')}: {stage}"}


def _straggler(signs: Signs) -> Support | None:
    """Find one worker that works while all others wait to be asked, and the rank waits for it: batches come
    in the workers' order. Or one rank that waits for its data while the others wait for it."""
    main, workers = signs.main, signs.living_workers
    if main is None or not signs.is_delivered or main.share("runs") >= 0.5:
        return None
    is_waiting = signs.is_waiting_for_data
    if not is_waiting and (not workers or main.share(*POLLS) < 0.5):  # one look may fall on a step
        return None
    if signs.is_main_waited_for:
        return Support(
            f"rank {main.rank} waits for its data, and the other ranks wait for it",
            "give its node and its part of the data a look: a slower disk, fewer cores, larger samples",
            {"workers": len(signs.living_workers), "read": f"{size(signs.read_rate)}/s"},
            {"rank": main.rank},
        )
    busy = [one for one in workers if signs.runs(one) or (is_waiting and one.share(*DISKS) >= STEADY)]
    idle = [one for one in workers if one.share(*POLLS, *LOCKS) >= STEADY]
    if len(workers) < 2 or len(busy) != 1 or len(idle) < len(workers) - 1:
        return None
    return Support(
        f"1 of {len(workers)} workers works all the time, and the rank waits for it; the others are idle",
        "look what its samples have that others lack: batches come in order, so one slow sample holds up all",
        {"worker": f"pid {busy[0].pid}, {busy[0].cpu:.1f} cores", "stack": signs.own_call(busy[0])},
        {"worker": busy[0].pid},
    )


THROUGHPUT = (
    Cause("decode.slow", "error", _decoding, (workers_are_served, workers_compute_nothing)),
    Cause("disk.slow", "error", _disk, (_disk_is_fast,)),
    Cause("loader.straggler", "warning", _straggler),
    Cause("loader.bound", "warning", _loader_bound, yields_to=("loader.straggler",)),
)
