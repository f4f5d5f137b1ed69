"""Assesses what the samples of a version are worth: copies, leaks between splits, pictures and captions that
teach nothing, classes out of balance.

Everything but the captions' words is judged by the statistics that the build has taken of every sample, so
a million samples take seconds and no picture is opened. Captions are read of at most CAPTIONS evenly spread
samples. The result is facts, which `verdict` judges.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.files import write_json
from tasks.core.quarantine_file import home
from tasks.core.screen import Progress, no_progress
from tasks.core.tokens import caption_counter
from tasks.core.units import shorten
from tasks.dataset import duplicates
from tasks.dataset.formats.measures import CONSTANT
from tasks.dataset.quality import texts
from tasks.dataset.quality.assessment import (
    ASSESSMENT,
    Assessment,
    Cluster,
    Found,
    ShownSample,
    kept_assessment,
    path_of,
    trained_split,
)
from tasks.dataset.quality.columns import MOST_WORDS, SampleColumns, SampleRow, read_statistics
from tasks.dataset.quality.kinds import PICTURE_KINDS, QualityKind
from tasks.dataset.sample_reader import SampleReader, spread
from tasks.dataset.version.layout import samples_name
from tasks.dataset.version.manifest import Manifest, read_manifest
from tasks.dataset.version.tables import read_pieces

SHOWN = 12
"""Examples of each kind."""
MOST_MEMBERS = 8
CAPTIONS = 2000
MOST_BYTES = 1 << 14
"""The most bytes of a caption that are read."""
CONTEXT = 77
"""Tokens that CLIP's text encoder reads; the rest of a caption is cut off."""

JUDGES = (texts.LANGUAGES, "open_clip")
"""The optional packages that judge captions."""
CountTokens = Callable[[str], int]
logger = logging.getLogger(__name__)


def assess_version(version: Path, progress: Progress = no_progress) -> Any:
    """Return the assessment of a version as JSON: the one that is kept, unless a judge was installed since,
    else a new one, which is kept then if it can be written. DataError if its tables cannot be read."""
    found, judges = kept_assessment(version), [name for name in JUDGES if find_spec(name) is not None]
    if found is None or not {*judges} <= {*found.judges}:
        new = examine(version, read_manifest(version), caption_counter(), progress)
        found = replace(new, judges=judges)
        if home(version) != version.resolve():
            _keep(version, found)
    return ASSESSMENT.dump_python(found, mode="json")


def _keep(version: Path, found: Assessment) -> None:
    path = path_of(version)
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, ASSESSMENT.dump_python(found, mode="json"))
    except OSError as error:  # what was found counts all the same, and is found again the next time
        logger.warning("%s cannot be written: %s", path, error.strerror or error)


def examine(
    version: Path,
    manifest: Manifest,
    count_tokens: CountTokens | None = None,
    progress: Progress = no_progress,
) -> Assessment:
    """Assess a version; DataError if its tables cannot be read."""
    samples = {name: split.samples for name, split in manifest.splits.items()}
    columns = read_statistics(version, samples, progress)
    found = Assessment(version.resolve().name, samples)
    if columns.looks is not None:
        found = replace(found, is_compared=True, **_copies(columns, columns.looks, manifest.modality))
    found = replace(found, too_many=len(columns) > duplicates.MOST_COMPARED)
    found = replace(
        found,
        pictures=_pictures(columns),
        captions={**_captions(columns), **_texts(version, columns, count_tokens)},
        classes=_classes(columns),
        repeats=_repeats(columns),
    )
    named = asdict(found)
    name_examples(version, named)
    return ASSESSMENT.validate_python(named)


