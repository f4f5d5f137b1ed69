"""CT volumes, one per file, with the tables about them: reports, labels, the scanner's metadata.

Of some files the headers are read, of two the voxels: whether these can be Hounsfield units decides where
slope and intercept come from.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TypeVar

from tasks.core.errors import TarmacError
from tasks.core.stores import Store, Unreachable
from tasks.core.units import count, counted
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes.hounsfield import implausible
from tasks.dataset.formats.volumes.stored import require_package
from tasks.dataset.init.evidence import Grade, Key, Reading, listed, shown, splits_key, spread
from tasks.dataset.init.files import NIFTI, NPZ, Inventory, suffix_of
from tasks.dataset.init.tables import Tables
from tasks.dataset.init.volume_tables import VolumeTable, tables_about
from tasks.dataset.rejects import Reject
from tasks.dataset.sources import npz

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
CT_CLIP = {"window": [-1000, 1000], "spacing_mm": [1.5, 0.75, 0.75], "shape": [240, 480, 480]}

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

Seen = TypeVar("Seen")


@dataclass
class Voxels:
    """What the files looked at say: shapes, and the lines and keys that follow from headers and voxels."""

    looked_at: int = 0
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def line(self, files: Sequence[str]) -> str:
        line = f"{count(len(files))} {suffix_of(files[0])}; {self.looked_at} looked at"
        if self.shapes:
            line += f": {listed([' × '.join(map(str, shape)) for shape in dict.fromkeys(self.shapes)], 2)}"
        if self.spacings:
            different = dict.fromkeys(self.spacings)
            line += (
                f", spacing {listed([' × '.join(f'{side:g}' for side in one) for one in different], 2)} mm"
            )
        return line


def readings(inventory: Inventory, tables: Tables) -> list[Reading]:
    """One reading per format, where a table of reports names its files."""
    found = []
    for kind, suffixes in (("nifti", NIFTI), ("npz", NPZ)):
        files = inventory.of(suffixes)
        if files and inventory.is_folder:
            reading = _reading(inventory, kind, files, tables)
            if reading is not None:
                found.append(reading)
    return found


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


def _reading(inventory: Inventory, kind: str, files: Sequence[str], all_tables: Tables) -> Reading | None:
    tables, warnings = tables_about(inventory, files, all_tables)
    if "reports" not in tables:
        return None
    metadata = tables.get("metadata")
    look = _look_at_nifti if kind == "nifti" else _look_at_npz
    voxels = look(inventory, files, metadata)
    if voxels.looked_at and not voxels.shapes:
        return None
    fields, splits, patients = _patients(files)
    seen = [("volumes", voxels.line(files)), *voxels.seen]
    seen += [(table.role, table.line(files)) for table in tables.values()] + patients
    about = [table.config_key(files) for table in tables.values() if table is not metadata]
    source = [
        Key("kind", kind),
        Key("path", inventory.given, inventory.described),
        fields,
        *about,
        *voxels.keys,
    ]
    has_spacing = kind == "nifti" or metadata is not None
    ct_clip = {name: rule for name, rule in CT_CLIP.items() if has_spacing or name != "spacing_mm"}
    dataset = [
        Key("volume", {"encode": "blosc2"}, "spacing, window and shape stay as they are; or as CT-CLIP:"),
        Key("volume", {**ct_clip, "encode": "blosc2"}, is_alternative=True),
        splits,
        Key("shard", {"bytes": "2GB"}, "a maximum"),
    ]
    grade: Grade = 2 if 2 * len(tables["reports"].names) >= len(files) else 1
    return Reading(
        kind,
        "CT volumes with reports",
        "volume_report",
        len(files),
        grade,
        seen,
        [*voxels.warnings, *warnings],
        source,
        dataset,
        is_private=True,
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

    store = inventory.store
    heads, broken = _each(spread(files, HEADERS), lambda file: nifti.peek(store, file))
    small = [file for file, head in heads if prod(head.shape) * head.dtype.itemsize <= LARGEST_BYTES]
    volumes, torn = _each(small[:VOXELS], lambda file: nifti.read(store, file))
    spacings, odd = _each([file for file, _ in heads], lambda file: dict(heads)[file].spacing())
    found = Voxels(len(heads) + len(broken), spacings=[spacing for _, spacing in spacings])
    found.shapes = [(z, x, y) for _, head in heads for x, y, z in [head.shape]]  # in the order of spacings
    found.warnings = [*_broken(broken or torn, found.looked_at), *odd[:1]]

    slopes = dict.fromkeys((head.slope, head.intercept) for _, head in heads)
    said = ", ".join(f"slope {slope:g} and intercept {intercept:g}" for slope, intercept in list(slopes)[:2])
    header = f"the headers say {said}"
    reasons = [
        implausible(voxels.astype("float32") * head.slope + head.intercept) for _, (head, voxels) in volumes
    ]
    reason = next((reason for reason in reasons if reason is not None), "")
    knows = metadata is not None and {"RescaleSlope", "RescaleIntercept"} <= metadata.profile.columns.keys()
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
        found.keys.append(metadata.config_key(files, known, is_alternative=not is_needed))
    found.keys.append(Key("rescale", rescale, why))
    return found


def _look_at_npz(inventory: Inventory, files: Sequence[str], metadata: VolumeTable | None) -> Voxels:
    store = inventory.store
    arrays, broken = _each(spread(files, HEADERS), lambda file: npz.headers(store, file))
    found = Voxels(len(arrays) + len(broken), warnings=_broken(broken, len(arrays) + len(broken)))
    names = Counter(name for _, its in arrays for name, header in its.items() if len(header.shape) == 3)
    if not names:
        return found
    array = names.most_common(1)[0][0]
    headers = [(file, its[array]) for file, its in arrays if array in its]
    found.shapes = [header.shape for _, header in headers]
    others = list(dict.fromkeys(name for _, its in arrays for name in its if name != array))
    besides = f"; besides {listed(others)}" if others else ""
    found.keys.append(Key("array", array, f"three-dimensional, {headers[0][1].dtype}{besides}"))

    axes, why = axes_of(found.shapes)
    found.seen.append(("axes", f"{axes}: {why}"))
    found.keys.append(Key("axes", axes, why))

    small = [file for file, header in headers if header.size_bytes <= LARGEST_BYTES]
    _add_scale(found, store, spread(small, VOXELS), array)
    if metadata is not None:
        found.keys.append(metadata.config_key(files, "; no NPZ file knows its spacing"))
    else:
        example = [1.5, 0.75, 0.75]
        found.keys.append(Key("spacing_mm", example, "(z, y, x) of every volume, if you know it", True))
    return found


def _add_scale(found: Voxels, store: Store, files: Sequence[str], array: str) -> None:
    """Add the factor that makes the values HU."""
    reasons: list[str | None] = []
    for scale in SCALES:
        reasons += [reason for _, reason in _each(files, partial(_not_hu, store, array, float(scale)))[0]]
        if None in reasons:
            break
    if None not in reasons:
        found.warnings.append(
            f"the values are not HU: {reasons[0]}" if reasons else "no values could be read"
        )
    elif scale == 1:
        found.seen.append(("values", "those looked at are HU"))
    else:
        found.seen.append(("values", f"those looked at are HU / {scale}: scale: {scale}"))
        found.keys.append(Key("scale", scale, f"the values looked at are HU / {scale}"))


def _not_hu(store: Store, array: str, scale: float, file: str) -> str | None:
    """Why the values times `scale` are no HU; None where they can be."""
    return implausible(npy.parse(npz.read_npy(store, file, array, scale)))


def _each(files: Sequence[str], look: Callable[[str], Seen]) -> tuple[list[tuple[str, Seen]], list[str]]:
    """What a look at each file gives, and what is wrong with the others; Unreachable."""
    found, broken = [], []
    for file in files:
        try:
            found.append((file, look(file)))
        except Unreachable:
            raise
        except Reject as reject:
            broken.append(f"{shown(file)}: {reject.detail}")
        except (TarmacError, OSError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
            broken.append(f"{shown(file)}: {shown(error, 100)}")
    return found, broken


def _broken(broken: Sequence[str], looked_at: int) -> list[str]:
    return [f"{len(broken)} of {looked_at} looked at cannot be read: {broken[0]}"] if broken else []
