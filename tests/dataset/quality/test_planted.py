"""Fourteen kinds of bad data among real photographs: each is found, by code and by sample, and nothing is found
in the photographs alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tasks.core.config import validate
from tasks.core.findings import Finding
from tasks.core.tokens import caption_counter
from tasks.dataset.building.builder import build
from tasks.dataset.quality.assessment import Assessment
from tasks.dataset.quality.examine import examine
from tasks.dataset.quality.verdict import judge
from tasks.dataset.version.manifest import read_manifest
from tests.dataset.quality.planted import FOUND_AS, PLANTS, Sample, all_planted, clean, planted, write


@dataclass(frozen=True)
class Judged:
    found: Assessment
    findings: Sequence[Finding]

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def names(self, kind: str) -> set[str]:
        """Return the samples that were found of a kind, as far as examples name them."""
        field, name = FOUND_AS[kind]
        return {example.key for example in getattr(self.found, field)[name].examples}


def judged(samples: list[Sample], **dataset: object) -> Judged:
    folder = Path(mkdtemp(prefix="tarmac-planted-"))
    source = {
        "kind": "table",
        "path": str(write(samples, folder / "raw")),
        "image": "file",
        "caption": "caption",
    }
    block = {"output": str(folder / "out"), "modality": "image_text", "source": source, **dataset}
    version = build(validate({"name": "photos", "dataset": block}, "a test")).version
    found = examine(version, read_manifest(version), caption_counter())
    return Judged(found, judge(found, leak_budget=0.01))


@cache
def all_at_once() -> tuple[Judged, dict[str, list[str]]]:
    """Plant every kind in samples of its own."""
    samples, names, _ = all_planted(clean(), 8, seed=3)
    return judged(samples), names


def test_nothing_is_found_among_photographs_alone() -> None:
    result = judged(clean())
    assert [finding.line for finding in result.findings] == []
    assert result.found.is_compared and result.found.total == len(clean())


@pytest.mark.parametrize("kind", PLANTS)
def test_each_of_all_planted_kinds_is_found(kind: str) -> None:
    result, names = all_at_once()
    assert PLANTS[kind].code in result.codes
    if kind in FOUND_AS:
        beside = {"blurred": "enlarged", "enlarged": "blurred"}.get(kind)
        expected = set(names[kind]) | set(names[beside] if beside else ())
        wrong = result.names(kind) - expected
        assert not wrong and len(result.names(kind) & expected) >= 8


def test_every_planted_copy_is_found_with_its_original() -> None:
    result, names = all_at_once()
    assert (
        sum(result.found.copies.values())
        + sum(result.found.alike.values())
        + sum(result.found.leaked.values())
        >= 16
    )
    known = {name for kind in ("exact copies", "near copies") for name in names[kind]}
    shown = [
        {one.key for one in cluster.members} for cluster in (*result.found.clusters, *result.found.leaks)
    ]
    constant = set(names["one colour"])
    assert all(members & known for members in shown if not members & constant)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", PLANTS)
def test_each_kind_alone_is_found_and_nothing_else(kind: str, seed: int) -> None:
    samples, names = planted(kind, seed)
    result = judged(samples)
    plant = PLANTS[kind]
    allowed = {plant.code, *plant.also, *(["split.leak"] if plant.adds else [])}
    assert plant.code in result.codes or "split.leak" in result.codes & allowed
    assert result.codes <= allowed
    if kind in FOUND_AS:
        assert result.names(kind) <= set(names)
        assert len(result.names(kind)) >= 0.75 * min(len(names), 12)  # of flat tiles the rounding looks sharp


def test_copies_stay_on_one_side_if_splits_group_by_content() -> None:
    samples, _ = planted("near copies")
    apart = judged(samples, splits={"val": 0.3})
    together = judged(samples, splits={"val": 0.3, "group_by": "content"})
    (leak,) = (finding for finding in apart.findings if finding.code == "split.leak")
    (allowed,) = (one for one in judge(apart.found, leak_budget=0.5) if one.code == "split.leak")
    assert (leak.severity, allowed.severity) == ("error", "warning")
    assert "split.leak" not in together.codes and not together.found.leaked
    assert sum(together.found.alike.values()) == 8


def test_samples_that_were_not_compared_are_not_said_to_have_no_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, _ = planted("near copies")
    monkeypatch.setattr("tasks.dataset.quality.columns.MOST_COMPARED", len(samples) - 1)
    monkeypatch.setattr("tasks.dataset.duplicates.MOST_COMPARED", len(samples) - 1)
    result = judged(samples, splits={"val": 0.3})
    assert [finding.line.replace("\u202f", " ") for finding in result.findings] == [
        "! quality.not_compared: samples were not compared, so copies and leaks between splits are unknown: "
        f"{len(samples)} are too many to be held in memory"
    ]
    (earlier,) = judge(replace(result.found, too_many=False), leak_budget=0.01)
    assert earlier.line.endswith("are unknown: the version does not record what they look like")
    assert earlier.remedy == "build it again, which measures that"
