"""CT volumes, one per file, with the tables about them: reports, labels, the scanner's metadata.

The headers of some files are read, and the voxels of two: whether these can be Hounsfield units decides
where slope and intercept come from.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, Literal

from tasks.core.errors import TarmacError
from tasks.core.schema.source import TABLES
from tasks.core.stores import StoreUnreachable, join_location
from tasks.core.units import count, counted
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes.hounsfield import implausible
from tasks.dataset.formats.volumes.stored import require_package
from tasks.dataset.init.column_counts import ColumnCounts
from tasks.dataset.init.columns import FEW_ROWS, MOST_TABLES, SurveyedTable, SurveyedTables, survey_table
from tasks.dataset.init.evidence import (
    LONGEST,
    ConfigKey,
    Grade,
    Reading,
    enumerate_names,
    observe,
    propose_shards,
    propose_splits,
    shown,
    spread,
)
from tasks.dataset.init.inventory import NIFTI, NPZ, Inventory, suffix_of
from tasks.dataset.keys import stem
from tasks.dataset.sources import npz
from tasks.dataset.sources.tabular import open_table
from tasks.dataset.sources.volume_folder import UNCERTAIN, is_empty

HEADERS = 12
VOXELS = 2
"""Volumes whose voxels are read; one may take seconds."""
LARGEST_BYTES = 1 << 30
SCALES = (1, 1000)
"""Factors from stored numbers to HU to try."""
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
"""Where a path may name the patient, in the order tried: CT-RATE's and BIDS' names, a named number, a leading
number or word and number, the part before the first `_` or `-`, the folder."""
MOST_PER_PATIENT = 20
"""Files per patient on average; a part of the name that more files share is no patient."""
EXAMPLE = r"(?:^|/)([^/_]+)_[^/]*$"

MOST_ROWS = 1_000_000
"""Rows of a table to search for the names of volumes."""
REPORT_WORDS = ("finding", "impression", "report", "text", "description", "conclusion")
REPORT_CHARACTERS = 20
"""A report is longer than this on average, where the column's name does not show that it is one."""
METADATA = ("XYSpacing", "ZSpacing")
UNCERTAIN_TEXTS = (str(UNCERTAIN), f"{UNCERTAIN}.0")
Role = Literal["reports", "labels", "metadata"]


@dataclass(frozen=True)
class VolumeTable:
    """A table, in one or several files, whose column `key` has `names` of the volumes.

    Of a table of labels, `rows` were read, of which `lacking` have an empty cell and `uncertain` a -1.
    """

    role: Role
    paths: tuple[str, ...]
    key: str
    names: frozenset[str]
    table: SurveyedTable
    rows: int = 0
    lacking: int = 0
    uncertain: int = 0

    @property
    def path(self) -> str:
        return self.paths[0] if len(self.paths) == 1 else f"{{{','.join(self.paths)}}}"

    def with_rows_of(self, other: VolumeTable) -> VolumeTable | None:
        """Return both as one table; None unless they have the same columns and name different volumes."""
        paths = self.paths + other.paths
        is_alike = self.key == other.key and self.table.columns.keys() == other.table.columns.keys()
        if not is_alike or self.names & other.names or set("{,}") & set("".join(paths)):
            return None
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("rows", "lacking", "uncertain")}
        return replace(self, paths=paths, names=self.names | other.names, **sums)

    @property
    def columns(self) -> list[ColumnCounts]:
        return [column for name, column in self.table.columns.items() if name != self.key]

    def proposed(self, volumes: int, *notes: str, is_alternative: bool = False) -> ConfigKey:
        """Return the config's block for this table, with how many of the `volumes` it names."""
        value: dict[str, object] = {"path": self.path, "key": self.key}
        matches = f"matches {count(len(self.names))} of {count(volumes)} files"
        evidence = [f"{self.key} in {self.path} {matches}", *notes]
        names = [column.name for column in self.columns]
        if self.role == "labels":
            if self.lacking or self.uncertain:
                value["missing"] = "skip"
                evidence += self._partial  # before the names, which may be cut in the config
            evidence.append(f"{len(names)} labels: {enumerate_names(names)}")
        if self.role == "reports":  # the columns named as reports, else the one with the longest texts
            texts = [column for column in self.columns if _is_report(column)]
            longest = max(texts, key=lambda one: one.share("characters"))
            value["text"] = names = [one.name for one in texts if _is_named_report(one)] or [longest.name]
            evidence.append(f"text {enumerate_names(names)}")
        return ConfigKey(self.role, value, "; ".join(evidence), is_alternative)

    @property
    def _partial(self) -> Iterator[str]:
        """Yield how many rows do not know all labels: `3 of 60 rows lack a label`."""
        unsure = f"a {UNCERTAIN}, which means uncertain"
        for number, verb, what in ((self.lacking, "lack", "a label"), (self.uncertain, "hold", unsure)):
            if number:
                verb += "s" if number == 1 else ""
                yield f"{count(number)} of {counted(self.rows, 'row')} {verb} {what}"


