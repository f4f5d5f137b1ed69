"""Which part of a volume's name is the patient, guessed so that no patient ends in two splits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CANDIDATES = (
    r"((?:train|valid|test)_\d+)_",
    r"(sub-[A-Za-z0-9]+)",
    r"((?:patient|subject|pat|case)[_-]?\d+)",
    r"(?:^|/)([A-Za-z]*\d+)[_-][^/]*$",
    r"(?:^|/)([A-Za-z]+[_-]\d+)[_-][^/]*$",
    r"(?:^|/)([^/_-]+)[_-][^/]*$",
    r"([^/]+)/[^/]+$",
)
"""CT-RATE's names, BIDS', a named number, a number or word and number in front, what stands before the first
`_` or `-`, the folder."""
LEAST_SHARE = 0.95
MOST_A_PATIENT = 20
"""Files a patient on average; more are a part of the name that says something else."""


@dataclass(frozen=True, slots=True)
class Patients:
    """An expression whose first group is the patient, and how many there are."""

    pattern: str
    count: int


def guess(files: Sequence[str]) -> Patients | None:
    """The first expression that fits nearly all names and puts some, but not too many, together."""
    for pattern in CANDIDATES:
        compiled = re.compile(pattern)
        found = {file: match.group(1) for file in files if (match := compiled.search(file)) is not None}
        patients = len(set(found.values()))
        if len(found) >= LEAST_SHARE * len(files) and 2 <= patients < len(files) <= MOST_A_PATIENT * patients:
            return Patients(pattern, patients)
    return None
