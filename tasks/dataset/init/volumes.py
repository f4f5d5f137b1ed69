"""CT volumes, one per file, with the tables about them: reports, labels, the scanner's metadata.

Of some files the headers are read, of two the voxels: whether these can be Hounsfield units decides where
slope and intercept come from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Literal

from tasks.core.errors import TarmacError
from tasks.core.stores import Store, StoreUnreachable, join_location
from tasks.core.units import count, counted
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes.hounsfield import implausible
from tasks.dataset.formats.volumes.stored import require_package
from tasks.dataset.init.columns import (
    FEW_ROWS,
    MOST_TABLES,
    ColumnCounts,
    SurveyedTable,
    SurveyedTables,
    look_at_table,
)
from tasks.dataset.init.evidence import (
    Grade,
    Key,
    Reading,
    enumerate_names,
    look_at_each,
    shard_key,
    shown,
    splits_key,
    spread,
)
from tasks.dataset.init.inventory import NIFTI, NPZ, Inventory, suffix_of
from tasks.dataset.keys import stem
from tasks.dataset.sources import npz
from tasks.dataset.sources.tabular import SUFFIXES, open_table

HEADERS = 12
VOXELS = 2
"""Volumes whose voxels are looked at; reading one may take seconds."""
LARGEST_BYTES = 1 << 30
SCALES = (1, 1000)
"""Factors from stored numbers to HU that are tried."""
AXES = (
    ("zyx", "first", "y comes before x"),
    ("yzx", "second", "y comes before x"),
    ("xyz", "last", "x comes before y"),
)
"""The order of the axes that is assumed for each side that may be z."""
CT_CLIP = {
    "window": [-1000, 1000],
    "spacing_mm": [1.5, 0.75, 0.75],
    "shape": [240, 480, 480],
    "encode": "blosc2",
}

PATIENTS = (
    r"((?:train|valid|test)_\d+)_",
    r"(sub-[A-Za-z0-9]+)",
    r"((?:patient|subject|pat|case)[_-]?\d+)",
    r"(?:^|/)([A-Za-z]*\d+)[_-][^/]*$",
    r"(?:^|/)([A-Za-z]+[_-]\d+)[_-][^/]*$",
    r"(?:^|/)([^/_-]+)[_-][^/]*$",
    r"([^/]+)/[^/]+$",
)
"""Where a patient may stand in a path: CT-RATE's names, BIDS', a named number, a number or word and number in
front, what stands before the first `_` or `-`, the folder."""
MOST_PER_PATIENT = 20
"""Files on average; a part of the name that more files share says something else."""
EXAMPLE = r"(?:^|/)([^/_]+)_[^/]*$"

MOST_ROWS = 1_000_000
"""Of a table, searched for the names of volumes."""
REPORT_WORDS = ("finding", "impression", "report", "text", "description", "conclusion")
REPORT_CHARACTERS = 20
"""A report is longer than this on average, where the column's name does not say that it is one."""
METADATA = ("XYSpacing", "ZSpacing")
Role = Literal["reports", "labels", "metadata"]


@dataclass(frozen=True)
class VolumeTable:
    """A table whose column `key` has `names` of the `volumes`; `path` is a pattern where it lies in several
    files."""

    role: Role
    path: str
    key: str
    names: frozenset[str]
    volumes: int
    table: SurveyedTable

    @property
    def columns(self) -> list[ColumnCounts]:
        return [column for name, column in self.table.columns.items() if name != self.key]

    @property
    def report_columns(self) -> list[str]:
        """Those that are named as reports are, else the one with the longest texts."""
        texts = [column for column in self.columns if _is_report(column)]
        longest = max(texts, key=lambda one: one.share("characters"))
        return [one.name for one in texts if _is_named_report(one)] or [longest.name]

    @property
    def matches(self) -> str:
        return f"matches {count(len(self.names))} of {count(self.volumes)} files"

    @property
    def line(self) -> str:
        line = f"{shown(self.path)}: {shown(self.key)} {self.matches}"
        if self.role == "reports":
            return f"{line}; text {enumerate_names(self.report_columns)}"
        if self.role == "labels":
            names = enumerate_names([column.name for column in self.columns])
            return f"{line}; {len(self.columns)} labels: {names}"
        return line

    def config_key(self, why: str = "", is_alternative: bool = False) -> Key:
        value: dict[str, object] = {"path": self.path, "key": self.key}
        if self.role == "reports":
            value["text"] = self.report_columns
        return Key(self.role, value, self.matches + why, is_alternative)


