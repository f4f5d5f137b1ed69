"""The format of `quarantine.jsonl`: samples known to be bad, which no reader takes until they are repaired.

The file has one JSON object per line, `{version, split, shard, key, reason}`, sorted, so that equal sets of
samples give equal bytes. An entry is about one version only. The file lies in a dataset's folder, and a run
keeps a copy of the lines about its version.
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
    """One sample: `version` by its 12 digits, `shard` as `train/000007.tar`, `reason` a verify code."""

    version: str
    split: str
    shard: str
    key: str
    reason: str

    @property
    def sample(self) -> tuple[str, str, str]:
        """What identifies the sample, whatever the reason."""
        return self.version, self.shard, self.key


def home(version: Path) -> Path:
    """The folder of a version's quarantine: its dataset, or the version itself where it lies alone."""
    real = version.resolve()
    return real.parent.parent if real.parent.name == "versions" else real


def read_quarantine(path: Path) -> list[Quarantined]:
    """The entries of a file, none where it is missing; DataError that names file and line of a torn one."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); mend or remove it, and verify again") from None
    lines = enumerate(text.split("\n"), start=1)
    return [_entry(path, number, line) for number, line in lines if line.strip()]


def to_text(entries: Iterable[Quarantined]) -> str:
    """The file's content, the same for the same entries in any order."""
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
