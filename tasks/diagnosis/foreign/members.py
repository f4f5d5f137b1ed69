"""What the trainer's pipeline makes of the samples' members: which it drops, and which end a worker.

Where the pipeline did not run, the trainer's transcribed rules stand in for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tasks.core.findings import Finding
from tasks.core.units import counted
from tasks.diagnosis.foreign.case import Case
from tasks.diagnosis.foreign.probe import Flow
from tasks.diagnosis.foreign.survey import Kind
from tasks.trainers.open_clip import OPEN_CLIP

JSON = ("json", "jsn")


def judge_members(case: Case) -> Iterator[Finding]:
    """Samples of which no batch is made."""
    yield from _version(case)
    yield from _teachers(case)
    yield from _dropped(case)
    yield from _undecodable(case)


def _version(case: Case) -> Iterator[Finding]:
    """Another line of webdataset than the trainer is written for, where that ends its reading of tars."""
    if not _is_unread(case) or case.answer is None:
        return
    flow = next(iter(case.answer.flows.values()))
    there, wanted = case.answer.versions.get("webdataset", "unknown"), case.trainer.webdataset
    yield Finding(
        code="version.webdataset",
        severity="error",
        remedy=f"pip install 'webdataset{wanted}', in the environment of {case.command.interpreter}",
        where={"rule": flow.error_place or ""},
        evidence={
            "problem": f"webdataset {there} reads no tar to its end for this trainer, which needs {wanted}: "
            f"a worker ends with {flow.error}"
        },
        command=f"{case.command.interpreter} -m pip install 'webdataset{wanted}'",
    )


def _is_unread(case: Case) -> bool:
    """Whether every tar ends the pipeline in the trainer's own reading, with a webdataset of another line."""
    if case.answer is None or not case.answer.flows or not case.trainer.webdataset:
        return False
    major = case.answer.versions.get("webdataset", "0").partition(".")[0]
    is_newer = major.isdigit() and int(major) >= 1
    return is_newer and all(map(_ends_in_reading, case.answer.flows.values()))


def _ends_in_reading(flow: Flow) -> bool:
    """Whether the error was raised in the file of the stage that reads the tars."""
    reading = (flow.stages[0].place or "").partition(":")[0]
    return flow.error is not None and (flow.error_place or "").partition(":")[0] == reading


def _teachers(case: Case) -> Iterator[Finding]:
    """Of MobileCLIP's options those that need a value for each teacher."""
    widths = case.command.values("--distill-teacher-dimension")
    scales = case.command.values("--distill-logit-scale")
    if widths and scales and len(widths) != len(scales):
        flag = " ".join(scales[:1] * len(widths))
        yield Finding(
            code="reinforcement.teachers",
            severity="error",
            remedy=f"give --distill-logit-scale {flag}, a scale for each teacher",
            evidence={
                "problem": f"{counted(len(widths), 'teacher')} by --distill-teacher-dimension, and "
                f"{counted(len(scales), 'scale')} by --distill-logit-scale: the loss asks for one of each"
            },
        )


def _dropped(case: Case) -> Iterator[Finding]:
    """Samples that a filter drops by the members that they have."""
    looked_at = case.survey.looked_at
    kinds = case.survey.kinds
    dropped = {kind: place for kind in kinds if (place := _filter_place(case, kind)) is not None}
    count = sum(kinds[kind] for kind in dropped)
    if not count:
        return
    refusals = Counter[str]()
    for kind in dropped:
        refusals[case.trainer.refusal(case.command, kind) or "dropped by the filter"] += kinds[kind]
    why = refusals.most_common(1)[0][0]
    members = Counter[str]()
    for kind in dropped:
        members.update(dict.fromkeys(kind, kinds[kind]))
    is_all = count == looked_at
    about = "" if case.survey.is_whole else " looked at"
    problem = (
        f"{why} in any of {looked_at:,} samples{about}: all are dropped, no batch ever comes"
        if is_all
        else f"{why} in {count:,} of {looked_at:,} samples{about}: these are dropped"
    )
    yield Finding(
        code=_code_of(case, dropped, is_all),
        severity="error" if is_all else "warning",
        remedy=_give_members(why),
        where={"rule": next(iter(dropped.values()))},
        evidence={
            "problem": problem,
            "found": " ".join(sorted(members, key=lambda name: (-members[name], name))[:8]),
            "dropped": count,
            "samples": looked_at,
        },
    )


def _code_of(case: Case, dropped: Mapping[Kind, str], is_all: bool) -> str:
    """What teachers said is another matter than captions and images, which come before it."""
    pairs = OPEN_CLIP.rules(case.command)
    if case.trainer.needs_reinforcement and not any(rule.refusal(kind) for rule in pairs for kind in dropped):
        return "reinforcement.members"
    return "keys.mismatch" if is_all else "keys.partial"


def _give_members(why: str) -> str:
    return f"give each sample what it lacks ({why.removeprefix('no ')})"


def _filter_place(case: Case, kind: Kind) -> str | None:
    """The source line of the filter that drops samples of this kind; None where none does."""
    rules = case.trainer.rules(case.command)
    if case.answer is None or case.trainer.needs_reinforcement:
        return next((rule.place(case.command) for rule in rules if rule.refusal(kind)), None)
    flow = case.answer.flows.get(kind)
    if flow is None or flow.drop is None or not flow.drop.name.startswith("select"):
        return None
    return ", ".join(filter(None, [flow.drop.place, flow.drop.name.partition("(")[2].rstrip(")")]))


def _undecodable(case: Case) -> Iterator[Finding]:
    """Samples that the trainer's decoding drops, or that end a worker."""
    flows = case.answer.whole or case.answer.flows if case.answer is not None else {}
    if _is_unread(case):
        return
    kinds = case.survey.kinds
    by_code: dict[str, list[tuple[Flow, int]]] = {}
    for name, flow in flows.items():
        weight = kinds[name] if isinstance(name, frozenset) else flow.read
        if flow.error is not None:
            by_code.setdefault("member.undecodable", []).append((flow, weight))
        elif flow.drop is not None and "decode" in flow.drop.name:
            is_json = any(member.rpartition(".")[2] in JSON for member in flow.failing)
            code = "json.conflict" if is_json else "member.undecodable"
            by_code.setdefault(code, []).append((flow, weight))
    for code, affected in by_code.items():
        yield _decode_finding(case, code, affected)


def _decode_finding(case: Case, code: str, affected: Sequence[tuple[Flow, int]]) -> Finding:
    failing = sum((Counter(flow.failing) for flow, _ in affected), Counter[str]())
    flow = affected[0][0]
    lost = sum((1 - one.share) * weight for one, weight in affected)
    is_all = not any(case.shares.values())
    names = " and ".join(f"`{name}`" for name in sorted(failing)) or "a member"
    if flow.error is not None:
        problem, place = f"a sample ends its worker: {flow.error}", flow.error_place
    else:
        looked_at = case.survey.looked_at
        problem = f"{names} does not decode, so the whole sample is dropped: {lost:,.0f} of {looked_at:,}"
        place = flow.drop.place if flow.drop is not None else None
    return Finding(
        code=code,
        severity="error" if is_all or flow.error is not None else "warning",
        remedy="leave the member out of the shards, or mend it: the trainer decodes every member it knows",
        where={"rule": place or "the trainer's decoding"},
        evidence={"problem": problem, **({"said": flow.messages[0]} if flow.messages else {})},
    )
