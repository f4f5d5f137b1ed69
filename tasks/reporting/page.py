"""The content of a run's page: the values of every section, or the sentence that replaces it.

It is separate from `tasks.reporting.report`, because checking whether a page is current should not load the
libraries that draw one (pyarrow, Pillow, Jinja).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.core.errors import TarmacError, first_line
from tasks.core.pages import render
from tasks.core.quarantine_file import NAME
from tasks.core.schema import Config
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
"""The name of a modality's texts."""


@dataclass(frozen=True)
class Gallery:
    """Held-out samples with a sentence about them, or the reason why there are none."""

    text: str
    items: Sequence[GallerySample] = ()
    is_broken: bool = False


def compose(evidence: RunContents, inputs: str, written: float) -> str:
    """Render the page of a run; `inputs` is the digest of its inputs, `written` the time in Unix seconds."""
    record = evidence.record
    data = record.data if record is not None else []
    accounts = [read_account(ref, evidence.private, evidence.quarantined) for ref in data]
    manifests = [account.manifest for account in accounts if account.manifest is not None]
    first = headline_of(evidence.results, evidence.config, evidence.best_step)
    gallery, config = _gallery(evidence, accounts, first), evidence.config
    is_tracked = config is None or config.track.has_wandb
    return render(
        "reporting/report.html",
        inputs=inputs,
        written=written,
        run=portrait(evidence.run, record, evidence.origins, evidence.word),
        private=evidence.private,
        headline=first,
        training=summarize(evidence.rows),
        charts=training_charts(evidence.rows),
        goodput=evidence.goodput,
        notes=notes(evidence, list(_more_notes(evidence, accounts, gallery, data))),
        tasks=task_views(evidence.results, evidence.best_step),
        best=evidence.best,
        best_step=evidence.best_step,
        is_chosen_by_headline=_is_chosen_by(first, evidence),
        tuning=evidence.loader,
        datasets=accounts,
        reject_budget=config.dataset.reject_budget if config is not None else None,
        read=sum(manifest.read for manifest in manifests) if manifests else None,
        accepted=sum(manifest.accepted for manifest in manifests) if manifests else None,
        gallery=gallery,
        reasons=_reasons(config, evidence.follows),
        config_text=evidence.config_text,
        trace=f"tarmac trace KEY {evidence.run.handle}",
        gather=f"tarmac gather {evidence.run.handle} --sync" if is_tracked else None,
    )


def _more_notes(
    evidence: RunContents, accounts: Sequence[Account], gallery: Gallery, data: Sequence[DataRef]
) -> Iterator[Note]:
    """Notes on the data: samples in quarantine when the run began, and data that cannot be read now."""
    counts = Counter(f"{entry.shard} ({entry.reason})" for entry in evidence.quarantined)
    lines = [f"{place}: {counted(samples, 'sample')}" for place, samples in sorted(counts.items())]
    for account in accounts:
        if account.left_out:
            command = f"tarmac repair {account.path}"
            yield Note("warn", account.left_out, first_of(lines, NAME), command)
    for account in accounts:
        if account.why_none:
            yield Note("warn", f"The data of {account.name} cannot be read", (account.why_none,))
    if gallery.is_broken:
        yield Note("warn", "Not all samples can be shown", (gallery.text,))
    if evidence.config is not None and data and version_path(data[0]).is_dir() and not evidence.private:
        for sentence in doubtful_classes(evidence.config, version_path(data[0])):
            yield Note("warn", "The classes are numbers", (sentence,))


def _is_chosen_by(first: Headline | None, evidence: RunContents) -> bool:
    """Whether the headline's own figure chose the best checkpoint, which biases it upwards."""
    if first is None or evidence.best is None:
        return False
    return evidence.best.metric == results.full_name(first.result.task, first.metric)


def _gallery(evidence: RunContents, accounts: Sequence[Account], first: Headline | None) -> Gallery:
    """Read the first held-out samples with the predictions of the headline's evaluation."""
    if evidence.private:
        return Gallery("The dataset is private, or may be: this page has counts only.")
    account = next((account for account in accounts if account.held_out is not None), None)
    if account is None or account.held_out is None:
        return Gallery("There is no version of the data with a held-out split to show.")
    split, predictions = account.held_out, {}
    if first is not None:
        split = first.result.split
        predictions = results.read_predictions(evidence.run, first.result.step, first.result.task)
    try:
        items = read_items(account.path, split, predictions)
    except (TarmacError, OSError, ValueError) as error:
        return Gallery(f"The held-out samples cannot be read: {first_line(error)}", is_broken=True)
    texts = CAPTIONS.get(account.manifest.modality if account.manifest is not None else "", "captions")
    shown = f"The first {counted(len(items), 'sample')} of the split {split} with their {texts}"
    bad = [item.caption for item in items if item.is_bad]
    if bad:
        shown = f"{len(bad)} of these held-out samples cannot be read: {bad[0]}. {shown}"
    judged = Counter(verdict for item in items for verdict in item.verdicts)
    if first is None or not judged:
        return Gallery(f"{shown}. No predictions were kept for them.", items, bool(bad))
    verdict = f"{count(judged[True])} right, {count(judged[False])} wrong"
    judge = f"the predictions of the checkpoint of step {count(first.result.step)}"
    return Gallery(f"{shown}, and {judge}: {verdict}.", items, bool(bad))


def _reasons(config: Config | None, follows: str | None) -> Mapping[str, str]:
    """The sentences that replace empty sections."""
    asked = config is None or config.evaluate is not None
    return {
        "evaluation": "No evaluation has a result yet." if asked else "The config asks for no evaluation.",
        "training": "No training metrics have been recorded."
        if follows is None
        else "Another trainer made these checkpoints, and its metrics are not here.",
        "tuning": "The loader's settings are not known: loader.json is missing or cannot be read.",
        "data": "The run's record names no dataset.",
    }
