"""The stage verify of a flow reads what nobody has verified yet, and a second flow nothing."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

import pytest

from tasks import stage
from tasks.core import child
from tasks.core.errors import DataError
from tasks.dataset.verify import remembered
from tasks.dataset.version import versions
from tasks.verify import examine, verify
from tests.conftest import digits_config
from tests.test_stage import taken


@pytest.fixture
def dataset(digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the digits that nobody has verified."""
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(stage, "_in_background", taken)
    copy = Path(shutil.copytree(digits_dataset, tmp_path / "digits", symlinks=True))
    (copy / "verified.jsonl").unlink(missing_ok=True)
    time.sleep(2 * remembered.TICK_S)
    return copy


def bytes_read() -> int:
    """What this process and its children that have ended have read, from disk or the page cache."""
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if "rchar" in line)[7:])


def test_a_second_flow_reads_almost_nothing(dataset: Path, raw_digits: Path, tmp_path: Path) -> None:
    version = versions.resolve(dataset)
    config = digits_config(raw_digits, tmp_path, f"dataset.output={dataset}")
    size = sum(path.stat().st_size for path in version.rglob("*.tar"))

    def reads() -> tuple[int, str]:
        before = bytes_read()
        summary = verify.fn(config, version).summary
        return bytes_read() - before, summary

    first, says = reads()
    assert first > size and says == f"{version.name}: sound"
    second, says = reads()
    print(f"{first:,} bytes read of {size:,}, then {second:,}")
    assert second < 0.01 * size, "it has read the data again"
    assert says.startswith(f"{version.name}: sound, as verified 20") and says.endswith("UTC at level default")
    shard = version / "train/000000.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    with pytest.raises(DataError, match="is not sound"):
        verify.fn(config, version)


def test_a_person_has_everything_read_and_the_automation_only_what_is_new(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    really = child.call

    def call(target: str, *arguments: object, **named: object) -> object:
        called.append(target.rpartition(":")[2])
        return really(target, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(child, "call", call)
    assert "found sound before" not in examine.fn(str(dataset), "full").summary
    assert "found sound before" not in examine.fn(str(dataset), "full").summary
    assert "found sound before" in examine.fn(str(dataset), "full", again=False).summary
    assert called == ["verify", "verify", "verify_anew"]
