"""A `torch.save` file of bfloat16 tensors, written without torch, the same bytes everywhere."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
_STORAGE = b"ctorch\nBFloat16Storage\n"
_NO_HOOKS = b"ccollections\nOrderedDict\n)R"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def to_pth_gz(arrays: Mapping[str, NDArray[np.float32]]) -> bytes:
    """A dictionary of 2D tensors, gzipped as MobileCLIP has it."""
    import pyarrow as pa  # here, and for its own zlib: the system's differs from machine to machine

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:

        def add(name: str, content: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}", _EPOCH), content)

        tensors = b"".join(
            _text(name) + _tensor(entry, array) for entry, (name, array) in enumerate(arrays.items())
        )
        add("data.pkl", b"\x80\x02}(" + tensors + b"u.")
        add("byteorder", b"little")
        for entry, array in enumerate(arrays.values()):
            add(f"data/{entry}", _bfloat16(array).astype("<u2").tobytes())
        add("version", b"3\n")
    packed: bytes = pa.Codec("gzip", compression_level=6).compress(file.getvalue(), asbytes=True)
    return packed


def _tensor(entry: int, array: NDArray[np.float32]) -> bytes:
    """The call that torch makes the tensor with: (storage, offset, shape, strides, gradients, hooks)."""
    rows, columns = array.shape
    storage = (
        b"(" + _text("storage") + _STORAGE + _text(str(entry)) + _text("cpu") + _whole(array.size) + b"tQ"
    )
    layout = _whole(0) + _whole(rows) + _whole(columns) + b"\x86" + _whole(columns) + _whole(1) + b"\x86"
    return _REBUILD + b"(" + storage + layout + b"\x89" + _NO_HOOKS + b"tR"


def _text(text: str) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


def _whole(number: int) -> bytes:
    return b"J" + number.to_bytes(4, "little", signed=True)


def _bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The upper half of each number's bits, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint32)
