"""What is shown of logs that are followed while the agent starts the ranks again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.files import write_json
from tasks.runs.folder import RunFolder
from tasks.supervision import logs
from tasks.supervision.ranks.trainer import set_logs_aside
from tests.supervision.fakes import make_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose rank has printed a line."""
    monkeypatch.setattr(logs, "POLL_S", 0.01)
    monkeypatch.setattr(logs, "LOOK_S", 0.0)
    run = make_run(tmp_path)
    prints(run.rank_log(1), "first")
    return run


def prints(log: Path, line: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"{line}\n")


def followed(run: RunFolder, rank: int | None, *events: Callable[[], None]) -> list[tuple[str, str]]:
    """The logs and what is shown of them where each look of the follower comes after the next event."""
    to_come = list(events)

    def find() -> Path:
        if to_come:
            to_come.pop(0)()
        return logs.log_of(run, rank, None)

    parts = list(logs.follow_log(find, lambda: not to_come, run.rank_log(1)))
    assert all(part.begins for part in parts[1:]), "the reader would not know which log it is"
    return [(part.path.name, part.content.decode()) for part in parts]


@pytest.mark.parametrize("rank", [None, 0])
def test_what_a_rank_printed_just_before_its_restart_is_shown(run: RunFolder, rank: int | None) -> None:
    def crash_and_restart() -> None:
        prints(run.rank_log(1), "Traceback")
        set_logs_aside(run, 1, 1)
        prints(run.rank_log(1), "again")

    shown = followed(run, rank, crash_and_restart)
    assert shown == [("rank_0.log", "Traceback\n"), ("rank_0.log", "again\n")]


def test_the_log_of_a_rank_is_waited_for_until_the_restart(run: RunFolder) -> None:
    shown = followed(
        run,
        0,
        lambda: set_logs_aside(run, 1, 1),
        lambda: None,
        lambda: prints(run.rank_log(1), "again"),
    )
    assert shown == [("rank_0.log", "again\n")]


def test_a_log_that_is_read_again_goes_on_where_it_was_left(run: RunFolder) -> None:
    other = run.rank_log(1, 1)
    prints(other, "one")
    shown = followed(
        run,
        None,
        lambda: write_json(run.exit(1), {"rank": 1}),
        lambda: write_json(run.exit(1), {"rank": 0}),
        lambda: prints(other, "two"),
        lambda: write_json(run.exit(1), {"rank": 1}),
    )
    assert shown == [("rank_1.log", "one\n"), ("rank_1.log", "two\n")]
