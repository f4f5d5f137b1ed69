"""Finds the causes that a log states, and those that it only suggests.

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

from tasks.core.findings import Finding, Severity
from tasks.diagnosis.causes.ending import end_of
from tasks.trainers.contract import Phase, Trainer

MOST_QUOTED = 200
_PREFIX = re.compile(
    r"\s*(?:"
    r"\[[^\]]*\]:?"  # [rank0]:  [2026-11-25 10:00:00]  [Rank 0]
    r"|\(?[\w.]+ pid=\d+\)?"  # (train pid=71)
    r"|[\d:,./TZ-]+"  # 2026-11-25  10:00:00,123
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b(?::[\w.]*)?"
    r"|[|:,-]"
    r"|[A-Za-z_][\w.]*(?:Error|Exception|Warning|Failure):"  # RuntimeError:
    r")\s*"
)
"""One of the things that stand before a message: a time, a level, a rank or the class of an exception."""
MOST_PREFIXES = 12
GONE_ON = 3
"""A training that logs so many steps after a message has gone on in spite of it."""
REPEATED = 5
"""So many equal complaints among the last lines are a loop, not an accident."""


@dataclass(frozen=True)
class PrintedMessage:
    """The text that the library `by` prints when a cause has occurred."""

    code: str
    pattern: str
    by: str
    remedy: str
    proof: Literal["proves", "suggests"] = "proves"

    def is_in(self, line: str) -> bool:
        """Return whether the line is this message, behind whatever a logger or a launcher puts before it. A
        caption or a configuration that quotes it is not."""
        at = 0
        for _ in range(MOST_PREFIXES):
            if re.compile(self.pattern).match(line, at):
                return True
            prefix = _PREFIX.match(line, at)
            if prefix is None:
                return False
            at = prefix.end()
        return False


MESSAGES = (
    PrintedMessage(
        "shm.too_small",
        r"ERROR: Unexpected bus error encountered in worker|"
        r"unable to (?:mmap|write|resize) .*(?:/torch_|shared memory)|"
        r"unable to allocate shared memory\(shm\)",
        "torch",
        "give the container more of /dev/shm (docker --shm-size=8g), or fewer workers and a smaller batch",
    ),
    PrintedMessage(
        "fds.too_few",
        r"\[Errno 24\]|Too many open files|received 0 items of ancdata",
        "Python, torch",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    PrintedMessage(
        "worker.killed",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?:Killed|Terminated)|"
        r"loader worker \(pid \d+\) of .* was killed by SIG(?:KILL|TERM)",
        "torch",
        "look for an out-of-memory kill (dmesg); fewer workers or a smaller prefetch; tarmac preflight gives "
        "the largest settings that fit",
    ),
    PrintedMessage(
        "worker.crashed",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: (?!Killed|Terminated)|"
        r"ERROR: Unexpected (?:segmentation fault|floating-point exception) encountered in worker|"
        r"Fatal Python error: (?:Segmentation|Bus)",
        "torch",
        "set PYTHONFAULTHANDLER=1 and start it again: the log then names the line that crashes",
    ),
    PrintedMessage(
        "worker.crashed",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly",
        "torch",
        "a worker died, and this does not show of what: look for an out-of-memory kill (dmesg); else set "
        "PYTHONFAULTHANDLER=1, and the log names the line that crashes",
    ),
    PrintedMessage(
        "shard.truncated",
        r"tarfile\.ReadError: \(?[\"']?(?:unexpected end of data|missing or bad subsequent header)",
        "Python",
        "tarmac verify 'SHARDS' names every tar that was cut; fetch or build those again",
    ),
    PrintedMessage(
        "sample.poison",
        r"Caught \w+ in DataLoader worker process|^error: .*\.tar(?: row \d+[,:]|, key )",
        "torch",
        "tarmac verify 'SHARDS' --full names every sample that does not decode",
    ),
    PrintedMessage(
        "cuda.oom",
        r"CUDA out of memory|torch\.OutOfMemoryError|torch\.cuda\.OutOfMemoryError",
        "torch",
        "a smaller batch size, precision bf16, or gradient checkpointing",
    ),
    PrintedMessage(
        "collective.desync",
        r"Watchdog caught collective operation timeout|Detected mismatch between collectives on ranks|"
        r"Monitored ?[Bb]arrier.*(?:timed out|timeout)|Rank \d+ failed to pass monitoredBarrier|"
        r"\[[^\]]*gloo[^\]]*\] (?:Connection (?:closed|reset) by peer|Timed out waiting)|"
        r"\[Rank \d+\].*Timeout\(ms\)",
        "torch.distributed",
        "give every rank as many batches: tarmac preflight counts them per rank and worker",
    ),
    PrintedMessage(
        "tracker.blocked",
        r"wandb: (?:ERROR|WARNING|Network error|.*(?:[Rr]etry|[Tt]imed out|timeout))|"
        r"wandb\.errors?\.\w*(?:CommError|UsageError)|Run initialization has timed out",
        "wandb",
        "WANDB_MODE=offline and wandb sync later; Tarmac's own runs never wait for wandb",
        "suggests",
    ),
    PrintedMessage(
        "download.blocked",
        r"(?:ReadTimeout|ConnectTimeout|ConnectionError|LocalEntryNotFoundError|MaxRetryError).*(?:huggingface|http)|"
        r"We couldn't connect to '?https?://",
        "huggingface_hub",
        "download ahead: tarmac fetch CONFIG, or huggingface-cli download; then HF_HUB_OFFLINE=1",
    ),
    PrintedMessage(
        "disk.too_small", r"\[Errno (?:28|122)\]|No space left on device", "Python", "make room on the disk"
    ),
    PrintedMessage(
        "shards.too_few",
        r"number of shards must be >= total workers",
        "open_clip",
        "fewer workers, or more and smaller shards: there must be one for each worker of each rank",
    ),
    PrintedMessage(
        "version.webdataset",
        # Since 1.0 the entries of a tar have other names, and open_clip's own grouping asks for the old ones.
        r"KeyError: 'fname'$|ValueError: you need to add an explicit nodesplitter|"
        r"cannot import name '(?:_shuffle|base_plus_ext|url_opener|valid_sample)' from 'webdataset",
        "webdataset",
        "pip install 'webdataset<1' for open_clip 3.3.0",
    ),
)
"""In the order of weight: the message of a library about itself precedes the consequences that others
report."""
GENERAL = ("sample.poison", "worker.crashed", "disk.too_small")
"""Messages that a worker or a write failed; they are left out where a more precise message states why."""
PRECISE = ("shm.too_small", "fds.too_few", "shard.truncated", "json.conflict", "version.webdataset")
OF_OTHERS = ("collective.desync",)
"""Messages about a rank that has gone; they are left out where it is known how that one ended."""
HANDLED = re.compile(r"Handling webdataset error \((?P<what>.*)\)\. Ignoring\.")


def findings_in(lines: Sequence[str], trainer: Trainer, *, is_over: bool) -> Iterator[Finding]:
    """Yield every cause that the lines state, once each; `is_over` states that the training has ended."""
    steps = [
        at for at, line in enumerate(lines) if (found := trainer.progress(line)) and found.phase == "step"
    ]
    until = steps[-GONE_ON] if len(steps) >= GONE_ON else 0
    ended = end_of(lines[until:]) if is_over else None
    stating = {message: [line for line in lines[until:] if message.is_in(line)] for message in MESSAGES}
    stated_codes = {message.code for message, stated in stating.items() if stated}
    is_precise = not stated_codes.isdisjoint(PRECISE)
    proven = {message.code for message, stated in stating.items() if stated and message.proof == "proves"}
    is_told_better = ended is not None and ended.code == "process.failed" and bool(proven - {*OF_OTHERS})
    if ended is not None and not is_told_better:
        yield ended
    for message, stated in stating.items():
        if not stated or message.code not in stated_codes or (is_precise and message.code in GENERAL):
            continue
        if ended is not None and message.code in OF_OTHERS:
            continue
        stated_codes.discard(message.code)  # two messages of one cause are one finding
        severity: Severity = "error" if message.proof == "proves" else "warning"
        log = f"{message.proof} it, by {message.by}"
        evidence = {"what": _quoted(stated[-1]), "log": log, "lines": len(stated)}
        where = ended.where if ended is not None and is_told_better else {}
        yield Finding(message.code, severity, message.remedy, where, evidence)
    shown = [(line, found) for line in lines if (found := trainer.progress(line)) is not None]
    yield from _nonfinite([(line, found.loss) for line, found in shown if found.loss is not None])
    yield from _poison(lines, trainer)
    if is_over and trainer.must_log_steps:
        is_explained = any(stating.values()) or any("Traceback" in line for line in lines)
        yield from _no_batches(lines, trainer, [found.phase for _, found in shown], is_explained)


def _nonfinite(losses: Sequence[tuple[str, float]]) -> Iterator[Finding]:
    """Report a loss that is no number any more, by the lines with a loss."""
    if losses and not math.isfinite(losses[-1][1]):
        lost = [line for line, loss in losses if not math.isfinite(loss)]
        remedy = (
            "the weights are lost; go back to the last checkpoint before, with a lower learning rate,"
            " a longer warm-up or gradient clipping; with fp16 try bf16 or fp32"
        )
        what = "the loss is no number any more"
        evidence = {"what": what, "since": _quoted(lost[0]), "lines": len(lost)}
        yield Finding("loss.nonfinite", "error", remedy, evidence=evidence)


def _poison(lines: Sequence[str], trainer: Trainer) -> Iterator[Finding]:
    """Report the same complaint again and again, with no step since the first of them."""
    handled = [(place, found["what"]) for place, one in enumerate(lines) if (found := HANDLED.search(one))]
    shapes = [re.sub(r"\d+|0x[0-9a-f]+", "#", what) for _, what in handled]
    shape, times = next(iter(Counter(shapes).most_common(1)), ("", 0))
    if times < REPEATED:
        return
    since = (trainer.progress(line) for line in lines[handled[0][0] :])
    if any(found is not None and found.phase == "step" for found in since):
        return
    error = handled[shapes.index(shape)][1]
    code, remedy = "sample.poison", "tarmac verify 'SHARDS' --full names every sample that does not decode"
    if error.startswith("JSONDecodeError"):
        code = "json.conflict"
        remedy = (
            "make every member whose name ends in json valid JSON, or leave it out: the trainer decodes all"
        )
    what = "samples fail, one after the other, and are left out"
    yield Finding(code, "error", remedy, evidence={"what": what, "error": _quoted(error), "lines": times})


def _no_batches(
    lines: Sequence[str], trainer: Trainer, phases: Sequence[Phase], is_explained: bool
) -> Iterator[Finding]:
    """Report an epoch that began and ended without a step, unless the log explains it."""
    failed = [line for line in lines if trainer.failed(line)]
    if failed:
        evidence = {"what": _quoted(failed[-1]), "log": "it ended without training, whatever its exit code"}
        remedy = "give it another --name, or --resume latest"
        yield Finding("run.no_batches", "error", remedy, evidence=evidence)
    elif "first_batch" in phases and "step" not in phases and not is_explained:
        what = f"{phases.count('first_batch')} epochs began, no step was logged"
        remedy = "tarmac preflight -- COMMAND counts the samples in and out of every stage"
        evidence = {"what": what, "last line": _quoted(lines[-1])}
        yield Finding("run.no_batches", "error", remedy, evidence=evidence)


def _quoted(line: str) -> str:
    return line.strip()[:MOST_QUOTED]
