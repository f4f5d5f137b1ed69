"""Proves a version sound before anyone trains on it."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.core import child
from tasks.core.errors import DataError
from tasks.stage import StageResult, is_transient, shown


@task(name="verify", retries=1, retry_condition_fn=is_transient, cache_policy=NO_CACHE)
def verify(version: Path, level: str = "default") -> StageResult:
    """DataError with every finding when the version is not sound."""
    with shown("verify") as stage:
        report = child.call(
            "tasks.dataset.verify:verify", {"path": str(version), "level": level}, stage.progress
        )
        errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
        if errors:
            lines = [
                f"  {entry['code']} {_place(entry['where'])}: {entry['remedy']}" for entry in errors[:20]
            ]
            raise DataError("\n".join([f"{version} is not sound: {len(errors)} findings", *lines]))
        return stage.result(f"{version.name}: sound", version=str(version), findings=report["findings"])


def _place(where: dict[str, object]) -> str:
    return " ".join(str(value) for value in where.values())
