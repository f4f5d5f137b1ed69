"""The memory in which batches travel: each arrives as it was made, and its buffer is used again, never too
early."""

import io
import mmap
import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import torch

from tasks.loader import batch_memory
from tasks.loader.batch_memory import BatchMemory, SharedFile, WorkerMemory
from tests.loader import transforms
from tests.loader.conftest import MakeVersion
from tests.loader.feeds import train_batches


def pair(worker: int = 0) -> tuple[BatchMemory, WorkerMemory]:
    """Both sides in one process: the file is mapped twice all the same."""
    main = BatchMemory(worker + 1)
    return main, WorkerMemory(SharedFile(os.dup(main.file.descriptor)), main.number, worker)


def test_tensors_arrive_as_they_were_whatever_their_type_and_shape() -> None:
    main, worker = pair(2)
    values = {
        "image": [torch.full((3, 5, 3), n, dtype=torch.uint8) for n in range(4)],
        "tokens": torch.arange(7),
        "half": torch.rand(2, 3).bfloat16(),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    sent = pickle.loads(pickle.dumps(worker.place(values)))
    found = main.open(sent)
    assert torch.equal(found.pop("image"), torch.stack(values["image"]))
    for name, tensor in found.items():
        assert torch.equal(tensor, values[name]) and tensor.dtype == values[name].dtype


def test_a_message_is_short_whatever_the_batch_holds() -> None:
    """What fits into a pipe in one piece is never torn."""
    _, worker = pair()
    values = {f"tensor {n}": torch.ones(1000, 1000) for n in range(8)}
    assert len(pickle.dumps(worker.place(values))) < 4096


def test_a_buffer_is_used_again_when_the_last_tensor_of_its_batch_is_gone() -> None:
    main, worker = pair()
    first = main.open(worker.place({"a": torch.ones(1000), "b": torch.ones(10)}))
    kept = first["b"][2:4]
    del first
    second = worker.place({"a": torch.zeros(1000), "b": torch.zeros(10)})
    assert kept.tolist() == [1, 1], "a part of a tensor keeps the whole batch"
    del kept
    third = worker.place({"a": torch.zeros(1000), "b": torch.zeros(10)})
    assert second.number != third.number == 0


def test_a_message_that_was_not_opened_keeps_its_buffer() -> None:
    main, worker = pair()
    waiting = [worker.place({"a": torch.full((9,), n)}) for n in range(5)]
    assert [main.open(sent)["a"][0].item() for sent in waiting] == [0, 1, 2, 3, 4]


def test_memory_follows_the_largest_batches_and_not_all_that_there_were() -> None:
    main, worker = pair()
    for size in [*range(1, 40), *range(40, 1, -1)] * 2:  # up to 40 MB
        batch = main.open(worker.place({"a": torch.zeros(size << 18)}))
        batch["a"][-1] = 1
        del batch
    assert os.fstat(main.file.descriptor).st_blocks * 512 <= 1.2 * (40 << 20)


def test_a_batch_larger_than_an_extent_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "EXTENT", 1 << 20)
    main, worker = pair()
    kept = [main.open(worker.place({"a": torch.full((n << 16,), n)})) for n in (1, 1, 9, 2)]
    assert [batch["a"].unique().tolist() for batch in kept] == [[1], [1], [9], [2]]
    monkeypatch.setattr(batch_memory, "REGION", 1 << 22)
    with pytest.raises(MemoryError, match="the batches of a loader worker take"):
        worker.place({"a": torch.zeros(1 << 21)})


def rows_of(
    worker: WorkerMemory, values: Sequence[int], shape: tuple[int, ...] = (2, 3)
) -> list[torch.Tensor]:
    found = [worker.row("volume", shape, torch.int16) for _ in values]
    assert all(row is not None for row in found)
    return [row.fill_(value) for row, value in zip(found, values, strict=True) if row is not None]


def test_rows_that_are_written_at_their_place_are_not_copied() -> None:
    main, worker = pair()
    worker.begin(3)
    rows = rows_of(worker, [1, 2, 3])
    sent = worker.place({"text": torch.arange(4), "volume": rows})
    rows[1].fill_(7)
    batch = main.open(sent)
    assert batch["volume"].tolist() == [[[n] * 3] * 2 for n in (1, 7, 3)], "it is the same memory"
    assert batch["text"].tolist() == [0, 1, 2, 3]