@dataclass
class Voxels:
    """What the files looked at say: shapes, and the lines and keys that follow from headers and voxels."""

    looked_at: int = 0
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    axes: str = "zxy"
    """The order of the body's axes in the shapes."""
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def smallest(self) -> tuple[int, ...]:
        """The least (D, H, W)."""
        return tuple(min(shape[self.axes.index(axis)] for shape in self.shapes) for axis in "zyx")

    def line(self, files: Sequence[str]) -> str:
        line = f"{count(len(files))} {suffix_of(files[0])}; {self.looked_at} looked at"
        if self.shapes:
            line += f": {_sides(self.shapes)}"
        if self.spacings:
            line += f", spacing {_sides(self.spacings)} mm"
        return line


def _sides(some: Sequence[Sequence[float]]) -> str:
    """The different ones, such as `240 × 512 × 512, 300 × 512 × 512`."""
    return enumerate_names(
        [" × ".join(f"{side:g}" for side in one) for one in dict.fromkeys(map(tuple, some))], 2
    )


def volume_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    """One reading per format, where a table of reports names its files."""
    formats = (("nifti", NIFTI), ("npz", NPZ)) if inventory.is_folder else ()
    files = ((kind, inventory.of(suffixes)) for kind, suffixes in formats)
    found = (_reading(inventory, kind, its, tables) for kind, its in files if its)
    return [one for one in found if one is not None]


def without_reports(inventory: Inventory) -> str:
    """What to do about volumes that no table of reports names; "" where there are none."""
    files = inventory.of((*NIFTI, *NPZ))
    if not files:
        return ""
    if not inventory.is_folder:
        return "a volume by itself: give the folder that it lies in"
    name = files[0].rpartition("/")[2]
    return (
        f"no table of reports names any of {count(len(files))} volumes: put a CSV with a column that holds "
        f"names such as {shown(name)} and one with the reports into the folder"
    )


def patient_pattern(files: Sequence[str]) -> tuple[str, int] | None:
    """The first expression whose group fits nearly all names and puts some, but not too many, together; and
    how many patients that makes."""
    for pattern in PATIENTS:
        compiled = re.compile(pattern)
        found = [match.group(1) for file in files if (match := compiled.search(file)) is not None]
        patients = len(set(found))
        is_some = 2 <= patients < len(files) <= MOST_PER_PATIENT * patients
        if is_some and len(found) >= 0.95 * len(files):
            return pattern, patients
    return None


def axes_of(shapes: Sequence[Sequence[int]]) -> tuple[str, str]:
    """The order of the axes of the body in arrays of these shapes, and the evidence.

    z is the side that slices are stacked along: the others are equal, or the same in all files.
    """
    square = {z for shape in shapes for z in range(3) if shape[z] != shape[z - 1] == shape[z - 2]}
    varying = {z for z in range(3) if len({shape[z] for shape in shapes}) > 1}
    for found, evidence in ((square, "slices are square"), (varying, "files differ in that side alone")):
        if len(found) == 1:
            axes, place, order = AXES[found.pop()]
            return axes, f"z is the {place} side, as {evidence}; that {order} is assumed"
    return "zyx", "assumed, as the sides do not show which one is z"


def _reading(
    inventory: Inventory, kind: str, files: Sequence[str], all_tables: SurveyedTables
) -> Reading | None:
    tables, warnings = _tables_about(inventory, files, all_tables)
    if "reports" not in tables:
        return None
    metadata = tables.get("metadata")
    look = _look_at_nifti if kind == "nifti" else _look_at_npz
    voxels = look(inventory, files, metadata)
    if voxels.looked_at and not voxels.shapes:
        return None
    fields, splits, patients = _patients(files)
    seen = [("volumes", voxels.line(files)), *voxels.seen]
    seen += [(table.role, table.line) for table in tables.values()] + patients
    about = [table.config_key() for table in tables.values() if table is not metadata]
    path = Key("path", inventory.given, inventory.described)
    source = [Key("kind", kind), path, fields, *about, *voxels.keys]
    has_spacing = kind == "nifti" or metadata is not None
    ct_clip = {name: rule for name, rule in CT_CLIP.items() if has_spacing or name != "spacing_mm"}
    dataset = [
        Key("volume", {"encode": "blosc2"}, "spacing, window and shape stay as they are; or as CT-CLIP:"),
        Key("volume", ct_clip, is_alternative=True),
        splits,
        shard_key(len(files), inventory.mean_size(files), "2GB"),
    ]
    grade: Grade = 2 if 2 * len(tables["reports"].names) >= len(files) else 1
    what, warnings = "CT volumes with reports", [*voxels.warnings, *warnings]
    return Reading(
        kind,
        what,
        "volume_report",
        len(files),
        grade,
        seen,
        warnings,
        source,
        dataset,
        is_private=True,
        volume_shape=voxels.smallest if voxels.shapes else None,
    )


