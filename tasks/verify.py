"""Proves a version sound before anyone trains on it."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.core import child
from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.stage import StageResult, is_transient, shown


@task(name="verify", retries=1, retry_condition_fn=is_transient, cache_policy=NO_CACHE)
def verify(config: Config, version: Path) -> StageResult:
    """DataError with every finding when the version is not sound, unless all that is bad is in quarantine; of
    private data without keys."""
    with shown("verify") as stage:
        report = child.call("tasks.dataset.verify.readiness:judge", {"version": str(version)}, stage.progress)
        errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
        if errors:
            lines = [
                f"  {entry['code']} {_place(config, entry['where'])}: {entry['remedy']}"
                for entry in errors[:20]
            ]
            steps = dict.fromkeys(f"  next: {entry['command']}" for entry in errors if entry["command"])
            raise DataError("\n".join([f"{version} is not sound: {len(errors)} findings", *lines, *steps]))
        is_sound = not report["findings"]
        verdict = "sound" if is_sound else "sound but for what is in quarantine"
        return stage.result(f"{version.name}: {verdict}", version=str(version))


def _place(config: Config, where: dict[str, object]) -> str:
    hidden = ("key", "member") if config.dataset.private else ()
    return " ".join(str(value) for name, value in where.items() if name not in hidden)