def _copies(columns: SampleColumns, looks: duplicates.Looks, modality: str) -> dict[str, Any]:
    """Return the fields of an assessment about copies."""
    exact, near = duplicates.clusters_of(looks, by_text=modality == "chat")
    number = np.arange(len(columns))
    of_split = columns.of_split()
    first_here = duplicates.equal(near.astype(np.uint64), of_split.astype(np.uint64))
    is_later = first_here != number
    is_copy = is_later & (duplicates.equal(exact.astype(np.uint64), of_split.astype(np.uint64)) != number)
    leaked = _leaked(columns, near, of_split)
    by_split = {
        name: {
            split: count
            for place, split in enumerate(columns.splits)
            if (count := int(np.count_nonzero(flags & (of_split == place))))
        }
        for name, flags in (("copies", is_copy), ("alike", is_later & ~is_copy), ("leaked", leaked))
    }
    sizes = np.bincount(near, minlength=len(columns))
    largest = np.argsort(-sizes, kind="stable")[:SHOWN]
    of_each = (np.unique(near[leaked & (of_split == place)])[:SHOWN] for place in range(len(columns.splits)))
    in_turn = chain.from_iterable(zip_longest(*(labels.tolist() for labels in of_each)))
    leaks = list(dict.fromkeys(label for label in in_turn if label is not None))[:SHOWN]
    order = np.argsort(near, kind="stable")
    return {
        **by_split,
        "clusters": [_cluster(columns, order, near, exact, one) for one in largest if sizes[one] > 1],
        "leaks": [_cluster(columns, order, near, exact, one, spreads=True) for one in leaks],
    }


