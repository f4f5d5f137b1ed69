"""How far one training came, told by what it left: its rows, and its sign of life.

Steps that a resumed training does again leave no row a second time, so the rows of a run do not tell where
its newest training stands.
"""

from __future__ import annotations

import math

from tasks.runs import metrics, phases
from tasks.runs.folder import RunFolder


def last_step(run: RunFolder, pid: int, earlier_bytes: int) -> int:
    """The last step that the training process `pid` told of; 0 when it told of none.

    Its rows are those of `metrics.jsonl` after the first `earlier_bytes`.
    """
    rows = metrics.rows_of(metrics.read_metrics(run.metrics, earlier_bytes)[0], "train")
    phase = phases.read_phase(run.phase())
    said = phase.step if phase is not None and phase.pid == pid else 0
    return max([said, *(int(row[metrics.TRAIN_AXIS]) for row in rows)])


def loss_at(run: RunFolder, step: int) -> float | None:
    """The training loss of the newest row up to `step`, NaN where it was not finite; None without a row."""
    rows = metrics.rows_of(metrics.read_metrics(run.metrics)[0], "train")
    losses = {int(row[metrics.TRAIN_AXIS]): row.get("train/loss") for row in rows}
    known = [at for at in losses if at <= step]
    if not known:
        return None
    loss = losses[max(known)]
    return float(loss) if isinstance(loss, int | float) else math.nan
