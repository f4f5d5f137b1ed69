"""How a training ended and whether it succeeded, judged by evidence and not by its exit code alone.

Pure: from what the agent observed of each rank's process to the ranks that caused the end, a state, a reason
in words, and findings. A cause that is not known is called `unknown`; a wrong cause would be worse than none.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.runs.metrics import finite
from tasks.runs.record import State
from tasks.runs.stop import Stop

LOG_TAIL = 40
RESOURCE_TRACKER = re.compile(
    r"(?m)^.*resource_tracker: There appear to be .*\n(?:[ \t]+warnings\.warn\(.*(?:\n|\Z))?"
)
"""The warning about semaphores that multiprocessing prints after the end of a process that was killed."""
EXTENSIONS = re.compile(r"(?m)^Extension modules: .*\(total: \d+\)\n?")
"""The last line of what faulthandler prints about a fatal signal."""
RESUME = "start the run again: it resumes from its newest checkpoint"
TAMER = "lower train.lr or lengthen train.warmup; with bf16 try fp32"
LEVERS = "LEVERS"
"""Stands in a remedy for the keys that lower the memory of this training's step."""
TRACEBACK = "Traceback (most recent call last):"
ERROR = re.compile(r"error: |(?:\[rank\d+\]: )?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b")
KNOWN_ENDS: tuple[tuple[str, str, str], ...] = (
    (
        r"loader worker \(pid \d+\) of .* was killed by SIG",
        "worker.killed",
        "look for an out-of-memory kill (dmesg), then lower loader.workers or loader.prefetch",
    ),
    (
        r"loader worker \(pid \d+\) of .* ended with exit code|Caught \w+ in DataLoader worker process",
        "worker.crashed",
        "the last lines name the sample; mend it and build again, or tarmac verify the dataset",
    ),
    (
        r"(?m)^error: .*(?:\.tar(?: row \d+[,:]|, key )|loader\.bad_budget lets \d+)",
        "sample.poison",
        "tarmac repair DATASET; with --quarantine it leaves out what cannot be mended",
    ),
    (
        r"(?m)^error: the (?:(?:validation )?loss is (?:nan|-?inf) at|weights are lost after) step \d+",
        "loss.nonfinite",
        TAMER,
    ),
    (
        r"(?m)^(?:OSError: \[Errno (?:28|122)\]|error: the disk of .* is full)",
        "disk.too_small",
        f"make room on the disk that the log names; {RESUME}",
    ),
    (
        r"(?m)^error: .*: cannot be written: .*memory ran out while saving|^MemoryError\b",
        "memory.exceeded",
        f"lower loader.workers, loader.prefetch or {LEVERS}; {RESUME}",
    ),
    (
        r"CUDA out of memory|torch\.OutOfMemoryError",
        "cuda.oom",
        f"lower {LEVERS}, or use precision bf16; {RESUME}",
    ),
    (
        r"uncorrectable ECC error|GPU (?:has )?fallen off the bus|CUDA error: unspecified launch failure"
        r"|CUDA error: unknown error",
        "gpu.failed",
        f"look at dmesg (Xid) and nvidia-smi -q, and leave this GPU out where it comes again; {RESUME}",
    ),
    (
        r"(?m)^OSError: \[Errno (?:5|107|110|116|121)\]",
        "disk.failed",
        f"look at the mount of the file that the log names (dmesg, df); {RESUME}",
    ),
    (
        r"Watchdog caught collective operation timeout|NCCL error|ncclRemoteError|ncclSystemError",
        "collective.desync",
        f"look at the network between the ranks (NCCL_DEBUG=WARN); {RESUME}",
    ),
)
"""The known causes of a training's death: the pattern of what it prints, the code and the remedy."""
QUOTED = ("run.no_batches", "worker.crashed", "sample.poison", "gpu.failed", "disk.failed")
"""Causes that the last line of the log describes best."""
OF_ALL_RANKS = ("run.no_batches", "loss.nonfinite")
FROM_OUTSIDE = frozenset(
    (
        *("process.gone", "worker.killed", "memory.exceeded", "collective.desync"),
        *("gpu.failed", "disk.failed"),
    )
)
"""Causes that lie outside of the model, the data and the config, and may not come again."""
BY_A_PERSON = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP")
"""Signals by which a person ends a process. A rank ignores the SIGTERM of a job's end."""


