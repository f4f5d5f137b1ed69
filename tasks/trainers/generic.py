"""Any training of which nothing is known but that it writes lines: tqdm bars, and counts of steps.

Counts in a line are taken for progress where a word for a step stands before them. An epoch alone is none:
many trainings print it once before the wait for the first batch. wandb's lines are about its uploads.
"""

from __future__ import annotations

import re

from tasks.trainers.contract import LogLine, Trainer

_COUNT = r"[ :=#\[(]+\s*(?P<done>\d[\d,]*)(?:\s*(?:/|of)\s*(?P<total>\d[\d,]*))?"
_LOSS = r"(?:.*?\bloss\b['\"]?[ :=]+(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)))?"
LINES = (
    LogLine(
        "validate",
        re.compile(r"(?:eval|valid)\w*\b[^|]*\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) \[", re.IGNORECASE),
    ),
    LogLine("step", re.compile(r"\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+) \[" + _LOSS, re.IGNORECASE)),
    LogLine("step", re.compile(r"\b(?P<done>\d+)it \[\d+:\d\d", re.IGNORECASE)),
    LogLine(
        "step",
        re.compile(
            r"^(?!\s*wandb: ).*?\b(?:global[_ ])?(?:step|iter|iteration|batch|update)s?" + _COUNT + _LOSS,
            re.IGNORECASE,
        ),
    ),
)

GENERIC = Trainer(name="generic", recognises=lambda command: True, lines=LINES)
