"""A sample of what `python -m tests.soak.fuzz_shards` does."""

from pathlib import Path

import pytest

from tests.soak import fuzz_shards

FLIPS, CUTS, FILES, SEED = 80, 30, 30, 7


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return fuzz_shards.make(tmp_path_factory.mktemp("fuzz"))


def test_damage_at_random_places_is_found_and_named(versions: list[Path]) -> None:
    score = fuzz_shards.fuzz(versions, FLIPS, CUTS, FILES, SEED)
    assert not score.failures, "\n".join(score.lines())
    assert score.done["flipped bits"] == FLIPS and score.done["cuts"] == CUTS
