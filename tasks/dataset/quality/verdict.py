"""Judges an assessment: what a training would learn wrongly, with the share of the samples, examples and a
fix. Pure functions.

A copy in a held-out split is an error if the config's `leak_budget` is exceeded, because every score on that
split is too good. Everything else is a warning, or for information where it may well be wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.findings import MARKS, Finding, Severity
from tasks.core.schema import Config
from tasks.core.units import count, counted, percent, shorten
from tasks.dataset.quality.assessment import (
    ASSESSMENT,
    Assessment,
    Cluster,
    Found,
    ShownSample,
    false_negatives,
    kept_assessment,
)
from tasks.dataset.quality.kinds import CAPTION_KINDS, PICTURE_KINDS, QualityKind
from tasks.dataset.quality.scored import judge_scores, kept_scores

NOTABLE = 0.01
"""The share of the samples from which pictures or captions of a kind are named."""
OFTEN_COPIED = 0.01
OFTEN_REPEATED = 0.1
"""The share of false negatives in a batch that is a warning."""
BATCH = 1024
"""The batch size that false negatives are computed for if the config trains nothing."""
UNBALANCED = 50
"""The largest class with this many times the samples of the middle one is a warning."""
LINE = 200
"""The most characters of a line of examples."""
SEVERITIES: Sequence[Severity] = ("error", "warning", "info")
NAMED = 3
"""Examples that the evidence names."""


@dataclass(frozen=True)
class Terms:
    """By what a version is judged, besides what was found in it: the config's leak budget (a share), and the
    batch size of its training. Of private data no examples are named."""

    leak_budget: float
    batch_size: int = BATCH
    is_private: bool = False

    @classmethod
    def of(cls, config: Config) -> Terms:
        batch_size = BATCH if config.train is None else config.train.batch_size
        return cls(config.dataset.leak_budget, batch_size, config.dataset.private)

    def __str__(self) -> str:
        return f"a leak budget of {percent(self.leak_budget)} and batches of {count(self.batch_size)}"


def kept_findings(config: Config, version: Path) -> list[Finding]:
    """Return the findings on a version by its kept assessment. If that could not be kept, it is made again;
    without it there are only the findings by scores, because the stage has reported why."""
    found = kept_assessment(version)
    if found is None:
        from tasks.dataset.quality.examine import assess_version  # imports numpy and Arrow

        with suppress(DataError):
            found = ASSESSMENT.validate_python(assess_version(version))
    return version_findings(version, found, Terms.of(config))


def version_findings(version: Path, found: Assessment | None, terms: Terms) -> list[Finding]:
    """Return all findings on what a version's samples are worth, errors first: by its assessment, and by what
    a model has said of them. Builds, trainings and pages ask here, so that they agree."""
    scores = kept_scores(version)
    assessed = [] if found is None else judge(found, **asdict(terms))
    scored = [] if scores is None else judge_scores(scores, is_private=terms.is_private)
    return sorted([*assessed, *scored], key=lambda finding: SEVERITIES.index(finding.severity))


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """Return the lines of a terminal: what was found, examples and the fix; what is for information is only
    counted."""
    lines = []
    for finding in findings:
        if finding.severity != "info":
            lines.append(finding.line)
            if "for example" in finding.evidence:
                lines.append(f"    such as  {shorten(str(finding.evidence['for example']), LINE)}")
            lines.append(f"    fix      {finding.remedy}")
    notes = sum(finding.severity == "info" for finding in findings)
    return (
        [*lines, f"{MARKS['info']} {counted(notes, 'note')} on the page of tarmac look"] if notes else lines
    )


def judge(
    found: Assessment, *, leak_budget: float, batch_size: int = BATCH, is_private: bool = False
) -> list[Finding]:
    """Return the findings, errors first. `batch_size` is that of the training, if there is one; of private
    data no examples are named."""
    findings = [
        *_not_compared(found),
        *_leaks(found, leak_budget, is_private),
        *_copies(found, is_private),
        *_kinds(PICTURE_KINDS, found.pictures, is_private),
        *_kinds(CAPTION_KINDS, found.captions, is_private),
        *_repeated(found, batch_size),
        *_classes(found.classes, is_private),
    ]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _not_compared(found: Assessment) -> Iterator[Finding]:
    if found.is_compared or not found.total:
        return
    why, remedy = "the version does not record what they look like", "build it again, which measures that"
    if found.too_many:
        why = f"{count(found.total)} are too many to be held in memory"
        remedy = "build a dataset of a part of the source, and assess that"
    what = f"samples were not compared, so copies and leaks between splits are unknown: {why}"
    yield Finding("quality.not_compared", "warning", remedy, evidence={"what": what})


def _leaks(found: Assessment, budget: float, is_private: bool) -> Iterator[Finding]:
    for split, leaked in found.leaked.items():
        share = leaked / found.samples[split]
        what = (
            f"{count(leaked)} of {counted(found.samples[split], 'sample')} ({percent(share)}) equal or "
            "nearly equal samples of another split"
        )
        yield Finding(
            "split.leak",
            "error" if share > budget else "warning",
            "set dataset.splits.group_by: content, which keeps such samples on one side, and build again; or "
            "allow it by dataset.leak_budget",
            where={"split": split},
            evidence={"what": what, **_shown_leak(found, split, is_private)},
            config={"dataset.splits.group_by": "content"},
        )


def _copies(found: Assessment, is_private: bool) -> Iterator[Finding]:
    for split in found.samples:
        copies, alike = found.copies.get(split, 0), found.alike.get(split, 0)
        if not copies + alike:
            continue
        share = (copies + alike) / found.samples[split]
        what = (
            f"{percent(share)} of {counted(found.samples[split], 'sample')}: {count(copies)} exact and "
            f"{count(alike)} near copies of others"
        )
        yield Finding(
            "samples.duplicated",
            "warning" if share >= OFTEN_COPIED else "info",
            "remove them from the source, or leave them: a training sees them that much more often",
            where={"split": split},
            evidence={"what": what, **_shown_copies(found, split, is_private)},
        )


def _kinds(
    kinds: Sequence[QualityKind], assessed: Mapping[str, Found], is_private: bool
) -> Iterator[Finding]:
    for kind in kinds:
        found = assessed.get(kind.name, Found())
        severity: Severity | None = "warning" if found.share >= NOTABLE else kind.when_rare
        if not found.count or severity is None or found.share > kind.usual:
            continue
        evidence = {
            "what": f"{count(found.count)} of {count(found.of)} ({percent(found.share)}): {kind.words}"
        }
        if found.examples and not is_private:
            evidence["for example"] = ", ".join(_shown(one) for one in found.examples[:NAMED])
        rule = kind.filter
        config = None if rule is None else {f"dataset.filter.{rule.name}": rule.value}
        yield Finding(kind.code, severity, kind.remedy, evidence=evidence, config=config)


def _repeated(found: Assessment, batch_size: int) -> Iterator[Finding]:
    share = false_negatives(found.repeats, batch_size)
    if share < NOTABLE:
        return
    often = max(map(int, found.repeats))
    what = (
        f"in a batch of {count(batch_size)}, {percent(share)} of the samples have the caption of another "
        f"one; the most frequent caption comes {count(often)} times"
    )
    is_class = bool(found.classes)
    yield Finding(
        "captions.repeated",
        "warning" if share >= OFTEN_REPEATED and not is_class else "info",
        "expected of captions that name a class; a smaller batch has fewer"
        if is_class
        else "group them by what they describe, or write captions that tell samples apart: a contrastive "
        "training pushes equal captions away from each other's pictures",
        evidence={"what": what},
    )


def _classes(classes: Mapping[str, int], is_private: bool) -> Iterator[Finding]:
    if not classes:
        return
    counts = list(classes.values())
    middle = counts[len(counts) // 2]
    first, last = next(iter(classes)), list(classes)[-1]
    single = [name for name, samples in classes.items() if samples == 1]
    if single and max(counts) > 1:
        named = "" if is_private else f", such as {', '.join(single[:NAMED])}"
        what = f"{count(len(single))} of {counted(len(counts), 'class', 'classes')} with one sample{named}"
        yield Finding(
            "classes.single",
            "warning",
            "add samples to them, or leave them out: what is held out of them is not trained on, or all of "
            "them is",
            evidence={"what": what},
        )
    if counts[0] >= UNBALANCED * max(middle, 1):
        names = ("the largest", "the smallest") if is_private else (first, last)
        what = (
            f"{names[0]} has {count(counts[0])} samples, the middle class {count(middle)}, {names[1]} "
            f"{count(counts[-1])}"
        )
        yield Finding(
            "classes.unbalanced",
            "warning",
            "judge by the mean accuracy per class, and take fewer samples of the largest class",
            evidence={"what": what},
        )


def _shown(example: ShownSample) -> str:
    return f"{example.key} ({example.note})" if example.note else example.key


def _shown_leak(found: Assessment, split: str, is_private: bool) -> dict[str, str]:
    """Name a sample of the split and one that is trained on, of the first cluster with both."""
    for cluster in () if is_private else found.leaks:
        firsts = {one.split: one for one in reversed(cluster.members)}
        if {split, found.trained} <= firsts.keys():
            return _example(cluster, [f"{name}: {firsts[name].key}" for name in (found.trained, split)])
    return {}


def _shown_copies(found: Assessment, split: str, is_private: bool) -> dict[str, str]:
    """Name samples of the first cluster with two of the split."""
    for cluster in () if is_private else found.clusters:
        names = [one.key for one in cluster.members if one.split == split][:NAMED]
        if len(names) > 1:
            return _example(cluster, names)
    return {}


def _example(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    more = cluster.size - len(names)
    return {"for example": " = ".join(names) + (f" and {count(more)} more" if more else "")}
