"""Convert the raw samples of damaged shards again from their source: a build of named samples.

The source is listed once, as in a build, but only the samples that are needed are kept. Samples that changed
in the source are converted as well: the shard's seal shows whether they still give the same bytes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.core.config import differing_keys
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import is_disk_full
from tasks.core.process import available_cores
from tasks.core.schema import BuildEngine, Config, Dataset, Engines
from tasks.core.screen import Progress
from tasks.dataset.building.builder import NamedShards, list_named
from tasks.dataset.building.fingerprint import CONVERTER, NOT_SHAPING, config_digest, packages
from tasks.dataset.repair.workplace import Seals
from tasks.dataset.sources import open_sources
from tasks.dataset.version.build_info import BuildInfo, read_build_info
from tasks.dataset.version.manifest import Manifest


@dataclass(frozen=True)
class BuildOrigin:
    """What the version was built by. `config` is None where it is lost; `lacking` is the reason why the
    sources cannot be read, "" where they can; `changes` names packages that may convert samples differently
    now."""

    config: Config | None
    lacking: str
    is_private: bool
    changes: str = ""


def read_origin(version: Path, others: Iterable[Path], seals: Seals, given: Config | None) -> BuildOrigin:
    """The config that the version's build.json keeps, or that of another version with the same rules, or the
    given one; UsageError for a given config with other rules."""
    info = seals.info or _of_the_same_rules(others, seals.manifest)
    stored = None
    if info is not None:
        stored = _config(info.name, Dataset.model_validate(info.dataset), info.engine.get("workers"))
    if given is not None:
        _require_same_rules(version, seals.manifest, stored, given)
        named = seals.manifest or stored or given
        engine = given.engine.for_build()
        workers = engine.workers if engine.kind == "local" else None
        config = _config(named.name, given.dataset, workers)
        is_private = given.dataset.private if info is None else info.private
        return BuildOrigin(config, "", is_private, _changed_packages(config, seals))
    if stored is None or info is None:
        return BuildOrigin(None, f"its config is lost: {seals.lost}", is_private=True)
    keys = ", ".join(info.cut)
    lacking = f"build.json keeps no passwords or signatures, which {keys} has" if keys else ""
    return BuildOrigin(stored, lacking, info.private, _changed_packages(stored, seals))


def _of_the_same_rules(others: Iterable[Path], manifest: Manifest | None) -> BuildInfo | None:
    for other in others:
        with contextlib.suppress(DataError, ValidationError):
            info = read_build_info(other)
            rules = config_digest(Dataset.model_validate(info.dataset))
            if manifest is not None and rules == manifest.config_digest:
                return info
    return None


@dataclass(frozen=True)
class ReconvertedShard:
    """The needed samples of a shard after their conversion: a sidecar with a row and a tar with a span for
    each, in the order of the needed keys; no tar where no sample was accepted. `rejects` holds the reason and
    detail of each sample that was not accepted, by key; nothing is converted where the source lacks a
    sample."""

    name: str
    rejects: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sidecar: Any = None
    tar: Path | None = None


class Reconverter:
    """Converts samples again, in its own staging folder. `trouble` is why a source could not be read."""

    def __init__(self, config: Config, staging: Path, progress: Progress) -> None:
        self._config = config
        self._staging = staging
        self._progress = progress
        self.trouble: Exception | None = None

    def convert(
        self, wanted: Mapping[str, Sequence[str]], containers: frozenset[str]
    ) -> Iterator[ReconvertedShard]:
        """Convert the samples of these keys, shard by shard, each as soon as it is done.

        `containers` are those of sequential sources that held the samples: they are read first, the others
        only where samples are missing there. The iteration ends early, with `trouble` set, where the sources
        cannot be read. A full disk is raised.
        """
        try:
            config = self._readable()
            named = self._listed(config, wanted, containers or None)
            if named.missing and containers:
                named = self._listed(config, wanted, None)
            lacking = dict.fromkeys(named.missing, ("member.missing", ""))
            lacking |= {key: (one.reason, one.detail) for key, one in named.rejects.items() if key in lacking}
            for name, keys in wanted.items():
                rejects = {key: lacking[key] for key in keys if key in lacking}
                if rejects:
                    yield ReconvertedShard(name, rejects)
            for shard in named.convert(self._progress):
                name, sidecar = shard.split, shard.sidecar
                if lacking.keys().isdisjoint(wanted[name]):
                    columns = (sidecar.column(column).to_pylist() for column in ("reason", "detail"))
                    rows = zip(wanted[name], *columns, strict=True)
                    rejects = {key: (reason, detail) for key, reason, detail in rows if reason is not None}
                    yield ReconvertedShard(name, rejects, sidecar, shard.tar)
        except (TarmacError, OSError) as error:
            if is_disk_full(error):
                raise
            self.trouble = error
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)  # or a full disk would stay full

    def _listed(
        self, config: Config, wanted: Mapping[str, Sequence[str]], containers: frozenset[str] | None
    ) -> NamedShards:
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True)
        return list_named(config, wanted, self._staging, self._progress, containers)

    def _readable(self) -> Config:
        """The config with only those sources that can be read; `trouble` is the error of the last one that
        cannot."""
        config = self._config
        blocks = config.dataset.all_sources
        readable = []
        for block, source in zip(blocks, open_sources(config.dataset), strict=True):
            try:
                next(iter(source.containers()), None)
                readable.append(block)
            except (TarmacError, OSError) as error:
                self.trouble = error
        if self.trouble is None:
            return config
        if not readable:
            raise self.trouble
        dataset = config.dataset.model_copy(update={"source": None, "sources": readable})
        return config.model_copy(update={"dataset": dataset})


def _config(name: str, dataset: Dataset, workers: Any) -> Config:
    count = workers if type(workers) is int and workers > 0 else available_cores()
    engine = BuildEngine(kind="local", workers=count)
    return Config(name=name, dataset=dataset, engine=Engines(build=engine))


def _changed_packages(config: Config, seals: Seals) -> str:
    """The packages that have another version than when the version was built: `pillow 11.3.0, was 10.4.0`."""
    if seals.info is None:
        return ""
    was = {**seals.info.versions, "Tarmac's converter": seals.info.converter}
    now = {**packages(config.dataset), "Tarmac's converter": CONVERTER}
    changed = [name for name in now if was.get(name) not in (None, now[name])]
    return "; ".join(f"{name} {now[name]}, was {was[name]}" for name in changed)


def _require_same_rules(
    version: Path, manifest: Manifest | None, stored: Config | None, given: Config
) -> None:
    if manifest is None or config_digest(given.dataset) == manifest.config_digest:
        return
    what = f"the manifest's config_digest is {manifest.config_digest[:12]}…"
    if stored is not None:
        built, now = (one.dataset.model_dump(mode="json", exclude=NOT_SHAPING) for one in (stored, given))
        what = ", ".join(differing_keys(built, now, "dataset.")[:5]) or what
    raise UsageError(
        f"--config: its rules are not those of version {version.name} ({what}), so its shards would not be "
        "the same; give the config that it was built by, or make a new version: tarmac build"
    )
