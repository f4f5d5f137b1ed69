"""The command that has a model judge pictures and captions: `score`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from flows.commands.arguments import AsJson, Changes, ConfigFile
from flows.commands.output import answer
from tasks.core import screen
from tasks.core.units import count, counted, near, percent, shorten

if TYPE_CHECKING:
    from tasks.core.findings import Finding
    from tasks.core.schema import Config
    from tasks.models.scoring.scorer import Scored

NAMED = 3
"""Samples named at either end of the scores."""
LINE = 120


def score(config: ConfigFile, /, *, changes: Changes = None, as_json: AsJson = False) -> int:
    """Have a CLIP model judge how well each caption fits its picture.

    The config's block score names the model. The scores of the current version
    are kept beside it, a file per shard, so the same command goes on after an
    interruption and scores only what is new. A rule such as
    dataset.filter: {clip_score: 0.28} leaves samples out of the next build.

    For example:
      tarmac score configs/photos.yaml
      tarmac build configs/photos.yaml --set dataset.filter.clip_score=0.28
    """
    from tasks.core import config as configs
    from tasks.dataset.building.score_rules import score_settings

    began = time.monotonic()
    settings = configs.load_config(config, changes or [])
    score_settings(settings)  # before the models are imported, which takes seconds
    from tasks.dataset.quality.scored import judge_scores
    from tasks.dataset.quality.verdict import lines_of
    from tasks.models.scoring import scorer

    with screen.running("score") as progress:
        done = scorer.score(settings, progress)
    findings = judge_scores(done.summary, is_private=settings.dataset.private)
    if not as_json:
        screen.finished("score", _summary(done), time.monotonic() - began)
    lines = [*_lines(settings, done), *lines_of(findings), *_next(settings, done)]
    return answer(as_json, lambda: _facts(settings, done, findings), lines)


def _summary(done: Scored) -> str:
    parts = [f"{counted(done.computed, 'sample')} scored"]
    if done.seconds and done.computed:
        parts[0] += f" ({done.computed / done.seconds:,.0f}/s)"
    known = done.samples - done.computed - done.copied - done.left_out
    parts += [f"{count(done.copied)} as before"] if done.copied else []
    parts += [f"{count(known)} had scores"] if known > 0 else []
    parts += [f"{count(done.left_out)} left out"] if done.left_out else []
    return ", ".join(parts)


def _lines(settings: Config, done: Scored) -> Iterator[str]:
    found = done.summary
    if found.figures:
        yield f"  clip_score  {', '.join(f'{name} {value:.3f}' for name, value in found.figures.items())}"
    if found.others:
        yield f"    other captions of the same shard  median {found.others['median']:.3f}"
    if not settings.dataset.private:
        for name, examples in (("lowest", found.lowest), ("highest", found.highest)):
            shown = ", ".join(f"{one.key} ({one.note})" for one in examples[:NAMED])
            if shown:
                yield f"    {name:<7} {shorten(shown, LINE)}"
    if found.duplicates:
        shares = ", ".join(f"{percent(share)} above {limit}" for limit, share in found.duplicates.items())
        yield f"  duplicate_similarity  {shares}"
        if not settings.dataset.private and found.repeated:
            shown = ", ".join(f"{one.key} ({one.note})" for one in found.repeated[:NAMED])
            yield f"    such as {shorten(shown, LINE)}"


def _next(settings: Config, done: Scored) -> Iterator[str]:
    yield f"  scores  {near(done.folder)}"
    limit = done.summary.limit
    if "clip_score" not in settings.dataset.filter and limit is not None:
        yield f"  next    dataset.filter: {{clip_score: {limit}}} leaves out what scores less, by a build"


def _facts(settings: Config, done: Scored, findings: list[Finding]) -> dict[str, object]:
    found = asdict(done.summary)
    del found["format"]
    if settings.dataset.private:
        for name in ("lowest", "highest", "repeated"):
            del found[name]
        del found["misaligned"]["examples"]
    return {
        "ok": True,
        "findings": [asdict(finding) for finding in findings],
        **found,
        "folder": str(done.folder),
        "computed": done.computed,
        "copied": done.copied,
        "left_out": done.left_out,
        "seconds": round(done.seconds, 2),
    }
