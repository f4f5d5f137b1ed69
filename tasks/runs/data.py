"""What a run reads: a version, named by its content, without the samples in quarantine.

A run keeps a copy of the dataset's quarantine, made when it is planned. Its digest is part of the run's
identity, so all readers of a run (training, validation, evaluation, on every rank and in every attempt) leave
out the same samples, whatever the dataset's own quarantine holds by then.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json
from tasks.core.quarantine_file import NAME, Quarantined, home, read_quarantine, to_text
from tasks.core.schema import Config, Train
from tasks.core.schema.recipes import RECIPES
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.identity import ID_DIGITS, DataRef


def data_of(version: Path) -> list[DataRef]:
    """Return the version as a run refers to it: named by its manifest's content, wherever the folder lies."""
    try:
        content = (version / "manifest.json").read_bytes()
    except OSError:
        raise DataError(f"{version}: has no manifest.json; build the dataset first") from None
    name = blake3(content).hexdigest()[:ID_DIGITS]
    inside = dataset_of(version) if version.resolve().name == name else None
    return [DataRef(dataset=str(inside or version.resolve()), version=name)]


def datasets_of(config: Config, version: Path) -> list[DataRef]:
    """Return all that the config trains on, as a run refers to it: its own dataset first, others by
    version."""
    (_, own), *others = shares_of(config, version)
    [first] = data_of(version)
    rest = [data_of(folder)[0].model_copy(update={"weight": share}) for folder, share in others]
    return [first.model_copy(update={"weight": own}), *sorted(rest, key=lambda ref: ref.version)]


def shares_of(config: Config, version: Path) -> list[tuple[Path, float]]:
    """Return `version` of the config's own dataset, then the current versions of those that `train.data`
    mixes in, each with its share of the samples. UsageError where one is missing."""
    given = (config.train.data if config.train is not None else None) or []
    if len(given) < 2:
        return [(version, 1.0)]
    total = sum(one.weight for one in given)
    shares = {os.path.abspath(one.dataset): one.weight / total for one in given}
    found = [(version, shares.pop(os.path.abspath(config.dataset.output)))]
    for dataset, share in shares.items():
        if (current := current_of(Path(dataset))) is None:
            raise UsageError(f"train.data: {dataset} holds no version of a dataset; build it first")
        found.append((current.resolve(), share))
    return found


def missing_shares(config: Config) -> list[Path]:
    """Return the datasets that `train.data` mixes in and that nobody has built yet."""
    given = (config.train.data if config.train is not None else None) or []
    own = os.path.abspath(config.dataset.output)
    others = [one.dataset for one in given if os.path.abspath(one.dataset) != own]
    return [dataset for dataset in others if current_of(dataset) is None]


def current_of(dataset: Path) -> Path | None:
    """Return the current version of a dataset, or the folder itself where it is a version; None without
    one."""
    return next((one for one in (dataset / "current", dataset) if (one / "manifest.json").is_file()), None)


def version_path(ref: DataRef) -> Path:
    """Return the folder of a version that a run refers to."""
    inside = Path(ref.dataset) / "versions" / ref.version
    return inside if inside.is_dir() else Path(ref.dataset)


def dataset_of(version: Path) -> Path | None:
    """Return the dataset folder that a version lies in; None for one that lies elsewhere."""
    real = version.resolve()
    return real.parent.parent if real.parent.name == "versions" else None


def train_samples(version: Path) -> int:
    """Return the number of samples in the version's train split, by its manifest, without those in
    quarantine.

    DataError when all are in quarantine.
    """
    name = data_of(version)[0].version
    left_out = sum(entry.split == "train" for entry in left_out_of(version, name))
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


@dataclass(frozen=True)
class Overfull:
    """A batch that holds some samples twice, as it takes more of a dataset than that has.

    `is_wrong` where the loss compares the samples of a batch with each other: it takes an image and the
    caption of its double for a pair that does not belong together. `fitting` is a batch size of two steps per
    epoch.
    """

    problem: str
    fitting: int
    is_wrong: bool

    @property
    def remedy(self) -> str:
        return f"take train.batch_size {self.fitting} or less, or build a larger dataset"


def overfull(config: Config, version: Path, rows: int | None = None) -> Overfull | None:
    """Explain why a batch of the training would hold samples twice; None where it does not, and for mixed
    datasets that are yet to be built. `rows` is how many rows packed samples fill, where that is known."""
    train = config.train
    if train is None or missing_shares(config):
        return None
    if rows is not None:
        return overfull_of(train, rows, "rows that the packs make")
    counts = ((train_samples(folder), share) for folder, share in shares_of(config, version))
    found = (overfull_of(train, there, "samples to train on", share) for there, share in counts)
    return next((one for one in found if one is not None), None)


def overfull_of(train: Train, there: int, what: str, share: float = 1.0) -> Overfull | None:
    """Explain the same for `there` samples, of which a batch takes its `share`."""
    taken = math.ceil(train.batch_size * share)
    if taken <= there:
        return None
    is_wrong = RECIPES[train.recipe].compares_samples
    wrong = ": to the contrastive loss they are wrong pairs" if is_wrong else ""
    problem = f"a batch takes {taken:,} of {there:,} {what}, so it holds some twice{wrong}"
    return Overfull(problem, max(int(there / share) // 2, 1), is_wrong)


def left_out_of(version: Path, name: str) -> list[Quarantined]:
    """Return the quarantine's entries about the version of this name, one per sample."""
    entries = sorted(read_quarantine(home(version) / NAME), reverse=True)
    return sorted({entry.sample: entry for entry in entries if entry.version == name}.values())


def left_out_of_all(data: Iterable[DataRef]) -> list[Quarantined]:
    """Return the same entries for each version that a run reads."""
    return sorted(entry for ref in data for entry in left_out_of(version_path(ref), ref.version))


def left_out_by(run: RunFolder) -> list[Quarantined]:
    """Return the entries of the run's copy; DataError when it is not the one that the run was planned
    with."""
    entries = read_quarantine(run.quarantine)
    if quarantine_digest(entries) != record.load_record(run).identity.get("quarantine"):
        raise DataError(
            f"{run.quarantine}: is not what the run began with; take back the change, or train anew with "
            "`tarmac run CONFIG --fresh`",
            field="fresh",
        )
    return entries


def quarantine_digest(entries: list[Quarantined]) -> str | None:
    """Return the BLAKE3 of the file's content; None for an empty quarantine."""
    return blake3(to_text(entries).encode()).hexdigest() if entries else None
