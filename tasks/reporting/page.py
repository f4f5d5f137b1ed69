"""What the page of a run shows: every section's values, or the sentence that stands in its place.

Apart from `tasks.reporting.report`, because whoever only asks whether a page still holds should not have to
load what draws one (pyarrow, Pillow, Jinja).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.errors import TarmacError, first_line
from tasks.core.pages import render
from tasks.core.quarantine_file import NAME
from tasks.core.units import count, counted
from tasks.evaluation import results
from tasks.evaluation.fit import doubtful_classes
from tasks.reporting.accounts import Account, read_account
from tasks.reporting.evidence import RunContents
from tasks.reporting.gallery import GallerySample, read_items
from tasks.reporting.notes import Note, first_of, notes
from tasks.reporting.plots import summarize, training_charts
from tasks.reporting.portrait import portrait
from tasks.reporting.scores import Headline, headline_of, task_views
from tasks.runs.data import version_path
from tasks.runs.identity import DataRef

CAPTIONS: Mapping[str, str] = {"volume_report": "reports", "chat": "questions"}
"""What the texts of a modality's samples are called."""


@dataclass(frozen=True)
class Gallery:
    """Held-out samples with a sentence about them, or the reason that there are none."""

    text: str
    items: Sequence[GallerySample] = ()
    is_broken: bool = False


def compose(evidence: RunContents, inputs: str, written: float) -> str:
    """The page of a run; `inputs` is the digest of what it is made from, `written` in Unix seconds."""
    return render("reporting/report.html", inputs=inputs, written=written, **_values(evidence))


def _values(evidence: RunContents) -> dict[str, Any]:
    """Everything the template shows."""
    record = evidence.record
    data = record.data if record is not None else []
    accounts = [read_account(ref, evidence.private, evidence.quarantined) for ref in data]
    manifests = [account.manifest for account in accounts if account.manifest is not None]
    first = headline_of(evidence.results, evidence.config, evidence.best_step)
    gallery = _gallery(evidence, accounts, first)
    return {
        "run": portrait(evidence.run, record),
        "private": evidence.private,
        "headline": first,
        "training": summarize(evidence.rows),
        "charts": training_charts(evidence.rows),
        "notes": notes(
            evidence,
            [
                *_left_out(evidence, accounts),
                *_broken_data(accounts),
                *_broken_samples(gallery),
                *_doubtful_classes(evidence, data),
            ],
        ),
        "tasks": task_views(evidence.results, evidence.best_step),
        "best": evidence.best,
        "best_step": evidence.best_step,
        "is_chosen_by_headline": _is_chosen_by(first, evidence),
        "tuning": evidence.loader,
        "datasets": accounts,
        "reject_budget": evidence.config.dataset.reject_budget if evidence.config is not None else None,
        "read": sum(manifest.read for manifest in manifests) if manifests else None,
        "accepted": sum(manifest.accepted for manifest in manifests) if manifests else None,
        "gallery": gallery,
        "reasons": _reasons(evidence),
        "config_text": evidence.config_text,
        "gather": f"tarmac gather {evidence.run.handle} --sync" if _is_tracked(evidence) else None,
    }


def _doubtful_classes(evidence: RunContents, data: Sequence[DataRef]) -> Iterator[Note]:
    config = evidence.config
    if config is not None and data and version_path(data[0]).is_dir() and not evidence.private:
        for sentence in doubtful_classes(config, version_path(data[0])):
            yield Note("warn", "The classes are numbers", (sentence,))


def _is_chosen_by(first: Headline | None, evidence: RunContents) -> bool:
    """Whether the best checkpoint was chosen by the very figure that stands first, which flatters it."""
    if first is None or evidence.best is None:
        return False
    return evidence.best.metric == results.full_name(first.task, first.metric)


def _is_tracked(evidence: RunContents) -> bool:
    return evidence.config is None or evidence.config.track.mode != "disabled"


def _gallery(evidence: RunContents, accounts: Sequence[Account], first: Headline | None) -> Gallery:
    """The first held-out samples with the predictions of the headline's evaluation."""
    if evidence.private:
        return Gallery("The dataset is private, or nobody knows that it is not: counts only.")
    account = next((account for account in accounts if account.held_out is not None), None)
    if account is None or account.held_out is None:
        return Gallery("There is no version of the data with a held-out split to show.")
    split = first.split if first is not None else account.held_out
    modality = account.manifest.modality if account.manifest is not None else ""
    said = results.read_predictions(evidence.run, first.step, first.task) if first is not None else {}
    try:
        items = read_items(account.path, split, said)
    except (TarmacError, OSError, ValueError) as error:
        why = f"The held-out samples cannot be read: {first_line(error)}"
        return Gallery(why, is_broken=True)
    texts = CAPTIONS.get(modality, "captions")
    shown = f"The first {counted(len(items), 'sample')} of the split {split} with their {texts}"
    bad = [item.caption for item in items if item.is_bad]
    if bad:
        shown = f"{len(bad)} of these held-out samples cannot be read: {bad[0]}. {shown}"
    judged = Counter(verdict for item in items for verdict in item.verdicts)
    if first is None or not judged:
        return Gallery(f"{shown}. No predictions were kept for them.", items, bool(bad))
    verdict = f"{count(judged[True])} right, {count(judged[False])} wrong"
    judge = f"what the checkpoint of step {count(first.step)} makes of them"
    return Gallery(f"{shown}, and {judge}: {verdict}.", items, bool(bad))


def _left_out(evidence: RunContents, accounts: Sequence[Account]) -> list[Note]:
    """A note for each version of which samples were in quarantine when the run began."""
    counts = Counter(f"{entry.shard} ({entry.reason})" for entry in evidence.quarantined)
    lines = [f"{place}: {counted(samples, 'sample')}" for place, samples in sorted(counts.items())]
    return [
        Note("warn", account.left_out, first_of(lines, NAME), f"tarmac repair {account.path}")
        for account in accounts
        if account.left_out
    ]


def _broken_data(accounts: Sequence[Account]) -> list[Note]:
    """A note for each version that is gone or damaged since."""
    broken = [account for account in accounts if account.why_none]
    return [
        Note("warn", f"The data of {account.name} cannot be read", (account.why_none,)) for account in broken
    ]


def _broken_samples(gallery: Gallery) -> list[Note]:
    return [Note("warn", "Not all samples can be shown", (gallery.text,))] if gallery.is_broken else []


def _reasons(evidence: RunContents) -> Mapping[str, str]:
    """Why a section is empty, for those that are."""
    asked = evidence.config is None or evidence.config.evaluate is not None
    return {
        "evaluation": "No evaluation has a result yet." if asked else "The config asks for no evaluation.",
        "training": "No training metrics have been recorded.",
        "tuning": "The loader's settings are not known: loader.json is missing or cannot be read.",
        "data": "The run's record names no dataset.",
    }
