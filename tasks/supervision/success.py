"""Whether a training succeeded, judged by evidence and not by its exit code alone.

Pure: from what was seen to a state, a reason in words, and findings. A cause that is not known is called
`unknown`; a wrong cause would be worse than none.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.runs.metrics import finite
from tasks.runs.record import State
from tasks.runs.stop import Stop
from tasks.supervision.ends import RankEnd

RESUME = "start the run again: it resumes from its newest checkpoint"
TAMER = "lower train.lr or lengthen train.warmup; with bf16 try fp32"
LEVERS = "LEVERS"
"""In a remedy, where the keys stand that lower the memory of this training's step."""
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
)
"""What a dying training says in so many words: pattern, code, remedy."""


SAID_BY_THE_LOG = ("run.no_batches", "worker.crashed", "sample.poison")
"""Causes that the last line of the log says best."""


OF_ALL_RANKS = ("run.no_batches", "loss.nonfinite")


@dataclass(frozen=True)
class TrainingEnd:
    """What is known when the training process has ended.

    `exit_code` is negative for a signal. `step` is how far this training came of `last_step`, whatever one
    before it did; `loss` the last training loss up to there, None when none is recorded. `checkpoint` is the
    step of the newest sound one. `stop` is the order to end, None when there is none; `is_forced` says that
    the process did not obey it in time and was ended by its agent.

    Of several `ranks`, exit code and log are those of `rank`, with which the end began; `stood_still` says in
    what way it kept the others waiting, None where it did not. `further` are ranks that ended with it.

    `oom_kills` are the processes that the kernel has ended for want of memory while it ran, and `levers` the
    keys that lower what a step takes.

    `stalled` is the verdict on a standstill that the agent ended the training for, after so many `restarts`.
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

    @property
    def signal_name(self) -> str | None:
        """`SIGKILL` and the like; None when the process ended by itself."""
        return RankEnd(self.rank, self.exit_code).signal_name


@dataclass(frozen=True)
class RunVerdict:
    """The run's state, the reason in words (empty for a success), and every cause found."""

    state: State
    reason: str
    findings: Sequence[Finding] = ()


def judge_end(seen: TrainingEnd) -> RunVerdict:
    """Succeeded only with exit code 0, the last step reached, a finite loss and its checkpoint sound.

    Cancelled is a training that obeyed, or was made to; what went wrong all the same is no less a failure.
    """
    if seen.stalled is not None:  # its causes were written down as they were found
        tried = f" after {counted(seen.restarts, 'restart')}" if seen.restarts else ""
        return RunVerdict("failed", f"{seen.stalled}; ended{tried}, as train.on_stall says")
    complete = seen.exit_code == 0 and seen.step >= seen.last_step
    if seen.stop is not None and not (complete and seen.checkpoint == seen.last_step):
        return _judge_stopped(seen, seen.stop)
    causes = _causes(seen)
    if not causes and not complete:
        causes = [_unknown(seen, f"it ended by itself at step {seen.step} of {seen.last_step}")]
    if not causes and seen.checkpoint != seen.last_step:
        found = (
            "none is sound"
            if seen.checkpoint is None
            else f"the newest sound one is of step {seen.checkpoint}"
        )
        causes = [
            _unknown(seen, f"the checkpoint of the last step, {seen.last_step}, is missing or torn: {found}")
        ]
    if not causes and seen.loss is None:
        causes = [_unknown(seen, "no loss is recorded")]
    if causes:
        return RunVerdict("failed", _in_words(causes), causes)
    return RunVerdict("succeeded", "")


def exit_of(seen: TrainingEnd, verdict: RunVerdict, started: float, ended: float) -> dict[str, object]:
    """The content of `attempts/<n>/exit.json`; times are Unix seconds."""
    return {
        "exit_code": seen.exit_code,
        "signal": seen.signal_name,
        "rank": seen.rank,
        "ranks": seen.ranks,
        "outcome": verdict.state,
        "reason": verdict.reason,
        "step": seen.step,
        "last_step": seen.last_step,
        "loss": finite(seen.loss),
        "checkpoint": seen.checkpoint,
        "restarts": seen.restarts,
        "stop": None if seen.stop is None else seen.stop.to_json(),
        "started": started,
        "ended": ended,
    }


def _judge_stopped(seen: TrainingEnd, stop: Stop) -> RunVerdict:
    """That it came to no batch, or to no checkpoint, is then no cause."""
    causes = [cause for cause in _causes(seen) if cause.code != "run.no_batches"]
    if not causes and seen.exit_code != 0 and not seen.is_forced:
        causes = [_unknown(seen, f"it ended with exit code {seen.exit_code}: {_last_line(seen)}")]
    reason = stop.reason
    if seen.is_forced:
        by = f"by {seen.signal_name}" if seen.signal_name else "by force"
        reason += f"; the training did not obey in time and was ended {by}"
    if causes:
        return RunVerdict("failed", f"{_in_words(causes)}; it was asked to stop: {reason}", causes)
    return RunVerdict("cancelled", f"{reason}, at step {seen.step} of {seen.last_step}")


