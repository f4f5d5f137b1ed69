"""What tuning chose for a run, and the measurements behind it: the run folder's loader.json.

This module is free of torch, so that status, report and flows can read the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.core.errors import DataError
from tasks.core.files import write_atomic
from tasks.core.units import number, percent

Reader = Literal["indexed", "streaming"]


@dataclass(frozen=True)
class Setting:
    """What can be chosen about a loader without changing which samples it gives."""

    workers: int
    prefetch: int
    reader: Reader


class Measurement(BaseModel):
    """One setting, measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int
    prefetch: int = 2
    reader: Reader = "indexed"
    samples_per_s: float
    """The steady rate, after as many batches as the queues hold."""
    first_batch_s: float
    """Seconds from the call to the first batch, with the forkserver already running."""
    memory_bytes: int | None = None
    """Memory of this process and its workers; shared memory is counted once. None where it was not measured.
    """
    cores_busy: float | None = None
    """How many cores these processes kept busy."""

    @property
    def setting(self) -> Setting:
        return Setting(self.workers, self.prefetch, self.reader)


class LoaderSettings(BaseModel):
    """How a run reads its data. None of it changes what is read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int
    prefetch: int
    """Batches that each worker has ready or in preparation."""
    reader: Reader | None = None
    """The setting that gave the most, where bench tried several; a run takes the one of its config."""
    reason: str
    measurements: tuple[Measurement, ...] = ()
    unit: Literal["samples", "rows"] = "samples"
    """What the rates count: rows of several samples where `train.pack` makes such rows."""
    taken_per_s: float | None = None
    """Samples per second that a rank of the training takes of cached batches: the ceiling, the most that any
    loader could give it. None where it was not measured."""
    reached_per_s: float | None = None
    """Samples per second that it reaches of batches loaded with these settings, beside it on the same cores.
    None where it was not measured."""

    @property
    def setting(self) -> Setting:
        return Setting(self.workers, self.prefetch, self.reader or "indexed")

    @property
    def reached_share(self) -> float | None:
        """The share of the ceiling that the training reaches; None where it was not measured."""
        return self.reached_per_s / self.taken_per_s if self.reached_per_s and self.taken_per_s else None

    @property
    def headspace(self) -> str | None:
        """How much of the ceiling the training reaches, in words; None where it was not measured."""
        if self.reached_share is None:
            return None
        reached, taken = number(self.reached_per_s), number(self.taken_per_s)
        return (
            f"the training reaches {reached} of {taken} {self.unit}/s that it would with batches that cost "
            f"nothing ({percent(self.reached_share, 0)})"
        )

    def to_config(self) -> str:
        """Return it as the config's line."""
        reader = f"reader: {self.reader}, " if self.reader is not None else ""
        return f"loader: {{{reader}workers: {self.workers}, prefetch: {self.prefetch}}}"


def write_settings(path: Path, settings: LoaderSettings) -> None:
    write_atomic(path, settings.model_dump_json(indent=2) + "\n")


def read_settings(path: Path) -> LoaderSettings:
    """Read the file; DataError when it is missing or incomplete."""
    try:
        return LoaderSettings.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; `tarmac run` writes it before training starts") from error
    except ValidationError as error:
        raise DataError(f"{path}: {error.errors()[0]['msg']}; delete it and it is measured again") from error
