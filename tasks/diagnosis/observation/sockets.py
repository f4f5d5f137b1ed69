"""Reads the TCP connections of a process from the kernel, with the bytes that each has moved (sock_diag(7)).

/proc/PID/net/tcp lists the connections of the process's network namespace. The counters are in the `tcp_info`
that the kernel hands out by netlink, to everybody, but of the asking process's own namespace only. A counter
that could not be read is None.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tasks.diagnosis.observation import procfs
from tasks.diagnosis.observation.procfs import OpenFile

STATES = {1: "established", 2: "syn_sent", 3: "syn_recv", 8: "close_wait"}
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP, DONE, ERROR = 0x301, 3, 2
TCP, INFO_ATTRIBUTE = 6, 2
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_MESSAGE_BYTES, _INODE_AT = 72, 68
"""The size of `struct inet_diag_msg` and the place of its inode."""
_LAST_RECEIVED_AT, _TOTALS_AT = 52, 120
"""The places of tcpi_last_data_recv, and of tcpi_bytes_acked and tcpi_bytes_received, in `struct
tcp_info`."""


@dataclass(frozen=True)
class Connection:
    """One TCP connection. `waits_bytes` are the bytes that the peer has not acknowledged yet,
    `received_bytes` and `sent_bytes` those that arrived and were acknowledged between the looks; `quiet_s` is
    the time since data last arrived."""

    remote: str
    state: str
    waits_bytes: int
    received_bytes: int | None = None
    sent_bytes: int | None = None
    quiet_s: float | None = None


@dataclass(frozen=True)
class TcpCounters:
    """The totals of one connection, and the seconds since data last arrived."""

    acked_bytes: int
    received_bytes: int
    quiet_s: float


def tcp_counters() -> dict[str, TcpCounters]:
    """Return the counters of all TCP connections in this process's network namespace, by inode; empty where
    the kernel does not answer."""
    found: dict[str, TcpCounters] = {}
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = struct.pack("=BBBxI", family, TCP, 1 << (INFO_ATTRIBUTE - 1), 0xFFFFFFFF) + bytes(48)
            link.send(
                _HEADER.pack(_HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + asked
            )
            found.update(_answers(link))
    return found


def connections(
    pid: int, files: Sequence[OpenFile], before: dict[str, TcpCounters], now: dict[str, TcpCounters]
) -> list[Connection]:
    """Return the TCP connections of a process, found by the inodes of its sockets, with what the counters of
    two looks show."""
    inodes = {file.path[len("socket:[") : -1] for file in files if file.path.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6") if inodes else ():
        for line in procfs.lines(pid, f"net/{table}")[1:]:
            fields = line.split()
            state, inode = STATES.get(int(fields[3], 16)), fields[9]
            if inode not in inodes or state is None:
                continue
            counters, first = now.get(inode), before.get(inode, TcpCounters(0, 0, 0.0))
            shown = Connection(_address(fields[2]), state, int(fields[4].split(":")[0], 16))
            if counters is not None and before:
                received = counters.received_bytes - first.received_bytes
                sent = counters.acked_bytes - first.acked_bytes
                shown = replace(shown, received_bytes=received, sent_bytes=sent, quiet_s=counters.quiet_s)
            found.append(shown)
    return found


def _answers(link: socket.socket) -> Iterator[tuple[str, TcpCounters]]:
    """Yield the inode and the counters in each message of a dump."""
    while True:
        data, at = link.recv(1 << 16), 0
        while at + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            if kind in (DONE, ERROR):
                return
            message = data[at + _HEADER.size : at + length]
            info = _info_in(message[_MESSAGE_BYTES:])
            if info is not None and len(info) >= _TOTALS_AT + 16:
                (inode,) = struct.unpack_from("=I", message, _INODE_AT)
                (last_ms,) = struct.unpack_from("=I", info, _LAST_RECEIVED_AT)
                acked, received = struct.unpack_from("=QQ", info, _TOTALS_AT)
                yield str(inode), TcpCounters(acked, received, last_ms / 1000)
            at += (length + 3) & ~3


def _info_in(attributes: bytes) -> bytes | None:
    """Return the `tcp_info` among the attributes of a message."""
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind == INFO_ATTRIBUTE:
            return attributes[at + _ATTRIBUTE.size : at + length]
        at += (max(length, 4) + 3) & ~3
    return None


def _address(text: str) -> str:
    """Turn `0100007F:1F90` into `127.0.0.1:8080`; the kernel writes 32-bit words in the host's byte order."""
    host, port = text.split(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    shown = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return f"{shown}:{int(port, 16)}" if len(raw) == 4 else f"[{shown}]:{int(port, 16)}"