def test_rows_that_were_turned_are_copied() -> None:
    main, worker = pair()
    worker.begin(2)
    rows = [row.copy_(torch.arange(9).reshape(3, 3)) for row in rows_of(worker, [0, 0], (3, 3))]
    batch = main.open(worker.place({"volume": [row.T for row in rows]}))
    assert batch["volume"].tolist() == [[[0, 3, 6], [1, 4, 7], [2, 5, 8]]] * 2


def test_a_tensor_of_a_batch_is_pickled_alone() -> None:
    main, worker = pair()
    batch = main.open(worker.place({"image": torch.ones(1 << 20), "tokens": torch.arange(5)}))
    assert len(pickle.dumps(batch["tokens"])) < 4096
    torch.save(batch, io.BytesIO())  # which refuses several types in one storage


def test_a_dropped_sample_leaves_its_row_out() -> None:
    main, worker = pair()
    worker.begin(3)
    first, _, last = rows_of(worker, [1, 9, 2])
    assert worker.row("volume", (2, 3), torch.int16) is None, "a stand-in has none"
    stand_in = torch.full((2, 3), 3, dtype=torch.int16)
    batch = main.open(worker.place({"volume": [first, last, stand_in]}))
    assert batch["volume"][:, 0, 0].tolist() == [1, 2, 3]
    worker.begin(2)
    fewer = main.open(worker.place({"volume": rows_of(worker, [5, 6])[:1]}))
    assert fewer["volume"].tolist() == [[[5] * 3] * 2]
    assert batch["volume"][:, 0, 0].tolist() == [1, 2, 3]


def test_no_batch_writes_into_another() -> None:
    main, worker = pair()
    assert worker.row("volume", (2, 3), torch.int16) is None, "before a batch has begun"
    worker.begin(2)
    rows_of(worker, [1, 2])  # of a batch that failed
    worker.begin(2)
    kept = main.open(worker.place({"volume": rows_of(worker, [3, 4])}))
    worker.begin(1)
    other = rows_of(worker, [5], (4, 4))
    assert worker.row("mask", (4, 4), torch.int16) is None, "one tensor of a batch is written so"
    large = main.open(worker.place({"volume": other, "rest": torch.ones(1 << 20)}))
    assert kept["volume"][:, 0, 0].tolist() == [3, 4]
    assert large["volume"].unique().tolist() == [5] and large["rest"].sum() == 1 << 20


def test_where_there_is_no_memory_file_a_temporary_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(mmap, "MADV_REMOVE")
    main, worker = pair()
    for n in range(1, 5):
        assert main.open(worker.place({"a": torch.full((n * 5000,), n)}))["a"].sum() == n * n * 5000


def test_a_training_that_keeps_its_batches_keeps_what_they_held(make_version: MakeVersion) -> None:
    options = {"batch_size": 4, "seed": 0, "shuffle": "none", "workers": 2, "prefetch": 2}
    with train_batches(make_version(train=[40]), transforms.plain, **options) as batches:
        kept = [next(batches) for _ in range(30)]
    with train_batches(make_version(train=[40]), transforms.plain, **{**options, "workers": 0}) as batches:
        for mine, other in zip(kept, batches, strict=False):
            assert mine["key"] == other["key"]
            assert all(torch.equal(mine[n], other[n]) for n in mine if isinstance(mine[n], torch.Tensor))


def test_a_training_takes_two_descriptors_for_each_worker_and_leaves_none(make_version: MakeVersion) -> None:
    me, version = psutil.Process(), make_version(train=[40])
    options = {"batch_size": 4, "seed": 0, "shuffle": "none", "prefetch": 4}

    def files() -> int:
        return sum(
            "tarmac-batches" in os.readlink(one.path)
            for one in os.scandir(f"/proc/{me.pid}/fd")
            if Path(one.path).is_symlink()
        )

    before = files()
    with train_batches(version, transforms.plain, workers=3, **options) as batches:
        kept = [next(batches) for _ in range(40)]
        assert files() - before <= 1 + 2 * 3
    del kept, batches
    deadline = time.monotonic() + 10
    while files() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert files() == before
