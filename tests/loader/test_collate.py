import pickle

import pytest
import torch

from tasks.core.errors import UsageError
from tasks.loader.bad import BadSampleError, Defect, PassedOver
from tasks.loader.collate import WorkerFailure, pack, unpack


def test_a_batch_survives_the_journey() -> None:
    samples = [
        {"image": torch.full((2, 2), float(n)), "label": n, "caption": f"Käfer {n}\n"} for n in range(3)
    ]
    batch, passed_over = unpack(pack(samples))
    assert passed_over == ()
    assert batch["image"].shape == (3, 2, 2)
    assert torch.equal(batch["label"], torch.tensor([0, 1, 2]))
    assert batch["caption"] == ["Käfer 0\n", "Käfer 1\n", "Käfer 2\n"]


def test_texts_cross_as_one_tensor() -> None:
    """A long message through the workers' pipe could be torn; the place of a tensor is short."""
    packed = pack([{"caption": "x" * 100_000, "key": "y" * 100_000}] * 10)
    assert all(isinstance(value, torch.Tensor) for value in packed.values())
    assert len(packed) == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (torch.zeros(2, dtype=torch.int64), r"int32 \[2\], int64 \[2\]"),
        (torch.zeros(3), r"float32 \[3\], int32"),
    ],
)
def test_tensors_of_several_types_or_shapes_are_refused_by_name(second: torch.Tensor, said: str) -> None:
    samples = [{"tokens": torch.zeros(2, dtype=torch.int32)}, {"tokens": second}]
    with pytest.raises(TypeError, match=f"'tokens' in several types or shapes: {said}"):
        pack(samples)


def test_other_values_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'raw' neither tensor, number, string nor list: b'bytes'"):
        pack([{"raw": b"bytes"}])


def test_packed_batches_pickle() -> None:
    packed = pack([{"a": 1, "key": "k"}])
    assert unpack(pickle.loads(pickle.dumps(packed)))[0]["key"] == ["k"]


DEFECT = Defect("train", "train/000000.tar", 3, "k", "txt", "member.checksum")


def test_what_a_batch_does_without_travels_along_and_is_no_part_of_it() -> None:
    lost = (PassedOver(7, DEFECT, "stand-in"), PassedOver(8, DEFECT, None))
    batch, passed_over = unpack(pack([{"key": "a"}], lost))
    assert batch == {"key": ["a"]} and passed_over == lost
    assert unpack(pack([], lost)) == ({"key": []}, lost)


def test_an_error_arrives_as_it_was() -> None:
    bad = pickle.loads(pickle.dumps(WorkerFailure.of(BadSampleError("text", DEFECT)))).error
    assert (type(bad), str(bad), bad.defect) == (BadSampleError, "text", DEFECT)
    other = pickle.loads(pickle.dumps(WorkerFailure.of(UsageError("text")))).error
    assert (type(other), str(other)) == (UsageError, "text")
