"""What changes in the network of a namespace, as the kernel tells it.

Notices are hints: what is there now is what a listing says. The kernel drops them when the
reader is too slow, tells that once, and goes on dropping until the reader has read its queue
empty (net/netlink/af_netlink.c, NETLINK_S_CONGESTED); so `Lost` comes twice, and after the
second nothing is missed.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from agent.core.netlink import NLM_F_REPLACE, messages
from agent.core.rtnl import addresses, links, routes
from agent.core.rtnl.messages import (
    HEADER_SIZE,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
)
from agent.linux.netlinksocket import KERNEL_PORT, open_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterator

    from agent.core.netlink import Message, Wire
    from agent.core.network import Address, Link, Route

# RTNLGRP_* of <linux/rtnetlink.h>: link, IPv4 and IPv6 addresses, IPv4 and IPv6 routes.
GROUPS = (1, 5, 9, 7, 11)

Subject: TypeAlias = "Link | Address | Route"

_READERS: dict[int, tuple[Literal["new", "gone"], Callable[[bytes], Any]]] = {
    RTM_NEWLINK: ("new", links.decode),
    RTM_DELLINK: ("gone", links.decode),
    RTM_NEWADDR: ("new", addresses.decode),
    RTM_DELADDR: ("gone", addresses.decode),
    RTM_NEWROUTE: ("new", routes.decode),
    RTM_DELROUTE: ("gone", routes.decode),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One change. `replaced`: it took the place of another of its key. `own`: asked for by a
    netlink socket of the ports that the monitor was told of."""

    kind: Literal["new", "gone"]
    subject: Subject
    replaced: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The kernel dropped notices: whoever keeps an account must look again."""


def open_monitor(namespace: int | None = None, *, own: Collection[int] = ()) -> Monitor:
    """A monitor of a namespace by its descriptor, or of our own; bound from now on, so that
    a listing made afterwards and the notices miss nothing together.

    `own` are ports of netlink sockets, and may be a set that changes. Raises OSError.
    """
    return Monitor(open_socket(groups=GROUPS, namespace=namespace), own=own)


class Monitor:
    """Links, addresses and routes of one namespace."""

    def __init__(self, wire: Wire, *, own: Collection[int] = ()) -> None:
        self._wire = wire
        self._own = own
        self._congested = False

    def close(self) -> None:
        self._wire.close()

    async def notices(self) -> AsyncGenerator[Notice | Lost, None]:
        """Notices as they come, without end; one reader at a time."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._wire.fileno(), ready.set)
        try:
            while True:
                await ready.wait()
                ready.clear()
                for notice in self._read():
                    yield notice
        finally:
            loop.remove_reader(self._wire.fileno())

    def _read(self) -> Iterator[Notice | Lost]:
        while True:
            try:
                datagram = self._wire.receive()
            except BlockingIOError:
                if self._congested:
                    self._congested = False
                    yield Lost()
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._congested = True
                yield Lost()
                continue
            if datagram.truncated:
                yield Lost()
            elif datagram.sender_port == KERNEL_PORT:
                yield from filter(None, map(self._notice, messages(datagram.data)))

    def _notice(self, message: Message) -> Notice | None:
        if message.type not in _READERS:
            return None
        kind, decode = _READERS[message.type]
        # Bridges tell of their ports in messages of this group too (AF_BRIDGE): "gone"
        # is then a port that left the bridge. An interface's own family is 0.
        if decode is links.decode and message[HEADER_SIZE] != 0:
            return None
        subject = decode(message)
        if subject is None:
            return None
        return Notice(
            kind=kind,
            subject=subject,
            replaced=bool(message.flags & NLM_F_REPLACE),
            own=message.port in self._own,
        )
