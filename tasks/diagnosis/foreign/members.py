"""Judges how the trainer's pipeline treats the samples' members: which it drops, and which end a worker.

Where the pipeline did not run, the trainer's transcribed rules replace it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.foreign.probe import Flow
from tasks.diagnosis.foreign.survey import Kind
from tasks.trainers.open_clip import OPEN_CLIP

JSON = ("json", "jsn")


def judge_members(case: Case) -> Iterator[Finding]:
    """Find the samples that never become part of a batch."""
    if is_unread := _is_unread(case):
        yield _other_webdataset(case)
    yield from _teachers(case)
    yield from _dropped(case)
    if not is_unread:
        yield from _undecodable(case)


def _is_unread(case: Case) -> bool:
    """Return whether the trainer's own reading fails on every tar, under a webdataset of a later line."""
    if case.answer is None or not case.answer.flows or not case.trainer.webdataset:
        return False
    major = case.answer.versions.get("webdataset", "0").partition(".")[0]
    return major.isdigit() and int(major) >= 1 and all(map(_ends_in_reading, case.answer.flows.values()))


def _ends_in_reading(flow: Flow) -> bool:
    """Return whether the error was raised in the file of the stage that reads the tars."""
    reading = (flow.stages[0].place or "").partition(":")[0]
    return flow.error is not None and (flow.error_place or "").partition(":")[0] == reading


def _other_webdataset(case: Case) -> Finding:
    assert case.answer is not None
    flow = next(iter(case.answer.flows.values()))
    installed, wanted = case.answer.versions.get("webdataset", "unknown"), case.trainer.webdataset
    problem = (
        f"webdataset {installed} reads no tar to its end for this trainer, which needs {wanted}: "
        f"a worker ends with {flow.error}"
    )
    return Finding(
        "version.webdataset",
        "error",
        f"pip install 'webdataset{wanted}', in the environment of {case.command.interpreter}",
        where={"rule": flow.error_place or ""},
        evidence={"problem": problem},
        command=f"{case.command.interpreter} -m pip install 'webdataset{wanted}'",
    )


def _teachers(case: Case) -> Iterator[Finding]:
    """Check those options of MobileCLIP that need a value for each teacher."""
    widths = case.command.values("--distill-teacher-dimension")
    scales = case.command.values("--distill-logit-scale")
    if widths and scales and len(widths) != len(scales):
        remedy = f"give --distill-logit-scale {' '.join(scales[:1] * len(widths))}, a scale for each teacher"
        problem = (
            f"{counted(len(widths), 'teacher')} by --distill-teacher-dimension, and "
            f"{counted(len(scales), 'scale')} by --distill-logit-scale: the loss asks for one of each"
        )
        yield Finding("reinforcement.teachers", "error", remedy, evidence={"problem": problem})


def _dropped(case: Case) -> Iterator[Finding]:
    """Find the samples that a filter drops by the members that they have."""
    looked_at, kinds = case.survey.looked_at, case.survey.kinds
    dropped = {kind: place for kind in kinds if (place := _filter_place(case, kind)) is not None}
    count = sum(kinds[kind] for kind in dropped)
    if not count:
        return
    refusals, members = Counter[str](), Counter[str]()
    for kind in dropped:
        refusals[case.trainer.refusal(case.command, kind) or "dropped by the filter"] += kinds[kind]
        members.update(dict.fromkeys(kind, kinds[kind]))
    why = refusals.most_common(1)[0][0]
    is_all = count == looked_at
    about = "" if case.survey.is_whole else " looked at"
    # Captions and images come first: without them it is no matter of the teachers' members.
    is_pair = not any(rule.refusal(kind) for rule in OPEN_CLIP.rules(case.command) for kind in dropped)
    of_teachers = case.trainer.needs_reinforcement and is_pair
    code, problem = "keys.partial", f"{why} in {count:,} of {looked_at:,} samples{about}: these are dropped"
    if is_all:
        code = "keys.mismatch"
        problem = f"{why} in any of {looked_at:,} samples{about}: all are dropped, no batch ever comes"
    found = " ".join(sorted(members, key=lambda name: (-members[name], name))[:8])
    yield Finding(
        "reinforcement.members" if of_teachers else code,
        "error" if is_all else "warning",
        f"give each sample what it lacks ({why.removeprefix('no ')})",
        where={"rule": next(iter(dropped.values()))},
        evidence={"problem": problem, "found": found, "dropped": count, "samples": looked_at},
    )


def _filter_place(case: Case, kind: Kind) -> str | None:
    """Return the source line of the filter that drops samples of this kind, or None where none does."""
    if case.answer is None or case.trainer.needs_reinforcement:
        rules = case.trainer.rules(case.command)
        return next((rule.place(case.command) for rule in rules if rule.refusal(kind)), None)
    flow = case.answer.flows.get(kind)
    if flow is None or flow.drop is None or not flow.drop.name.startswith("select"):
        return None
    return ", ".join(filter(None, [flow.drop.place, flow.drop.name.partition("(")[2].rstrip(")")]))


def _undecodable(case: Case) -> Iterator[Finding]:
    """Find the samples that the trainer's decoding drops, or that end a worker."""
    flows = case.answer.whole or case.answer.flows if case.answer is not None else {}
    kinds = case.survey.kinds
    by_code: dict[str, list[tuple[Flow, int]]] = {}
    for name, flow in flows.items():
        is_drop = flow.drop is not None and "decode" in flow.drop.name
        if flow.error is None and not is_drop:
            continue
        is_json = flow.error is None and any(one.rpartition(".")[2] in JSON for one in flow.failing)
        code = "json.conflict" if is_json else "member.undecodable"
        samples = kinds[name] if isinstance(name, frozenset) else flow.read
        by_code.setdefault(code, []).append((flow, samples))
    for code, affected in by_code.items():
        yield _decode_finding(case, code, affected)


def _decode_finding(case: Case, code: str, affected: Sequence[tuple[Flow, int]]) -> Finding:
    flow = affected[0][0]
    if flow.error is not None:
        problem, place = f"a sample ends its worker: {flow.error}", flow.error_place
    else:
        failing = {name for one, _ in affected for name in one.failing}
        names = " and ".join(f"`{name}`" for name in sorted(failing)) or "a member"
        lost = f"{sum((1 - one.share) * samples for one, samples in affected):,.0f}"
        looked_at = case.survey.looked_at
        problem = f"{names} does not decode, so the whole sample is dropped: {lost} of {looked_at:,}"
        place = flow.drop.place if flow.drop is not None else None
    is_all = not any(case.shares.values())
    return Finding(
        code,
        "error" if is_all or flow.error is not None else "warning",
        "leave the member out of the shards, or mend it: the trainer decodes every member it knows",
        where={"rule": place or "the trainer's decoding"},
        evidence={"problem": problem, **({"said": flow.messages[0]} if flow.messages else {})},
    )