@dataclass(frozen=True)
class RankEnd:
    """The end of one rank's process.

    `exit_code` is negative for a signal. `was_ended` where the agent ended it, and `was_stopped` where it did
    that because the process was stopped, as by SIGSTOP, and did not answer. `lost_node` names its machine
    where that was lost, so that nobody saw the end.
    """

    rank: int
    exit_code: int
    was_ended: bool = False
    was_stopped: bool = False
    lost_node: str | None = None


@dataclass(frozen=True)
class TrainingEnd:
    """What is known when the training process has ended.

    `exit_code` is negative for a signal. `step` is how far this training came of `last_step`, whatever one
    before it did; `loss` the last training loss up to there, None when none is recorded. `checkpoint` is the
    step of the newest sound one. `stop` is the order to end, None when there is none; `is_forced` where the
    process did not obey it in time and was ended by its agent.

    Of several `ranks`, exit code and log are those of `rank`, with which the end began; `stood_still`
    explains how it kept the others waiting, None where it did not. `further` are ranks that ended with it.

    `oom_kills` counts the processes that the kernel killed for lack of memory while it ran, and `levers`
    names the keys that lower what a step takes.

    `stalled` is the verdict on a standstill that the agent ended the training for, after so many `restarts`.
    `lost_node` names the node of the rank where that was lost.
    """

    exit_code: int
    step: int
    last_step: int
    loss: float | None
    checkpoint: int | None
    stop: Stop | None = None
    is_forced: bool = False
    log_tail: Sequence[str] = ()
    rank: int = 0
    ranks: int = 1
    stood_still: str | None = None
    further: Sequence[TrainingEnd] = ()
    stalled: str | None = None
    restarts: int = 0
    oom_kills: int = 0
    levers: str = "train.micro_batch or train.batch_size"
    lost_node: str | None = None

    @property
    def signal_name(self) -> str | None:
        """`SIGKILL` and the like; None when the process ended by itself."""
        if self.exit_code >= 0:
            return None
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


@dataclass(frozen=True)
class RunVerdict:
    """The run's state, the reason in words (empty for a success), and every cause found."""

    state: State
    reason: str
    findings: Sequence[Finding] = ()

    @property
    def may_pass(self) -> bool:
        """Whether all that ended a failed training came from outside, so that another try may go well."""
        return self.state == "failed" and bool(self.findings) and all(map(_is_from_outside, self.findings))


def causes_of(ends: Sequence[RankEnd], first_failed: int | None) -> Sequence[RankEnd]:
    """Return the ranks that brought the end about, at least one; the others ended because of them.

    In this order, as each explains what follows: the first rank of each node that was lost; a rank that was
    stopped; one that was killed by a signal which is not the agent's; the first that reported a failure; one
    that the agent had to end while others left it; all that failed.
    """
    by_themselves = [end for end in ends if not end.was_ended]
    lost = {end.lost_node: end for end in reversed(ends) if end.lost_node is not None}
    for found in (
        list(reversed(lost.values())),
        [end for end in ends if end.was_stopped],
        [end for end in by_themselves if end.exit_code < 0],
        [end for end in by_themselves if end.rank == first_failed and end.exit_code != 0],
        [end for end in ends if end.was_ended] if by_themselves else [],
        [end for end in ends if end.exit_code != 0],
    ):
        if found:
            return found
    return ends[:1]


def stood_still(end: RankEnd, ends: Sequence[RankEnd]) -> str | None:
    """Explain how a rank kept the others waiting until the agent ended it; None where it did not, or where
    the agent ended all of them."""
    if end.was_stopped:
        return "it was stopped, as by SIGSTOP, and the others waited for it"
    if end.was_ended and any(not other.was_ended for other in ends):
        return "it did not come to the next exchange of all ranks, and did not end when the others did"
    return None


def tail_of(log: Path, lines: int = LOG_TAIL) -> list[str]:
    """Return the log's last lines without those that Python's resource tracker and faulthandler end with;
    empty without a log."""
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8", errors="replace")
    text = EXTENSIONS.sub("", RESOURCE_TRACKER.sub("", text))
    return text.splitlines()[-lines:]


