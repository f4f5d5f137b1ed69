"""Counts what a build accepts and rejects, and stops it once the rejects are certain to exceed the budget.

The rejects of every finished shard count, so a build that must fail stops early.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.core.units import near
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.version.manifest import rejects_allowed
from tasks.dataset.version.rejects import FILTERED, LINK_ROT, reject_lines


class BudgetExceeded(Exception):
    """There are more rejects than the budget allows."""


@dataclass
class BuildTally:
    """Counts samples and rejects during a build, and knows when the build is certain to exceed its budget.

    In the order of key hashes the first shards are a random sample, so a build that must fail fails early.
    `read` counts the raw samples and `containers` where they come from; `total` samples are to be converted.
    The budget is `share`, the allowed share of rejects. It is unknown how many samples are lost with the
    containers that are `cut_short`, so these count against the budget as a share of the containers.
    """

    read: int
    share: float
    total: int = 0
    containers: int = 1
    cut_short: int = 0
    done: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    rejecting: list[int] = field(default_factory=list)
    """The shards that hold rejects or filtered samples."""

    def add(self, ordinal: int, samples: int, rejects: Mapping[str, int]) -> None:
        self.done += samples
        self.rejects.update({reason: number for reason, number in rejects.items() if reason != FILTERED})
        if rejects:
            self.rejecting.append(ordinal)

    @property
    def allowed(self) -> int:
        """The number of rejects that the budget allows."""
        return rejects_allowed(self.share, self.read)

    @property
    def is_exceeded(self) -> bool:
        return self.rejects.total() > self.allowed or self.has_lost_containers

    @property
    def has_lost_containers(self) -> bool:
        """Whether more containers are cut short than the budget allows."""
        return self.cut_short > self.share * self.containers

    @property
    def explanation(self) -> str:
        """How the budget is exceeded, for the user."""
        total, looked_at = self.rejects.total(), self.read - self.total + self.done
        allowed = f"dataset.reject_budget ({self.share:.1%})"
        if self.has_lost_containers:
            return (
                f"{self.cut_short:,} of {self.containers:,} tars or tables are cut short, and it is unknown "
                f"how many samples are lost with them; that is more than {allowed} of these"
            )
        if self.done and looked_at < self.read:
            return (
                f"at least {total:,} of the {looked_at:,} samples looked at are rejected "
                f"({total / looked_at:.1%}), and {allowed} allows {self.allowed:,} of the {self.read:,} read"
            )
        known = f"{total:,} of {self.read:,} read are rejected ({total / self.read:.1%}), more than {allowed}"
        return known if looked_at == self.read else f"at least {known}"

    def none_left(self, filtered: int) -> str:
        """Return what is said where every sample is filtered or rejected."""
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in self.rejects.most_common(3))
        rejected = f"{self.rejects.total():,} rejected" + (f" ({reasons})" if reasons else "")
        fixes = ["loosen dataset.filter"] * (filtered > 0) + ["mend the source"] * bool(self.rejects)
        left = f"none of {self.read:,} samples is left: {filtered:,} filtered, {rejected}"
        return f"{left}; {' or '.join(fixes) or 'the source holds none'}"

    def error(self, path: Path, is_private: bool, usual: Sequence[str]) -> DataError:
        """Return the error that ends the build. It lists the rejects by reason from the table at `path`,
        with their causes unless the data is private; `usual` are keys of arbitrary samples to compare them
        with."""
        lines = [
            f"{self.explanation}; the current version stays as it was",
            *reject_lines(path.parent, self.rejects, is_private, usual),
            *self._about_addresses(),
            f"  tarmac rejects {shlex.quote(near(path))} lists all; mend the sources and run again: "
            "only these are redone",
        ]
        return DataError("\n".join(lines))

    def _about_addresses(self) -> Iterator[str]:
        """Say what to do where mostly addresses give no file: that is how old tables are, and no mistake."""
        rotten = sum(self.rejects[reason] for reason in LINK_ROT)
        if 2 * rotten > self.rejects.total():
            looked_at = max(1, self.read - self.total + self.done)
            share = min(1.0, math.ceil(20 * self.rejects.total() / looked_at + 1) / 20)
            yield (
                "  addresses rot with time, in old tables 20 to 40 % of them: to build from those that are "
                f"left, set dataset.reject_budget: {share:.2f}; what was fetched is kept"
            )


def counted(config: Config, catalogue: Catalogue) -> BuildTally:
    """Return a tally that starts with what the listing has found."""
    share, containers = config.dataset.reject_budget, catalogue.container_count
    cut_short, rejects = catalogue.fact("cut_short") or 0, Counter(catalogue.reasons())
    return BuildTally(catalogue.read, share, catalogue.accepted, containers, cut_short, rejects=rejects)
