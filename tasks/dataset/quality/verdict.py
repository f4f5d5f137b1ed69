"""Judges an assessment: what a training would learn wrongly, with the share of the samples, examples and a
fix. Pure functions.

A copy in a held-out split is an error if the config's `leak_budget` is exceeded, because every score on that
split is too good. Everything else is a warning, or for information where it may well be wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.findings import MARKS, Finding, Severity
from tasks.core.schema import Config
from tasks.core.units import count, counted, percent, shorten
from tasks.dataset.quality.assessment import (
    BLURRED,
    BORDER,
    Assessment,
    Cluster,
    Found,
    ShownSample,
    false_negatives,
    kept_assessment,
)
from tasks.dataset.quality.scored import judge_scores, kept_scores

NOTABLE = 0.01
"""The share of the samples from which pictures or captions of a kind are named."""
OFTEN_COPIED = 0.01
USUAL = 0.5
"""A border that more pictures than this share have belongs to their style."""
OFTEN_REPEATED = 0.1
"""The share of false negatives in a batch that is a warning."""
BATCH = 1024
"""The batch size that false negatives are computed for if the config trains nothing."""
UNBALANCED = 50
"""The largest class with this many times the samples of the middle one is a warning."""
LINE = 200
"""The most characters of a line of examples."""
NAMED = 3
"""Examples that the evidence names."""


def kept_findings(config: Config, version: Path) -> list[Finding]:
    """Return the findings by what is kept of a version: its assessment, and what a model has said of it."""
    found, scores = kept_assessment(version), kept_scores(version)
    return [
        *([] if found is None else judge_by(config, found)),
        *([] if scores is None else judge_scores(scores, is_private=config.dataset.private)),
    ]


def judge_by(config: Config, found: Assessment) -> list[Finding]:
    """Judge an assessment by a config."""
    dataset, train = config.dataset, config.train
    batch_size = None if train is None else train.batch_size
    return judge(found, leak_budget=dataset.leak_budget, batch_size=batch_size, is_private=dataset.private)


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
    found: Assessment, *, leak_budget: float, batch_size: int | None = None, is_private: bool = False
) -> list[Finding]:
    """Return the findings, errors first. `batch_size` is that of the training, if there is one; of private
    data no examples are named."""
    findings = [
        *_not_compared(found),
        *_leaks(found, leak_budget, is_private),
        *_copies(found, is_private),
        *_pictures(found.pictures, is_private),
        *_captions(found, batch_size, is_private),
        *_classes(found.classes, is_private),
    ]
    order: Sequence[Severity] = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


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
            evidence={"what": what, **_shown_clusters(found.leaks, is_private)},
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
            evidence={"what": what, **_shown_clusters(found.clusters, is_private, split)},
        )


_OF_PICTURES: Mapping[str, tuple[str, str, str, Mapping[str, Any] | None]] = {
    "constant": (
        "images.constant",
        "pictures of one colour",
        "set dataset.filter.contrast to leave them out",
        {"dataset.filter.contrast": 2},
    ),
    "blurred": (
        "images.blurred",
        "pictures without detail: blurred, or enlarged from a few pixels",
        f"look at them, then set dataset.filter.sharpness: {BLURRED} to leave them out",
        {"dataset.filter.sharpness": BLURRED},
    ),
    "bordered": (
        "images.bordered",
        "pictures inside a plain border or bar",
        f"crop them, or set dataset.filter.border: {{max: {BORDER}}} to leave them out",
        {"dataset.filter.border": {"max": BORDER}},
    ),
    "animated": (
        "images.animated",
        "animations, of which only the first picture is used",
        "set dataset.filter.frames: {max: 1} to leave them out",
        {"dataset.filter.frames": {"max": 1}},
    ),
    "cmyk": (
        "images.colour",
        "CMYK pictures, whose colours readers of the shards disagree about",
        "convert them to sRGB, or set dataset.filter.colour: [rgb, grey] to leave them out",
        {"dataset.filter.colour": ["rgb", "grey"]},
    ),
    "deep": (
        "images.colour",
        "pictures with 16 bits per channel, which some readers of the shards show white",
        "convert them to 8 bits, or set dataset.filter.colour: [rgb, grey] to leave them out",
        {"dataset.filter.colour": ["rgb", "grey"]},
    ),
    "profile": (
        "images.colour",
        "pictures with another colour profile than sRGB, which training ignores",
        "convert them to sRGB, or leave them if a slight shift of colours does not matter",
        None,
    ),
}
"""By the name of what was found: code, words, fix and config."""
RARE = ("animated", "cmyk", "deep")
"""What is named from the first picture on."""


def _pictures(pictures: Mapping[str, Found], is_private: bool) -> Iterator[Finding]:
    for name, (code, words, remedy, config) in _OF_PICTURES.items():
        found = pictures.get(name, Found())
        if not found.count or (name not in RARE and found.share < NOTABLE):
            continue
        if name == "bordered" and found.share > USUAL:
            continue
        yield _warn(code, found, words, remedy, is_private, config)


def _captions(found: Assessment, batch_size: int | None, is_private: bool) -> Iterator[Finding]:
    captions = found.captions
    empty = captions.get("empty", Found())
    if empty.count and empty.share >= NOTABLE:
        words = "captions that say nothing, such as a file's name"
        fix = "write captions, or set dataset.filter.caption_words: 1 to leave them out"
        yield _warn(
            "captions.meaningless", empty, words, fix, is_private, {"dataset.filter.caption_words": 1}
        )
    boilerplate = captions.get("boilerplate", Found())
    if boilerplate.count:
        words = "captions that share a beginning or end"
        fix = "cut it from the captions, or leave such samples out; a model learns it by heart"
        yield _warn("captions.boilerplate", boilerplate, words, fix, is_private)
    language = captions.get("language", Found())
    if language.count and language.share >= NOTABLE:
        words = "captions in another language than most"
        fix = "leave them out of the source, unless the model is to learn several languages"
        yield _warn("captions.language", language, words, fix, is_private)
    truncated = captions.get("truncated", Found())
    if truncated.count and truncated.share >= NOTABLE:
        words = "captions longer than the 77 tokens that CLIP reads"
        fix = "shorten them, with what matters first; or use a model with a longer context"
        yield _warn("text.truncated", truncated, words, fix, is_private)
    yield from _repeated(found, batch_size)


def _repeated(found: Assessment, batch_size: int | None) -> Iterator[Finding]:
    size = batch_size or BATCH
    share = false_negatives(found.repeats, size)
    if share < NOTABLE:
        return
    often = max(map(int, found.repeats))
    what = (
        f"in a batch of {count(size)}, {percent(share)} of the samples have the caption of another one; the "
        f"most frequent caption comes {count(often)} times"
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


def _warn(
    code: str,
    found: Found,
    words: str,
    remedy: str,
    is_private: bool,
    config: Mapping[str, Any] | None = None,
) -> Finding:
    severity: Severity = "warning" if found.share >= NOTABLE or code == "images.colour" else "info"
    what = f"{count(found.count)} of {count(found.of)} ({percent(found.share)}): {words}"
    evidence = {"what": what}
    if found.examples and not is_private:
        evidence["for example"] = ", ".join(_shown(one) for one in found.examples[:NAMED])
    return Finding(code, severity, remedy, evidence=evidence, config=config)


def _shown(example: ShownSample) -> str:
    return f"{example.key} ({example.note})" if example.note else example.key


def _shown_clusters(clusters: Sequence[Cluster], is_private: bool, split: str = "") -> dict[str, str]:
    """Name members of the first cluster, of the first with two of a split if one is given."""
    for cluster in () if is_private else clusters:
        members = [one for one in cluster.members if split in ("", one.split)][:NAMED]
        if len(members) > 1:
            names = [one.key if split else f"{one.split}: {one.key}" for one in members]
            more = cluster.size - len(members)
            return {"for example": " = ".join(names) + (f" and {count(more)} more" if more else "")}
    return {}
