"""What killed builds, switches and prunes have left in a dataset's folder, and nothing else there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import time
from pathlib import Path

from tasks.dataset.layout import VERSION_NAME

logger = logging.getLogger(__name__)
DOOMED = ".pruned-"
DAMAGED = ".damaged-"
"""Before a version's name: what is about to be removed."""
_LEASE = r"(lease\.json|quarantine\.lease)(\.dead)?"
_WRITTEN = r"lease\.json|quarantine\.lease|quarantine\.jsonl|mirror\.json|look(-[0-9a-f]{12})?\.html"
TEMPORARY = re.compile(
    r"\.current\.\d+\.tmp"  # files.link_atomic
    rf"|\.{_LEASE}\.\d+\.\d+"  # lease.Lease
    rf"|\.({_WRITTEN}|\.{_LEASE}\.\d+\.\d+)\.[a-z0-9_]{{8}}\.tmp"  # files.write_atomic
)
"""Names, right in the dataset's folder, that Tarmac gives to what it is about to rename."""
ABANDONED_S = 3600.0
"""Such a file is there for milliseconds, but the clocks of a file server and its clients may differ."""


def sweep(dataset: Path) -> None:
    """Remove what a prune, a build or a switch that was killed has left, and nothing that others may have put
    there: people keep more in a folder than a dataset. What cannot be removed stays."""
    for prefix in (DOOMED, DAMAGED):
        for left in (dataset / "versions").glob(f"{prefix}*"):
            if VERSION_NAME.fullmatch(left.name.removeprefix(prefix)):
                remove(left)
    for left in dataset.glob(".*"):
        if TEMPORARY.fullmatch(left.name) and _is_abandoned(left):
            with contextlib.suppress(OSError):
                left.unlink()


def _is_abandoned(temporary: Path) -> bool:
    """Told by age alone: a process number in its name may be one of another host or container."""
    try:
        return time.time() - temporary.lstat().st_mtime > ABANDONED_S
    except OSError:
        return False


def remove(folder: Path) -> None:
    """What the rights or the disk keep is tried again by the next sweep."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        logger.warning("%s cannot be removed whole; mind its rights", folder)
