"""Addresses of sockets in the guest: how they are written, and what they mean."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Self, TypeAlias

from agent.core.errors import AgentError, Reason, invalid

_TCP = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]*)):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")

LOCALHOST = ("::1", "127.0.0.1")
"""What "localhost" means, in the order in which it is tried (RFC 6724)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAddress:
    """`host` is an IP address, a name, or empty for all addresses (to listen)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "127.0.0.1:80", "[::1]:80", "localhost:80" or ":80". Raises BAD_ADDRESS."""
        match = _TCP.fullmatch(text)
        if match is None or int(match["port"]) > 0xFFFF:
            raise _bad(text, "write HOST:PORT, an IPv6 address in brackets")
        host = match["six"] or match["host"]
        plain = family_of(host) or not host or _NAME.fullmatch(host)
        if not plain or (match["six"] and family_of(host) != socket.AF_INET6):
            raise _bad(text, "the host is an IPv4 address, an IPv6 address in brackets, or a name")
        return cls(host=host, port=int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixAddress:
    """A socket by its absolute path."""

    path: str

    def __str__(self) -> str:
        return self.path


SocketAddress: TypeAlias = TcpAddress | UnixAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPlace:
    """An address, and the container whose network and files it is one of ("": the guest)."""

    address: SocketAddress
    container_id: str = ""

    def __str__(self) -> str:
        where = f" in container {self.container_id}" if self.container_id else ""
        return f"{self.address}{where}"


def family_of(host: str) -> socket.AddressFamily | None:
    """AF_INET or AF_INET6 for the text of an address, None for a name."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return None
    return socket.AF_INET6 if version == 6 else socket.AF_INET


def _bad(text: str, why: str) -> AgentError:
    return invalid(
        f"{text[:200]!r} is no address of TCP: {why}", reason=Reason.BAD_ADDRESS, address=text
    )
