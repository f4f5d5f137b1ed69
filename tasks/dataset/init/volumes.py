"""CT volumes, one a file, with the tables that say what is known about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tasks.core.units import count, counted
from tasks.dataset.init import patients
from tasks.dataset.init.evidence import Key, Reading, listed, shown, splits_key
from tasks.dataset.init.inventory import NIFTI_SUFFIXES, Inventory
from tasks.dataset.init.volume_files import Looks, look_at_nifti, look_at_npz, npz_voxels
from tasks.dataset.init.volume_tables import About, about_volumes, summary_of_labels

MOST_TOLD = 3
EXAMPLE = r"(?:^|/)([^/_]+)_[^/]*$"


def readings(inventory: Inventory) -> list[Reading]:
    """One reading a format, where a table of reports names its files."""
    found = []
    for kind, suffixes in (("nifti", NIFTI_SUFFIXES), ("npz", (".npz",))):
        files = inventory.of(suffixes)
        if files and inventory.is_folder:
            reading = _reading(inventory, kind, files)
            if reading is not None:
                found.append(reading)
    return found


def without_reports(inventory: Inventory) -> str:
    """What to do about volumes that no table of reports names; "" where there are none."""
    files = inventory.of((*NIFTI_SUFFIXES, ".npz"))
    if not files:
        return ""
    if not inventory.is_folder:
        return "a volume by itself: give the folder that it lies in"
    name = files[0].rpartition("/")[2]
    return (
        f"no table of reports names any of {count(len(files))} volumes: put a CSV with a column that holds "
        f"names such as {shown(name)} and one with the reports into the folder"
    )


def _reading(inventory: Inventory, kind: str, files: Sequence[str]) -> Reading | None:
    tables, broken = about_volumes(inventory, files)
    reports = [about for about in tables if about.role == "reports"]
    if not reports:
        return None
    looks, array, keys = (_nifti if kind == "nifti" else _npz)(inventory, files, tables)
    if looks.looked_at and not looks.shapes:
        return None
    fields, splits, told = _patients(files)
    seen = [("volumes", _volumes_line(kind, files, looks)), *array]
    seen += [(about.role, _table_line(about, files)) for about in _best(tables)] + told
    warnings = [*looks.warnings, *_table_warnings(tables, files), *_duplicates(files)]
    warnings += [f"{one.file} is left out: {one.why}" for one in broken[:MOST_TOLD]]
    source = [
        Key("kind", kind),
        Key("path", inventory.given, inventory.described),
        fields,
        *(_table_key(about, files) for about in _best(tables) if about.role != "metadata"),
        *keys,
    ]
    grade = 2 if 2 * reports[0].matched >= len(files) else 1
    return Reading(
        kind,
        "CT volumes with reports",
        "volume_report",
        len(files),
        grade,  # type: ignore[arg-type]
        seen,
        warnings,
        source,
        [*_rules(looks, kind, keys), splits, Key("shard", {"bytes": "2GB"}, "a maximum")],
        is_private=True,
    )


def _patients(files: Sequence[str]) -> tuple[Key, Key, list[tuple[str, str]]]:
    """The keys `fields` and `splits`, and what was seen."""
    guessed = patients.guess(files)
    if guessed is None:
        fields = Key("fields", {"patient": EXAMPLE}, "no patient seen in the names", is_aside=True)
        return fields, splits_key(len(files), why="add group_by where several volumes are one patient's"), []
    why = f"{counted(guessed.count, 'patient')} in {counted(len(files), 'file')}, guessed from their names"
    fields = Key("fields", {"patient": guessed.pattern}, why)
    splits = splits_key(len(files), "patient", "no patient is in two splits")
    return fields, splits, [("patient", f"{why} by {guessed.pattern}")]


def _nifti(
    inventory: Inventory, files: Sequence[str], tables: Sequence[About]
) -> tuple[Looks, list[tuple[str, str]], list[Key]]:
    looks = look_at_nifti(inventory.store, files)
    slopes = Counter(looks.slopes)
    told = ", ".join(f"slope {slope:g} and intercept {intercept:g}" for slope, intercept in list(slopes)[:2])
    header = f"the headers say {told}" if told else "no header could be read"
    metadata = next((about for about in tables if about.role == "metadata"), None)
    has_slopes = metadata is not None and metadata.has("RescaleSlope", "RescaleIntercept")
    is_plain = set(slopes) <= {(1.0, 0.0)}
    reason = next((reason for reason in looks.rescaled if reason is not None), "")
    if None in looks.rescaled or not looks.stored:
        rescale, why = "header", f"{header}" + ("; the voxels are HU then" if looks.rescaled else "")
    elif looks.is_hu:
        rescale, why = "none", f"the voxels are HU as stored, though {header}"
    elif has_slopes and is_plain:
        rescale, why = "metadata", f"{header} and the voxels are no HU ({reason}); the table knows"
    else:
        rescale, why = "header", f"{header}; the voxels looked at are no HU: {reason}"
        looks.doubts.append(f"the voxels are no HU: {reason}")
    keys = [Key("rescale", rescale, why)]
    if metadata is not None:
        is_aside = rescale != "metadata"
        keys.insert(
            0, _table_key(metadata, files, is_aside, "; the headers know the spacing" if is_aside else "")
        )
    return looks, [("HU", f"rescale: {rescale}; {why}")], keys


def _npz(
    inventory: Inventory, files: Sequence[str], tables: Sequence[About]
) -> tuple[Looks, list[tuple[str, str]], list[Key]]:
    looks = look_at_npz(inventory.store, files)
    names = Counter(name for arrays in looks.arrays for name in arrays)
    several = max((len(arrays) for arrays in looks.arrays), default=1) > 1
    array = next((name for name, _ in names.most_common()), None)
    npz_voxels(inventory.store, files, array if several else None, looks)
    keys = []
    if array is not None:
        why = (
            f"of {listed(list(names))}"
            if several
            else f"the only one, {looks.dtypes[0] if looks.dtypes else ''}"
        )
        keys.append(Key("array", array, why))
    reason = next((reason for reason in looks.stored if reason is not None), "")
    if "source.scale: 1000" in reason:
        keys.append(Key("scale", 1000, "the values looked at are HU / 1000"))
        seen = "the values looked at are HU / 1000: scale: 1000"
    elif looks.is_hu:
        seen = "the values looked at are HU"
    else:
        seen = f"the values looked at are no HU: {reason}" if reason else "no values could be looked at"
    metadata = next((about for about in tables if about.role == "metadata"), None)
    if metadata is not None:
        keys.append(_table_key(metadata, files, why="; no NPZ file knows its spacing"))
    else:
        example = [1.5, 0.75, 0.75]
        keys.append(Key("spacing_mm", example, "(z, y, x) of every volume, if you know it", is_aside=True))
    return looks, [("values", seen)], keys


def _rules(looks: Looks, kind: str, keys: Sequence[Key]) -> list[Key]:
    is_known = kind == "nifti" or any(key.name == "metadata" and not key.is_aside for key in keys)
    ct_clip = {"window": [-1000, 1000], "spacing_mm": [1.5, 0.75, 0.75], "shape": [240, 480, 480]}
    if not is_known:
        ct_clip.pop("spacing_mm")
    return [
        Key("volume", {"encode": "blosc2"}, "spacing, window and shape stay as they are; or as CT-CLIP:"),
        Key("volume", {**ct_clip, "encode": "blosc2"}, "", is_aside=True),
    ]


def _best(tables: Sequence[About]) -> list[About]:
    """The table of each role that names most files."""
    best: dict[str, About] = {}
    for about in tables:
        best.setdefault(about.role, about)
    return [best[role] for role in ("reports", "labels", "metadata") if role in best]


def _table_key(about: About, files: Sequence[str], is_aside: bool = False, why: str = "") -> Key:
    value: dict[str, object] = {"path": about.path, "key": about.key}
    if about.role == "reports":
        value["text"] = about.report_columns
    return Key(
        about.role, value, f"matches {count(about.matched)} of {count(len(files))} files{why}", is_aside
    )


def _table_line(about: About, files: Sequence[str]) -> str:
    told = {"reports": f"; text {listed(about.report_columns)}", "labels": f"; {summary_of_labels(about)}"}
    return about.described(len(files)) + told.get(about.role, "")


def _table_warnings(tables: Sequence[About], files: Sequence[str]) -> list[str]:
    warnings = []
    for best in _best(tables):
        lacking = len(files) - best.matched
        if lacking and best.role != "metadata":
            reason = "report.missing" if best.role == "reports" else "labels.missing"
            which = counted(lacking, "file has", "files have")
            warnings.append(f"{which} no row in {shown(best.path)}: rejected as {reason}")
        others = [about.path for about in tables if about.role == best.role and about is not best]
        if others and lacking:
            warnings.append(
                f"{listed(others)} {'tells' if len(others) == 1 else 'tell'} about volumes too; "
                f"{best.role}.path takes them all as '{{{','.join([best.path, *others])}}}'"
            )
    return warnings


def _duplicates(files: Sequence[str]) -> list[str]:
    names = Counter(file.rpartition("/")[2] for file in files)
    twice = [name for name, number in names.items() if number > 1]
    if not twice:
        return []
    which = counted(len(twice), "name stands", "names stand")
    return [
        f"{which} in several folders, such as {shown(twice[0])}: rejected as report.missing "
        "unless the table names them by their paths"
    ]


def _volumes_line(kind: str, files: Sequence[str], looks: Looks) -> str:
    line = f"{count(len(files))} {'.nii.gz' if kind == 'nifti' else '.npz'}; {looks.looked_at} looked at"
    if looks.shape:
        line += f": {looks.shape}"
    spacings = list(dict.fromkeys(looks.spacings))
    if spacings:
        line += f", spacing {listed([' × '.join(f'{side:g}' for side in one) for one in spacings], 2)} mm"
    return line