def _leaked(columns: SampleColumns, near: duplicates.Rows, of_split: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which samples of held-out splits have their like in the split that is trained on."""
    base = list(columns.splits).index(trained_split(columns.splits))
    in_base = np.zeros(len(columns), bool)
    in_base[near[of_split == base]] = True
    leaked: NDArray[np.bool_] = in_base[near] & (of_split != base)
    return leaked


def _cluster(
    columns: SampleColumns,
    order: duplicates.Rows,
    near: duplicates.Rows,
    exact: duplicates.Rows,
    label: int,
    *,
    spreads: bool = False,
) -> Cluster:
    """Return the cluster with this label; with `spreads` its first members are of as many splits as
    possible."""
    start, stop = np.searchsorted(near[order], (label, label + 1))
    members = np.sort(order[start:stop])
    shown = members[:MOST_MEMBERS]
    if spreads:
        _, firsts = np.unique(columns.of_split()[members], return_index=True)
        shown = np.unique(np.concatenate([members[firsts], shown]))[: max(MOST_MEMBERS, len(firsts))]
    places = [columns.place(one) for one in shown.tolist()]
    is_exact = len(set(exact[members].tolist())) == 1
    return Cluster(len(members), is_exact, [ShownSample(*place) for place in places])


def _pictures(columns: SampleColumns) -> dict[str, Found]:
    contrast = columns.numbers.get("contrast", np.full(len(columns), np.nan, np.float32))
    found = ((kind, _of_kind(columns, kind, contrast >= CONSTANT)) for kind in PICTURE_KINDS)
    return {kind.name: one for kind, one in found if one is not None}


def _of_kind(columns: SampleColumns, kind: QualityKind, is_busy: NDArray[np.bool_]) -> Found | None:
    """Return what was found of a kind; None for a version without its statistic."""
    if kind.colour:
        codes, words = columns.words.get("colour", (None, ()))
        code = words.index(kind.colour) if kind.colour in words else len(words)
        return None if codes is None else _found(columns, codes == code, None, codes >= 0)
    assert kind.filter is not None and isinstance(kind.filter.limit, float | int)
    values = columns.numbers.get(kind.filter.name)
    if values is None:
        return None
    counts = ~np.isnan(values) & (is_busy | (not kind.shows_detail))
    if kind.filter.is_most:
        return _found(columns, (values > kind.filter.limit) & counts, -values, counts)
    return _found(columns, (values < kind.filter.limit) & counts, values, counts)


def _captions(columns: SampleColumns) -> dict[str, Found]:
    telling = columns.numbers.get("caption_words")
    if telling is None:
        return {}
    return {"empty": _found(columns, telling == 0, None, ~np.isnan(telling))}


def _found(
    columns: SampleColumns,
    flags: NDArray[np.bool_],
    worst: NDArray[np.float32] | None,
    counts: NDArray[np.bool_],
) -> Found:
    """Count the flagged samples among those that count; the examples have the lowest values of `worst`."""
    numbers = np.flatnonzero(flags)
    of = int(np.count_nonzero(counts))
    notes = [""] * SHOWN
    if worst is not None:
        numbers = numbers[np.argsort(worst[numbers], kind="stable")]
        notes = [f"{abs(float(value)):.3g}" for value in worst[numbers[:SHOWN]]]
    shown = zip(numbers[:SHOWN].tolist(), notes, strict=False)
    return Found(len(numbers), of, [ShownSample(*columns.place(one), note=note) for one, note in shown])


def _classes(columns: SampleColumns) -> dict[str, int]:
    """Return the samples per label, the most frequent first; nothing if there are no classes."""
    codes, words = columns.words.get("label", (np.empty(0, np.int32), ()))
    if not 1 < len(words) <= MOST_WORDS:
        return {}
    counts = np.bincount(codes[codes >= 0], minlength=len(words)).tolist()
    return dict(sorted(zip(words, counts, strict=True), key=lambda pair: (-pair[1], pair[0])))


def _repeats(columns: SampleColumns) -> dict[str, int]:
    """Return how many captions occur how often: `{"5": 200}` are 200 captions of five samples each. The texts
    of conversations are no captions."""
    if columns.looks is None or "caption_words" not in columns.numbers:
        return {}
    texts_of = columns.looks.text
    _, counts = np.unique(texts_of[texts_of != 0], return_counts=True)
    times, how_many = np.unique(counts, return_counts=True)
    return {str(time): int(many) for time, many in zip(times.tolist(), how_many.tolist(), strict=True)}


def _texts(version: Path, columns: SampleColumns, count_tokens: CountTokens | None) -> dict[str, Found]:
    """Judge the words of evenly spread captions."""
    if "caption_words" not in columns.numbers:
        return {}
    places, captions = some_captions(version, columns.splits, len(columns))
    found = {}
    is_class = bool(_classes(columns))
    if not is_class:
        numbers, text = texts.boilerplate(captions)
        found["boilerplate"] = _of_texts(places, numbers, dict.fromkeys(numbers, text))
        foreign = texts.foreign(captions)
        if foreign is not None:
            numbers, main, others = foreign
            note = f"most are {main}, these are {', '.join(others)}"
            found["language"] = _of_texts(places, numbers, {one: captions[one] for one in numbers}, note)
    if count_tokens is not None:
        lengths = [count_tokens(caption) for caption in captions]
        numbers = [number for number, length in enumerate(lengths) if length > CONTEXT]
        notes = {number: f"{lengths[number]} tokens" for number in numbers}
        found["truncated"] = _of_texts(places, numbers, notes)
    return found


def _of_texts(
    places: Sequence[SampleRow], numbers: Sequence[int], notes: Mapping[int, str], first: str = ""
) -> Found:
    shown = [ShownSample(*places[one], note=shorten(notes[one], 120)) for one in numbers[:SHOWN]]
    if shown and first:
        shown[0] = replace(shown[0], note=first)
    return Found(len(numbers), len(places), shown)


def some_captions(version: Path, splits: Mapping[str, int], total: int) -> tuple[list[SampleRow], list[str]]:
    """Return captions with their places, evenly spread over splits with these numbers of samples: CAPTIONS of
    a version of `total` samples. DataError for a split without a sound index."""
    places, captions = [], []
    for split, samples in splits.items():
        reader = SampleReader(version, split)
        most = max(1, CAPTIONS * samples // max(1, total))
        for row in spread(min(samples, len(reader)), most):
            with suppress(DataError, KeyError):  # verify reports such samples
                captions.append(reader.read_text(row, MOST_BYTES).decode("utf-8", "replace"))
                places.append(SampleRow(split, row))
    return places, captions


def name_examples(version: Path, named: Any) -> None:
    """Add to all examples in a value, as JSON, their keys and where they came from."""
    wanted: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for example in _examples_in(named):
        wanted[example["split"]][example["row"]].append(example)
    for split, rows in wanted.items():
        start = 0
        for piece in read_pieces(version / samples_name(split), ("original_key", "source")):
            for row in [row for row in rows if start <= row < start + piece.num_rows]:
                for example in rows[row]:
                    example["key"] = piece.column(0)[row - start].as_py()
                    example["source"] = piece.column(1)[row - start].as_py() or ""
            start += piece.num_rows


def _examples_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.keys() >= {"split", "row", "key"}:
            yield value
        else:
            for entry in value.values():
                yield from _examples_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _examples_in(entry)
