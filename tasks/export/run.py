"""Export a checkpoint: write it beside its final place, prove it in the other library, and rename it.

The proof is a separate program, which imports the other library and not Tarmac, so that nothing of Tarmac can
hide what the export lacks. An export that is not proven equal never gets its final name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.core import config as configs
from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file, fsync_path, read_json, write_json
from tasks.evaluation.checkpoint import load_model_of
from tasks.evaluation.kinds.command import environment
from tasks.export import Target
from tasks.export.formats import ProofQuestion, TrainedModel, Written
from tasks.models import recipes
from tasks.runs.checkpoints import MODEL, Checkpoint, newest_sound, read_meta
from tasks.runs.folder import RunFolder, find

RECORD = "export.json"
MOST_APART = 1e-5
"""The largest difference between answers, as a share of the largest answer, at which two models
count as equal."""
LAST_LINES = 4
ANSWERS = "answers.safetensors"
"""The file that the proof program writes beside its question."""


class Format(NamedTuple):
    """A format: the function that writes it, the library that proves it, and, for a library without a
    package, a file that its folder of sources contains."""

    writer: str
    library: str
    source: str | None = None


FORMATS: Mapping[Target, Format] = {
    "open_clip": Format("tasks.export.open_clip:write_open_clip", "open_clip"),
    "hf": Format("tasks.export.hf:write_hf", "transformers"),
    "nanovlm": Format("tasks.export.nanovlm:write_nanovlm", "nanoVLM", "models/vision_language_model.py"),
}


@dataclass(frozen=True)
class Export:
    """A finished export: its folder and its record."""

    path: Path
    record: Mapping[str, Any]
    is_new: bool


def locate(checkpoint: str, runs: Path) -> tuple[RunFolder, Checkpoint]:
    """Find the checkpoint in that folder, or a run's best, or else its newest; UsageError where
    there is none."""
    folder = Path(checkpoint).resolve()
    if folder.parent.name == "checkpoints" and (folder.parents[1] / "run.json").is_file():
        run, found = RunFolder(folder.parents[1]), folder
        if not folder.is_dir():
            raise UsageError(f"CHECKPOINT: there is no {checkpoint}")
    else:
        run = find(runs, checkpoint)
        newest = newest_sound(run)
        if newest is None:
            raise UsageError(f"CHECKPOINT: {run.name} has no complete checkpoint yet")
        found = run.best.resolve() if run.best.exists() else newest.path
    return run, Checkpoint(int(found.name.rpartition("_")[2]), found)


def export(
    checkpoint: str,
    runs: Path,
    target: Target,
    out: Path | None = None,
    python: str = sys.executable,
    source: Path | None = None,
) -> Export:
    """Write the checkpoint's model into the folder `out` for the other library, and prove it equal.

    Raises UsageError for a model that the format cannot represent, and where the folder holds something else;
    DataError where the other library does not load it or answers differently.
    """
    kind = FORMATS[target]
    _check_source(kind, target, source)
    run, found = locate(checkpoint, runs)
    place = (out or Path("exports", f"{run.name}-step_{found.step}-{target}")).resolve()
    meta = read_meta(found)
    about = {
        "format": target,
        "run": run.name,
        "step": found.step,
        "weights": meta.files[MODEL] if meta is not None and MODEL in meta.files else None,
    }
    if place.exists() or place.is_symlink():
        return Export(place, _same(place, about), is_new=False)
    config = configs.reload(run.config)
    recipe, model = load_model_of(run, config, found.step)
    assert config.train is not None
    trained = TrainedModel(recipe, config.train.recipe, recipes.check_recipe(config.train), model.eval())
    draft = place.with_name(f".draft_{place.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        written: Written = resolve_name(kind.writer)(trained, draft)
        proof = _prove(kind, draft, written, python, source)
        _settle(draft, place, written)
        record = {
            **about,
            "covers": written.covers,
            "usage": written.usage.format(path=place),
            "proof": proof,
            "files": {one: blake3_file(draft / one) for one in _files(draft)},
        }
        write_json(draft / RECORD, record)
        fsync_path(draft)
        os.rename(draft, place)
        fsync_path(place.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Export(place, record, is_new=True)


def _check_source(kind: Format, target: Target, source: Path | None) -> None:
    if kind.source is None and source is not None:
        raise UsageError(f"--source: has no effect with --to {target}; take it out")
    if kind.source is not None and (source is None or not (source / kind.source).is_file()):
        given = "is not given" if source is None else f"{source} holds no {kind.source}"
        raise UsageError(
            f"--source: {given}; the proof of --to {target} needs the sources of a library that has no "
            "package: git clone https://github.com/huggingface/nanoVLM, and name its folder"
        )


def _same(place: Path, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the export at `place`; UsageError unless it is complete and the requested one."""
    try:
        record: Mapping[str, Any] = read_json(place / RECORD)
        is_same = {name: record[name] for name in about} == about and record["files"] == {
            one: blake3_file(place / one) for one in _files(place)
        }
    except (OSError, ValueError, KeyError, TypeError):
        is_same = False
    if not is_same:
        raise UsageError(f"--out: {place} holds something else; move it away, or give another folder")
    return record


