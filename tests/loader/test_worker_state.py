"""What loader workers say of themselves in files, while they live and after they were killed."""

import ctypes
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import TarmacError
from tasks.core.process import Identity
from tasks.dataset.version.index import read_index
from tasks.loader import worker_state
from tasks.loader.decoders import image_of
from tasks.loader.worker_state import Record, WorkerStage, WorkerState, WorkerStates
from tests.loader.conftest import MakeVersion, flip, members_of
from tests.loader.feeds import feed_of, train_batches
from tests.loader.transforms import plain, suicidal

INDEXED: dict[str, Any] = {"batch_size": 4, "shuffle": "none", "prefetch": 2}


def of_train(folder: Path, worker: int = 0) -> WorkerState:
    state = worker_state.read_state(WorkerStates(folder, 0, "train").path(worker))
    assert state is not None
    return state


def test_every_worker_tells_what_it_read_and_delivered(make_version: MakeVersion, tmp_path: Path) -> None:
    version, folder = make_version(train=[8, 8]), tmp_path / "workers"
    with train_batches(version, plain, workers=2, states=folder, **INDEXED) as batches:
        for _ in range(4):
            next(batches)
        states = worker_state.read_all(folder)
        pids = batches.worker_pids
    assert [(state.rank, state.worker, state.split) for state in states] == [(0, 0, "train"), (0, 1, "train")]
    assert tuple(state.identity.pid for state in states) == pids
    for state in states:
        # Two batches of each have come, and it is ahead by as many at most as it may have ready.
        assert 8 <= state.delivered <= 16 and state.batches * 4 == state.delivered
        assert state.delivered <= state.read <= state.delivered + 4
        assert state.shard in ("train/000000.tar", "train/000001.tar")
        assert state.dropped == 0
        assert state.seconds[WorkerStage.READ] > 0 and state.seconds[WorkerStage.DECODE] > 0


def test_a_killed_worker_has_said_at_what_it_was(make_version: MakeVersion, tmp_path: Path) -> None:
    version, folder = make_version(train=[8, 8]), tmp_path / "workers"
    with (
        train_batches(version, suicidal, workers=1, states=folder, **INDEXED) as batches,
        pytest.raises(TarmacError, match="killed by SIGKILL"),
    ):
        while True:
            next(batches)
    state = of_train(folder)
    assert not state.identity.is_alive()
    assert (state.stage, state.shard, state.row) == (WorkerStage.TRANSFORM, "train/000001.tar", 13)
    assert (state.read, state.delivered) == (14, 12)
    assert state.offset == read_index(version, "train")[13]["offset"]


def test_without_workers_the_training_process_tells(make_version: MakeVersion, tmp_path: Path) -> None:
    version, folder = make_version(train=[8], val=[4]), tmp_path / "workers"
    feed = feed_of(version, plain, workers=0, states=folder, **INDEXED)
    with feed.train() as batches:
        next(batches)
        with feed.split("val") as held_out:
            assert len(list(held_out)) == 1
        next(batches)
        train, val = worker_state.read_all(folder)
    assert (train.split, train.delivered, train.stage) == ("train", 8, WorkerStage.HAND_OVER)
    assert (val.split, val.delivered) == ("val", 4)
    assert train.identity == Identity.mine()


def test_samples_that_are_replaced_count_as_dropped(make_version: MakeVersion, tmp_path: Path) -> None:
    version, folder = make_version(train=[8]), tmp_path / "workers"
    flip(version / "train" / "000000.tar", b"caption 2")
    with train_batches(version, plain, workers=0, states=folder, on_bad="replace", **INDEXED) as batches:
        next(batches)
    state = of_train(folder)
    assert (state.dropped, state.delivered) == (1, 4)


def test_a_stream_tells_how_far_its_file_is_read(make_version: MakeVersion, tmp_path: Path) -> None:
    version, folder = make_version(train=[8]), tmp_path / "workers"
    with train_batches(version, plain, workers=0, states=folder, reader="streaming", **INDEXED) as batches:
        next(batches)
        first = of_train(folder)
        next(batches)
    state = of_train(folder)
    assert (first.shard, first.row) == ("train/000000.tar", None)
    assert first.offset is not None and state.offset is not None
    assert 0 < first.offset < state.offset <= (version / "train" / "000000.tar").stat().st_size
    assert (first.delivered, state.delivered) == (4, 8)


def test_decoding_is_told_from_transforming(tmp_path: Path) -> None:
    writer = WorkerStates(tmp_path, 0, "train").keep(0)
    writer.transforming()
    image_of(members_of(1))
    state = of_train(tmp_path)
    assert state.stage is WorkerStage.TRANSFORM
    assert state.seconds[WorkerStage.DECODE] > 0
    worker_state.take_up(worker_state.NOBODY)


def torn(data: bytearray) -> None:
    """As a writer leaves it that was killed within a change."""
    data[Record.changes.offset] |= 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("damage", "is_read"),
    [
        (torn, True),
        (lambda data: data.pop(), False),
        (lambda data: data.__setitem__(0, 0), False),
        (lambda data: data.clear(), False),
        (lambda data: data.__setitem__(Record.stage.offset, 99), False),  # type: ignore[attr-defined]
    ],
)
def test_a_file_is_read_whole_or_not_at_all(
    tmp_path: Path, damage: Callable[[bytearray], None], is_read: bool
) -> None:
    keeper = WorkerStates(tmp_path, 3, "train")
    keeper.keep(5).reading(worker_state.shard_field("train/000002.tar"), 7, 512)
    worker_state.take_up(worker_state.NOBODY)
    data = bytearray(keeper.path(5).read_bytes())
    damage(data)
    keeper.path(5).write_bytes(data)
    state = worker_state.read_state(keeper.path(5))
    assert (state is not None) == is_read
    if state is not None:
        assert (state.rank, state.worker, state.row, state.offset) == (3, 5, 7, 512)


def test_a_reader_never_sees_half_a_change(tmp_path: Path) -> None:
    """A process changes its record as fast as it can, and every look finds shard, row and offset together."""
    keeper = WorkerStates(tmp_path, 0, "train")
    child = os.fork()
    if not child:
        writer = keeper.keep(0)
        for number in itertools.cycle(range(1_000_000)):
            writer.reading(worker_state.shard_field(f"train/{number:06d}.tar"), number, number)
    try:
        seen = set()
        while len(seen) < 100:
            state = worker_state.read_state(keeper.path(0))
            if state is not None and state.row is not None:
                seen.add(state.row)
                assert (state.shard, state.offset) == (f"train/{state.row:06d}.tar", state.row)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_full_disk_costs_the_state_and_not_the_training(make_version: MakeVersion, tmp_path: Path) -> None:
    version, folder = make_version(train=[8]), tmp_path / "workers"
    folder.write_text("in the way")
    with train_batches(version, plain, workers=0, states=folder, **INDEXED) as batches:
        assert len(next(batches)["key"]) == 4


def test_the_layout_is_fixed() -> None:
    """Other programs read these files; a change of the layout is a new magic."""
    assert worker_state.MAGIC == b"TARMACW2"
    assert ctypes.sizeof(Record) == 472
    offsets = {name: getattr(Record, name).offset for name in ("pid", "stage", "since", "read", "shard")}
    assert offsets == {"pid": 16, "stage": 216, "since": 224, "read": 248, "shard": 344}
