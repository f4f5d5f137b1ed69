"""The version of the data that a run refers to: named by its content, found where it lies."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.quarantine import NAME
from tasks.runs.identity import ID_DIGITS, DataRef
from tasks.runs.quarantine import of_dataset


def data_of(version: Path) -> list[DataRef]:
    """The version as a run refers to it: named by its manifest's content, wherever the folder lies."""
    try:
        content = (version / "manifest.json").read_bytes()
    except OSError:
        raise DataError(f"{version}: has no manifest.json; build the dataset first") from None
    name = blake3(content).hexdigest()[:ID_DIGITS]
    inside = dataset_of(version) if version.resolve().name == name else None
    return [DataRef(dataset=str(inside or version.resolve()), version=name)]


def version_path(ref: DataRef) -> Path:
    """The folder of a version that a run refers to."""
    inside = Path(ref.dataset) / "versions" / ref.version
    return inside if inside.is_dir() else Path(ref.dataset)


def dataset_of(version: Path) -> Path | None:
    """The dataset folder that a version lies in; None for one that lies elsewhere."""
    real = version.resolve()
    return real.parent.parent if real.parent.name == "versions" else None


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
