"""What tuning chose for a run, and the measurements it chose by: the run folder's loader.json.

Free of torch, so that status, report and flows can read it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.core.errors import DataError
from tasks.core.files import write_atomic


class Measurement(BaseModel):
    """One number of workers, measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int
    samples_per_s: float
    """Steady rate, after as many batches as the queues hold."""
    first_batch_s: float
    """From the call to the first batch, with the forkserver already running."""


class LoaderSettings(BaseModel):
    """How a run reads its data. None of it changes what is read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int
    prefetch: int
    """Batches that each worker has ready or in hand."""
    reason: str
    measurements: tuple[Measurement, ...] = ()


def write_settings(path: Path, settings: LoaderSettings) -> None:
    write_atomic(path, settings.model_dump_json(indent=2) + "\n")


def read_settings(path: Path) -> LoaderSettings:
    """DataError when the file is not there or not whole."""
    try:
        return LoaderSettings.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; `tarmac run` writes it before training starts") from error
    except ValidationError as error:
        raise DataError(f"{path}: {error.errors()[0]['msg']}; delete it and it is measured again") from error
