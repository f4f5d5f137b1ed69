"""Make the files of a version beside its tars again where their seal is broken.

Each file is looked for where it costs least: in another version, in what `inputs.arrow` records of the
shards, in a build of the version from its source. Nothing takes its place without the right seal, so a wrong
candidate costs only the time to make it. Where build.json is lost, the build from the source must give the
version's own name, and its tables are sealed again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa

from tasks.core.errors import DataError, TarmacError
from tasks.core.files import is_disk_full
from tasks.core.screen import Progress
from tasks.core.stores import is_environment_error
from tasks.dataset.building.builder import build
from tasks.dataset.building.conversion.assemble import DraftShard, describe, draft_version
from tasks.dataset.building.conversion.sidecar import first
from tasks.dataset.building.listed.catalogue import RejectedSample
from tasks.dataset.repair.result import CONFIGURE, REBUILD, RETRY, Done, Failed
from tasks.dataset.repair.source import BuildOrigin
from tasks.dataset.repair.workplace import Seals, Workplace, is_file, is_sealed, read_seals
from tasks.dataset.version.build_info import FileSeal, read_build_info, write_build_info
from tasks.dataset.version.layout import BUILD, INPUTS, MANIFEST, REJECTS, VERSIONS
from tasks.dataset.version.tables import DAMAGED, REJECTS_SCHEMA, ArrowBatches, read_pieces

NEIGHBOUR = "0" * 12
"""The name that the damaged version gets in the dataset of a build from the source, which reuses its
shards."""


@dataclass
class TableRepair:
    """Repairs the damaged tables of a version; `seals` are up to date afterwards."""

    place: Workplace
    seals: Seals
    origin: BuildOrigin
    progress: Progress
    done: list[Done] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    trouble: Exception | None = None
    """Why the version could not be built from its source."""

    def run(self) -> Seals:
        """Repair every table that can be repaired, and return the seals as they are then."""
        if self.seals.info is None:
            self._seal_again()
        wanted = self._damaged(self.seals.files)
        for other in self.place.others if wanted else ():
            self._take(other, wanted, f"copied from version {other.name}")
        for attempt in (self._from_inputs, self._from_source):
            if wanted:
                attempt(wanted)
        self.failed += [self._failure(name) for name in wanted]
        if self.done:
            self.seals = read_seals(self.place)
        return self.seals

    def _damaged(self, files: Mapping[str, FileSeal]) -> dict[str, FileSeal]:
        return {name: seal for name, seal in files.items() if not is_sealed(self.place.version / name, seal)}

    def _take(self, folder: Path, wanted: dict[str, FileSeal], how: str) -> None:
        """Copy the wanted files that have their seal from the folder, and remove them from `wanted`."""
        for name in [name for name, seal in wanted.items() if is_sealed(folder / name, seal)]:
            self.place.copy(folder / name, self.place.version / name)
            self.done.append(Done(name, how))
            del wanted[name]

    def _from_inputs(self, wanted: dict[str, FileSeal]) -> None:
        """Take the tables that follow from `inputs.arrow`, which records all about the accepted samples."""
        config = self.origin.config
        if config is None or INPUTS in wanted:
            return
        work = self.place.tables
        work.mkdir(parents=True, exist_ok=True)
        try:
            draft = draft_version(config, _shards_of(self.place.version), work)
            info = self.seals.info
            filtered, passed_over = (0, {}) if info is None else (info.filtered, info.passed_over)
            describe(draft, config, filtered, self._rejects(wanted), passed_over)
            self._take(draft.folder, wanted, "made from inputs.arrow")
        except (*DAMAGED, DataError) as error:
            if is_disk_full(error):
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _rejects(self, wanted: dict[str, FileSeal]) -> Iterator[RejectedSample]:
        """The rejects that the version's own table lists; none where that is damaged."""
        if REJECTS in wanted:
            return
        pieces = read_pieces(self.place.version / REJECTS, REJECTS_SCHEMA.names)
        for number, row in enumerate(row for piece in pieces for row in piece.to_pylist()):
            yield RejectedSample(number, **row)

    def _from_source(self, wanted: dict[str, FileSeal]) -> None:
        """Take the tables of a build from the source, which reuses the version's shards if `inputs.arrow` is
        sound."""
        version = self._build_again(keeps_shards=INPUTS not in wanted)
        if version is not None:
            self._take(version, wanted, "made again from the source")

    def _build_again(self, keeps_shards: bool) -> Path | None:
        """Build the version's config in a separate dataset; None where that fails, with `trouble` set."""
        config = self.origin.config
        if config is None or self.origin.lacking:
            return None
        again = self.place.again
        shutil.rmtree(again, ignore_errors=True)
        if keeps_shards:
            _plant(self.place.version, again / VERSIONS / NEIGHBOUR)
        dataset = config.dataset.model_copy(update={"output": again, "mirror": None})
        try:
            again_config = config.model_copy(update={"dataset": dataset})
            return build(again_config, self.progress, accept_loss=True).version
        except (TarmacError, OSError) as error:
            if is_disk_full(error):
                raise
            self.trouble = error
            return None

    def _seal_again(self) -> None:
        """Make build.json again by a build from the source, which must give this very version."""
        if self.origin.config is None:
            self.failed.append(Failed(BUILD, self.origin.lacking, CONFIGURE))
            return
        version = self._build_again(keeps_shards=True)
        if version is None or (self.place.has_its_name and version.name != self.place.version.name):
            self.failed.append(self._failure(BUILD))
            return
        if not self.place.has_its_name and self.seals.manifest is None:
            reason = "nothing says which version it was: its folder was renamed, and its manifest has no seal"
            self.failed.append(Failed(BUILD, reason, REBUILD))
            return
        info = read_build_info(version)
        self._take(version, self._damaged(info.files), "made again from the source")
        facts = {name: value for name, value in asdict(info).items() if name not in ("files", "digest")}
        with contextlib.suppress(OSError):  # versions are ordered by this time
            facts["built"] = (self.place.version / MANIFEST).stat().st_mtime
        facts["changes"] = None  # only the lost file had them
        output = self.place.dataset or self.place.version
        facts["output"] = facts["dataset"]["output"] = str(output)
        write_build_info(self.place.version, facts)
        self.done.append(Done(BUILD, "written again"))
        self.seals = read_seals(self.place)

    def _failure(self, name: str) -> Failed:
        """Why a table could not be made again, and what a person can do."""
        if self.origin.lacking:
            return Failed(name, self.origin.lacking, CONFIGURE)
        if self.trouble is not None:
            reason = f"needs the source, which cannot be read: {self.trouble}"
            is_environment = is_environment_error(self.trouble)
            return Failed(name, reason, RETRY if is_environment else REBUILD, is_environment)
        reason = "needs the source, and the source is not what it was when this was built"
        return Failed(name, reason, REBUILD)


def _shards_of(version: Path) -> Iterator[DraftShard]:
    """The shards that have a tar, as `inputs.arrow` lists them, without their tars. A file that an earlier
    Tarmac wrote names no members, and its version has no card."""
    batches = ArrowBatches(version / INPUTS)
    for number in range(len(batches)):
        table = batches[number]
        tar = first(table, "tar")
        if "members" not in table.column_names:
            columns = table.schema.get_field_index("crc32c") + 1
            table = table.add_column(columns, "members", pa.array([""] * table.num_rows))
        if tar is not None:
            yield DraftShard(tar.partition("/")[0], table, None)


def _plant(version: Path, neighbour: Path) -> None:
    """Let a build find the version's shards beside its own: link their files into the folder `neighbour`."""
    for path in (version / INPUTS, *version.glob("*/*.tar")):
        if is_file(path):
            target = neighbour / path.relative_to(version)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
