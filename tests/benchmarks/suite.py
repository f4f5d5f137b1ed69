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
    "first_batch": "bench_start",
    "packing": "bench_packing",
    "search": "bench_search",
    "start": "bench_start",
    "clip_training": "bench_train",
    "reinforced": "bench_reinforced",
    "vlm": "bench_vlm",
    "pixels": "bench_pixels",
    "saving": "bench_saving",
    "telling": "bench_telling",
    "sanity": "bench_sanity",
    "recovery": "bench_recovery",
    "doctor": "bench_doctor",
    "watch": "bench_watch",
    "gather": "bench_gather",
    "score": "bench_score",
    "crops": "bench_crops",
    "volumes": "bench_volumes",
    "verify": "bench_verify",
    "remote": "bench_remote",
    "addresses": "bench_addresses",
    "reencoding": "bench_build",
    "build": "bench_build",
    "quality": "bench_quality",
    "findings": "bench_quality_photos",
    "copies": "bench_quality_photos",
    "main_job": "bench_main_job",
    "operating": "bench_operating",
    "first_lines": "bench_first_lines",
    "claims": "bench_claims",
    "install": "bench_install",
    "scale": "bench_scale",
    "workers": "bench_scale",
    "room": "bench_scale",
    "cuda": "bench_cuda",
}
APART = {
    "bench_shuffle": "writes docs/shuffle-quality.json and its picture, which do not depend on time",
}
"""Modules that are no part of it, and why."""


def load(name: str) -> Benchmark:
    module = importlib.import_module(f"tests.benchmarks.{SUITE[name]}")
    return next(one for one in module.BENCHMARKS if one.name == name)
