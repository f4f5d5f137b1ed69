"""Slurm's reasons in words."""

from __future__ import annotations

import pytest

from tasks.core.engines.slurm_reasons import in_words, is_about_nodes, never_starts


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("None", ""),
        ("Resources", "no node is free for it yet"),
        ("Priority", "jobs of a higher priority come first"),
        ("QOSMaxCpuPerUserLimit", "the limit of its QOS on cores per user is reached"),
        ("QOSMaxJobsPerUserLimit", "the limit of its QOS on jobs per user is reached"),
        ("QOSGrpNodeLimit", "the limit of its QOS on nodes is reached"),
        ("QOSMaxGRESPerUser", "the limit of its QOS on GPUs and the like per user is reached"),
        ("AssocGrpGRES", "the limit of your account on GPUs and the like is reached"),
        ("AssocGrpCpuLimit", "the limit of your account on cores is reached"),
        ("AssocGrpCPUMinutesLimit", "the limit of your account on cores and time together is reached"),
        ("AssocGrpCPURunMinutesLimit", "the limit of your account on cores and time together is reached"),
        ("AssocMaxWallDurationPerJobLimit", "the limit of your account on time per job is reached"),
        ("MaxMemPerLimit", None),
        ("JobHeldUser", "held until scontrol release"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", "nodes that it needs are down, drained or reserved"),
        ("SomethingOfTomorrow", None),
    ],
)
def test_a_reason_keeps_slurms_word_and_says_what_it_means(reason: str, says: str | None) -> None:
    assert in_words(reason) == (reason if says is None else says and f"{reason}: {says}")


def test_nodes_are_named_up_to_three() -> None:
    shown = in_words("NodeDown", [f"n{number} is down" for number in range(5)])
    assert shown == "NodeDown: a node that it needs is down; n0 is down, n1 is down, n2 is down, 2 more"


def test_what_only_a_person_can_end_is_known() -> None:
    final = ("JobHeldUser", "launch failed requeued held", "BadConstraints", "PartitionTimeLimit")
    assert all(map(never_starts, final)) and not any(
        map(never_starts, ("Resources", "BeginTime", "QOSGrpCpuLimit"))
    )
    assert is_about_nodes(
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher partitions"
    )
    assert not is_about_nodes("Priority")