@dataclass
class Voxels:
    """Shapes and spacings in the headers, and the keys that follow from headers and voxels."""

    looked_at: int
    shapes: Sequence[tuple[int, ...]]
    axes: str
    """The order of the body's axes in the shapes."""
    spacings: Sequence[tuple[float, ...]] = ()
    keys: list[ConfigKey] = field(default_factory=list)

    @property
    def smallest(self) -> tuple[int, ...]:
        """The least (D, H, W)."""
        return tuple(min(shape[self.axes.index(axis)] for shape in self.shapes) for axis in "zyx")

    @property
    def described(self) -> str:
        """`12 looked at: 240 × 512 × 512, 300 × 512 × 512, spacing 1.5 × 0.75 × 0.75 mm`."""
        spacing = f", spacing {_sides(self.spacings)} mm" if self.spacings else ""
        return f"{self.looked_at} looked at: {_sides(self.shapes)}{spacing}"


def _sides(some: Sequence[Sequence[float]]) -> str:
    distinct = dict.fromkeys(map(tuple, some))
    return enumerate_names([" × ".join(f"{side:g}" for side in one) for one in distinct], 2)


def volume_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    """Return a reading for each format whose files a table of reports names."""
    formats = (("nifti", NIFTI), ("npz", NPZ)) if inventory.is_folder else ()
    found = (_reading(inventory, kind, inventory.of(suffixes), tables) for kind, suffixes in formats)
    return [one for one in found if one is not None]


def without_reports(inventory: Inventory) -> str:
    """Return what to do about volumes that no table of reports names; "" where there are none."""
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
    """Return the first expression whose group fits nearly all names and puts some, but not too many, of them
    together, and the number of patients that makes."""
    for pattern in PATIENTS:
        compiled = re.compile(pattern)
        found = [match.group(1) for file in files if (match := compiled.search(file)) is not None]
        patients = len(set(found))
        is_some = 2 <= patients < len(files) <= MOST_PER_PATIENT * patients
        if is_some and len(found) >= 0.95 * len(files):
            return pattern, patients
    return None


