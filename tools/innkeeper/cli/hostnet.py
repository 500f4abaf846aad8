"""The host's own way to the world, as its kernel tells it: what passt shows a guest."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

# RFC 5737; nothing is sent there, the kernel only looks for a route.
_SOMEWHERE = ("203.0.113.1", 9)
# include/uapi/linux/route.h.
_RTF_GATEWAY = 0x2


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWay:
    """The address that connections come from, and the next hop."""

    address: str
    gateway: str


def default_way(proc: Path = Path("/proc")) -> HostWay | None:
    """None where the host has no default route of IPv4 through a gateway."""
    gateway = _gateway(proc)
    address = _source()
    return HostWay(address=address, gateway=gateway) if gateway and address else None


def _gateway(proc: Path) -> str:
    """The table has numbers in hex, in the machine's order of bytes."""
    for line in (proc / "net/route").read_text().splitlines()[1:]:
        words = line.split()
        if words[1] == words[7] == "00000000" and int(words[3], 16) & _RTF_GATEWAY:
            return str(IPv4Address(struct.pack("=I", int(words[2], 16))))
    return ""


def _source() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
                return ""
            raise
        return str(probe.getsockname()[0])
