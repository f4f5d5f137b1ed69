"""Causes that a log states in so many words, and what it only suggests.

Foreign programs report by text alone, so here, and nowhere else, patterns of messages decide. A pattern is as
long as the message that a library really prints, and each row names the library that prints it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.core.findings import Finding
from tasks.trainers.contract import Trainer

MOST_QUOTED = 200
REPEATED = 5
"""So many equal complaints among the last lines are a loop, not a mishap."""


@dataclass(frozen=True)
class PrintedMessage:
    """What a library prints when a cause has struck. `by` is the library."""

    code: str
    pattern: re.Pattern[str]
    by: str
    remedy: str
    proof: Literal["proves", "suggests"] = "proves"


def _row(
    code: str, pattern: str, by: str, remedy: str, proof: Literal["proves", "suggests"] = "proves"
) -> PrintedMessage:
    return PrintedMessage(code, re.compile(pattern), by, remedy, proof)


MEMORY = "fewer workers or a smaller prefetch; tarmac preflight gives the largest settings that fit"
MESSAGES = (
    _row(
        "shm.too_small",
        r"insufficient shared memory \(shm\)|unable to (?:mmap|write|resize) .*(?:/torch_|shared memory)|"
        r"unable to allocate shared memory\(shm\)|workers are out of shared memory",
        "torch",
        "give the container more of /dev/shm (docker --shm-size=8g), or fewer workers and a smaller batch",
    ),
    _row(
        "fds.too_few",
        r"OSError: \[Errno 24\]|Too many open files|received 0 items of ancdata",
        "Python, torch",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    _row(
        "worker.killed",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?:Killed|Terminated)|"
        r"loader worker \(pid \d+\) of .* was killed by SIG(?:KILL|TERM)",
        "torch",
        f"look for an out-of-memory kill (dmesg); {MEMORY}",
    ),
    _row(
        "worker.crashed",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?!Killed|Terminated)|"
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly|"
        r"ERROR: Unexpected (?:segmentation fault|floating-point exception) encountered in worker|"
        r"Fatal Python error: (?:Segmentation|Bus)",
        "torch",
        "set PYTHONFAULTHANDLER=1 and start it again: the log then names the line that crashes",
    ),
    _row(
        "shard.truncated",
        r"tarfile\.ReadError: \(?[\"']?(?:unexpected end of data|missing or bad subsequent header)",
        "Python",
        "tarmac verify 'SHARDS' names every tar that was cut; fetch or build those again",
    ),
    _row(
        "sample.poison",
        r"Caught \w+ in DataLoader worker process|^error: .*\.tar(?: row \d+[,:]|, key )",
        "torch",
        "tarmac verify 'SHARDS' --full names every sample that does not decode",
    ),
    _row(
        "cuda.oom",
        r"CUDA out of memory|torch\.OutOfMemoryError|torch\.cuda\.OutOfMemoryError",
        "torch",
        "a smaller batch size, precision bf16, or gradient checkpointing",
    ),
    _row(
        "collective.desync",
        r"Watchdog caught collective operation timeout|Detected mismatch between collectives on ranks|"
        r"Monitored ?[Bb]arrier.*(?:timed out|timeout)|Connection closed by peer.*gloo|"
        r"\[Rank \d+\].*Timeout\(ms\)",
        "torch.distributed",
        "give every rank as many batches: tarmac preflight counts them per rank and worker",
    ),
    _row(
        "tracker.blocked",
        r"wandb: (?:ERROR|WARNING|Network error|.*(?:[Rr]etry|[Tt]imed out|timeout))|"
        r"wandb\.errors?\.\w*(?:CommError|UsageError)|Run initialization has timed out",
        "wandb",
        "WANDB_MODE=offline and wandb sync later; Tarmac's own runs never wait for wandb",
        "suggests",
    ),
    _row(
        "download.blocked",
        r"(?:ReadTimeout|ConnectTimeout|ConnectionError|LocalEntryNotFoundError|MaxRetryError).*(?:huggingface|http)|"
        r"We couldn't connect to '?https?://",
        "huggingface_hub",
        "download ahead: tarmac fetch CONFIG, or huggingface-cli download; then HF_HUB_OFFLINE=1",
    ),
    _row(
        "disk.too_small", r"\[Errno (?:28|122)\]|No space left on device", "Python", "make room on the disk"
    ),
    _row(
        "shards.too_few",
        r"number of shards must be >= total workers",
        "open_clip",
        "fewer workers, or more and smaller shards: there must be one for each worker of each rank",
    ),
    _row(
        "version.webdataset",
        # A tar's entries are called otherwise since 1.0, and open_clip's own grouping asks for the old names.
        r"KeyError: 'fname'$|ValueError: you need to add an explicit nodesplitter|"
        r"cannot import name '(?:_shuffle|base_plus_ext|url_opener|valid_sample)' from 'webdataset",
        "webdataset",
        "pip install 'webdataset<1' for open_clip 3.3.0",
    ),
)
"""In the order of their weight: what a library says of itself stands before what others say after it."""
GENERAL = ("sample.poison", "worker.crashed", "disk.too_small")
"""What only says that something failed in a worker or a write, where another message says what."""
PRECISE = ("shm.too_small", "fds.too_few", "shard.truncated", "json.conflict", "version.webdataset")
HANDLED = re.compile(r"Handling webdataset error \((?P<what>.*)\)\. Ignoring\.")
OVER = re.compile(r"\| Start epoch (\d+)")


def findings_in(lines: Sequence[str], trainer: Trainer, *, is_over: bool) -> Iterator[Finding]:
    """Every cause that the lines state, once each. `is_over` where the training has ended."""
    stated = {message.code for message in MESSAGES if any(map(message.pattern.search, lines))}
    for message in MESSAGES:
        if message.code in GENERAL and stated.intersection(PRECISE):
            continue
        told = [line for line in lines if message.pattern.search(line)]
        if told:
            severity: Literal["error", "warning"] = "error" if message.proof == "proves" else "warning"
            evidence = {
                "what": _quoted(told[-1]),
                "log": f"{message.proof} it, by {message.by}",
                "lines": len(told),
            }
            yield Finding(message.code, severity, message.remedy, evidence=evidence)
    yield from _nonfinite(lines, trainer)
    yield from _poison(lines, trainer)
    yield from _no_batches(lines, trainer, is_over)


def _nonfinite(lines: Sequence[str], trainer: Trainer) -> Iterator[Finding]:
    said = [
        (line, found.loss) for line in lines if (found := trainer.progress(line)) and found.loss is not None
    ]
    if said and not math.isfinite(said[-1][1]):
        lost = [line for line, loss in said if not math.isfinite(loss)]
        yield Finding(
            "loss.nonfinite",
            "error",
            "the weights are lost; go back to the last checkpoint before, with a lower learning rate,"
            " a longer warm-up or gradient clipping; with fp16 try bf16 or fp32",
            evidence={
                "what": "the loss is no number any more",
                "since": _quoted(lost[0]),
                "lines": len(lost),
            },
        )


def _poison(lines: Sequence[str], trainer: Trainer) -> Iterator[Finding]:
    """The same complaint again and again, with no progress since the first of them."""
    said = [handled["what"] for line in lines if (handled := HANDLED.search(line))]
    shapes = Counter(re.sub(r"\d+|0x[0-9a-f]+", "#", what) for what in said)
    if not shapes or (top := shapes.most_common(1)[0])[1] < REPEATED:
        return
    first = next(place for place, line in enumerate(lines) if HANDLED.search(line))
    steps = [line for line in lines[first:] if (found := trainer.progress(line)) and found.phase == "step"]
    if not steps:
        what = next(one for one in said if re.sub(r"\d+|0x[0-9a-f]+", "#", one) == top[0])
        is_json = what.startswith("JSONDecodeError")
        yield Finding(
            "json.conflict" if is_json else "sample.poison",
            "error",
            "make every member whose name ends in json valid JSON, or leave it out: the trainer decodes all"
            if is_json
            else "tarmac verify 'SHARDS' --full names every sample that does not decode",
            evidence={
                "what": "samples fail, one after the other, and are left out",
                "error": _quoted(what),
                "lines": top[1],
            },
        )


def _no_batches(lines: Sequence[str], trainer: Trainer, is_over: bool) -> Iterator[Finding]:
    """An epoch that began and ended without a step between."""
    if not is_over or not trainer.must_log_steps:
        return
    told = [line for line in lines if any(failure.search(line) for failure in trainer.failures)]
    if told:
        evidence = {"what": _quoted(told[-1]), "log": "it ended without training, whatever its exit code"}
        yield Finding(
            "run.no_batches", "error", "give it another --name, or --resume latest", evidence=evidence
        )
        return
    began = [
        place
        for place, line in enumerate(lines)
        if (found := trainer.progress(line)) and found.phase == "first_batch"
    ]
    steps = [line for line in lines if (found := trainer.progress(line)) and found.phase == "step"]
    failed = any(message.pattern.search(line) for message in MESSAGES for line in lines)
    if began and not steps and not failed and not any("Traceback" in line for line in lines):
        yield Finding(
            "run.no_batches",
            "error",
            "tarmac preflight -- COMMAND counts the samples in and out of every stage",
            evidence={
                "what": f"{len(began)} epochs began, no step was logged",
                "last line": _quoted(lines[-1]),
            },
        )


def _quoted(line: str) -> str:
    return line.strip()[:MOST_QUOTED]
