"""How verify words what it finds: always an error, always with the way out."""

from __future__ import annotations

from typing import Any

from tasks.core.findings import Finding

REBUILD = "build the dataset again: only what is damaged is redone"
REMAKE = "delete this file and build the dataset again: only this shard is redone"
UPDATE = "update Tarmac if a newer one made this, else build the dataset again"


def fault(code: str, remedy: str, where: dict[str, Any], **evidence: Any) -> Finding:
    return Finding(code, "error", remedy, where, evidence)
