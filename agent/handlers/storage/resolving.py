"""Servers by name: the kernel has no resolver, so the agent finds the address and hands it on.

A resolver that hangs hangs in a worker. An address is tried before the kernel gets it: the
kernel takes one, and waits for minutes where nobody answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Code, Reason, invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.deadlines import Deadline
    from agent.core.fileops import Resolution

# RFC 1123 and 952, and the underscore that some servers' names have all the same.
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")

# The rest of the time is the mount's.
_SHARE_OF_TRIES = 0.5


class Resolver(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def resolve(self, host: str, deadline: Deadline) -> Resolution: ...


def host_of(server: str, field: str) -> str:
    """The name, or the address without brackets; BAD_FIELD for what is neither."""
    host = server[1:-1] if server.startswith("[") and server.endswith("]") else server
    if is_address(host) or (host == server and _NAME.fullmatch(host)):
        return host
    raise invalid(f"{field}: {server!r} is neither a host name nor an address", field=field)


def is_address(text: str) -> bool:
    """Whether it is an IPv4 or IPv6 address, the latter with its interface where it needs one."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def bracketed(host: str) -> str:
    """As it stands before a colon: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def of_family(addresses: Sequence[str], family: int | None) -> tuple[str, ...]:
    """The addresses of one family (4 or 6), all of them for None."""
    return tuple(each for each in addresses if family in (None, 6 if ":" in each else 4))


async def addresses_of(resolver: Resolver, host: str, deadline: Deadline) -> tuple[str, ...]:
    """The host's addresses, the best first. Raises NAME_NOT_RESOLVED."""
    if is_address(host):
        return (host,)
    try:
        answer = await resolver.resolve(host, deadline)
    except AgentError as error:
        if error.reason is not Reason.OPERATION_TIMED_OUT:
            raise
        raise unresolved(host, "the resolver did not answer in time") from error
    if not answer.addresses:
        raise unresolved(host, answer.failure or "it has no address")
    return answer.addresses


def unresolved(host: str, why: str) -> AgentError:
    return AgentError(
        f"the host {host!r} could not be resolved: {why}",
        code=Code.UNAVAILABLE,
        reason=Reason.NAME_NOT_RESOLVED,
        fields={"host": host},
        hint="see the guest's /etc/resolv.conf and /etc/hosts, or use an address",
    )


async def connect(address: str, port: int) -> None:
    """Open a TCP connection and close it again; OSError as connect(2)."""
    host, _, interface = address.partition("%")
    scope = socket.if_nametoindex(interface) if interface else 0
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    target = (host, port, 0, scope) if ":" in host else (host, port)
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A TCP service that some addresses may have; `what` names it: "nfs server files.example"."""

    what: str
    port: int

    async def first(self, addresses: Sequence[str], deadline: Deadline) -> str:
        """The first address that takes a connection, each tried for its share of the time.

        Raises MOUNT_REFUSED (UNAVAILABLE), which says what came of each address.
        """
        tried: dict[str, str] = {}
        end = deadline.earlier(deadline.left() * _SHARE_OF_TRIES)
        for count, address in enumerate(addresses):
            share = end.earlier(end.left() / (len(addresses) - count))
            failure = await self._failure(address, share)
            if failure is None:
                return address
            tried[address] = failure
        raise self._unreached(tried)

    async def _failure(self, address: str, deadline: Deadline) -> str | None:
        try:
            async with deadline.limit():
                await connect(address, self.port)
        except TimeoutError:
            return "no answer"
        except OSError as error:
            # asyncio has a text of its own.
            return os.strerror(error.errno) if error.errno else str(error)
        return None

    def _unreached(self, tried: dict[str, str]) -> AgentError:
        told = "; ".join(f"{address}: {failure}" for address, failure in tried.items())
        return AgentError(
            f"the {self.what} takes no connection on port {self.port}: {told}",
            code=Code.UNAVAILABLE,
            reason=Reason.MOUNT_REFUSED,
            fields={"addresses": ", ".join(tried), "port": str(self.port)},
            hint="is the guest's network up, and the server too?",
        )
