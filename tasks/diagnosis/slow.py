"""Finds what makes a training slow, while it goes on: by its own lines and by its processes.

The yardstick is the run itself: it was faster, or a part of its time goes into something other than steps.
Each finding is a warning with the figures, once per run.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from tasks.core.findings import Finding
from tasks.core.units import format_duration, size
from tasks.diagnosis.causes.signs import LOCKS, POLLS
from tasks.diagnosis.fetching import FetchWatch
from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.machine import gpus, memory_left
from tasks.diagnosis.observation.observe import find_ranks
from tasks.runs.goodput import OF_PHASE, Activity, Goodput
from tasks.trainers.contract import Phase, Progress, Trainer

logger = logging.getLogger(__name__)
WINDOW_S = 5.0
MOST_WINDOWS = 720
"""The windows that count: those of the last hour of steps."""
BASE_WINDOWS = 6
"""Windows that show what the run is able to."""
SLOW_S = 40.0
SLOWER = 1.5
"""How many times the usual time per step is a loss of pace."""
GAP_S = 5.0
LONG_STEP = 5.0
GAP_SHARE = 0.05
"""A gap between epochs that counts: in seconds, in usual steps, and as a share of the epoch."""
MOST_VALIDATING, MOST_SAVING = 1 / 3, 0.1
LEAST_JUDGED_S = 60.0


@dataclass
class _PaceWindow:
    """Steps in a stretch of time that began at `since`."""

    since: float
    seconds: float = 0.0
    units: float = 0.0

    @property
    def pace(self) -> float:
        """Seconds per step, or per whatever else the trainer counts."""
        return self.seconds / max(self.units, 1e-9)


@dataclass
class Course:
    """What the lines of a training show of its pace. Times are in seconds of a monotonic clock."""

    since: float
    goodput: Goodput = field(default_factory=Goodput)
    _phase: Phase = "start"
    _last: Progress | None = None
    _windows: deque[_PaceWindow] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    _epoch_began: float = 0.0
    _gaps: list[tuple[float, float]] = field(default_factory=list)
    """How long each pause between two epochs was, and the epoch before it, in seconds."""
    _validations: int = 0
    _savings: int = 0

    def note(self, progress: Progress, now: float) -> None:
        """Take a line that shows new progress; what came before it belongs to the phase that it ends."""
        seconds = now - self.since
        is_step = progress.phase == "step"
        was_started = self._last is not None
        activity: Activity = OF_PHASE[self._phase] if was_started or self._phase == "validate" else "starting"
        self.goodput.spent[activity] += seconds
        self._validations += progress.phase == "validate" != self._phase
        self._savings += progress.phase == "checkpoint" != self._phase
        if is_step and self._last is not None and self._phase == "step":
            self._take_step(progress, seconds, now)
        elif is_step:
            self._epoch_began = self._epoch_began or now
            self._windows.append(_PaceWindow(now))
        if is_step:
            self._last = progress
        self._phase, self.since = progress.phase, now

    def _take_step(self, progress: Progress, seconds: float, now: float) -> None:
        last = self._last
        assert last is not None
        has_counts = progress.done is not None and last.done is not None
        units = progress.done - last.done if has_counts else 1.0  # type: ignore[operator]
        usual = statistics.median(self._intervals) if self._intervals else seconds
        is_gap = seconds > max(GAP_S, LONG_STEP * usual)
        if is_gap:  # a trainer that counts its steps through shows the end of an epoch by this alone
            self._gaps.append((seconds - usual, now - self._epoch_began))
        if is_gap or progress.epoch != last.epoch or units < 0:
            self._epoch_began = now
            self._windows.append(_PaceWindow(now))
            return
        self._intervals.append(seconds)
        if not self._windows or self._windows[-1].seconds >= WINDOW_S:
            self._windows.append(_PaceWindow(now - seconds))
        self._windows[-1].seconds += seconds
        self._windows[-1].units += units

    @property
    def steps(self) -> int:
        """The number of stretches of steps so far; 0 before the first step."""
        return len(self._windows)

    @property
    def is_stepping(self) -> bool:
        return self._phase == "step"

    def stalled(self, now: float) -> None:
        """Count the time since the last line as a standstill, which ends now."""
        self.goodput.spent["stalled"] += now - self.since
        self.since = now

    def finish(self, now: float) -> Goodput:
        """Count the time since the last line; returns where all of the time went."""
        self.goodput.spent[OF_PHASE[self._phase] if self._last is not None else "starting"] += (
            now - self.since
        )
        self.since = now
        return self.goodput

    def findings(self, now: float) -> Iterator[Finding]:
        """Yield what is slow by now. A silence that still lasts counts as one step of that length."""
        yield from self._pace_dropped(now)
        yield from self._epoch_gap()
        judged_s = self.goodput.total_s - self.goodput.spent["starting"]
        if judged_s < LEAST_JUDGED_S:
            return
        validating, saving = self.goodput.share("validating"), self.goodput.share("saving")
        if self._validations >= 2 and validating > MOST_VALIDATING:
            what = f"{validating:.0%} of the time goes into {self._validations} validations"
            yield _warning(
                "validation.slow", what, "validate less often, on fewer samples, or in a job beside it"
            )
        if self._savings >= 2 and saving > MOST_SAVING:
            what = f"{saving:.0%} of the time goes into {self._savings} checkpoints"
            yield _warning("checkpoint.slow", what, "save less often, to a local disk, or in the background")

    def _pace_dropped(self, now: float) -> Iterator[Finding]:
        windows = [one for one in tuple(self._windows) if one.units]
        if self._phase == "step" and windows and now - self.since > WINDOW_S:
            windows = [*windows, _PaceWindow(self.since, now - self.since, 1.0)]
        if len(windows) <= BASE_WINDOWS:
            return
        usual = statistics.median(one.pace for one in windows[: max(BASE_WINDOWS, len(windows) // 2)])
        slow: list[_PaceWindow] = []
        for one in reversed(windows):
            if one.pace < SLOWER * usual:
                break
            slow.insert(0, one)
        if sum(one.seconds for one in slow) < SLOW_S or len(slow) == len(windows):
            return
        pace = sum(one.seconds for one in slow) / sum(one.units for one in slow)
        ago, steps = format_duration(now - slow[0].since), f"{pace:.3g} s a step, {usual:.3g} s before"
        what = f"it is {pace / usual:.1f} times slower since {ago} ago: {steps}"
        yield _warning("pace.dropped", what, "see what else began then: other programs, a slower disk, heat")

    def _epoch_gap(self) -> Iterator[Finding]:
        long = [(gap, epoch) for gap, epoch in self._gaps if gap > GAP_SHARE * epoch]
        if len(long) < 2:
            return
        gap = statistics.median(one for one, _ in long)
        share = statistics.median(one / epoch for one, epoch in long)
        what = f"{format_duration(gap)} without a step pass between two epochs, {share:.0%} of an epoch"
        remedy = (
            "keep the loader's workers, persistent_workers=True, and what they have cached; or see "
            "what runs there"
        )
        yield _warning("epoch.gap", what, remedy)


MEMORY_EVERY_S = 5.0
MEMORY_COST = 0.005
"""The share of one core that counting the pages of all processes may take: 25 ms per GB."""
LEAST_MEMORY_S = 40.0
LEAST_LOOKS = 4
LEAST_GROWTH = 0.02
"""Growth that counts, as a share of the memory that is left."""
SOON_S = 48 * 3600.0
MOST_LOOKS = 400


class _MemoryLook(NamedTuple):
    at: float
    size: int
    """Bytes of anonymous memory."""


class MemoryWatch:
    """Watches the memory of a family of processes, for the one that grows until it is killed.

    What a process has is read often. Pages that it shares with its parent, as a forked worker does at first,
    count as its own from the beginning there, so its share of them is counted too, seldom, as that is slow.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, list[_MemoryLook]] = {}
        self._shares: dict[int, list[_MemoryLook]] = {}
        self._next = self._next_shares = 0.0

    def look(self, pids: Sequence[int], now: float) -> bool:
        """Read the memory of the processes where that is due; returns whether it was."""
        if now < self._next:
            return False
        self._next = now + MEMORY_EVERY_S
        _take(self._sizes, {pid: procfs.numbers(pid, "status").get("RssAnon") for pid in pids}, now)
        if now < self._next_shares:
            return True
        began = time.thread_time()
        _take(self._shares, {pid: procfs.numbers(pid, "smaps_rollup").get("Pss_Anon") for pid in pids}, now)
        self._next_shares = now + max(2 * MEMORY_EVERY_S, (time.thread_time() - began) / MEMORY_COST)
        return True

    def finding(self, left_bytes: int) -> Finding | None:
        """Return which process grows, how fast and until when, if `left_bytes` last less than two days."""
        growing = {pid: looks for pid, looks in self._sizes.items() if _growth(looks)}
        copying = {pid: looks for pid, looks in self._shares.items() if pid not in growing and _growth(looks)}
        every = {**growing, **copying}
        slopes = {pid: _growth(looks) for pid, looks in every.items()}
        total, grown = sum(slopes.values()), sum(looks[-1].size - looks[0].size for looks in every.values())
        if not slopes or left_bytes / total > SOON_S or grown < LEAST_GROWTH * left_bytes:
            return None
        pid = max(slopes, key=slopes.__getitem__)
        stat = procfs.stat(pid)
        name = f"process {pid} ({stat.name})" if stat is not None else f"process {pid}"
        who = f"{name} grows" if len(slopes) == 1 else f"{len(slopes)} processes grow, most of all {name},"
        what = (
            f"{who} by {size(60 * total)} a minute; {size(left_bytes)} are left, which last "
            f"{format_duration(left_bytes / total)}"
        )
        if pid in copying:
            what += (
                "; it copies what it shared with its parent, because counting references to Python objects "
            )
            what += "writes to their pages"
            remedy = "hold the samples in numpy arrays or Arrow, not in lists or dicts of Python objects"
            return _warning("memory.growing", what, remedy)
        remedy = "look for a list that grows with each step, such as losses with their graph: loss.item()"
        return _warning("memory.growing", what, remedy)


