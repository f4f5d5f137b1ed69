"""`build_peers.py NAME CORPUS OUT`: other writers store the same files; prints the seconds it took them.

Runs in an environment that knows nothing of Tarmac. Each peer reads the table and every file, as a user of it
would write the loop, in one process, with the peer's own defaults (none flushes to disk, and MDS has no
hashes unless asked); imports do not count.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Iterator

PER_SHARD = 500


def samples(corpus: str) -> Iterator[tuple[str, bytes, str]]:
    with open(f"{corpus}/captions.csv", newline="") as table:
        for row in csv.DictReader(table):
            with open(f"{corpus}/{row['file']}", "rb") as file:
                yield os.path.splitext(row["file"])[0].replace("/", "_"), file.read(), row["caption"]


def shard_writer(corpus: str, out: str) -> float:
    import webdataset

    began = time.perf_counter()
    with webdataset.ShardWriter(f"{out}/%06d.tar", maxcount=PER_SHARD, verbose=0) as writer:
        for key, image, caption in samples(corpus):
            writer.write({"__key__": key, "jpg": image, "txt": caption})
    return time.perf_counter() - began


def array_record(corpus: str, out: str) -> float:
    """A record holds one value, so image and caption are packed behind their lengths."""
    from array_record.python.array_record_module import ArrayRecordWriter

    began = time.perf_counter()
    writer = None
    for number, (key, image, caption) in enumerate(samples(corpus)):
        if number % PER_SHARD == 0:
            if writer is not None:
                writer.close()
            writer = ArrayRecordWriter(f"{out}/{number // PER_SHARD:06d}.array_record", "group_size:1")
        parts = (key.encode(), image, caption.encode())
        writer.write(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
    writer.close()
    return time.perf_counter() - began


def mds(corpus: str, out: str) -> float:
    from streaming import MDSWriter

    began = time.perf_counter()
    columns = {"key": "str", "jpg": "bytes", "txt": "str"}
    with MDSWriter(out=f"{out}/mds", columns=columns, size_limit="16mb") as writer:
        for key, image, caption in samples(corpus):
            writer.write({"key": key, "jpg": image, "txt": caption})
    return time.perf_counter() - began


PEERS = {"shard_writer": shard_writer, "array_record": array_record, "mds": mds}

if __name__ == "__main__":
    name, corpus, out = sys.argv[1:]
    print(PEERS[name](corpus, out))