def _files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found if path.name != RECORD)


def _settle(draft: Path, place: Path, written: Written) -> None:
    """Write the folder's final place into the files that need it, make all files readable, and flush them."""
    for name, keys in written.moves.items():
        values = {key: str(place / inside) for key, inside in keys.items()}
        write_json(draft / name, {**read_json(draft / name), **values})
    for one in _files(draft):
        (draft / one).chmod(0o644)
        fsync_path(draft / one)


def _prove(kind: Format, draft: Path, written: Written, python: str, source: Path | None) -> dict[str, Any]:
    """Ask the other library the question and compare its answers with those of Tarmac's model."""
    program = Path(__file__).parent / "proofs/ask.py"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(written.question, folder)
        sources = [] if source is None else [str(source.resolve())]
        try:
            done = subprocess.run(
                [python, str(program), str(draft), name, kind.library, *sources],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment(),
                cwd=name,
            )
        except OSError as error:
            raise UsageError(f"--python: {python} cannot be started: {error.strerror}") from None
        if done.returncode or not (folder / ANSWERS).is_file():
            last_lines = " | ".join((done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:])
            raise DataError(f"the export does not load in {kind.library}: {last_lines}")
        library, differences = compare(written.question, folder)
    apart = {name: value for name, value in differences.items() if not value <= MOST_APART}
    if apart:
        shown = ", ".join(f"{name} by {value:.1g}" for name, value in apart.items())
        raise DataError(f"{library} differs from Tarmac: {shown}; nothing was exported")
    return {
        "library": library,
        "python": python,
        "torch": torch.__version__,
        "arithmetic": "float64 on the CPU",
        "largest_difference": differences,
        "most_allowed": MOST_APART,
    }


def put(question: ProofQuestion, folder: Path) -> None:
    """Write the question into the folder for the proof program."""
    names = [f"{number}.png" for number in range(len(question.pictures))]
    for name, one in zip(names, question.pictures, strict=True):
        one.save(folder / name)
    asked = {"pictures": names, "texts": list(question.texts)}
    (folder / "question.json").write_text(json.dumps(asked), encoding="utf-8")
    tensors = {name: value.contiguous() for name, value in question.tensors.items()}
    save_file(tensors, folder / "question.safetensors")


def compare(question: ProofQuestion, folder: Path) -> tuple[str, dict[str, float]]:
    """Return the library that answered, and the `difference` of each of its answers from Tarmac's."""
    answers = folder / ANSWERS
    with safe_open(answers, "pt") as file:
        library = (file.metadata() or {}).get("library", "")
    found = load_file(answers)
    return library, {name: difference(mine, found[name]) for name, mine in question.answers.items()}


def difference(mine: Tensor, other: Tensor) -> float:
    """Return the largest difference between two answers, as a share of the largest number; for integers 0
    where they are equal, else infinite, which is also the difference of shapes."""
    if mine.shape != other.shape or not mine.is_floating_point():
        return 0.0 if torch.equal(mine, other) else float("inf")
    largest = mine.abs().max().clamp(min=torch.finfo(mine.dtype).tiny)
    return float((mine - other).abs().max() / largest)