def axes_of(shapes: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Return the order of the body's axes in arrays of these shapes, and the evidence.

    z is the side along which slices are stacked: the others are equal, or the same in all files.
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
    if not files:
        return None
    tables, warnings = _tables_about(inventory, files, all_tables)
    if "reports" not in tables:
        return None
    metadata = tables.get("metadata")
    voxels = (_look_at_nifti if kind == "nifti" else _look_at_npz)(inventory, files, metadata)
    if not voxels.shapes:
        return None
    patient = ConfigKey("fields", {"patient": EXAMPLE}, "no patient found in the names", is_alternative=True)
    splits = propose_splits(len(files), why="add group_by where several volumes are one patient's")
    guessed = patient_pattern(files)
    if guessed is not None:
        pattern, patients = guessed
        why = f"{counted(patients, 'patient')} in {counted(len(files), 'file')}, guessed from their names"
        patient = ConfigKey("fields", {"patient": pattern}, why)
        splits = propose_splits(len(files), "patient", "no patient is in two splits")
    source = [
        ConfigKey("kind", kind),
        ConfigKey("path", inventory.given, f"{count(len(files))} {suffix_of(files[0])}; {voxels.described}"),
        patient,
        *(tables[role].proposed(len(files)) for role in ("reports", "labels") if role in tables),
        *voxels.keys,
    ]
    has_spacing = kind == "nifti" or metadata is not None
    ct_clip = {name: rule for name, rule in CT_CLIP.items() if has_spacing or name != "spacing_mm"}
    why = "spacing, window and shape stay as they are; or as CT-CLIP:"
    dataset = [
        ConfigKey("volume", {"encode": "blosc2"}, why),
        ConfigKey("volume", ct_clip, is_alternative=True),
        splits,
        propose_shards(len(files), inventory.mean_size(files), "2GB"),
    ]
    grade: Grade = 2 if 2 * len(tables["reports"].names) >= len(files) else 1
    what, modality = "CT volumes with reports", "volume_report"
    found = Reading(kind, what, modality, len(files), grade, source, dataset, warnings, is_private=True)
    return replace(found, volume_shape=voxels.smallest)


def _look_at_nifti(inventory: Inventory, files: Sequence[str], metadata: VolumeTable | None) -> Voxels:
    require_package("nibabel", "PATH: looking into NIfTI files")
    from tasks.dataset.sources import nifti

    store, chosen = inventory.store, spread(files, HEADERS)
    heads = dict(observe(chosen, partial(nifti.peek, store)))
    small = [file for file, head in heads.items() if prod(head.shape) * head.dtype.itemsize <= LARGEST_BYTES]
    volumes = observe(small[:VOXELS], partial(nifti.read_nifti, store))
    spacings = [spacing for _, spacing in observe(list(heads), lambda file: heads[file].spacing())]
    shapes = [(z, x, y) for x, y, z in (head.shape for head in heads.values())]  # as spacings are
    found = Voxels(len(chosen), shapes, "zxy", spacings)

    slopes = dict.fromkeys((head.slope, head.intercept) for head in heads.values())
    stated = ", ".join(f"slope {slope:g} and intercept {intercept:g}" for slope, intercept in [*slopes][:2])
    header = f"the headers have {stated}"
    reasons = [
        implausible(voxels.astype("float32") * head.slope + head.intercept) for _, (head, voxels) in volumes
    ]
    reason = next((reason for reason in reasons if reason is not None), "")
    knows = metadata is not None and {"RescaleSlope", "RescaleIntercept"} <= metadata.table.columns.keys()
    if None in reasons or not reasons:
        rescale, why = "header", header + ("; the voxels rescaled by that are HU" if reasons else "")
    elif any(implausible(voxels) is None for _, (_, voxels) in volumes):
        rescale, why = "none", f"the voxels are HU as stored, though {header}"
    elif knows and slopes.keys() <= {(1.0, 0.0)}:
        rescale, why = "metadata", f"{header} and the voxels are not HU ({reason}); the table has others"
    else:
        rescale, why = "header", f"{header}; the voxels looked at are not HU: {reason}"
    if metadata is not None:
        is_needed = rescale == "metadata"
        notes = () if is_needed else ("the headers have the spacing",)
        found.keys.append(metadata.proposed(len(files), *notes, is_alternative=not is_needed))
    found.keys.append(ConfigKey("rescale", rescale, why))
    return found


def _look_at_npz(inventory: Inventory, files: Sequence[str], metadata: VolumeTable | None) -> Voxels:
    store, chosen = inventory.store, spread(files, HEADERS)
    arrays = observe(chosen, partial(npz.headers, store))
    names = Counter(name for _, held in arrays for name, header in held.items() if len(header.shape) == 3)
    if not names:
        return Voxels(len(chosen), [], "zyx")
    array = names.most_common(1)[0][0]
    headers = {file: held[array] for file, held in arrays if array in held}
    shapes = [header.shape for header in headers.values()]
    axes, why = axes_of(shapes)
    others = list(dict.fromkeys(name for _, held in arrays for name in held if name != array))
    kind = f"three-dimensional, {next(iter(headers.values())).dtype}"
    besides = f"{kind}; besides {enumerate_names(others)}" if others else kind
    keys = [ConfigKey("array", array, besides), ConfigKey("axes", axes, why)]

    small = [file for file, header in headers.items() if header.size_bytes <= LARGEST_BYTES]
    read = observe(spread(small, VOXELS), lambda file: npy.parse(npz.read_npy(store, file, array, None)))
    for scale in SCALES:
        if any(implausible(values.astype("float32") * scale) is None for _, values in read):
            if scale > 1:
                keys.append(ConfigKey("scale", scale, f"the values looked at are HU / {scale}"))
            break
    if metadata is not None:
        keys.append(metadata.proposed(len(files), "no NPZ file has its spacing"))
    else:
        example = [1.5, 0.75, 0.75]
        keys.append(ConfigKey("spacing_mm", example, "(z, y, x) of every volume, if you know it", True))
    return Voxels(len(chosen), shapes, axes, keys=keys)


def _tables_about(
    inventory: Inventory, files: Sequence[str], all_tables: SurveyedTables
) -> tuple[dict[Role, VolumeTable], list[str]]:
    """Return the table of each role that names most of the volumes, and warnings about tables not used.

    Where no table lies below, those in the folder around are read.
    """
    names = frozenset(stem(file.rpartition("/")[2]) for file in files)
    around = SurveyedTables(() if all_tables.each else _tables_around(inventory), ())
    surveyed = all_tables.each or around.each
    tables = [table for one in surveyed if (table := _table(inventory, one, names)) is not None]
    chosen: dict[Role, VolumeTable] = {}
    unused: list[str] = []
    for table in sorted(tables, key=lambda one: (-len(one.names), one.path)):
        joined = chosen[table.role].with_rows_of(table) if table.role in chosen else table
        if joined is None:
            unused.append(shown(table.path))
        else:
            chosen[table.role] = joined
    warnings = [*around.notes, *(_recode(inventory, table.table) for table in tables if table.table.encoding)]
    if unused:
        warnings.append(f"not used, as other tables name these volumes: {enumerate_names(unused)}")
    return chosen, warnings


def _recode(inventory: Inventory, table: SurveyedTable) -> str:
    """Return what to do about a table in another encoding than UTF-8, which no key of volumes states."""
    name = shown(table.file)
    path = shlex.quote(shown(inventory.path(table.file), LONGEST))
    command = f"iconv -f {table.encoding} -t utf-8 {path} > NEW"
    return f"{name} is {table.encoding}, and the tables of volumes must be UTF-8: {command}"


def _tables_around(inventory: Inventory) -> list[SurveyedTable]:
    try:
        files = inventory.store.entries("..")[1]
    except OSError:
        return []
    tables = [f"../{file}" for file in files if suffix_of(file) in TABLES and file[0] != "."]
    return [survey_table(inventory, file, FEW_ROWS) for file in tables[:MOST_TABLES]]


def _table(inventory: Inventory, table: SurveyedTable, volumes: frozenset[str]) -> VolumeTable | None:
    """Return the table as one about volumes; None where it is not."""
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
    elif any(_is_flag(column) for column in others) and all(map(_is_flag_or_empty, others)):
        role = "labels"
    else:
        return None
    found = VolumeTable(role, (table.file,), key, frozenset(matches[key]), table)
    return found if role != "labels" else _count_unknown(inventory, found)


def _count_unknown(inventory: Inventory, table: VolumeTable) -> VolumeTable:
    """Count the rows of a table of labels that do not know all of them."""
    names = [column.name for column in table.columns]
    rows = lacking = uncertain = 0
    for row in _rows_of(inventory, table.table.file):
        cells = [row.get(name) for name in names]
        rows += 1
        lacking += any(map(is_empty, cells))
        uncertain += any(str(cell).strip() in UNCERTAIN_TEXTS for cell in cells)
    return replace(table, rows=rows, lacking=lacking, uncertain=uncertain)


def _matches(
    inventory: Inventory, file: str, columns: Sequence[str], volumes: frozenset[str]
) -> dict[str, set[str]]:
    """Return the volumes that each column names, with or without suffix."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    for row in _rows_of(inventory, file):
        for column in columns:
            name = stem(str(row.get(column)))
            if name in volumes:
                found[column].add(name)
    return found


def _rows_of(inventory: Inventory, file: str) -> Iterator[Mapping[str, Any]]:
    """Yield a table's first rows. Where it is torn further down, what was read so far counts, and the build
    names the line."""
    try:
        table = open_table(join_location(inventory.store.location, file), "PATH", wanted=())
        for row in islice(table.rows, MOST_ROWS):
            yield row.fields
    except StoreUnreachable:
        raise
    except (TarmacError, OSError):
        return


def _is_flag(column: ColumnCounts) -> bool:
    """Whether the column holds only 0 and 1, or -1, where it is not empty."""
    values = [value for value in column.values if not is_empty(value)]
    return column.is_numeric and bool(values) and {*map(float, values)} <= {0.0, 1.0, float(UNCERTAIN)}


def _is_flag_or_empty(column: ColumnCounts) -> bool:
    return _is_flag(column) or all(map(is_empty, column.values))


def _is_report(column: ColumnCounts) -> bool:
    """Whether the column holds long texts, or has a report's name."""
    is_long = column.share("characters") >= REPORT_CHARACTERS
    return column.is_text and (is_long or _is_named_report(column))


def _is_named_report(column: ColumnCounts) -> bool:
    return any(word in column.name.lower() for word in REPORT_WORDS)
