"""Follows the folder of another trainer for a run's agent: takes each checkpoint once it is whole.

The folder is only read. A checkpoint is taken when it has stayed the same for a while and its files are
whole. One that stays torn is taken as well, as one that cannot be evaluated, so that it shows in the results
instead of being tried for ever; should the trainer write it again, it is evaluated then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.files import write_json
from tasks.core.lock import Held, Lease
from tasks.core.schema import Config
from tasks.core.units import duration, near
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.followed import (
    ORIGIN,
    Followed,
    FollowingNews,
    Origin,
    Stamps,
    Unit,
    origins_of,
    read_followed,
    read_news,
)
from tasks.trainers import record_in
from tasks.trainers.contract import Reached
from tasks.trainers.saved import SUFFIXES, SavedCheckpoint, lack_of, numbered, saved_in, stamped

SETTLED_S = 2.0
"""How long a checkpoint has to stay the same before it is taken to be written."""
TORN_S = 60.0
"""The same for one that is not whole, before it is given up."""
QUIET_S, QUIET_TIMES = 1800.0, 3.0
"""Nothing new is reported after so long at least, and after so many times the longest pause so far."""
WORKERS = 4
"""Loader workers of an evaluation on a GPU, unless the config names a number."""
Pending = tuple[SavedCheckpoint, Stamps]
logger = logging.getLogger(__name__)


class Follower:
    """The followed folder, or the one checkpoint, of a run."""

    def __init__(
        self, run: RunFolder, followed: Followed, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._followed, self._clock = run, followed, clock
        self._taken = origins_of(run)
        self._reported = dict(self._taken)
        """What had been taken when `look` last returned."""
        self._since: dict[Path, tuple[Stamps, float]] = {}
        """What each pending checkpoint last looked like, and since when."""
        self._began = self._last_news = clock()
        self._longest_pause = 0.0
        self._reached: Reached | None = None
        self._torn = ""
        self._left_out: dict[str, str] = {}
        self._pending: list[Pending] = []

    def look(self) -> bool:
        """Take what is whole by now, and report; return whether anything was taken since this last returned.

        OSError where the folder cannot be read, but what was taken before is returned first.
        """
        try:
            self._take_and_report()
        except OSError:
            if self._taken == self._reported:
                raise
            # The next look meets the error again, if it lasts.
        is_new = self._taken != self._reported
        self._reported = dict(self._taken)
        return is_new

    def _take_and_report(self) -> None:
        self.observe()
        self._torn = ""
        for saved, stamps in self._pending:
            known, since = self._since.setdefault(saved.path, (stamps, self._clock()))
            if known != stamps:
                self._since[saved.path] = (stamps, self._clock())
            elif (age_s := self._clock() - since) >= SETTLED_S:
                self._take_if_whole(saved, stamps, age_s)
        if self._taken != self._reported:
            now = self._clock()
            self._longest_pause = max(self._longest_pause, now - self._last_news)
            self._last_news = now
            self.observe()
        self._report()

    def observe(self) -> None:
        """Look which checkpoints are there that the run has not taken as they are now; OSError where the
        folder cannot be read, and then what was pending is so still."""
        left_out: dict[str, str] = {}
        pending: list[Pending] = []
        there = [(saved, stamped(saved.path)) for saved in self._saved()]
        unit = self._unit_of(there)
        for saved, stamps in there:
            origin = self._taken.get(saved.number)
            if origin is not None and origin.path != saved.path:
                left_out[saved.path.name] = f"its number is that of {origin.path.name}"
            elif unit not in (saved.unit, None):
                left_out[saved.path.name] = f"it counts {saved.unit}s, and the others {unit}s"
            elif stamps and (origin is None or origin.files != stamps):
                pending.append((saved, stamps))
        self._reached = record_in(self._followed.path) if self._followed.is_folder else None
        self._left_out, self._pending = left_out, pending
        self._since = {
            saved.path: self._since[saved.path] for saved, _ in pending if saved.path in self._since
        }

    @property
    def is_over(self) -> bool:
        """Whether the last checkpoint was taken: the trainer's record or the user names it."""
        if self._pending or self._taken != self._reported:
            return False
        if not self._followed.is_folder:
            return bool(self._taken)
        until, newest = self._followed.until_step, max(self._taken, default=-1)
        is_there = until is not None and newest >= until
        reached = self._reached
        return is_there or (reached is not None and reached.step >= reached.steps <= newest)

    @property
    def words(self) -> str:
        """What was taken and what comes next, in a line that changes only with the folder."""
        name = near(self._followed.path)
        if not self._followed.is_folder:
            return f"evaluates {name}"
        newest = f"took {_named(*max(self._taken.items()))}" if self._taken else "no checkpoint yet"
        return f"follows {name}: {newest}; {self._next()}"

    def _next(self) -> str:
        if self._torn:
            return f"waits: {self._torn}"
        if self._pending:
            return f"{self._pending[0][0].path.name} is being written"
        ends = []
        if self._followed.until_step is not None:
            ends.append(f"until {self._followed.until_step:,} (--until-step)")
        if self._reached is not None:
            ends.append(f"until {self._reached.steps:,} ({self._reached.file.name})")
        return f"waits for the next, {' or '.join(ends) or 'until it is cancelled'}"

    def _unit_of(self, there: list[Pending]) -> Unit | None:
        """Return what the folder counts in: as what was taken does, else steps where any have weights."""
        units = {origin.unit for origin in self._taken.values()} or {
            saved.unit for saved, stamps in there if stamps
        }
        return "step" if "step" in units else next(iter(units), None)

    def _saved(self) -> list[SavedCheckpoint]:
        path = self._followed.path
        return saved_in(path) if self._followed.is_folder else [checkpoint_at(path)]

    def _take_if_whole(self, saved: SavedCheckpoint, stamps: Stamps, age_s: float) -> None:
        lack = lack_of(saved.path)
        if lack and age_s < TORN_S:
            self._torn = lack
            return
        origin = Origin(path=saved.path, unit=saved.unit, files=stamps, unusable=lack)
        write_json(self._run.checkpoint(saved.number) / ORIGIN, origin.model_dump(mode="json"))
        self._taken[saved.number] = origin
        logger.info(
            "took %s%s", _named(saved.number, origin), f", which cannot be evaluated: {lack}" if lack else ""
        )

    def _report(self) -> None:
        news = FollowingNews(
            quiet_s=0.0 if self.is_over else self._quiet_s(),
            last=self._followed.until_step if self._reached is None else self._reached.steps,
            left_out=self._left_out,
        )
        if news != read_news(self._run):
            write_json(self._run.following, news.model_dump(mode="json"))
            for name, why in news.left_out.items():
                logger.warning("%s is left out: %s", name, why)

    def _quiet_s(self) -> float:
        """How long nothing has come, in a value that changes only where it has doubled; 0 while that is not
        long."""
        least = max(QUIET_S, QUIET_TIMES * self._longest_pause)
        quiet_s = self._clock() - self._last_news
        return least * 2.0 ** int(quiet_s / least).bit_length() / 2 if quiet_s >= least else 0.0


