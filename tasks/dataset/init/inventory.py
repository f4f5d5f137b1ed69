"""The names of all files in a place, up to a limit. No file is opened."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath

from tasks.core.errors import UsageError
from tasks.core.folders import LocalStore, open_store
from tasks.core.patterns import base_folder, expand, pattern_start
from tasks.core.schema.source import GZIP, NAMED_TABLES, TABLES
from tasks.core.stores import ABSENT, AHEAD, Store, StoreUnreachable, is_hidden, is_remote, split_location
from tasks.core.units import count, counted
from tasks.dataset.formats import images
from tasks.dataset.init.evidence import LONGEST, LOOKED_AT, shown, spread
from tasks.dataset.sources.raw_files import COMPRESSED, hidden_kind
from tasks.dataset.version.manifest import passed_over_lines

MOST_FILES = 200_000
"""File names to list at most."""
IMAGES = tuple(f".{suffix}" for suffix in images.SUFFIXES)
NIFTI = (".nii.gz", ".nii")
NPZ = (".npz",)
READ = f"images ({', '.join(images.DECODERS)}), tables ({', '.join(TABLES)}), .npz, .nii.gz, .nii, .tar"
_BUILT = re.compile(r"(?:(.*)/)?versions/[0-9a-f]{12}/manifest\.json")
_LONG = (*NIFTI, *COMPRESSED, *(suffix for suffix in (*TABLES, *NAMED_TABLES) if suffix.endswith(GZIP)))
_KNOWN = (*IMAGES, *TABLES, *NAMED_TABLES, *_LONG, ".npz", ".tar")


@dataclass(frozen=True)
class Inventory:
    """The files of a place, relative to its store and in its order.

    `given` is the place as the config names it. `is_folder` is true where that means everything below it,
    `is_cut` where there are more files than were listed. `datasets` are folders below that Tarmac built;
    their files are not among `files`. `hidden` counts the pictures in hidden folders and a system's, by kind.
    """

    given: str
    store: Store
    files: Sequence[str]
    is_cut: bool
    is_folder: bool
    datasets: Sequence[str] = ()
    hidden: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of files with each suffix, in lower case."""
        return Counter(suffix_of(file) for file in self.files)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.files)

    def of(self, suffixes: Iterable[str]) -> list[str]:
        wanted = set(suffixes)
        return [file for file in self.files if suffix_of(file) in wanted]

    def size(self, file: str) -> int:
        return max(self.store.stat(file).size, 0)

    def start(self, file: str) -> bytes:
        """Return a file's first bytes; raises OSError."""
        return self.store.read(file, AHEAD)

    def mean_size(self, files: Sequence[str]) -> float:
        """The mean number of bytes of the files, from a selection of them."""
        chosen = spread(files, LOOKED_AT)
        return sum(map(self.size, chosen)) / max(len(chosen), 1)

    @property
    def described(self) -> str:
        """`1,797 .png, 1 .csv`."""
        kinds = sorted(self.counts.items(), key=lambda kind: (-kind[1], kind[0]))
        parts = [f"{count(number)} {suffix or 'without suffix'}" for suffix, number in kinds[:6]]
        more = f" and {len(kinds) - 6} more kinds" if len(kinds) > 6 else ""
        cut = f" among the first {count(MOST_FILES)} files; there are more" if self.is_cut else ""
        datasets = f" besides {counted(len(self.datasets), 'dataset')}" if self.datasets else ""
        hidden = "".join(f"; {line}" for line in passed_over_lines(self.hidden, is_private=False))
        return (", ".join(parts) or "no files") + more + cut + datasets + hidden

    def path(self, file: str = "") -> str:
        """Return a file's path, or the folder's, as the config names it."""
        return config_path(self.store.location, file)


def suffix_of(file: str) -> str:
    """Return the suffix in lower case, with the dot; `.nii.gz` is one suffix."""
    name = file.rpartition("/")[2].lower()
    long = next((suffix for suffix in _LONG if name.endswith(suffix)), None)
    return long or PurePosixPath(name).suffix


def config_path(folder: str, file: str = "") -> str:
    """Return a location as the config names it: absolute where it is not below the working directory."""
    whole = f"{folder.rstrip('/')}/{file}" if file else folder
    if is_remote(whole):
        return whole
    below = os.path.relpath(whole)
    return whole if below.startswith("..") else below


def take_inventory(location: str) -> Inventory:
    """List a folder, a file or a pattern; UsageError when it is not there."""
    is_pattern = pattern_start(location) is not None
    if not is_remote(location) and not os.path.exists(location) and not is_pattern:
        raise UsageError(f"PATH: there is no file or folder {shown(location, LONGEST)}")
    try:
        if _is_file(location):
            folder, name = split_location(location)
            store = open_store(folder, "PATH")
            return Inventory(config_path(store.location, name), store, [name], False, False)
        if is_pattern and not os.path.isdir(location):
            return _of_pattern(location)
        store = open_store(location, "PATH")
        hidden = Counter[str]()
        listed = list(islice(_visible(store, hidden), MOST_FILES + 1))
    except StoreUnreachable:
        raise
    except OSError as error:
        where = shown(error.filename or location, LONGEST)
        raise UsageError(f"PATH: {where} cannot be listed: {error.strerror or error}") from None
    files, datasets = _without_datasets(listed[:MOST_FILES])
    is_cut = len(listed) > MOST_FILES
    return Inventory(config_path(store.location), store, files, is_cut, True, datasets, hidden)


def _visible(store: Store, hidden: Counter[str]) -> Iterator[str]:
    """Yield the visible files, and count hidden pictures by kind."""
    for file in store.files():
        if not is_hidden(file):
            yield file
        elif kind := hidden_kind(file):
            hidden[kind] += 1


def _is_file(location: str) -> bool:
    if not is_remote(location):
        return os.path.isfile(location)
    folder, name = split_location(location)
    if pattern_start(location) is not None or not name.partition("?")[0].lower().endswith(_KNOWN):
        return False
    return open_store(folder, "PATH").stat(name) != ABSENT


def _of_pattern(location: str) -> Inventory:
    store = open_store(base_folder(location), "PATH")
    base = store.location.rstrip("/") + "/"
    found = expand(location, _KNOWN, "PATH")
    given = location
    if isinstance(store, LocalStore):
        beginning = location[: pattern_start(location)].rpartition("/")[0]
        given = config_path(store.location, location[len(beginning) :].lstrip("/") if beginning else location)
    files = [file.removeprefix(base) for file in found[:MOST_FILES]]
    if _without_datasets(files)[1]:
        place = shown(location, LONGEST)
        raise UsageError(f"PATH: {place} includes a dataset that Tarmac built; leave it out")
    return Inventory(given, store, files, len(found) > MOST_FILES, False)


def _without_datasets(files: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the files that lie in no dataset, and the datasets."""
    datasets = [found[1] or "" for file in files if (found := _BUILT.fullmatch(file))]
    inside = tuple(f"{folder}/" if folder else "" for folder in datasets)
    return [file for file in files if not file.startswith(inside)], list(dict.fromkeys(datasets))
