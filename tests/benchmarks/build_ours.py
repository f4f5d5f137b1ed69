"""`build_ours.py CORPUS OUT WORKERS CHECK`: Tarmac's whole build of a corpus; prints the seconds it took.

The time is that of `build`: listing, planning, converting, digests, index, tables and manifest, all flushed
to disk; imports do not count, the workers' start does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tasks.core.config import validate
from tasks.dataset.building.builder import build
from tests.benchmarks.build_corpus import TABLE


def main(corpus: str, out: str, workers: str, check: str) -> None:
    source = {"kind": "table", "path": f"{corpus}/{TABLE}", "image": "file", "caption": "caption"}
    dataset = {
        "output": out,
        "modality": "image_text",
        "source": source,
        "image": {"check": check},
        "shard": {"samples": 500},
        "splits": {},
    }
    engine = {"build": {"kind": "local", "workers": int(workers)}}
    config = validate({"name": "bench", "dataset": dataset, "engine": engine}, "the benchmark")
    began = time.perf_counter()
    result = build(config)
    took = time.perf_counter() - began
    if result.rejected or Path(out, "current").exists():
        sys.exit(f"not what was to be measured: {result}")
    print(took)


if __name__ == "__main__":
    main(*sys.argv[1:])
