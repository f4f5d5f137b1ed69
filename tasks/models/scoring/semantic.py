"""Writes `duplicates.parquet`: how similar each picture of a dataset is to one that may stay in its place.

Samples that were left out by their similarity are compared, too, by the embeddings that are kept of them.
Otherwise they would lose it with the next build, and come back with the one after. What another rule leaves
out is not compared, or both of a pair would go: one by that rule, and the other because it repeats it.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from tasks.core.files import digest, write_atomic
from tasks.core.screen import Progress
from tasks.dataset.scores import (
    DUPLICATES,
    EMBEDDING,
    METADATA,
    SIMILARITY,
    ScoreTable,
    VersionSamples,
    read_rows,
    scored_columns,
)
from tasks.models.scoring import semdedup

NOTE = "samples compared"


def write_duplicates(
    folder: Path, samples: VersionSamples, rules: Mapping[str, Any], progress: Progress
) -> None:
    """Compare all samples that the version has or that a rule on scores has left out, except by those in
    `rules`, unless that was done before."""
    table = ScoreTable.read(folder, samples.shards)
    if not len(table.rows):
        return
    known = np.concatenate([np.empty((0, 2), np.uint64), *samples.known_contents(by_score=True)])
    at = np.unique(table.index.find(known))
    at = at[(at >= 0) & ~table.failing(rules)[at]]
    has_embeddings = np.array([_has_embeddings(path) for path in table.files], bool)
    at = at[has_embeddings[table.file[at]]]
    place = np.empty(len(table.rows), np.int64)
    place[table.index.rows] = np.arange(len(table.index))
    at = at[np.argsort(place[at])]  # by content, so that the order does not depend on the shards
    first = table.index.first[place[at]]
    contents = hashlib.blake2b(first.tobytes(), digest_size=16).hexdigest()
    about = digest([contents, [path.name for path in table.files], semdedup.PER_CLUSTER]).encode()
    done = scored_columns(folder / DUPLICATES)
    if done is not None and done[1] == about:
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        embeddings, keys = _gathered(table, at, file)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        found = semdedup.find_duplicates(
            embeddings, device=device, progress=lambda compared: progress(compared, len(at), NOTE)
        )
    hashes = np.column_stack((first, table.index.second[place[at]]))
    rows = {
        "key": keys,
        "content": pa.array([content.tobytes() for content in hashes], pa.binary(16)),
        SIMILARITY: pa.array(found.similarity, pa.float32()),
        "duplicate_of": keys.take(pa.array(found.of, mask=found.of < 0)),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(rows).replace_schema_metadata({METADATA: about}), sink, compression="zstd")
    write_atomic(folder / DUPLICATES, sink.getvalue())


def _has_embeddings(path: Path) -> bool:
    found = scored_columns(path)
    return found is not None and EMBEDDING in found[0]


def _gathered(table: ScoreTable, at: NDArray[np.int64], file: object) -> tuple[NDArray[np.float16], pa.Array]:
    """Return the embeddings of these rows, mapped from the temporary file, and their keys."""
    embeddings: NDArray[np.float16] | None = None
    keys, order = [], []
    for number in np.unique(table.file[at]).tolist():
        mine = np.flatnonzero(table.file[at] == number)
        rows = read_rows(table.files[number], ("key", EMBEDDING)).take(pa.array(table.rows[at][mine]))
        column = rows.column(EMBEDDING).combine_chunks()
        flat = column.flatten().to_numpy().reshape(len(mine), column.type.list_size)
        if embeddings is None:
            embeddings = np.memmap(file, np.float16, "w+", shape=(len(at), flat.shape[1]))  # type: ignore[call-overload]
        embeddings[mine] = flat
        keys.append(rows.column("key").combine_chunks())
        order.append(mine)
    if embeddings is None:
        return np.empty((0, 1), np.float16), pa.array([], pa.string())
    return embeddings, pa.concat_arrays(keys).take(pa.array(np.argsort(np.concatenate(order))))
