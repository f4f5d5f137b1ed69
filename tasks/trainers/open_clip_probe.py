"""Runs open_clip's own data pipeline on given tars, stage by stage, and counts what goes in and comes out.

It is run by the trainer's interpreter, which may know nothing of Tarmac, so it imports nothing but what is
there. Nothing of the pipeline is written down here: stages, their order, the split of shards among ranks and
workers and the numbers of batches are those of the installed `get_wds_dataset`. No model is built; in place
of its transform stands a check that what arrives is an image and a text.

Reads one JSON object from standard input: `arguments` of the trainer, `ranks`, `examples` (names of kinds to
tars of samples of that kind) and `whole` (tars to run whole). Writes one to the file named by its argument.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import sys
from typing import Any

MODULES = ("open_clip_train", "training")
MOST_ASSIGNED = 2_000_000
"""Entries of all workers' lists together; beyond that only arithmetic is in place."""
MOST_MESSAGES = 3


class Messages(logging.Handler):
    """Keeps the first warnings, which the pipeline logs for the samples that it drops."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < MOST_MESSAGES:
            self.texts.append(record.getMessage()[:500])


def main(answer_path: str) -> int:
    asked = json.load(sys.stdin)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "WORKER", "NUM_WORKERS"):
        os.environ.pop(name, None)
    answer = run(asked["arguments"], asked["ranks"], asked["examples"], asked["whole"])
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return 0


def run(arguments: list[str], ranks: int, examples: dict[str, str], whole: list[str]) -> dict[str, Any]:
    package = next(name for name in MODULES if importlib.util.find_spec(name) is not None)
    data = importlib.import_module(f"{package}.data")
    args = importlib.import_module(f"{package}.params").parse_args(arguments)
    answer: dict[str, Any] = {"versions": versions(), "refusal": None}
    args.distributed, args.world_size, args.rank = ranks > 1, ranks, 0
    # As the trainer's main does, before it asks for the data.
    args.distill = None not in (
        getattr(args, "distill_model", None),
        getattr(args, "distill_pretrained", None),
    )
    try:
        loader = dataset_of(data, args)[1]
        answer["batches"], answer["samples"] = loader.num_batches, loader.num_samples
    except (AssertionError, RuntimeError, KeyError) as error:
        # What the trainer itself would end with; the pipeline is then built for one worker.
        answer["refusal"] = {"kind": type(error).__name__, "text": str(error), "place": raised_at(error)}
    workers = max(args.workers, 1)
    args.world_size, args.workers, args.batch_size = 1, 1, 1
    args.train_num_samples = args.train_num_samples or 1
    stages = dataset_of(data, args)[0].pipeline
    assigned = answer["assigned"] = [] if args.dataset_resampled else split(stages, ranks, workers, args)
    first = first_reading_stage(stages, args)
    answer["is_split"] = bool(assigned)
    answer["kinds"] = {name: flow(stages[first:], [tar]) for name, tar in examples.items()}
    answer["whole"] = {tar: flow(stages[first:], [tar]) for tar in whole}
    return answer


def versions() -> dict[str, str]:
    found = {}
    for name in ("open_clip_torch", "webdataset", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def dataset_of(data: Any, args: Any) -> tuple[Any, Any]:
    """The pipeline of the training data, and the loader around it, which starts no worker yet."""
    loader = data.get_wds_dataset(args, CheckImage(), is_train=True, tokenizer=check_text).dataloader
    inner = loader
    while not hasattr(inner, "dataset"):
        inner = inner.pipeline[0]
    return inner.dataset, loader


class CheckImage:
    """Stands for the model's transform, which takes an image of PIL."""

    transforms = ()
    """MobileCLIP's fork looks here for a crop and a normalisation, which its own then follow."""

    def __call__(self, image: Any) -> Any:
        if not hasattr(image, "getpixel"):
            raise TypeError(f"the transform gets {type(image).__name__} instead of an image")
        return 0


def check_text(text: Any) -> list[int]:
    """Stands for the tokenizer."""
    if not isinstance(text, str):
        raise TypeError(f"the tokenizer gets {type(text).__name__} instead of a text")
    return [0]


