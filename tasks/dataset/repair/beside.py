"""The files beside the tars: which are damaged, and where each comes from again.

In turn: from another version that has the same file, from a twin made of the other tables, from a twin built
from the source. A file is taken only when it is proven: it is what build.json remembers, or it is derived
from what is sound and the twin bears the version's name. Where build.json remembers nothing, the twin from
the source comes first, and all tables are compared with its.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.errors import TarmacError
from tasks.core.screen import Progress
from tasks.dataset.layout import BUILD, INPUTS
from tasks.dataset.repair import install, twin
from tasks.dataset.repair.cause import is_of_full_disk, is_of_host
from tasks.dataset.repair.identity import (
    MANIFEST,
    TABLE,
    Record,
    is_as_stated,
    name_of,
    read_proven_manifest,
    read_record,
    state,
    tables_of,
)
from tasks.dataset.repair.origin import Origin
from tasks.dataset.repair.outcome import CONFIGURE, MIND, REBUILD, Done, Failed
from tasks.dataset.repair.place import Place
from tasks.dataset.repair.remember import forget, remember
from tasks.dataset.verify.run import verify

PASSES = 3
"""Without a record, damage shows by what is sound: the tables by the manifest, the rest by shards.parquet."""


@dataclass
class Tables:
    """The repair of one version's tables."""

    place: Place
    origin: Origin
    progress: Progress
    done: list[Done] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    """What is still damaged, with why nothing has mended it."""
    is_of_host: bool = False
    """Whether that was for the host's sake."""
    no_source: str = ""
    """Why the source does not give the version, once that is known."""

    def __post_init__(self) -> None:
        self.record: Record | None = read_record(self.place, self.origin.build)
        self.name = name_of(self.place, self.record)
        if self.record is None:
            forget(self.place, self.origin)
        self.damaged = dict.fromkeys(self._find(), "")

    @property
    def failed(self) -> list[Failed]:
        remedy = CONFIGURE if self.origin.lacking else MIND if self.is_of_host else REBUILD
        return [Failed(name, why, remedy, self.is_of_host) for name, why in self.damaged.items()]

    def run(self) -> None:
        if self.record is None:
            self._run_without_record()
        else:
            self._mend()

    def _run_without_record(self) -> None:
        """What the tables tell of each other does not tell of all of inputs.arrow: its twin has to."""
        doubt = f"no record says what it was; {self.origin.lacking}"
        if self.name is not None and not self.origin.lacking:
            found = self.damaged
            manifest = read_proven_manifest(self.place, None)
            names = tables_of(self.place.version, None if manifest is None else manifest.splits)
            self.damaged = dict.fromkeys([*names, *found], "")
            self._from_source(has_inputs=False)
            if not self.damaged:
                return
            doubt = f"no record says what it was, and {self.no_source}"
            self.damaged = found
        self._mend()
        for _ in range(PASSES):
            if self.damaged or not self.done:
                break
            self.damaged = dict.fromkeys(self._find(), "")
            if self.damaged:
                self._mend()
        if not self.damaged:
            self.damaged = {INPUTS: doubt}

    def run_again(self, named: Iterable[str]) -> bool:
        """Make these again, of which the tars have told that they are wrong; whether anything has changed.

        Where there is a record, what is as it says cannot be made otherwise.
        """
        before = len(self.done)
        if self.record is None and not self.damaged:
            self.damaged = {name: "" for name in named if TABLE.fullmatch(name) and name != INPUTS}
            if self.damaged:
                self._mend()
        return len(self.done) > before

    def remember(self) -> None:
        """Let build.json say what is there, once all of it is sound."""
        if not self.damaged:
            self.done += remember(self.place, self.origin, self.record)

    def _mend(self) -> None:
        if self.name is None:
            self._explain("manifest and build.json are lost, so nothing says which version it was")
            return
        if self.damaged:
            self._from_others()
        if self.damaged or self.record is None:
            self._from_tables()
        if self.damaged:
            self._from_source(has_inputs=INPUTS not in self.damaged)

    def _find(self) -> Iterable[str]:
        version = self.place.version
        manifest = read_proven_manifest(self.place, self.record)
        names = tables_of(version, None if manifest is None else manifest.splits)
        if self.record is not None:
            found = [name for name, stated in self.record.items() if not is_as_stated(version / name, stated)]
            found += [name for name in names if name not in self.record]
            return found if manifest is not None else {*found, MANIFEST}
        found = [name for name in names if not install.is_file(version / name)]
        found += [] if manifest is not None else [MANIFEST]
        told = {finding.where.get("file") for finding in verify(version, "quick").findings}
        told.discard(INPUTS)  # whose twin tells more
        return dict.fromkeys([*found, *(name for name in names if name in told)])

    def _from_others(self) -> None:
        for name in list(self.damaged):
            stated = (self.record or {}).get(name)
            for other in self.place.others:
                if stated is not None and is_as_stated(other / name, stated):
                    self._take_copy(other, name)
                    break

    def _from_tables(self) -> None:
        """A damaged inputs.arrow that can be read may still tell what others lack, if build.json agrees."""
        manifest = read_proven_manifest(self.place, self.record)
        has_rejects = twin.REJECTS not in self.damaged
        if self.origin.config is None:
            if self.record is None:
                self.damaged[BUILD] = ""  # which nobody could believe if this wrote it
            self._explain(self.origin.lacking)
            return
        try:
            made = twin.from_tables(self.place, self.origin, manifest, has_rejects)
        except Exception as error:
            if is_of_full_disk(error):
                raise
            if self.record is None:
                self.damaged[INPUTS] = ""
            self._explain(f"{INPUTS} does not tell it ({type(error).__name__}: {str(error)[:100]})")
            return
        if made.name != self.name:
            if self.record is None:
                self.damaged[INPUTS] = ""
            self._explain(f"{INPUTS} tells of another version")
            return
        is_derived = INPUTS not in self.damaged
        told = {name for name in self.damaged if name != INPUTS}
        told -= set() if has_rejects or (manifest is not None and not manifest.rejects) else {twin.REJECTS}
        self._take(made, told, f"made again from {INPUTS}", is_derived)

    def _from_source(self, has_inputs: bool) -> None:
        why = self.origin.lacking or self.no_source
        if why:
            self._explain(why)
            return
        try:
            made = twin.from_source(self.place, self.origin, has_inputs, self.progress)
        except TarmacError as error:
            if is_of_full_disk(error):
                raise
            self.is_of_host = is_of_host(error)
            self.no_source = f"the source does not give it: {error}"
            self._explain(self.no_source)
            return
        if made.name != self.name:
            self.no_source = f"the source is not what it was: it gives version {made.name}"
            self._explain(self.no_source)
            return
        self._take(made, set(self.damaged), "made again from the source", True)

    def _take(self, made: Path, names: Iterable[str], how: str, is_proven: bool) -> None:
        for name in sorted(names):
            stated = (self.record or {}).get(name)
            if not is_proven and (stated is None or not is_as_stated(made / name, stated)):
                continue
            del self.damaged[name]
            target = self.place.version / name
            if not install.is_file(made / name):
                continue  # build.json remembers a file that the version never had
            if install.is_file(target) and state(target) == state(made / name):
                continue  # it was build.json that was wrong
            install.move(self.place, made / name, target)
            self.done.append(Done(name, how))

    def _take_copy(self, other: Path, name: str) -> None:
        copy = self.place.good / name.replace("/", ".")
        copy.parent.mkdir(parents=True, exist_ok=True)
        with (other / name).open("rb") as source, copy.open("wb") as file:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())
        install.move(self.place, copy, self.place.version / name)
        del self.damaged[name]
        self.done.append(Done(name, f"copied from version {other.name}"))

    def _explain(self, why: str) -> None:
        self.damaged = dict.fromkeys(self.damaged, why)
