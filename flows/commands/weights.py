"""The command that downloads ahead what a training needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import AsJson, Changes, ConfigFile
from flows.commands.output import print_json, say
from tasks.core import screen
from tasks.core.units import counted, format_duration, near, size

if TYPE_CHECKING:
    from pathlib import Path

    from tasks.models.fetch import Fetched
    from tasks.models.hub import Lack
    from tasks.models.needs import UnknownNeed

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
    unknown = [need for need in needs if isinstance(need, UnknownNeed)]
    if as_json:
        print_json(
            {
                "ok": not lacking,
                "findings": [asdict(lack.finding()) for lack in lacking],
                "repositories": [asdict(one) for one in found],
                "not_seen": [f"{need.key}: {need.why}" for need in unknown],
            }
        )
    else:
        took = format_duration(time.monotonic() - began)
        say("\n".join(_lines(found, lacking, unknown, settings.runs / hub.LOCK, took)))
    return 1 if lacking else 0


def _lines(
    found: list[Fetched], lacking: list[Lack], unknown: list[UnknownNeed], lock: Path, took: str
) -> Iterator[str]:
    for one in found:
        came = f"{size(one.downloaded)} downloaded" if one.downloaded else "as it was fetched"
        mended = f"; was damaged: {', '.join(one.mended)}" if one.mended else ""
        yield (
            f"✓ {one.repository}  {one.commit[:12]}  {counted(one.files, 'file')}, "
            f"{size(one.size_bytes)}: {came}{mended}"
        )
    yield from (f"✗ weights.missing   {lack.problem}" for lack in lacking)
    yield from (f"  not fetched: {need.key}: {need.why}" for need in unknown)
    if found:
        yield f"✓ {took}; digests in {near(lock)}; runs of this config do not ask the hub"
    elif not lacking and not unknown:
        yield "✓ nothing to fetch: this config needs nothing from the hub"
