"""A short form of `report.html` in Markdown, for the page of a flow run in Prefect.

It is made from the run's folder, also after a failure, and from the changes of this flow run's build, which
no file records. For a private dataset it has counts only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from tasks.core.pages import image_uri, render
from tasks.core.schema import Config
from tasks.core.units import count, counted, near, number
from tasks.dataset.building.conversion.result import BuildResult
from tasks.dataset.preview import page_path
from tasks.dataset.version.rejects import reject_lines
from tasks.loader.settings import LoaderSettings
from tasks.reporting.accounts import Account, read_account
from tasks.reporting.evidence import RunContents, collect
from tasks.reporting.links import link
from tasks.reporting.notes import notes
from tasks.reporting.plots import loss_chart
from tasks.reporting.portrait import portrait
from tasks.reporting.scores import TaskView, headline_of, task_views
from tasks.runs.folder import RunFolder

MOST_REASONS = 8
WIDTH = 100
"""The most characters in a line of a quotation on Prefect's page."""


def of_run(run: RunFolder, built: BuildResult | None, failure: str | None, wandb: str | None) -> str:
    """Write the page of a run; `built` is the result of this flow run's build, `failure` the reason why the
    flow run failed, `wandb` the URL of the wandb run."""
    evidence = collect(run)
    data = evidence.record.data if evidence.record is not None else []
    accounts = [read_account(ref, evidence.private, evidence.quarantined) for ref in data]
    return "\n".join(
        [
            *_head(evidence, failure),
            *_picture(evidence),
            *(["## Data", "", *_change(built)] if accounts else []),
            *(line for account in accounts for line in _account(account)),
            *_loader(evidence.loader),
            *(line for view in task_views(evidence.results) for line in _evaluation(view)),
            "## Links",
            "",
            *_links(evidence, accounts, wandb),
        ]
    )


def of_dataset(config: Config, built: BuildResult | None, failure: str | None) -> str:
    """Write the page of a flow run that only builds."""
    lines = [f"# {config.name}", "", *_failure(failure)]
    if built is not None:
        lines += [*_change(built), *_counts(built.read, built.accepted, built.filtered, built.rejected)]
        lines += quoted(reject_lines(built.version, built.rejects, config.dataset.private)[:MOST_REASONS])
        if page_path(built.version).exists():
            lines += [f"- dataset: {link(page_path(built.version))}"]
    return "\n".join(lines)


def _head(evidence: RunContents, failure: str | None) -> Iterator[str]:
    condition = evidence.condition
    who = portrait(evidence.run, evidence.record, state=evidence.word)
    first = headline_of(evidence.results, evidence.config, evidence.best_step)
    yield from (f"# {who.sign} {evidence.run.name}", "")
    if first is not None:
        yield from (f"**{first}**", "")
    at = "" if condition is None else f" at step {condition.where(' of ')}"
    yield from (f"{who.state}{at}; {who.summary}", "")
    if evidence.goodput is not None:
        yield from (str(evidence.goodput).capitalize(), "")
    yield from _failure(failure)
    grave = [note for note in notes(evidence) if note.tone]
    for note in grave[:MOST_REASONS]:
        command = f" (`{note.command}`)" if note.command else ""
        yield f"- {note.sign} {note.kind}: {'; '.join(note.lines)}{command}".replace(": (", " (")
    yield ""


def _failure(failure: str | None) -> list[str]:
    return [] if failure is None else ["## What went wrong", "", *quoted(failure.splitlines())]


def _picture(evidence: RunContents) -> list[str]:
    chart = loss_chart(evidence.rows)
    if chart is None:
        return []
    drawing = render("core/chart.svg", chart=chart).encode()
    words = chart.description.replace("[", "(").replace("]", ")")
    return [f"![{words}]({image_uri(drawing, 'image/svg+xml')})", ""]


def _change(built: BuildResult | None) -> list[str]:
    if built is None:
        return []
    if built.up_to_date:
        return ["Nothing has changed since the last build.", ""]
    was = "" if built.previous is None else f", was `{built.previous}`"
    shards = f"{count(built.shards_rewritten)} of {counted(built.shards, 'shard')} written"
    return [f"**{built.changed}**; version `{built.version.name}`{was}; {shards}.", ""]


def _account(account: Account) -> Iterator[str]:
    manifest = account.manifest
    if manifest is None:
        yield from (account.why_none, "")
        return
    yield from (f"{account.name}, version `{account.version}`", "")
    yield from _counts(manifest.read, manifest.accepted, manifest.filtered, manifest.rejected)
    yield from quoted([group.line() for group in account.rejects[:MOST_REASONS]])
    if account.left_out:
        yield from (f"! {account.left_out}", "")


def _counts(read: int, accepted: int, filtered: int, rejected: int) -> list[str]:
    numbers = [count(samples) for samples in (read, accepted, filtered, rejected)]
    return _table(("read", "accepted", "filtered", "rejected"), [numbers])


def quoted(lines: Sequence[str]) -> list[str]:
    """Quote the lines so that none is read as Markdown, and wrap them, which the page does not do."""
    plain = [line.replace("```", "'''") for line in lines]
    parts = [part for line in plain for part in wrap(line, WIDTH, subsequent_indent="    ") or [""]]
    return ["```", *parts, "```", ""] if lines else []


def _loader(settings: LoaderSettings | None) -> list[str]:
    if settings is None:
        return []
    chosen = f"`{{workers: {settings.workers}, prefetch: {settings.prefetch}}}` {settings.reason}"
    if settings.headspace is not None:
        chosen += f"; {settings.headspace}"
    rows = [
        (str(one.workers), number(one.samples_per_s, 4), f"{number(one.first_batch_s, 2)} s")
        for one in settings.measurements
    ]
    return ["## Loader", "", chosen, "", *_table(("workers", f"{settings.unit}/s", "first batch"), rows)]


def _evaluation(view: TaskView) -> list[str]:
    rows = [
        (count(result.step), *(number(result.metrics.get(name)) for name, _ in view.metrics))
        for result in view.results
    ]
    return [f"## {view.title}", "", *_table(("step", *(title for _, title in view.metrics)), rows)]


def _links(evidence: RunContents, accounts: Sequence[Account], wandb: str | None) -> Iterator[str]:
    run = evidence.run
    if run.report.exists():
        yield f"- report: {link(run.report)}"
    for account in accounts:
        page = page_path(account.path)
        if account.manifest is not None and page.exists():
            yield f"- dataset {account.name}: {link(page)}"
    if run.best.exists():
        yield f"- model: `{near(run.best)}`"
    if evidence.config is not None and evidence.config.track.has_wandb:
        command = f"tarmac gather {run.handle} --sync"
        yield f"- wandb: [{wandb}]({wandb})" if wandb else f"- wandb: offline; `{command}` uploads it"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a Markdown table; without rows there is none."""
    if not rows:
        return []
    return [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows), ""]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
