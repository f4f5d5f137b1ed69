"""Views of a part of a file whose pages are read when they are touched, and never copied.

Touching a page that cannot be read, because its disk fails or the file was cut meanwhile, ends the process
with SIGBUS. `readable` reads pages beforehand and raises OSError instead, as reading them would. Where the
kernel cannot do that, as before Linux 5.14, nothing is mapped.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

POPULATE_READ = 22
"""MADV_POPULATE_READ of linux/mman.h."""
View = TypeVar("View", bound=NDArray[Any])
_libc = ctypes.CDLL(None, use_errno=True)
CAN_READ_AHEAD = _libc.madvise(None, ctypes.c_size_t(0), POPULATE_READ) == 0
"""Whether the kernel knows the advice: then it accepts it for no pages."""


def map_range(descriptor: int, offset: int, length: int) -> NDArray[np.uint8]:
    """Return the bytes of a file from `offset` on, read-only. ValueError where the file ends before them,
    OSError where the kernel cannot make them `readable`."""
    if not CAN_READ_AHEAD:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    before = offset % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(descriptor, before + length, access=mmap.ACCESS_READ, offset=offset - before)
    return np.frombuffer(pages, np.uint8)[before:]


def readable(view: View) -> View:
    """Read the pages of a contiguous view of a map and return it; OSError where one cannot be read."""
    if not view.size:
        return view
    start = view.ctypes.data
    first = start & -mmap.PAGESIZE
    size = ctypes.c_size_t(start + view.nbytes - first)
    if _libc.madvise(ctypes.c_void_p(first), size, POPULATE_READ) and ctypes.get_errno() == errno.EFAULT:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return view
