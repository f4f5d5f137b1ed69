"""Runs open_clip's own data pipeline on given tars and counts the samples that enter and leave each stage.

The trainer's interpreter runs this script and may not have Tarmac installed, so it imports only packages that
the trainer has. It repeats nothing of the pipeline: the stages, their order, the split of shards among ranks
and workers and the number of batches come from the installed `get_wds_dataset`. No model is built; its
transform and tokenizer are replaced by checks that they get an image and a text.

It reads one JSON object from standard input: `arguments` of the trainer, `ranks`, `examples` (a tar of
samples per kind) and `whole` (tars to run whole). It writes one to the file named by its argument.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import sys
import traceback
from typing import Any

MODULES = ("open_clip_train", "training")
MOST_ASSIGNED = 2_000_000
"""The most entries that all workers' lists of tars may have together; with more they are not made."""
MOST_MESSAGES = 3
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "WORKER", "NUM_WORKERS")
"""The variables by which webdataset finds the place of a worker."""


class Messages(logging.Handler):
    """Keeps the first warnings that the pipeline logs about the samples that it drops."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < MOST_MESSAGES:
            self.texts.append(record.getMessage()[:500])


def main(answer_path: str) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in PLACE:
        os.environ.pop(name, None)
    answer = run(**json.load(sys.stdin))
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return 0


def run(arguments: list[str], ranks: int, examples: list[str], whole: list[str]) -> dict[str, Any]:
    package = next(name for name in MODULES if importlib.util.find_spec(name) is not None)
    data = importlib.import_module(f"{package}.data")
    args = importlib.import_module(f"{package}.params").parse_args(arguments)
    answer: dict[str, Any] = {"versions": installed_versions(), "refusal": None}
    args.distributed, args.world_size, args.rank = ranks > 1, ranks, 0
    # The trainer's main sets this before it builds the data.
    args.distill = None not in (getattr(args, f"distill_{one}", None) for one in ("model", "pretrained"))
    try:
        answer["batches"] = dataset_of(data, args)[1].num_batches
    except (AssertionError, RuntimeError, KeyError) as error:
        # The trainer itself would fail here; below, the pipeline is built for one worker.
        answer["refusal"] = {"kind": type(error).__name__, "text": str(error), "place": raised_at(error)}
    workers = max(args.workers, 1)
    args.world_size, args.workers, args.batch_size = 1, 1, 1
    args.train_num_samples = args.train_num_samples or 1
    stages = dataset_of(data, args)[0].pipeline
    answer["assigned"] = [] if args.dataset_resampled else split(stages, ranks, workers, args)
    first = first_reading_stage(stages)
    answer["flows"] = [flow(stages[first:], [tar]) for tar in examples]
    answer["whole"] = {tar: flow(stages[first:], [tar]) for tar in whole}
    return answer


def installed_versions() -> dict[str, str]:
    found = {}
    for name in ("open_clip_torch", "webdataset", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def dataset_of(data: Any, args: Any) -> tuple[Any, Any]:
    """Return the pipeline of the training data, and the loader around it, which has started no worker yet."""
    loader = data.get_wds_dataset(args, CheckImage(), is_train=True, tokenizer=check_text).dataloader
    inner = loader
    while not hasattr(inner, "dataset"):
        inner = inner.pipeline[0]
    return inner.dataset, loader


class CheckImage:
    """Replaces the model's transform, which takes a PIL image."""

    transforms = ()
    """MobileCLIP's fork looks here for a crop and a normalisation, and copies their settings."""

    def __call__(self, image: Any) -> Any:
        if not hasattr(image, "getpixel"):
            raise TypeError(f"the transform gets {type(image).__name__} instead of an image")
        return 0


def check_text(text: Any) -> list[int]:
    """Replaces the tokenizer."""
    if not isinstance(text, str):
        raise TypeError(f"the tokenizer gets {type(text).__name__} instead of a text")
    return [0]


def first_reading_stage(stages: list[Any]) -> int:
    """Return the number of the first stage that opens tars; the stages before it yield addresses."""
    names = [stage_name(stage) for stage in stages]
    return next(n for n, name in enumerate(names) if n and ("samples" in name or "tarfile" in name))