def _causes(seen: TrainingEnd) -> list[Finding]:
    """Every cause that shows. That no batch came is one only where nothing says why."""
    numbers, end = _of_the_numbers(seen), _of_the_end(seen)
    end += [cause for other in seen.further for cause in _of_the_end(other)]
    if not numbers and not end and seen.exit_code != 0 and not seen.is_forced:
        last = _last_line(seen) or "it printed nothing"
        return [_unknown(seen, f"it ended with exit code {seen.exit_code}: {last}")]
    told = {"run.no_batches", *(one.code for one in end)} if end else ()
    return [*(one for one in numbers if one.code not in told), *end]


def _of_the_numbers(seen: TrainingEnd) -> list[Finding]:
    """What the metrics show, whatever the exit code."""
    if seen.step == 0:
        remedy = "see the last lines of its log; tarmac verify the dataset"
        return [_cause("run.no_batches", seen, remedy)]
    if seen.loss is not None and not math.isfinite(seen.loss):
        return [_cause("loss.nonfinite", seen, TAMER)]
    return []


def _of_the_end(seen: TrainingEnd) -> list[Finding]:
    """What the exit code and the last words show, as far as they are understood."""
    if seen.stood_still is not None:
        return [_cause("collective.desync", seen, RESUME, what=seen.stood_still)]
    if seen.exit_code == 0 or seen.is_forced:
        return []
    text = "\n".join(seen.log_tail)
    known = [_cause(code, seen, remedy) for pattern, code, remedy in KNOWN_ENDS if re.search(pattern, text)]
    if seen.exit_code == -signal.SIGKILL and seen.oom_kills:
        remedy = f"lower {LEVERS}, or take a machine with more memory; {RESUME}"
        known.append(_cause("memory.exceeded", seen, remedy, signal=seen.signal_name))
    elif seen.signal_name is not None:
        is_kill = seen.exit_code == -signal.SIGKILL
        hint = f"if the kernel sent it because memory was short (dmesg), lower {LEVERS}; " if is_kill else ""
        known.append(_cause("process.gone", seen, hint + RESUME, signal=seen.signal_name))
    return known


def _cause(code: str, seen: TrainingEnd, remedy: str, **evidence: Any) -> Finding:
    last = _last_line(seen)
    facts = {
        "step": seen.step,
        "exit_code": seen.exit_code,
        **({"ranks": seen.ranks} if seen.ranks > 1 else {}),
        **evidence,
        **({"last_line": last} if last else {}),
    }
    remedy = remedy.replace(LEVERS, seen.levers)
    return Finding(code, "error", remedy, where={"rank": seen.rank}, evidence=facts)


def _last_line(seen: TrainingEnd) -> str | None:
    """The log's last words, None where it has none. After a traceback the last error: libraries still print
    something while Python ends."""
    said = [line.strip() for line in seen.log_tail if line.strip()]
    begun = [number for number, line in enumerate(said) if line.endswith(TRACEBACK)]
    errors = [line for line in said[begun[-1] :] if ERROR.match(line)] if begun and seen.exit_code else []
    return next(reversed(errors or said), None)


def _unknown(seen: TrainingEnd, words: str) -> Finding:
    return _cause("unknown", seen, f"see the log; {RESUME}", what=words)


def _in_words(causes: Sequence[Finding]) -> str:
    """All causes; the last line of the log is quoted once, where it says one of them best."""
    text = "; ".join(map(_one_in_words, causes))
    said = [one for one in causes if one.code in SAID_BY_THE_LOG and one.evidence.get("last_line")]
    return f"{text} ({said[0].evidence['last_line']})" if said else text


def _one_in_words(cause: Finding) -> str:
    facts = cause.evidence
    words = {
        "run.no_batches": "the training saw no batch",
        "loss.nonfinite": f"the loss was not finite at step {facts['step']}",
        "worker.killed": f"a loader worker was killed at step {facts['step']}",
        "worker.crashed": f"a loader worker crashed at step {facts['step']}",
        "sample.poison": f"bad data ended it at step {facts['step']}",
        "disk.too_small": f"the disk was full at step {facts['step']}",
        "memory.exceeded": f"memory ran out at step {facts['step']}"
        + (", and the kernel killed the training" if facts.get("signal") else ""),
        "cuda.oom": f"the GPU's memory ran out at step {facts['step']}",
        "process.gone": f"the training process was killed by {facts.get('signal')} at step {facts['step']}",
    }
    said = words.get(cause.code) or str(facts["what"])
    is_of_one = "ranks" in facts and cause.code not in OF_ALL_RANKS
    return f"rank {cause.where['rank']} of {facts['ranks']}: {said}" if is_of_one else said