def _patients(files: Sequence[str]) -> tuple[Key, Key, list[tuple[str, str]]]:
    """The keys `fields` and `splits`, and what was seen."""
    guessed = patient_pattern(files)
    if guessed is None:
        fields = Key("fields", {"patient": EXAMPLE}, "no patient seen in the names", is_alternative=True)
        return fields, splits_key(len(files), why="add group_by where several volumes are one patient's"), []
    pattern, patients = guessed
    why = f"{counted(patients, 'patient')} in {counted(len(files), 'file')}, guessed from their names"
    splits = splits_key(len(files), "patient", "no patient is in two splits")
    return Key("fields", {"patient": pattern}, why), splits, [("patient", f"{why} by {pattern}")]


def _look_at_nifti(inventory: Inventory, files: Sequence[str], metadata: VolumeTable | None) -> Voxels:
    require_package("nibabel", "PATH: looking into NIfTI files")
    from tasks.dataset.sources import nifti

    store, chosen = inventory.store, spread(files, HEADERS)
    found_heads, broken = look_at_each(chosen, partial(nifti.peek, store))
    heads = dict(found_heads)
    small = [file for file, head in heads.items() if prod(head.shape) * head.dtype.itemsize <= LARGEST_BYTES]
    volumes, torn = look_at_each(small[:VOXELS], partial(nifti.read_nifti, store))
    spacings, odd = look_at_each(list(heads), lambda file: heads[file].spacing())
    found = Voxels(len(chosen), warnings=[*(broken or torn), *odd])
    found.spacings = [spacing for _, spacing in spacings]
    found.shapes = [(z, x, y) for x, y, z in (head.shape for head in heads.values())]  # as spacings are

    slopes = dict.fromkeys((head.slope, head.intercept) for head in heads.values())
    said = ", ".join(f"slope {slope:g} and intercept {intercept:g}" for slope, intercept in list(slopes)[:2])
    header = f"the headers say {said}"
    reasons = [
        implausible(voxels.astype("float32") * head.slope + head.intercept) for _, (head, voxels) in volumes
    ]
    reason = next((reason for reason in reasons if reason is not None), "")
    knows = metadata is not None and {"RescaleSlope", "RescaleIntercept"} <= metadata.table.columns.keys()
    if None in reasons or not reasons:
        rescale, why = "header", f"{header}" + ("; rescaled by that the voxels are HU" if reasons else "")
    elif any(implausible(voxels) is None for _, (_, voxels) in volumes):
        rescale, why = "none", f"the voxels are HU as stored, though {header}"
    elif knows and slopes.keys() <= {(1.0, 0.0)}:
        rescale, why = "metadata", f"{header} and the voxels are not HU ({reason}); the table knows"
    else:
        rescale, why = "header", f"{header}; the voxels looked at are not HU: {reason}"
        found.warnings.append(f"the voxels are not HU: {reason}")
    found.seen = [("HU", f"rescale: {rescale}; {why}")]
    if metadata is not None:
        is_needed = rescale == "metadata"
        known = "" if is_needed else "; the headers know the spacing"
        found.keys.append(metadata.config_key(known, is_alternative=not is_needed))
    found.keys.append(Key("rescale", rescale, why))
    return found


def _look_at_npz(inventory: Inventory, files: Sequence[str], metadata: VolumeTable | None) -> Voxels:
    store, chosen = inventory.store, spread(files, HEADERS)
    arrays, broken = look_at_each(chosen, partial(npz.headers, store))
    found = Voxels(len(chosen), warnings=broken)
    names = Counter(name for _, its in arrays for name, header in its.items() if len(header.shape) == 3)
    if not names:
        return found
    array = names.most_common(1)[0][0]
    headers = [(file, its[array]) for file, its in arrays if array in its]
    found.shapes = [header.shape for _, header in headers]
    others = list(dict.fromkeys(name for _, its in arrays for name in its if name != array))
    besides = f"; besides {enumerate_names(others)}" if others else ""
    found.keys.append(Key("array", array, f"three-dimensional, {headers[0][1].dtype}{besides}"))

    found.axes, why = axes_of(found.shapes)
    found.seen.append(("axes", f"{found.axes}: {why}"))
    found.keys.append(Key("axes", found.axes, why))

    small = [file for file, header in headers if header.size_bytes <= LARGEST_BYTES]
    _add_scale(found, store, spread(small, VOXELS), array)
    if metadata is not None:
        found.keys.append(metadata.config_key("; no NPZ file knows its spacing"))
    else:
        example = [1.5, 0.75, 0.75]
        found.keys.append(Key("spacing_mm", example, "(z, y, x) of every volume, if you know it", True))
    return found


