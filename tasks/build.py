"""Raw data to a new version of the dataset, and the switch that makes it current."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from pydantic_core import to_jsonable_python

from tasks.core import child
from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.dataset import versions
from tasks.dataset.build import freshness
from tasks.stage import StageResult, is_transient, shown, tell


@task(
    name="build",
    retries=2,
    retry_delay_seconds=[5, 60],
    retry_condition_fn=is_transient,
    cache_policy=NO_CACHE,
)
def build(
    config: Config,
    *,
    rehash: bool = False,
    accept_loss: bool = False,
    waits: bool = True,
) -> StageResult:
    """Convert what has changed and assemble a version; `details.version` is its folder."""
    with shown("build") as stage:
        asked: dict[str, Any] = {"rehash": rehash, "accept_loss": accept_loss, "waits": waits}
        survey = freshness.take_survey(config.dataset.output)
        asked["survey"] = None if survey is None else str(survey)
        built = child.call(
            "tasks.dataset.build.run:build",
            {"config": config.model_dump(mode="json"), **asked},
            stage.progress,
        )
        counts = {what: built[what] for what in ("read", "accepted", "filtered", "rejected")}
        tell(
            create_table_artifact,
            [{"what": what, "samples": count} for what, count in (counts | built["rejects"]).items()],
            key="build",
            description=f"Samples of {config.dataset.output}",
        )
        return stage.result(_summary(built), **built)


def _summary(built: dict[str, Any]) -> str:
    count = f"{built['read']:,} read = {built['accepted']:,} accepted"
    if built["filtered"]:
        count += f" + {built['filtered']:,} filtered"
    if built["rejected"]:
        count += f" + {built['rejected']:,} rejected"
    if built["up_to_date"]:
        return f"up to date: {count}"
    written = f"{count}; {built['shards_rewritten']} of {built['shards']} shards written"
    if not built["released"]:
        return written
    return f"{written}; {counted(built['released'], 'sample')} taken out of quarantine.jsonl"


@task(name="publish", cache_policy=NO_CACHE)
def publish(config: Config, version: Path) -> StageResult:
    """Switch the dataset to a verified version; readers of the old one are not disturbed."""
    with shown("publish") as stage:
        before = versions.current(config.dataset.output)
        versions.publish(config.dataset.output, version, config.dataset.keep)
        was = "" if before is None or before == version else f" (was {before.name})"
        summary = f"version {version.name}{was}"
        if config.dataset.mirror is not None:
            asked: dict[str, Any] = {
                "version": version,
                "mirror": config.dataset.mirror,
                "keep": config.dataset.keep,
            }
            try:
                sent = child.call("tasks.dataset.mirror:publish", to_jsonable_python(asked), stage.progress)
            except DataError as error:
                there = f"the dataset is current at {config.dataset.output / 'current'}"
                raise DataError(f"{error}; {there}, and running again does the copy alone") from None
            summary += (
                f"; {config.dataset.mirror}: {sent['uploaded']} objects sent, {sent['kept']} there already"
            )
        return stage.result(summary, version=str(version))
