"""All benchmarks, in the order of `make bench` and of the page, with the module that has the experiment.

A module is imported when one of its benchmarks is asked for, as some import what takes seconds.
"""

from __future__ import annotations

import importlib

from tests.benchmarks.harness import Benchmark

SUITE = {
    "clip_loading": "bench_clip",
    "same_pixels": "bench_loader",
    "reads": "bench_loader",
    "memory": "bench_loader",
    "resuming": "bench_loader",
    "overhead": "bench_loader",
    "clip_training": "bench_train",
    "pixels": "bench_pixels",
    "crops": "bench_crops",
    "volumes": "bench_volumes",
    "verify": "bench_verify",
    "remote": "bench_remote",
    "reencoding": "bench_build",
    "build": "bench_build",
    "cuda": "bench_cuda",
}
APART = {
    "bench_shuffle": "writes docs/shuffle-quality.json and its picture, which do not depend on time",
    "bench_quality_photos": "needs a folder of photographs, and lists what a person looks at",
    **dict.fromkeys(
        (
            "bench_addresses",
            "bench_doctor",
            "bench_first_lines",
            "bench_gather",
            "bench_main_job",
            "bench_operating",
            "bench_packing",
            "bench_quality",
            "bench_recovery",
            "bench_reinforced",
            "bench_sanity",
            "bench_saving",
            "bench_score",
            "bench_search",
            "bench_start",
            "bench_telling",
            "bench_vlm",
            "bench_watch",
        ),
        "prints what it measures and keeps nothing yet",
    ),
}
"""Modules that are no part of it, and why."""


def load(name: str) -> Benchmark:
    module = importlib.import_module(f"tests.benchmarks.{SUITE[name]}")
    return next(one for one in module.BENCHMARKS if one.name == name)
