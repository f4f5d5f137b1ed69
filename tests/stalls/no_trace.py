"""Runs a command that may trace nobody: `python -m tests.stalls.no_trace COMMAND…`.

A seccomp filter refuses ptrace and process_vm_readv, as Yama or a container does to a user who did not start the
training. They would refuse /proc/PID/mem too, to which py-spy turns then, and which no filter of system calls can;
so root also has py-spy replaced by a program that fails, in a mount namespace of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import struct
import sys
from pathlib import Path

CALLS = {"x86_64": (101, 310), "aarch64": (117, 270)}
"""The numbers of ptrace and process_vm_readv."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_tracing() -> None:
    """For this process and all that it starts. OSError where the kernel has no seccomp."""
    ptrace, read = CALLS[platform.machine()]
    instructions = [
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 1, 0, ptrace),
        (JUMP_IF_EQUAL, 0, 1, read),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *one) for one in instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(instructions), code)
    for step in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*step) != 0:
            raise OSError(ctypes.get_errno(), "no filter for system calls")


def hide_py_spy() -> None:
    """From this process and all that it starts. OSError where mounting is not allowed."""
    py_spy = Path(sys.executable).with_name("py-spy")
    libc = ctypes.CDLL(None, use_errno=True)
    everything, fails = b"/", str(shutil.which("false")).encode()
    for failed in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(None, everything, None, MS_REC | MS_PRIVATE, None),
        libc.mount(fails, str(py_spy).encode(), None, MS_BIND, None),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), f"{py_spy} cannot be hidden")


if __name__ == "__main__":
    if os.geteuid() == 0:
        hide_py_spy()
    refuse_tracing()
    os.execv(sys.argv[1], sys.argv[1:])
