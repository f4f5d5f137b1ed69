"""Asks for some of the images that a table names by their addresses: what old tables name is often gone.

Each address is asked once, all at the same time, so the answer takes as long as the slowest server may.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.core.errors import UsageError
from tasks.core.schema import ImageRules
from tasks.core.stores import is_valid, is_web
from tasks.core.units import counted
from tasks.dataset.formats.images import largest_bytes
from tasks.dataset.formats.signatures import described, image_kind
from tasks.dataset.init.evidence import BUDGET, Grade

SEVERAL = 2
"""Addresses without an image that are no coincidence any more."""


@dataclass(frozen=True)
class TriedAddresses:
    """How many addresses were tried, how many `gave` an image, and what the others gave, with an example of
    each kind. `hindrance` is why none could be tried."""

    tried: int
    gave: int = 0
    problems: Sequence[tuple[str, int, str]] = ()
    hindrance: str = ""

    @property
    def where(self) -> str:
        """Where the images are, as evidence for a config's key."""
        if self.hindrance:
            return f"web addresses, which the build fetches; none was tried, because {self.hindrance}"
        found = "".join(f", {count} {problem}" for problem, count, _ in self.problems)
        return (
            f"web addresses, which the build fetches: {self.gave} of {self.tried} tried gave an image{found}"
        )

    @property
    def fix(self) -> str:
        """What to do about the addresses; "" where they are as they should be."""
        if not self.tried or (self.budget == BUDGET and self.gave):
            return ""
        example = self.problems[0][2]
        if not self.gave:
            return f"none of {counted(self.tried, 'address', 'addresses')} tried gave an image: {example}"
        none = f"{self.tried - self.gave} of {self.tried} addresses tried gave no image ({example})"
        return f"{none}: the build rejects such rows, and reject_budget allows {self.budget:.0%}"

    @property
    def grade(self) -> Grade:
        if self.tried and not self.gave:
            return 0
        return 1 if self.fix or self.hindrance else 2

    @property
    def budget(self) -> float:
        """The share of rejects to allow: a quarter more than was found, because few were tried."""
        missing = self.tried - self.gave
        if missing < SEVERAL or not self.gave:
            return BUDGET
        return min(0.95, math.ceil(20 * (1.25 * missing / self.tried + BUDGET)) / 20)


def try_addresses(addresses: Sequence[str]) -> TriedAddresses:
    """Ask for these addresses of web servers; others are left out."""
    from tasks.core.remote.addresses import AddressFetcher
    from tasks.core.remote.answers import Unfetched

    wanted = [address for address in addresses if is_web(address) and is_valid(address)]
    if not wanted:
        return TriedAddresses(0, hindrance="none of those looked at is an address of a web server")
    try:
        fetcher = AddressFetcher(tries=1)
    except UsageError as error:
        return TriedAddresses(0, hindrance=str(error).partition(": ")[2])
    limit = largest_bytes(ImageRules())
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    fetcher.announce(wanted, limit)
    for address in wanted:
        try:
            content = fetcher.fetch(address, limit)
            if image_kind(content) is not None:
                continue
            problem, example = "gave something else", f"{described(content)} in place of an image"
        except Unfetched as failed:
            problem = {"gone": "gone", "unreachable": "without an answer"}.get(failed.problem, "too large")
            example = str(failed)
        counts[problem] += 1
        examples.setdefault(problem, example)
    fetcher.close()
    problems = [(problem, count, examples[problem]) for problem, count in counts.most_common()]
    return TriedAddresses(len(wanted), len(wanted) - counts.total(), problems)
