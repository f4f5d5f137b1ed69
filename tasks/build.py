"""Raw data to a new version of the dataset, and the switch that makes it current."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.artifacts import create_table_artifact
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from tasks import control
from tasks.core import screen
from tasks.core.errors import DataError, NeedsApproval, TarmacError, first_line
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.dataset import versions
from tasks.dataset.building import freshness
from tasks.dataset.building.result import BuildResult
from tasks.stage import Shown, StageResult, artifact_key, is_transient, shown, tell

RESULT = TypeAdapter(BuildResult)


@dataclass(frozen=True)
class Published:
    """The version that is current now."""

    version: Path


@control.stage(
    name="build",
    retries=2,
    retry_delay_seconds=[5, 60],
    retry_condition_fn=is_transient,
)
def build(
    config: Config,
    *,
    rehash: bool = False,
    accept_loss: bool = False,
    waits: bool = True,
) -> StageResult[BuildResult]:
    """Convert what has changed and assemble a version."""
    with shown("build") as stage:
        asked: dict[str, Any] = {"rehash": rehash, "accept_loss": accept_loss, "waits": waits}
        survey = freshness.take_survey(config.dataset.output)
        asked["survey"] = None if survey is None else str(survey)
        arguments = {"config": config.model_dump(mode="json"), **asked}
        try:
            answer = stage.call("tasks.dataset.building.builder:build", arguments, config.dataset.private)
        except NeedsApproval as loss:
            _show_samples(config, loss)
            raise
        built = RESULT.validate_python(answer)
        counts = {what: getattr(built, what) for what in ("read", "accepted", "filtered", "rejected")}
        tell(
            create_table_artifact,
            [{"what": what, "samples": count} for what, count in (counts | dict(built.rejects)).items()],
            key=artifact_key("samples", config.name),
            description=f"Samples of {config.dataset.output}",
        )
        return stage.result(_summary(built), built, "unchanged" if built.up_to_date else "changed")


def _show_samples(config: Config, loss: NeedsApproval) -> None:
    """Show on Prefect's page which samples a person is asked about."""
    if loss.samples:
        tell(
            create_table_artifact,
            [dict(row) for row in loss.samples],
            key=artifact_key("gone-or-overwritten", config.name),
            description="\n\n".join(loss.reason.splitlines()),
        )


def _summary(built: BuildResult) -> str:
    count = f"{built.read:,} read = {built.accepted:,} accepted"
    if built.filtered:
        count += f" + {built.filtered:,} filtered"
    if built.rejected:
        count += f" + {built.rejected:,} rejected"
    if built.up_to_date:
        return f"up to date: {count}"
    written = f"{count}; {built.shards_rewritten} of {built.shards} shards written"
    if not built.released:
        return written
    return f"{written}; {counted(built.released, 'sample')} taken out of quarantine.jsonl"


@control.stage(name="publish")
def publish(config: Config, version: Path) -> StageResult[Published]:
    """Switch the dataset to a verified version; readers of the old one are not disturbed."""
    with shown("publish") as stage:
        before = versions.current(config.dataset.output)
        versions.publish(config.dataset.output, version, config.dataset.keep)
        is_switched = before != version
        was = f" (was {before.name})" if before is not None and is_switched else ""
        summary = f"version {version.name}{was}"
        if config.dataset.mirror is not None:
            asked: dict[str, Any] = {
                "version": version,
                "mirror": config.dataset.mirror,
                "keep": config.dataset.keep,
            }
            try:
                arguments = to_jsonable_python(asked)
                sent = stage.call("tasks.dataset.mirror:publish", arguments, config.dataset.private)
            except DataError as error:
                there = f"the dataset is current at {config.dataset.output / 'current'}"
                raise DataError(f"{error}; {there}, and running again does the copy alone") from None
            summary += (
                f"; {config.dataset.mirror}: {sent['uploaded']} objects sent, {sent['kept']} there already"
            )
            is_switched = is_switched or sent["uploaded"] > 0
        if before != version or not (config.dataset.output / "look.html").exists():
            _write_page(stage, config, version)
        return stage.result(summary, Published(version), "changed" if is_switched else "unchanged")


def _write_page(stage: Shown, config: Config, version: Path) -> None:
    """The dataset's page, to which the flow run's leads; the version is current without it, too."""
    target = "tasks.dataset.preview.page:write_beside"
    try:
        stage.call(target, {"version": str(version)}, config.dataset.private)
    except control.Withdrawn:
        raise
    except TarmacError as error:
        screen.warn(f"look.html of version {version.name} is not written: {first_line(error)}")