def checkpoint_at(path: Path) -> SavedCheckpoint:
    """Return the one checkpoint at a path, under the number in its name, or 0."""
    number, unit = numbered(path.name) or (0, "")
    return SavedCheckpoint(number, unit, path)


def follower_of(run: RunFolder, config: Config) -> Follower | None:
    """Return what follows the run's folder; None for a run that trains. Such a run measures no loader, so
    that its evaluations get settings without a measurement."""
    followed = read_followed(run)
    if followed is None:
        return None
    if not run.loader.exists():
        asked = config.loader
        workers = WORKERS if asked.workers == "auto" else asked.workers
        prefetch = 2 if asked.prefetch == "auto" else asked.prefetch
        write_settings(run.loader, LoaderSettings(workers=workers, prefetch=prefetch, reason="not measured"))
    return Follower(run, followed)


def followed_at(path: Path, is_folder: bool, until_step: int | None) -> Followed:
    """Return what lies at a path that a person has given; UsageError where that is no folder, or no
    checkpoint."""
    key = "--follow" if is_folder else "CHECKPOINT"
    if not path.exists():
        more = "; name the folder that the trainer saves into, once it is there" if is_folder else ""
        raise UsageError(f"{key}: there is no {path}{more}")
    place, name = path.resolve(), numbered(path.resolve().name)
    has_weights = path.is_dir() and bool(stamped(place))
    if is_folder and (path.is_file() or (has_weights and name is not None)):
        raise UsageError(f"--follow: {path} is a checkpoint itself; leave --follow out")
    if not is_folder and path.is_dir() and not has_weights:
        inside = saved_in(place)
        fix = f"name one, such as {path / inside[-1].path.relative_to(place)}" if inside else lack_of(place)
        raise UsageError(f"CHECKPOINT: {path} is no checkpoint: {fix}")
    if path.is_file() and path.suffix not in SUFFIXES:
        raise UsageError(f"CHECKPOINT: {path} is no file of weights ({', '.join(SUFFIXES)})")
    return Followed(path=place, is_folder=is_folder, until_step=until_step)


def has_news(run: RunFolder) -> bool:
    """Whether a run that came to its end has to follow on: its folder has something new, or its end was
    moved."""
    followed = read_followed(run)
    if followed is None:
        return False
    follower = Follower(run, followed)
    follower.observe()
    return not follower.is_over


def reopen(run: RunFolder) -> None:
    """Have a run that came to its end follow on, where there is a reason."""
    if record.load_record(run).state != "succeeded" or not has_news(run):
        return
    try:
        with Lease(run.lease):
            record.save_record(run, record.load_record(run).having(state="planned", reason="", goal="train"))
    except Held:
        logger.info("%s is at work; it goes on with what is new when it is started again", run.name)


def quiet_warning(run: RunFolder, quiet_s: float) -> str:
    """Return the sentence about a folder in which nothing new has come for long."""
    followed = read_followed(run)
    where = "its folder" if followed is None else str(followed.path)
    return (
        f"{where}: nothing new for {duration(quiet_s)}; look whether its trainer is at work, "
        f"or end this: tarmac cancel {run.handle}"
    )


def _named(number: int, origin: Origin) -> str:
    """Return such as `epoch_3.pt as step 3, its epoch`."""
    why = {"step": "", "epoch": ", its epoch", "": ", as its name has no number"}[origin.unit]
    return f"{origin.path.name} as step {number:,}{why}"
