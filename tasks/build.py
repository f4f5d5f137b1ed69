"""Raw data to a new version of the dataset, and the switch that makes it current."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect.artifacts import create_table_artifact
from pydantic import TypeAdapter

from tasks import control, events
from tasks.core import screen
from tasks.core.errors import DataError, NeedsApproval, TarmacError, Withdrawn, first_line
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.dataset.building import freshness
from tasks.dataset.building.conversion.result import BuildResult
from tasks.dataset.quality.verdict import Terms
from tasks.dataset.version import versions
from tasks.stage import StageResult, artifact_key, best_effort, is_transient, shown

RESULT = TypeAdapter(BuildResult)


@dataclass(frozen=True)
class Published:
    """The version that is current now, and those that `dataset.keep` has removed."""

    version: Path
    removed: Sequence[str] = ()


@control.stage(name="build", retries=2, retry_delay_seconds=[5, 60], retry_condition_fn=is_transient)
def build(
    config: Config, *, rehash: bool = False, accept_loss: bool = False, waits: bool = True
) -> StageResult[BuildResult]:
    """Convert what has changed and assemble a version."""
    with shown("build") as stage:
        survey = freshness.kept_survey(config.dataset.output)
        arguments = {
            "config": config.model_dump(mode="json"),
            "rehash": rehash,
            "accept_loss": accept_loss,
            "waits": waits,
            "survey": None if survey is None else str(survey),
        }
        try:
            answer = stage.call("tasks.dataset.building.builder:build", arguments, config.dataset.private)
        except NeedsApproval as loss:
            if loss.samples:  # which the person who is asked wants to see
                best_effort(
                    create_table_artifact,
                    [dict(row) for row in loss.samples],
                    key=artifact_key("gone-or-overwritten", config.name),
                    description="\n\n".join(loss.reason.splitlines()),
                )
            raise
        built = RESULT.validate_python(answer)
        counts = {what: getattr(built, what) for what in ("read", "accepted", "filtered", "rejected")}
        best_effort(
            create_table_artifact,
            [{"what": what, "samples": count} for what, count in (counts | dict(built.rejects)).items()],
            key=artifact_key("samples", config.name),
            description=f"Samples of {config.dataset.output}",
        )
        return stage.result(_summary(built), built, "unchanged" if built.up_to_date else "changed")


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
    output, mirror, private = config.dataset.output, config.dataset.mirror, config.dataset.private
    with shown("publish") as stage:
        before = versions.current(output)
        removed = versions.publish(output, version, config.dataset.keep)
        is_switched = has_changed = before != version
        was = f" (was {before.name})" if before is not None and is_switched else ""
        summary = f"version {version.name}{was}"
        if removed:
            summary += f"; removed {', '.join(removed)} (dataset.keep: {config.dataset.keep})"
        if mirror is not None:
            arguments = {"version": str(version), "mirror": str(mirror), "keep": config.dataset.keep}
            try:
                sent = stage.call("tasks.dataset.version.mirror:publish", arguments, private)
            except DataError as error:
                there = f"the dataset is current at {output / 'current'}"
                raise DataError(f"{error}; {there}, and running again does the copy alone") from None
            summary += f"; {mirror}: {sent['uploaded']} objects sent, {sent['kept']} there already"
            has_changed = is_switched or sent["uploaded"] > 0
        if is_switched or not (output / "look.html").exists():
            try:
                page = {"version": str(version), "terms": asdict(Terms.of(config))}
                stage.call("tasks.dataset.preview.page:write_beside", page, private)
            except Withdrawn:
                raise
            except TarmacError as error:  # the version is current without its page, too
                screen.warn(f"look.html of version {version.name} could not be written: {first_line(error)}")
        if is_switched:
            events.emit_asset(
                "dataset", config.name, summary, version=version.name, folder=str(version.resolve())
            )
        return stage.result(summary, Published(version, removed), "changed" if has_changed else "unchanged")