def judge_end(ended: TrainingEnd) -> RunVerdict:
    """Judge a training as succeeded only with exit code 0, the last step reached, a finite loss and a sound
    checkpoint of the last step.

    It is cancelled where it obeyed an order to stop, or was made to; a failure on the way remains a failure.
    """
    if ended.stalled is not None:  # its causes were recorded as they were found
        tried = f" after {counted(ended.restarts, 'restart')}" if ended.restarts else ""
        return RunVerdict("failed", f"{ended.stalled}; ended{tried}, as train.on_stall requires")
    complete = ended.exit_code == 0 and ended.step >= ended.last_step
    if ended.stop is not None and not (complete and ended.checkpoint == ended.last_step):
        return _judge_stopped(ended, ended.stop)
    causes = _causes(ended)
    lack = None if causes else _lack(ended, complete)
    if lack is not None:
        causes = [_unknown(ended, lack)]
    if not causes:
        return RunVerdict("succeeded", "")
    tried = f"; it was started again {counted(ended.restarts, 'time')} before" if ended.restarts else ""
    return RunVerdict("failed", f"{_in_words(causes)}{tried}", causes)


def exit_of(ended: TrainingEnd, verdict: RunVerdict, started_at: float, ended_at: float) -> dict[str, object]:
    """Return the content of `attempts/<n>/exit.json`; times are Unix seconds."""
    return {
        "exit_code": ended.exit_code,
        "signal": ended.signal_name,
        "rank": ended.rank,
        "ranks": ended.ranks,
        "outcome": verdict.state,
        "reason": verdict.reason,
        "step": ended.step,
        "last_step": ended.last_step,
        "loss": finite(ended.loss),
        "checkpoint": ended.checkpoint,
        "restarts": ended.restarts,
        "stop": None if ended.stop is None else ended.stop.to_json(),
        "started": started_at,
        "ended": ended_at,
    }


def _is_from_outside(cause: Finding) -> bool:
    return cause.code in FROM_OUTSIDE and cause.evidence.get("signal") not in BY_A_PERSON


def _lack(ended: TrainingEnd, complete: bool) -> str | None:
    """The first piece of evidence for a success that is missing."""
    if not complete:
        return f"it ended by itself at step {ended.step} of {ended.last_step}"
    if ended.checkpoint != ended.last_step:
        newest = f"the newest sound one is of step {ended.checkpoint}"
        found = "none is sound" if ended.checkpoint is None else newest
        return f"the checkpoint of the last step, {ended.last_step}, is missing or torn: {found}"
    return "no loss is recorded" if ended.loss is None else None


def _judge_stopped(ended: TrainingEnd, stop: Stop) -> RunVerdict:
    """Judge a training that was ordered to stop, for which missing batches or checkpoints are no cause."""
    causes = [cause for cause in _causes(ended) if cause.code != "run.no_batches"]
    if not causes and ended.exit_code != 0 and not ended.is_forced:
        causes = [_unknown(ended, f"it ended with exit code {ended.exit_code}: {_last_line(ended)}")]
    reason = stop.reason
    if ended.is_forced:
        by = f"by {ended.signal_name}" if ended.signal_name else "by force"
        reason += f"; the training did not obey in time and was ended {by}"
    if causes:
        return RunVerdict("failed", f"{_in_words(causes)}; it was asked to stop: {reason}", causes)
    return RunVerdict("cancelled", f"{reason}, at step {ended.step} of {ended.last_step}")


def _causes(ended: TrainingEnd) -> list[Finding]:
    """Every cause that shows: in the metrics, whatever the exit code, and in how the processes ended.

    That no batch came is a cause only where nothing explains why.
    """
    numbers = []
    if ended.step == 0:
        remedy = "see the last lines of its log; tarmac verify the dataset"
        numbers = [_cause("run.no_batches", ended, remedy)]
    elif ended.loss is not None and not math.isfinite(ended.loss):
        numbers = [_cause("loss.nonfinite", ended, TAMER)]
    ends = [cause for one in (ended, *ended.further) for cause in _causes_of_end(one)]
    if not numbers and not ends and ended.exit_code != 0 and not ended.is_forced:
        last = _last_line(ended) or "it printed nothing"
        return [_unknown(ended, f"it ended with exit code {ended.exit_code}: {last}")]
    explained = {"run.no_batches", *(one.code for one in ends)} if ends else ()
    return [*(one for one in numbers if one.code not in explained), *ends]


