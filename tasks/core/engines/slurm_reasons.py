"""Why Slurm does not start a job: its own word, and what that means.

The words are those of `squeue -o %r` (squeue(1), JOB REASON CODES). Slurm's word is always shown, because
administrators and its documentation use it; one that is not known here stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LAUNCH_FAILED = "launch failed requeued held"
"""A node could not start the job, as where a controller that was killed starts it twice."""
MEANINGS = {
    "AssociationJobLimit": "the limit of your account on jobs is reached",
    "BadConstraints": "no node has what it asks for",
    "BeginTime": "its start time has not come",
    "Cleaning": "its last start is still being cleaned up",
    "Dependency": "another job has to end first",
    "DependencyNeverSatisfied": "the job that it waits for has ended otherwise",
    "InvalidAccount": "its account does not exist",
    "InvalidQOS": "its QOS does not exist",
    "JobArrayTaskLimit": "as many jobs of its array run as may at once",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "held until scontrol release",
    "Licenses": "no license is free",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "its partition takes no jobs now",
    "PartitionInactive": "its partition takes no jobs now",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "Priority": "jobs of a higher priority come first",
    "Prolog": "its node is being prepared",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Resources": "no node is free for it yet",
    LAUNCH_FAILED: "its node could not start it; held until scontrol release",
}
LIMIT = re.compile(
    r"(?P<owner>QOS|Assoc)?(?P<scope>Grp|Max|Min)(?P<what>Cpu|CPU|Mem|Memory|Node|GRES|Gres|Jobs?|Submit\w*?"
    r"|Wall|Billing|Energy|BB|License)(Duration)?s?(?P<run>(Run)?Minutes)?(?P<each>Per(User|Account|Acct|Job|Node))?(Limit)?"
)
"""Limits of a QOS or an account, such as QOSMaxCpuPerUserLimit and AssocGrpGRES."""
OWNERS = {"QOS": " of its QOS", "Assoc": " of your account"}
RESOURCES = {
    "cpu": "cores",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "gres": "GPUs and the like",
    "job": "jobs",
    "jobs": "jobs",
    "wall": "time",
}
NEVER = re.compile(
    r"held|HoldMaxRequeue|BadConstraints|NeverSatisfied|Invalid(Account|QOS)|NotAllowed|Partition\w+Limit",
    re.IGNORECASE,
)
"""Reasons of a job that waits until a person intervenes."""
NODES = re.compile(r"ReqNodeNotAvail|NodeDown|DOWN, DRAINED|Partition(Down|Inactive)")
"""Reasons that are a matter of nodes which take no jobs."""
SHOWN = 3
"""At most this many such nodes are named."""


def never_starts(reason: str) -> bool:
    """Whether a job that waits for this reason cannot start without a person."""
    return bool(NEVER.search(reason))


def is_about_nodes(reason: str) -> bool:
    """Whether the names of nodes that take no jobs explain the reason."""
    return bool(NODES.search(reason))


def in_words(reason: str, nodes: Iterable[str] = ()) -> str:
    """Return Slurm's word and its meaning, such as `Priority: jobs of a higher priority come first`; empty
    for `None`.

    `nodes` says of each node that takes no jobs why, such as `n2 is drained (bad disk)`.
    """
    if reason in ("None", ""):
        return ""
    word = reason.partition(",")[0]
    meaning = MEANINGS.get(reason) or MEANINGS.get(word) or _limit(word)
    known = list(nodes)
    if len(known) > SHOWN:
        known = [*known[:SHOWN], f"{len(known) - SHOWN} more"]
    said = "; ".join(filter(None, (meaning, ", ".join(known))))
    return f"{reason}: {said}" if said else reason


def _limit(word: str) -> str:
    found = LIMIT.fullmatch(word)
    if found is None:
        return ""
    what = RESOURCES.get(found["what"].lower(), found["what"])
    time = " and time together" if found["run"] else ""
    each = "" if found["each"] is None else f" per {found['each'][3:].lower().replace('acct', 'account')}"
    return f"the limit{OWNERS.get(found['owner'] or '', '')} on {what}{time}{each} is reached"