def split(stages: list[Any], ranks: int, workers: int, args: Any) -> list[list[list[str]]]:
    """Return the tars of each worker of each rank in the first epoch, by the pipeline's own stages."""
    import webdataset

    first = first_reading_stage(stages)
    tars = len(list(webdataset.shardlists.expand_urls(args.train_data)))
    if ranks * workers * tars > MOST_ASSIGNED:
        return []
    assigned: list[list[list[str]]] = []
    for rank in range(ranks):
        assigned.append([])
        for worker in range(workers):
            os.environ.update(
                RANK=str(rank), WORLD_SIZE=str(ranks), WORKER=str(worker), NUM_WORKERS=str(workers)
            )
            source = invoke(stages[0])
            for stage in stages[1:first]:
                source = invoke(stage, source)
            assigned[-1].append([one["url"] for one in source])
    for name in PLACE:
        os.environ.pop(name, None)
    return assigned


def invoke(stage: Any, *source: Any) -> Any:
    """Apply a stage in the way of webdataset's DataPipeline."""
    if hasattr(stage, "run"):
        return stage.run(*source)
    if not source and hasattr(stage, "__iter__"):
        return iter(stage)
    return stage(*source)


def flow(stages: list[Any], tars: list[str]) -> dict[str, Any]:
    """Return how many of the samples each stage lets pass, and the error that ended the pipeline."""
    messages = Messages()
    logging.getLogger().addHandler(messages)
    counts = [0] * (len(stages) + 1)
    error = error_place = None
    source: Any = ({"url": tar} for tar in tars)
    for number, stage in enumerate(stages):
        source = counted(invoke(stage, source), counts, number + 1)
    try:
        for _ in source:
            pass
    except Exception as problem:  # noqa: BLE001 - whatever would end a worker of the training
        error, error_place = f"{type(problem).__name__}: {str(problem)[:500]}", raised_at(problem)
    logging.getLogger().removeHandler(messages)
    steps = [
        {"name": stage_name(one), "place": place(one), "came_in": counts[n], "went_out": counts[n + 1]}
        for n, one in enumerate(stages)
    ]
    ended = {"error": error, "error_place": error_place}
    return {"stages": steps, "messages": messages.texts, "failing": failing(stages, steps, tars), **ended}


def counted(source: Any, counts: list[int], number: int) -> Any:
    for one in source:
        counts[number] += 1
        yield one


def failing(stages: list[Any], steps: list[dict[str, Any]], tars: list[str]) -> dict[str, int]:
    """Return which members do not decode by themselves, each with its number of dropped samples."""
    lost = {n: step["came_in"] - step["went_out"] for n, step in enumerate(steps) if "decode" in step["name"]}
    number = next((n for n, samples in lost.items() if samples), None)
    if number is None:
        return {}
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    found: collections.Counter[str] = collections.Counter()
    source: Any = ({"url": tar} for tar in tars)
    for stage in stages[:number]:
        source = invoke(stage, source)
    for sample in source:
        if not lost[number]:
            break
        common = {key: value for key, value in sample.items() if key.startswith("__")}
        parts = {name: {**common, name: sample[name]} for name in sample if name not in common}
        bad = [name for name, part in parts.items() if not list(invoke(stages[number], iter([part])))]
        found.update(bad)
        lost[number] -= bool(bad)
    logging.disable(level)
    return dict(found)


def stage_name(stage: Any) -> str:
    """Return the function of a stage with its arguments, such as `select(filter_no_caption_or_no_image)`."""
    function = getattr(stage, "f", stage)
    name = getattr(function, "__name__", type(function).__name__).lstrip("_")
    arguments = [getattr(one, "__name__", None) for one in getattr(stage, "args", ())]
    named = [one for one in arguments if one is not None]
    return f"{name}({', '.join(named)})" if named else name


def place(stage: Any) -> str | None:
    """Return the source line of the stage, or of the function that it applies."""
    functions = [one for one in getattr(stage, "args", ()) if inspect.isfunction(one)]
    function = functions[0] if functions else getattr(stage, "f", stage)
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (TypeError, OSError):
        return None
    return f"{'/'.join(str(file).split('/')[-2:])}:{line}"


def raised_at(error: BaseException) -> str:
    """Return the source line that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