def _take(looks: dict[int, list[_MemoryLook]], kib: Mapping[int, int | None], now: float) -> None:
    """Append what was read of each process, and forget those that are gone."""
    for pid, found in kib.items():
        if found is not None:
            looks[pid] = [*looks.get(pid, [])[-MOST_LOOKS:], _MemoryLook(now, found << 10)]
    for pid in looks.keys() - kib.keys():
        del looks[pid]


def _growth(looks: Sequence[_MemoryLook]) -> float:
    """Return bytes per second of a process that grows all the time, else 0. What it takes in the first third
    of the time may be its start."""
    judged = looks[len(looks) // 3 :]
    if len(judged) < LEAST_LOOKS or judged[-1].at - judged[0].at < LEAST_MEMORY_S:
        return 0.0
    middle = len(judged) // 2
    early, late = (part[-1].size - part[0].size for part in (judged[: middle + 1], judged[middle:]))
    if min(early, late) <= 0 or late < 0.5 * early:
        return 0.0
    return (judged[-1].size - judged[0].size) / (judged[-1].at - judged[0].at)


SAMPLES = 60
"""Glances at the rank, one per poll, that have to agree that it waits."""
WAITING = 0.4
FIRST_PAUSE_S = 15.0
SOON_AGAIN = 3
"""So many examinations follow each other soon, as one look at the stacks may fall on a step."""
SLOW_CODES = (
    "loader.bound",
    "loader.straggler",
    "disk.slow",
    "decode.slow",
    "tracker.blocked",
    "tracker.slow",
    "validation.rank0",
)
GPU_EVERY_S, IDLE_LOOKS, IDLE_PERCENT = 30.0, 4, 20


class SlowWatch:
    """Watches a training that goes on for what makes it slow; each code is reported once."""

    def __init__(
        self,
        pid: int,
        began: float,
        examine: Callable[[], Sequence[Finding]],
        workers_option: str = Trainer.workers_option,
    ) -> None:
        """`examine` observes the processes for some seconds and returns the causes that hold it up;
        `workers_option` is how its trainer is given loader workers."""
        self.course = Course(began)
        self.found: list[Finding] = []
        self._pid, self._examine = pid, examine
        self._memory, self._fetching, self._workers_option = MemoryWatch(), FetchWatch(), workers_option
        self._loads: deque[float] = deque(maxlen=MOST_WINDOWS)
        self._next_judgement = began
        self._rank: int | None = None
        self._asleep: deque[bool] = deque(maxlen=SAMPLES)
        self._asleep_s, self._looked = 0.0, began
        self._next_examination, self._examinations = began, 0
        self._examination: Future[Sequence[Finding]] | None = None
        self._next_gpus, self._idle_gpus = began, 0

    def note(self, phase: str, step: int, now: float) -> None:
        """Take a sign of life of a training that reports phase and step itself."""
        self.course.note(Progress(cast(Phase, phase), step), now)

    def look(self, now: float) -> list[Finding]:
        """Return what is newly found to be slow."""
        new: list[Finding] = []
        if now >= self._next_judgement:
            self._next_judgement = now + WINDOW_S
            self._loads.append(os.getloadavg()[0])
            new += map(self._with_load, self.course.findings(now))
            if self.course.steps and self._memory.look(procfs.family(self._pid), now):
                growing = self._memory.finding(memory_left(self._pid))
                new += [] if growing is None else [growing]
        new += self._waits(now)
        new += self._fetches(now)
        new += self._gpus(now)
        self._looked = now
        known = {finding.code for finding in self.found}
        new = [finding for finding in new if finding.code not in known]
        self.found += new
        return new

    def _with_load(self, finding: Finding) -> Finding:
        """Add to a loss of pace how busy the machine was before and is now."""
        if finding.code != "pace.dropped":
            return finding
        before, cores = statistics.median(self._loads), os.cpu_count()
        load = f"{self._loads[-1]:.1f} on {cores} cores, {before:.1f} before"
        return replace(finding, evidence={**finding.evidence, "load of the machine": load})

    def finish(self, now: float) -> Goodput:
        """Return where the time went, to the end."""
        goodput = self.course.finish(now)
        if any(
            one.code in ("loader.bound", "loader.straggler", "disk.slow", "decode.slow") for one in self.found
        ):
            fetched_s = self._fetching.share * goodput.spent["training"]
            goodput.move(max(self._asleep_s, fetched_s), "waiting for data")
        return goodput

    def _waits(self, now: float) -> Sequence[Finding]:
        """Examine the training where its rank has waited most of the time for half a minute of steps."""
        if not self.course.is_stepping:
            return ()
        if self._rank is None or procfs.stat(self._rank) is None:
            ranks = find_ranks(self._pid)
            self._rank = ranks[0] if ranks else self._pid
        stat, wait = procfs.stat(self._rank), procfs.wait_of(self._rank) or ""
        is_waiting = not wait or wait.startswith((*POLLS, *LOCKS))
        is_asleep = stat is not None and stat.state == "S" and is_waiting
        self._asleep.append(is_asleep)
        self._asleep_s += (now - self._looked) * is_asleep
        if self._examination is not None:
            return self._examined(now)
        waits = sum(self._asleep) / SAMPLES
        if len(self._asleep) == SAMPLES and waits >= WAITING and now >= self._next_examination:
            pool = ThreadPoolExecutor(1, thread_name_prefix="examination")
            self._examination = pool.submit(self._examine)
            pool.shutdown(wait=False)
        return ()

    def _examined(self, now: float) -> Sequence[Finding]:
        """Return what the examination has found, once it is done; later ones come ever more rarely."""
        if self._examination is None or not self._examination.done():
            return ()
        examination, self._examination = self._examination, None
        self._examinations += 1
        rarer = max(self._examinations - SOON_AGAIN, 0)
        self._next_examination = now + FIRST_PAUSE_S * 2**rarer
        if (error := examination.exception()) is not None:  # as of a process that ended meanwhile
            logger.info("the examination failed", exc_info=error)
            return ()
        return [replace(one, severity="warning") for one in examination.result() if one.code in SLOW_CODES]

    def _fetches(self, now: float) -> Iterator[Finding]:
        """Find a rank that spends its time with loading data itself."""
        if not self.course.is_stepping or self._rank is None:
            return
        self._fetching.look(self._rank, now)
        if self._fetching.share >= WAITING:
            share = f"{self._fetching.share:.0%} of the time"
            what = f"it trains, and loads its data itself {share}, without workers"
            remedy = f"take workers, which load while it trains: {self._workers_option.replace('N', '2')}"
            evidence = {"what": what, "stack": self._fetching.call}
            yield Finding("loader.bound", "warning", remedy, evidence=evidence)

    def _gpus(self, now: float) -> Iterator[Finding]:
        if now < self._next_gpus or not self.course.is_stepping:
            return
        self._next_gpus = now + GPU_EVERY_S
        found = gpus()
        is_idle = bool(found) and all(one.used_percent < IDLE_PERCENT for one in found or ())
        self._idle_gpus = self._idle_gpus + 1 if is_idle else 0
        if found and self._idle_gpus >= IDLE_LOOKS:
            use = ", ".join(f"{one.used_percent:.0f} %" for one in found)
            what = f"GPU use was below {IDLE_PERCENT} % in each of {IDLE_LOOKS} looks, at last {use}"
            yield _warning(
                "gpu.idle",
                f"{what} in {format_duration(GPU_EVERY_S * IDLE_LOOKS)}",
                "tarmac doctor --pid shows what it waits for",
            )


def _warning(code: str, what: str, remedy: str) -> Finding:
    return Finding(code, "warning", remedy, evidence={"what": what})
