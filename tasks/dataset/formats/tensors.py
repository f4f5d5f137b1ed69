"""Reads tensors from `torch.save` files with `torch.load(weights_only=True)`.

Such a file is a zip archive in which `data.pkl` describes tensors and `data/N` holds their numbers
(https://pytorch.org/docs/stable/notes/serialization.html). A pickle is a program that can call anything;
torch's restricted reader executes only what tensors need. It has no size limits, so it gets an archive packed
again from entries that were unpacked within a limit. Torch is imported only to read such a file; if it is not
installed, soundness is unknown: Unjudged.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.formats import Unjudged, zips
from tasks.dataset.version.rejects import Reason, Reject

LARGEST_BYTES = 32 << 20
"""The largest unpacked file; MobileCLIP's embeddings have 0.2 MB per sample."""
LONGEST_PROGRAM = 1 << 16
UNSOUND: Reason = "reinforcement.members"


@cache
def can_read() -> bool:
    return find_spec("torch") is not None


def read_gz(content: bytes) -> dict[str, NDArray[Any]]:
    """Return every tensor of the dictionary in a `pth.gz`; bfloat16 becomes float32, which holds it exactly.
    Reject for anything else; Unjudged without torch."""
    value = load_tensor(zips.gunzip(content, "pth.gz", UNSOUND, LARGEST_BYTES), "pth.gz")
    if not isinstance(value, dict):
        raise Reject(UNSOUND, "pth.gz holds no dictionary of tensors")
    import torch

    arrays = {}
    left = LARGEST_BYTES
    for name, tensor in value.items():
        if isinstance(name, str) and isinstance(tensor, torch.Tensor):
            left -= tensor.numel() * max(tensor.element_size(), 4)
            if left < 0:  # a view may repeat one number any number of times
                raise Reject("archive.bomb", f"pth.gz holds more than {LARGEST_BYTES:,} bytes of numbers")
            arrays[name] = _array(tensor)
    return arrays


def _array(tensor: Any) -> NDArray[Any]:
    import torch

    plain = tensor.detach()
    is_half = plain.dtype == torch.bfloat16
    try:
        array: NDArray[Any] = (plain.view(torch.int16) if is_half else plain).numpy()
    except (TypeError, RuntimeError):  # sparse, without numbers, or of a type that numpy lacks
        raise Reject(UNSOUND, "pth.gz holds a tensor that is not a plain array") from None
    if is_half:  # bfloat16 is the upper half of a float32; torch's own conversion would start threads
        array = np.left_shift(array.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
    return array


def load_tensor(content: bytes, name: str) -> Any:
    """Return the content of a `torch.save` file. Reject if it is torn, unpacks to more than LARGEST_BYTES, or
    holds more than tensors; Unjudged without torch."""
    if content[:1] == pickle.PROTO:
        raise Reject("archive.unsafe", f"{name} is a bare pickle (torch before 1.6); save it again as a zip")
    entries = zips.unpack(content, name, UNSOUND, LARGEST_BYTES)
    programs = [program for entry, program in entries.items() if entry.rpartition("/")[2] == "data.pkl"]
    if len(programs) != 1 or len(programs[0]) > LONGEST_PROGRAM:
        raise Reject(UNSOUND, f"{name} is not a torch.save file: it has no data.pkl of sound size")
    _require_short(programs[0], name)
    if not can_read():
        raise Unjudged
    import torch

    try:
        return torch.load(io.BytesIO(zips.pack(entries)), map_location="cpu", weights_only=True)
    except MemoryError:  # only the pickle can ask for so much, since the file itself is small
        raise Reject("archive.bomb", f"{name} asks for more memory than this machine has") from None
    except pickle.UnpicklingError:
        raise Reject("archive.unsafe", f"{name} holds more than plain tensors") from None
    except Exception as error:  # noqa: BLE001 - torch raises anything on a torn file
        raise Reject(UNSOUND, f"{name} cannot be read: {type(error).__name__}") from None


def _require_short(program: bytes, name: str) -> None:
    """Reject for a pickle that uses a tuple again, which torch's own pickles never do. A chain of sixty
    tuples, each of the last one twice, is short to write, but takes forever to hash as a dictionary's key."""
    tuples: set[Any] = set()
    last = ""
    try:
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name.endswith("BINPUT") and last.startswith("TUPLE"):
                tuples.add(argument)
            elif opcode.name.endswith("BINGET") and argument in tuples:
                raise Reject("archive.unsafe", f"{name}: its data.pkl uses a tuple twice")
            last = opcode.name
    except ValueError:
        raise Reject(UNSOUND, f"{name}: torn data.pkl") from None