def _causes_of_end(ended: TrainingEnd) -> list[Finding]:
    """The causes that the exit code and the last lines of the log show, as far as they are understood."""
    if ended.lost_node is not None:
        return [_cause("node.lost", ended, RESUME, what=f"the node {ended.lost_node} was lost")]
    if ended.stood_still is not None:
        return [_cause("collective.desync", ended, RESUME, what=ended.stood_still)]
    if ended.exit_code == 0 or ended.is_forced:
        return []
    text = "\n".join(ended.log_tail)
    known = [_cause(code, ended, remedy) for pattern, code, remedy in KNOWN_ENDS if re.search(pattern, text)]
    is_kill = ended.exit_code == -signal.SIGKILL
    if is_kill and ended.oom_kills:
        remedy = f"lower {LEVERS}, or take a machine with more memory; {RESUME}"
        known.append(_cause("memory.exceeded", ended, remedy, signal=ended.signal_name))
    elif ended.signal_name is not None:
        hint = f"if the kernel sent it because memory was short (dmesg), lower {LEVERS}; " if is_kill else ""
        known.append(_cause("process.gone", ended, hint + RESUME, signal=ended.signal_name))
    return known


def _cause(code: str, ended: TrainingEnd, remedy: str, **evidence: Any) -> Finding:
    last = _last_line(ended)
    facts = {
        "step": ended.step,
        "exit_code": ended.exit_code,
        **({"ranks": ended.ranks} if ended.ranks > 1 else {}),
        **evidence,
        **({"last_line": last} if last else {}),
    }
    remedy = remedy.replace(LEVERS, ended.levers)
    return Finding(code, "error", remedy, where={"rank": ended.rank}, evidence=facts)


def _unknown(ended: TrainingEnd, words: str) -> Finding:
    return _cause("unknown", ended, f"see the log; {RESUME}", what=words)


def _last_line(ended: TrainingEnd) -> str | None:
    """The log's last line, None where it has none; after a traceback the last error, because libraries still
    print something while Python ends."""
    lines = [line.strip() for line in ended.log_tail if line.strip()]
    begun = [number for number, line in enumerate(lines) if line.endswith(TRACEBACK)]
    errors = [line for line in lines[begun[-1] :] if ERROR.match(line)] if begun and ended.exit_code else []
    return next(reversed(errors or lines), None)


def _in_words(causes: Sequence[Finding]) -> str:
    """All causes; the last line of the log is quoted once, where it describes one of them best."""
    text = "; ".join(map(_one_in_words, causes))
    quotes = [
        one.evidence["last_line"] for one in causes if one.code in QUOTED and one.evidence.get("last_line")
    ]
    return f"{text} ({quotes[0]})" if quotes else text


def _one_in_words(cause: Finding) -> str:
    facts = cause.evidence
    step = f"at step {facts['step']}"
    by_kernel = ", and the kernel killed the training" if facts.get("signal") else ""
    words = {
        "run.no_batches": "the training saw no batch",
        "loss.nonfinite": f"the loss was not finite {step}",
        "worker.killed": f"a loader worker was killed {step}",
        "worker.crashed": f"a loader worker crashed {step}",
        "sample.poison": f"bad data ended it {step}",
        "disk.too_small": f"the disk was full {step}",
        "memory.exceeded": f"memory ran out {step}{by_kernel}",
        "cuda.oom": f"the GPU's memory ran out {step}",
        "gpu.failed": f"the GPU failed {step}",
        "disk.failed": f"a file system failed {step}",
        "collective.desync": facts.get("what") or f"an exchange between the ranks failed {step}",
        "process.gone": f"the training process was killed by {facts.get('signal')} {step}",
    }
    sentence = words.get(cause.code) or str(facts["what"])
    is_of_one = "ranks" in facts and cause.code not in OF_ALL_RANKS
    return f"rank {cause.where['rank']} of {facts['ranks']}: {sentence}" if is_of_one else sentence
