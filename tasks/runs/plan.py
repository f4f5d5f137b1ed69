"""Makes a run's folder out of a config and a version of the data; planning twice finds the same folder.

The config kept in the folder is complete: defaults filled in, epochs turned into steps, paths absolute, so
that the processes of a run need nothing but the folder, wherever they start.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import yaml

from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import fsync_path, read_json, write_atomic
from tasks.core.lease import Held, Lease
from tasks.core.locations import absolute_location
from tasks.core.pins import pin
from tasks.core.quarantine import NAME, Entry, to_text
from tasks.core.schema import Config
from tasks.runs import record
from tasks.runs.folder import ARCHIVE, RunFolder
from tasks.runs.identity import ID_DIGITS, DataRef, identity, run_id
from tasks.runs.quarantine import digest, of_dataset
from tasks.runs.record import RunRecord


def locate(config: Config, version: Path) -> RunFolder:
    """The folder that this config and data have, whether or not it is there yet; writes nothing."""
    resolved = resolve(config, version)
    data = data_of(version)
    fields = identity(resolved, data, digest(of_dataset(version, data[0].version)))
    return RunFolder(resolved.runs / f"{config.name}-{run_id(fields)}")


def plan(config: Config, version: Path, *, fresh: bool = False) -> RunFolder:
    """The run's folder with its record, its config and the data's quarantine, and a pin on the version.

    An existing run keeps its record; its config follows the given one (they differ only in what does not
    shape the weights) unless an agent works on it. `fresh` moves an existing run to `runs/archive/` first;
    TarmacError when it is in use.
    """
    resolved = resolve(config, version)
    data = data_of(version)
    quarantined = of_dataset(version, data[0].version)
    fields = identity(resolved, data, digest(quarantined))
    run = RunFolder(resolved.runs / f"{config.name}-{run_id(fields)}")
    if fresh and run.record.exists():
        _archive(run)
    try:
        with Lease(run.lease):
            _write(run, resolved, fields, data, quarantined)
    except Held:
        if not run.record.exists():
            raise
    dataset = _dataset_of(version)
    if dataset is not None:
        pin(dataset, run.id, version.resolve().name, run.path)
    return run


def resolve(config: Config, version: Path) -> Config:
    """The config with epochs as steps and absolute paths."""
    source = config.dataset
    sources = [
        entry.model_copy(update={"path": absolute_location(entry.path)}) for entry in source.all_sources
    ]
    single = source.source is not None
    dataset = source.model_copy(
        update={
            "output": _absolute(source.output),
            "source": sources[0] if single else None,
            "sources": None if single else sources,
        }
    )
    changes: dict[str, Any] = {"runs": _absolute(config.runs), "dataset": dataset}
    if config.train is not None and config.train.epochs is not None:
        samples = train_samples(version)
        steps = config.train.epochs * samples // config.train.batch_size
        if steps < 1:
            raise UsageError(
                f"train.epochs: {config.train.epochs} epochs of {samples} samples make no "
                f"batch of {config.train.batch_size}; lower train.batch_size"
            )
        changes["train"] = config.train.model_copy(update={"steps": steps, "epochs": None})
    return config.model_copy(update=changes)


def train_samples(version: Path) -> int:
    """Samples in the version's train split, by its manifest, but for those in quarantine; DataError when
    those are all."""
    name = data_of(version)[0].version
    left_out = sum(entry.split == "train" for entry in of_dataset(version, name))
    try:
        samples = int(read_json(version / "manifest.json")["splits"]["train"]["samples"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{version}/manifest.json: names no train split; build the dataset again") from None
    if 0 < samples <= left_out:
        raise DataError(
            f"{version}: all {samples:,} samples of split train are left out: {NAME}; "
            f"`tarmac repair {version}` takes back what is sound"
        )
    return samples - left_out


def data_of(version: Path) -> list[DataRef]:
    """The version as a run refers to it: named by its manifest's content, wherever the folder lies."""
    try:
        content = (version / "manifest.json").read_bytes()
    except OSError:
        raise DataError(f"{version}: has no manifest.json; build the dataset first") from None
    name = hashlib.sha256(content).hexdigest()[:ID_DIGITS]
    inside = _dataset_of(version) if version.resolve().name == name else None
    return [DataRef(dataset=str(inside or version.resolve()), version=name)]


def version_path(ref: DataRef) -> Path:
    """The folder of a version that a run refers to."""
    inside = Path(ref.dataset) / "versions" / ref.version
    return inside if inside.is_dir() else Path(ref.dataset)


def dump(config: Config) -> str:
    """The config as YAML that `tasks.core.config.load` reads back to the same config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _dataset_of(version: Path) -> Path | None:
    """The dataset folder that a version lies in; None for one that lies elsewhere."""
    real = version.resolve()
    return real.parent.parent if real.parent.name == "versions" else None


def _write(
    run: RunFolder, config: Config, fields: dict[str, Any], data: list[DataRef], quarantined: list[Entry]
) -> None:
    text = dump(config)
    if quarantined and not run.quarantine.exists():
        write_atomic(run.quarantine, to_text(quarantined))
    if not run.config.exists() or run.config.read_text(encoding="utf-8") != text:
        write_atomic(run.config, text)
    if not run.record.exists():
        record.save(
            run, RunRecord(id=run_id(fields), name=config.name, identity=fields, data=data, state="planned")
        )


def _archive(run: RunFolder) -> None:
    """Move the folder away under its lease, so that no agent starts in it meanwhile."""
    target = run.path.parent / ARCHIVE / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Lease(run.lease):
            os.rename(run.path, target)
            (target / run.lease.name).unlink(missing_ok=True)
    except Held as held:
        raise TarmacError(f"{run.name} is in use ({held}); end it first: tarmac cancel {run.id}") from None
    fsync_path(run.path.parent)