def first_reading_stage(stages: list[Any], args: Any) -> int:
    """The number of the first stage that opens tars: those before it yield addresses."""
    for number in range(1, len(stages)):
        name = stage_name(stages[number])
        if "samples" in name or "tarfile" in name:
            return number
    raise LookupError("the pipeline has no stage that reads tars")


def split(stages: list[Any], ranks: int, workers: int, args: Any) -> list[list[list[str]]]:
    """The tars of each worker of each rank in the first epoch, as the pipeline's own stages divide them."""
    import webdataset

    first = first_reading_stage(stages, args)
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
    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
        os.environ.pop(name, None)
    return assigned


def invoke(stage: Any, *source: Any) -> Any:
    """Apply a stage, as webdataset's DataPipeline does."""
    if hasattr(stage, "run"):
        return stage.run(*source)
    if not source and hasattr(stage, "__iter__"):
        return iter(stage)
    return stage(*source)


def flow(stages: list[Any], tars: list[str]) -> dict[str, Any]:
    """What each stage lets pass of these tars, what the last yields, and the error that ended it, if any."""
    messages = Messages()
    logging.getLogger().addHandler(messages)
    counts = [0] * (len(stages) + 1)
    error = None
    source: Any = ({"url": tar} for tar in tars)
    for number, stage in enumerate(stages):
        source = counted(invoke(stage, source), counts, number + 1)
    try:
        for _ in source:
            pass
    except Exception as problem:  # noqa: BLE001 - whatever would end a worker of the training
        error = {"kind": type(problem).__name__, "text": str(problem)[:500], "place": raised_at(problem)}
    logging.getLogger().removeHandler(messages)
    steps = [
        {"stage": stage_name(stage), "place": place(stage), "in": counts[number], "out": counts[number + 1]}
        for number, stage in enumerate(stages)
    ]
    return {
        "stages": steps,
        "messages": messages.texts,
        "error": error,
        "failing": failing(stages, steps, tars),
    }


def counted(source: Any, counts: list[int], number: int) -> Any:
    for one in source:
        counts[number] += 1
        yield one


def failing(stages: list[Any], steps: list[dict[str, Any]], tars: list[str]) -> dict[str, int]:
    """Where the decoding drops samples: which members fail by themselves, and in how many samples."""
    number = next(
        (n for n, step in enumerate(steps) if "decode" in step["stage"] and step["out"] < step["in"]), None
    )
    if number is None:
        return {}
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    found: dict[str, int] = {}
    source: Any = ({"url": tar} for tar in tars)
    for stage in stages[:number]:
        source = invoke(stage, source)
    dropped, number_found = steps[number]["in"] - steps[number]["out"], 0
    for sample in source:
        if number_found >= dropped:
            break
        names = [name for name in sample if not name.startswith("__")]
        before = sum(found.values())
        for name in names:
            alone = {key: value for key, value in sample.items() if key.startswith("__") or key == name}
            if not list(invoke(stages[number], iter([alone]))):
                found[name] = found.get(name, 0) + 1
        number_found += sum(found.values()) > before
    logging.disable(level)
    return found


def stage_name(stage: Any) -> str:
    """`select(filter_no_caption_or_no_image)` for what webdataset makes of a function and its arguments."""
    function = getattr(stage, "f", stage)
    name = getattr(function, "__name__", type(function).__name__).lstrip("_")
    arguments = [getattr(one, "__name__", None) for one in getattr(stage, "args", ())]
    named = [one for one in arguments if one is not None]
    return f"{name}({', '.join(named)})" if named else name


def place(stage: Any) -> str | None:
    """The source line of the stage, or of the function that it applies."""
    functions = [one for one in getattr(stage, "args", ()) if inspect.isfunction(one)]
    function = functions[0] if functions else getattr(stage, "f", stage)
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (TypeError, OSError):
        return None
    return f"{'/'.join(str(file).split('/')[-2:])}:{line}"


def raised_at(error: BaseException) -> str:
    """The source line in the trainer that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"{'/'.join(trace.tb_frame.f_code.co_filename.split('/')[-2:])}:{trace.tb_lineno}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
