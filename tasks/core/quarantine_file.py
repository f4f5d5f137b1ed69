"""The format of `quarantine.jsonl`: samples known to be bad, which readers skip until they are repaired.

The file has one JSON object per line, `{version, split, shard, key, reason}`, sorted, so that equal sets of
samples give equal bytes. An entry applies to one version only. The file is in the dataset's folder, and a run
keeps a copy of the lines for its version.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError

NAME = "quarantine.jsonl"


@dataclass(frozen=True, order=True)
class Quarantined:
    """One sample. `version` has 12 digits, `shard` reads `train/000007.tar`, `reason` is a code of verify."""

    version: str
    split: str
    shard: str
    key: str
    reason: str

    @property
    def sample(self) -> tuple[str, str, str]:
        """The fields that identify the sample, without the reason."""
        return self.version, self.shard, self.key


def home(version: Path) -> Path:
    """Return the folder of a version's quarantine: its dataset, or the version itself if it stands alone."""
    real = version.resolve()
    return real.parent.parent if real.parent.name == "versions" else real


def read_quarantine(path: Path) -> list[Quarantined]:
    """Return the entries of a file, none if it is missing; a DataError names file and line of a torn
    entry."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); mend or remove it, and verify again") from None
    lines = enumerate(text.split("\n"), start=1)
    return [_entry(path, number, line) for number, line in lines if line.strip()]


def to_text(entries: Iterable[Quarantined]) -> str:
    """Return the file's content, which is the same for the same entries in any order."""
    lines = [json.dumps(dataclasses.asdict(entry), ensure_ascii=False) for entry in sorted(entries)]
    return "".join(f"{line}\n" for line in lines)


def _entry(path: Path, number: int, line: str) -> Quarantined:
    names = [field.name for field in dataclasses.fields(Quarantined)]
    try:
        fields: Any = json.loads(line)
    except ValueError:
        fields = None
    is_entry = isinstance(fields, dict) and fields.keys() == set(names)
    if not (is_entry and all(isinstance(value, str) for value in fields.values())):
        raise DataError(f"{path}, line {number}: is no entry of {', '.join(names)}; mend or delete the line")
    return Quarantined(**fields)
