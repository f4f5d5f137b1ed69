"""Every recorded observation of the stall matrix is judged as the live process was, with and without stacks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.diagnosis.observation.record import Observation, ObservedProcess
from tasks.diagnosis.verdicts import judge

RECORDS = sorted((Path(__file__).parent / "observations").glob("*.json"))


def recorded(name: str) -> dict[str, Any]:
    return dict(json.loads((RECORDS[0].parent / f"{name}.json").read_text()))


def observation(name: str) -> Observation:
    return Observation.from_json(recorded(name))


def without_stacks(seen: Observation) -> Observation:
    """As where tracing is denied: no stacks, and no system calls either."""

    def untraced(process: ObservedProcess) -> ObservedProcess:
        first = replace(process.first, syscall=None) if process.first is not None else None
        last = replace(process.last, syscall=None) if process.last is not None else None
        return replace(process, stack=None, first=first, last=last)

    return replace(seen, processes=[untraced(process) for process in seen.processes])


def test_a_record_names_no_folder_of_the_machine_that_made_it() -> None:
    assert [path.name for path in RECORDS if re.search("/root/|/home/|pytest-of-", path.read_text())] == []


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
def test_a_recorded_cause_is_named(path: Path, traced: bool) -> None:
    record = json.loads(path.read_text())
    seen = Observation.from_json(record)
    report = judge(seen if traced else without_stacks(seen)).report
    codes = [finding.code for finding in report.findings]
    if not record["codes"]:
        assert report.ok, codes
    elif traced or not record.get("needs_stacks"):
        assert codes[0] in record["codes"], codes
    else:
        assert codes[0] in (*record["codes"], "unknown"), "no stack, no verdict; a wrong one never"
    assert not {entry["code"] for entry in report.ruled_out} & set(codes)


def _changed_workers(seen: Observation, **changes: Any) -> Observation:
    processes = [replace(one, **changes) if one.role == "worker" else one for one in seen.processes]
    return replace(seen, processes=processes)


@pytest.mark.parametrize(
    "waits, codes",
    [
        ({"poll_schedule_timeout": 60, "runs": 15}, {"disk.slow", "loader.bound"}),
        ({"runs": 32, "poll_schedule_timeout": 30}, set()),
    ],
)
def test_a_slow_disk_that_still_gives_a_batch_now_and_then(waits: dict[str, int], codes: set[str]) -> None:
    """It is no training that is held up by its own work alone, however the looks fall."""
    seen = without_stacks(observation("slow-disk"))
    changed = [replace(one, waits=waits) if one.role == "rank" else one for one in seen.processes]
    found = judge(replace(seen, processes=changed)).report.findings
    assert {one.code for one in found} <= codes and bool(found) == bool(codes)


def test_spinning_needs_all_three_facts() -> None:
    seen = observation("no-caption-member-resampled")
    finding = judge(seen).report.findings[0]
    assert finding.code == "filter.spinning"
    assert "jpg json paug.json" in finding.evidence["data"]
    assert finding.command is not None and "tarmac preflight -- " in finding.command

    held = next(one for one in seen.processes if one.role == "worker")
    assert held.last is not None
    grown = replace(held.last, resident_bytes=held.last.resident_bytes + (held.grown("read_bytes") or 0))
    unread = _changed_workers(seen, passed=[])
    kept = [replace(one, last=grown) if one.pid == held.pid else one for one in unread.processes]
    assert [one.code for one in judge(replace(unread, processes=kept)).report.findings] == ["unknown"]

    resting = _changed_workers(seen, places=[], last=None)
    assert "filter.spinning" not in [one.code for one in judge(resting).report.findings]

    main = next(one for one in seen.processes if one.role == "rank")
    assert main.last is not None and main.last.read_bytes is not None
    fed = replace(main, last=replace(main.last, read_bytes=main.last.read_bytes + 10_000))
    delivered = replace(seen, processes=[fed if one is main else one for one in seen.processes])
    assert "filter.spinning" not in [one.code for one in judge(delivered).report.findings]


def test_a_script_is_judged_by_the_trainer_that_its_config_names() -> None:
    seen = observation("no-caption-member-resampled")
    options = seen.command[seen.command.index("open_clip_train.main") + 1 :]
    script = replace(seen, command=["bash", "/jobs/train.sh", *options])
    unnamed = judge(script).report.findings[0]
    assert unnamed.code == "filter.spinning" and "rule" not in unnamed.evidence
    named = Observation.from_json(replace(script, trainer="open_clip").to_json())
    (finding,) = judge(named).report.findings
    assert finding.code == "filter.spinning" and "rule" in finding.evidence


def test_a_worker_that_a_signal_has_stopped_is_named() -> None:
    seen = _changed_workers(observation("no-caption-member-resampled"), passed=[])
    first, *others = [one for one in seen.processes if one.role == "worker"]
    assert first.first is not None and first.last is not None and others
    held = replace(first, first=replace(first.first, state="T"), last=replace(first.last, state="T"))
    verdict = judge(replace(seen, processes=[held if one is first else one for one in seen.processes]))
    assert verdict.state == "unclear"
    assert verdict.sentence.endswith(f"loader workers stopped by a signal (state T): {first.pid}")
    assert verdict.report.findings[0].remedy.startswith(f"kill -CONT {first.pid}")


def test_samples_that_pass_refute_spinning() -> None:
    seen = observation("no-caption-member-resampled")
    passed = [
        [
            replace(tar, kinds=[replace(kind, members=["jpg", "txt"]) for kind in tar.kinds])
            for tar in one.passed
        ]
        for one in seen.processes
    ]
    sound = replace(
        seen, processes=[replace(one, passed=its) for one, its in zip(seen.processes, passed, strict=True)]
    )
    report = judge(sound).report
    assert "filter.spinning" not in [one.code for one in report.findings]
    assert any(entry["code"] == "filter.spinning" for entry in report.ruled_out)


def test_an_observation_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 99"):
        Observation.from_json({**recorded("no-caption-member-resampled"), "format": 99})


def test_ranks_whose_log_goes_on_are_apart_only_for_a_moment() -> None:
    """Of ranks that train one is in the exchange of a step while another is just before it."""
    seen = observation("uneven-ranks-at-an-epoch-s-end")
    assert [one.code for one in judge(seen).report.findings] == ["collective.desync"]
    assert seen.log is not None
    fresh = judge(replace(seen, log=replace(seen.log, quiet_s=0.5))).report
    assert "collective.desync" not in {one.code for one in fresh.findings}
    ruled_out = {entry["code"]: entry for entry in fresh.ruled_out}
    assert "progress" in str(ruled_out["collective.desync"])


def test_a_rank_that_waits_for_its_tracker_is_named_and_not_the_ranks_that_wait_for_it() -> None:
    seen = observation("uneven-ranks-at-an-epoch-s-end")
    ranks = [one for one in seen.processes if one.role == "rank"]
    waits = replace(ranks[0], stack=["wait (wandb/sdk/mailbox/handle.py:88)"], waits={"futex_wait_queue": 60})
    blocked = replace(seen, processes=[waits if one is ranks[0] else one for one in seen.processes])
    assert [one.code for one in judge(blocked).report.findings] == ["tracker.blocked"]
