"""The commands on weights: `fetch` downloads what a training needs, `export` writes what it has made."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from cyclopts import Parameter

from flows.commands.arguments import AsJson, Changes, ConfigFile, RunsFolder
from flows.commands.output import answer, print_result, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.units import counted, format_duration, near, size
from tasks.export import Target

if TYPE_CHECKING:
    from tasks.export.hub_push import Pushed
    from tasks.export.run import Export
    from tasks.models.fetch import Fetched

Update = Annotated[bool, Parameter(help="Take the newest revisions instead of those that are pinned.")]


def fetch(
    config: ConfigFile, *, update: Update = False, changes: Changes = None, as_json: AsJson = False
) -> int:
    """Download weights and tokenizers ahead, so that trainings run without a network.

    They come from Hugging Face's hub into its own cache. `fetched.json` in the
    folder of runs pins each repository to a revision and keeps the digest of
    each file; all that was fetched before is read and compared with it. The
    exit code is 1 when a file that the config names by its path is missing.

    For example:
      tarmac fetch configs/vlm.yaml
      tarmac fetch configs/vlm.yaml --update
    """
    from tasks.core.config import load_config
    from tasks.evaluation import evaluators
    from tasks.models import hub
    from tasks.models.fetch import fetch as download
    from tasks.models.needs import PathNeed, UnknownNeed

    began = time.monotonic()
    settings = load_config(config, changes or [])
    needs = [*hub.needs(settings), *evaluators.needs(settings)]
    with screen.running("fetch") as progress:
        found = download(needs, settings.runs, progress, update=update)
    lacking = list(hub.lacks([need for need in needs if isinstance(need, PathNeed)], hub.Lock()))
    unknown = [f"{need.key}: {need.why}" for need in needs if isinstance(need, UnknownNeed)]
    facts = {
        "ok": not lacking,
        "findings": [asdict(lack.finding()) for lack in lacking],
        "repositories": [asdict(one) for one in found],
        "not_seen": unknown,
    }
    lines = [*map(_fetched_line, found)]
    for lack in lacking:
        lines += [f"✗ weights.missing   {lack.problem}", f"    fix    {lack.finding().remedy}"]
    lines += [f"  not fetched: {need}" for need in unknown]
    if found:
        took, lock = format_duration(time.monotonic() - began), near(settings.runs / hub.LOCK)
        lines.append(f"✓ {took}; digests in {lock}; runs of this config do not ask the hub")
    elif not lines:
        lines.append("✓ nothing to fetch: this config needs nothing from the hub")
    return answer(as_json, lambda: facts, lines, not lacking)


def _fetched_line(one: Fetched) -> str:
    how = f"{size(one.downloaded)} downloaded" if one.downloaded else "unchanged since it was fetched"
    mended = f"; was damaged: {', '.join(one.mended)}" if one.mended else ""
    files = f"{counted(one.files, 'file')}, {size(one.size_bytes)}"
    return f"✓ {one.repository}  {one.commit[:12]}  {files}: {how}{mended}"


def export(
    checkpoint: Annotated[str, Parameter(help="A checkpoint's folder, or a run, for its best one.")],
    /,
    *,
    to: Annotated[Target | None, Parameter(help="The library that is to load it.")] = None,
    out: Annotated[Path | None, Parameter(help="The folder (default: exports/RUN-step_N-LIBRARY).")] = None,
    python: Annotated[
        str, Parameter(help="The interpreter of an environment with the library, if not Tarmac's own.")
    ] = sys.executable,
    source: Annotated[Path | None, Parameter(help="For nanovlm: the folder of nanoVLM's sources.")] = None,
    push: Annotated[
        str | None, Parameter(help="OWNER/NAME of a repository on the hub to bring it to.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> int:
    """Write a checkpoint as a folder that another library loads, and prove it equal.

    The other library loads the folder in a process of its own and computes the
    same as Tarmac's model; the largest difference is printed, and kept in
    the folder's export.json. A checkpoint that differs is not exported.

    With --push the folder and a model card made from the run are committed to a
    repository on Hugging Face's hub, with the token in HF_TOKEN or of `hf auth
    login`. A repository that is not there yet is made as a private one.

    For example:
      tarmac export 2e94 --to open_clip --push me/digits
      tarmac export 1f3b --to nanovlm --source ../nanoVLM
    """
    if to is None:
        raise UsageError(f"tarmac export: name the library to export for: --to {', '.join(get_args(Target))}")
    from tasks.export import hub_push, run

    if push is not None:
        hub_push.require_pushable(push)
    began = time.monotonic()
    with screen.running("export"):
        made = run.export(checkpoint, runs, to, out, python, source)
    seconds = time.monotonic() - began
    if not as_json:
        summary = f"{made.record['run']}, step {made.record['step']:,}: {made.record['covers']}"
        screen.finished("export", summary if made.is_new else f"up to date: {summary}", seconds)
    pushed = None
    if push is not None:
        with screen.running("push") as progress:
            pushed = hub_push.push(made.path, run.locate(checkpoint, runs)[0], push, progress)
    if as_json:
        there = {} if pushed is None else {"pushed": {**asdict(pushed), "up_to_date": not pushed.files}}
        return print_result(path=str(made.path), up_to_date=not made.is_new, **made.record, **there)
    return say("\n".join([*_export_lines(made), *_pushed_lines(pushed)]))


def _export_lines(made: Export) -> Iterator[str]:
    proof = made.record["proof"]
    yield f"Equal in {proof['library']}, {proof['arithmetic']}; the largest differences:"
    for name, value in proof["largest_difference"].items():
        yield f"  {name:<16} {value:.1e}" if value else f"  {name:<16} none"
    yield f"  folder  {near(made.path)}"
    yield f"  load    {made.record['usage']}"


def _pushed_lines(pushed: Pushed | None) -> Iterator[str]:
    if pushed is None:
        return
    changed = f"{counted(pushed.files, 'file')} changed, {size(pushed.size_bytes)}"
    seen_by = "private" if pushed.is_private else "public"
    yield f"  pushed  {pushed.url} ({seen_by}): {changed if pushed.files else 'unchanged'}"
    if pushed.keeps_card:
        yield "          its README.md is not one of Tarmac's and was left as it is"