def _add_scale(found: Voxels, store: Store, files: Sequence[str], array: str) -> None:
    """Add the factor that makes the values HU."""
    read, _ = look_at_each(files, lambda file: npy.parse(npz.read_npy(store, file, array, None)))
    reasons: list[str | None] = []
    for scale in SCALES:
        reasons += [implausible(values.astype("float32") * scale) for _, values in read]
        if None in reasons:
            found.seen.append(("values", f"those looked at are HU{f' / {scale}' if scale > 1 else ''}"))
            if scale > 1:
                found.keys.append(Key("scale", scale, f"the values looked at are HU / {scale}"))
            return
    found.warnings.append(f"the values are not HU: {reasons[0]}" if reasons else "no values could be read")


def _tables_about(
    inventory: Inventory, files: Sequence[str], all_tables: SurveyedTables
) -> tuple[dict[Role, VolumeTable], list[str]]:
    """The table of each role that names most of the volumes, and warnings about tables that are not used.

    Where no table lies below, those in the folder around are looked at.
    """
    names = frozenset(stem(file.rpartition("/")[2]) for file in files)
    looked_at = all_tables.each or _tables_around(inventory)
    tables = [table for one in looked_at if (table := _table(inventory, one, names)) is not None]
    tables.sort(key=lambda one: (-len(one.names), one.path))
    by_role: dict[Role, list[VolumeTable]] = {"reports": [], "labels": [], "metadata": []}
    for table in tables:
        by_role[table.role].append(table)
    chosen: dict[Role, VolumeTable] = {}
    unused: list[str] = []
    for role, its in by_role.items():
        if its:
            chosen[role], others = _joined(its)
            unused += [shown(table.path) for table in others]
    warnings = SurveyedTables(looked_at, ()).warnings()
    if unused:
        warnings.append(f"not used, as other tables name these volumes: {enumerate_names(unused)}")
    return chosen, warnings


def _tables_around(inventory: Inventory) -> list[SurveyedTable]:
    try:
        files = inventory.store.entries("..")[1]
    except OSError:
        return []
    tables = [f"../{file}" for file in files if suffix_of(file) in SUFFIXES and file[0] != "."]
    return [look_at_table(inventory, file, FEW_ROWS) for file in tables[:MOST_TABLES]]


def _joined(tables: Sequence[VolumeTable]) -> tuple[VolumeTable, list[VolumeTable]]:
    """The first table and those of the same columns about other volumes as one; and the tables left over."""
    first, paths, names, others = tables[0], [tables[0].path], tables[0].names, []
    for table in tables[1:]:
        is_alike = table.key == first.key and table.table.columns.keys() == first.table.columns.keys()
        if is_alike and names.isdisjoint(table.names) and not set("{,}") & set(first.path + table.path):
            paths.append(table.path)
            names |= table.names
        else:
            others.append(table)
    path = first.path if len(paths) == 1 else f"{{{','.join(paths)}}}"
    return replace(first, path=path, names=names), others


def _table(inventory: Inventory, table: SurveyedTable, volumes: frozenset[str]) -> VolumeTable | None:
    """The table as one about volumes; None where it is none."""
    candidates = [name for name, one in table.columns.items() if one.counts["text"] or one.is_numeric]
    matches = _matches(inventory, table.file, candidates, volumes)
    key = max(candidates, key=lambda name: len(matches[name]), default=None)
    if key is None or not matches[key]:
        return None
    others = [column for name, column in table.columns.items() if name != key]
    role: Role
    if any(_is_report(column) for column in others):
        role = "reports"
    elif all(name in table.columns for name in METADATA):
        role = "metadata"
    elif others and all(column.is_flag for column in others):
        role = "labels"
    else:
        return None
    return VolumeTable(role, table.file, key, frozenset(matches[key]), len(volumes), table)


def _matches(
    inventory: Inventory, file: str, columns: Sequence[str], volumes: frozenset[str]
) -> dict[str, set[str]]:
    """The volumes that each column names, with or without suffix."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    try:
        table = open_table(join_location(inventory.store.location, file), "PATH", wanted=())
        for row in islice(table.rows, MOST_ROWS):
            for column in columns:
                name = stem(str(row.fields.get(column)))
                if name in volumes:
                    found[column].add(name)
    except StoreUnreachable:
        raise
    except (TarmacError, OSError):
        pass  # The table is torn further down: what was read is evidence, and the build names the line.
    return found


def _is_report(column: ColumnCounts) -> bool:
    """Texts that are long, or in a column of a report's name."""
    is_long = column.share("characters") >= REPORT_CHARACTERS
    return column.is_text and (is_long or _is_named_report(column))


def _is_named_report(column: ColumnCounts) -> bool:
    return any(word in column.name.lower() for word in REPORT_WORDS)
