"""Tensors out of a `torch.save` file, without torch and without unpickling.

The file is a zip archive: `data.pkl` describes tensors as calls on storages, `data/N` are the storages' bytes
(https://pytorch.org/docs/stable/notes/serialization.html). A pickle is a program that can call anything. This
one is not run: its few instructions that build dictionaries of tensors are followed here one by one, and any
other instruction or name makes the file `archive.unsafe`.
"""

from __future__ import annotations

import gzip
import io
import pickletools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.modalities.arrays import LARGEST_BYTES, Arrays, bomb, read_within, unreadable, unzip
from tasks.dataset.rejects import Reject

STORAGES = {
    "torch FloatStorage": "f4",
    "torch DoubleStorage": "f8",
    "torch HalfStorage": "f2",
    "torch BFloat16Storage": "u2",
}
BFLOAT16 = "torch BFloat16Storage"
REBUILD = "torch._utils _rebuild_tensor_v2"
ORDERED = "collections OrderedDict"
LONGEST_PROGRAM = 1 << 16
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Named:
    """A name that the pickle would look up; here only a name."""

    name: str


@dataclass(frozen=True)
class Storage:
    """The numbers that tensors are views of: their type, and the entry of the archive that holds them."""

    kind: str
    entry: str


@dataclass(frozen=True)
class Tensor:
    """A view of a storage: offset, shape and strides count its numbers. All as the pickle says, unchecked."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any


def read_pth_gz(data: bytes) -> Arrays:
    """Every tensor of the file's dictionary, as float arrays; Reject for whatever is none."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = read_within(cast(IO[bytes], file), LARGEST_BYTES, "pth.gz")
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(f"pth.gz is no sound gzip: {str(error)[:100]}") from None
    return read_pth(content)


def read_pth(content: bytes) -> Arrays:
    if content[:1] == b"\x80":
        raise Reject("archive.unsafe", "pth.gz is a bare pickle (torch before 1.6); save it again as a zip")
    entries = unzip(content, "pth.gz")
    programs = [name for name in entries if name.rpartition("/")[2] == "data.pkl"]
    if len(programs) != 1 or len(entries[programs[0]]) > LONGEST_PROGRAM:
        raise unreadable("pth.gz is no torch.save file: it has no data.pkl of sound size")
    root = programs[0].removesuffix("data.pkl")
    order = ">" if entries.get(f"{root}byteorder") == b"big" else "<"
    found = follow(entries[programs[0]])
    if not isinstance(found, dict):
        raise unreadable("pth.gz holds no dictionary of tensors")
    tensors = {name: tensor for name, tensor in found.items() if isinstance(name, str)}
    total = 0
    arrays = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            arrays[name] = _array(tensor, entries, root, order, LARGEST_BYTES - total)
            total += arrays[name].nbytes
    return arrays


def _array(tensor: Tensor, entries: Mapping[str, bytes], root: str, order: str, limit: int) -> NDArray[Any]:
    """The tensor's numbers, copied out of its storage; bfloat16 becomes float32, which holds it exactly."""
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    if not isinstance(storage, Storage) or not _are_counts(shape, strides, (tensor.offset,)):
        raise unreadable("pth.gz holds a tensor of unsound shape")
    dtype = np.dtype(order + STORAGES[storage.kind])
    if len(shape) != len(strides) or prod(shape) * max(dtype.itemsize, 4) > limit:
        raise bomb("pth.gz")
    content = entries.get(f"{root}data/{storage.entry}", b"")
    last = tensor.offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    if prod(shape) and last >= len(content) // dtype.itemsize:
        raise unreadable("pth.gz ends before its tensors do")
    whole = np.frombuffer(content, dtype, count=len(content) // dtype.itemsize)[tensor.offset :]
    steps = [stride * dtype.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(whole, shape, steps, writeable=False)
    if storage.kind == BFLOAT16:
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view.astype(dtype.newbyteorder("="))


def _are_counts(*values: Any) -> bool:
    return all(
        isinstance(value, tuple)
        and len(value) <= MOST_DIMENSIONS
        and all(isinstance(number, int) and 0 <= number < 1 << 40 for number in value)
        for value in values
    )


def follow(program: bytes) -> Any:
    """What the pickle describes; Reject at an instruction that a dictionary of tensors does not need."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name == "STOP":
                return machine.stack[-1]
            machine.step(opcode.name, argument)
    except (Reject, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a torn pickle leads anywhere, but never out of here
        raise unreadable(f"pth.gz: torn data.pkl: {type(error).__name__}") from None
    raise unreadable("pth.gz: torn data.pkl")


class _Machine:
    """The part of the pickle machine that makes dictionaries, tuples and plain values; it calls nothing.

    No step takes longer for what earlier ones have built: values are neither compared, hashed nor shown
    unless they are texts, since a tuple of itself many times over is short here and endless there.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:  # noqa: C901 - a table of instructions
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ARGUMENTS:
            stack.append(argument)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "MARK":
            self._outer.append(stack)
            self.stack = []
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in FIXED_TUPLES:
            stack[-FIXED_TUPLES[name] :] = [tuple(stack[-FIXED_TUPLES[name] :])]
        elif name == "TUPLE":
            values = self._marked()
            self.stack.append(tuple(values))
        elif name == "SETITEM":
            _set(stack[-3], [stack.pop(-2), stack.pop()])
        elif name == "SETITEMS":
            values = self._marked()
            _set(self.stack[-1], values)
        elif name == "GLOBAL":
            stack.append(_named(argument))
        elif name == "STACK_GLOBAL":
            module, attribute = _text(stack.pop(-2)), _text(stack.pop())
            stack.append(_named(f"{module} {attribute}"))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            stack.append(_call(stack.pop(-2), stack.pop()))
        else:
            raise Reject("archive.unsafe", f"pth.gz: {name} in data.pkl, which no plain tensor needs")

    def _marked(self) -> list[Any]:
        """Takes what was put on the stack since the last mark."""
        values, self.stack = self.stack, self._outer.pop()
        return values


CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
ARGUMENTS = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
FIXED_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise unreadable("pth.gz: data.pkl has something else where a text belongs")
    return value


def _set(target: Any, items: list[Any]) -> None:
    for name, value in zip(items[::2], items[1::2], strict=True):
        target[_text(name)] = value


def _named(name: str) -> Named:
    if name not in (*STORAGES, REBUILD, ORDERED):
        raise Reject("archive.unsafe", f"pth.gz: data.pkl names {name[:80]!r}, which is never looked up")
    return Named(name)


def _storage(value: Any) -> Storage:
    """Of (`storage`, its type, its entry, a device, how many numbers)."""
    _, kind, entry, _, _ = value
    if not isinstance(kind, Named) or kind.name not in STORAGES:
        raise unreadable("pth.gz holds numbers that are no floats")
    return Storage(kind.name, _text(entry))


def _call(called: Any, arguments: Any) -> Any:
    """What the two known calls would make."""
    if isinstance(called, Named) and isinstance(arguments, tuple):
        if called.name == ORDERED and not arguments:
            return {}
        if called.name == REBUILD and len(arguments) in (6, 7):
            return Tensor(*arguments[:4])
    raise Reject("archive.unsafe", "pth.gz: data.pkl calls something else than a tensor's making")
