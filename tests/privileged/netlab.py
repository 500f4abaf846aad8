"""Network namespaces for tests: one of their own, with the real ip(8) as the witness.

    async with lab() as net:
        await net.netlink.change(...)
        assert net.ip("-j", "addr") == ...

The namespace has its loopback interface, which is down. It is gone with the last of its
sockets and descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network
from typing import Any, TypeVar

import pytest

from agent.core.deadlines import Deadline
from agent.core.netlink import Change, KernelNetlink, NetlinkRefusal, open_netlink
from agent.core.network import (
    MAIN_TABLE,
    Address,
    AddressFlag,
    Family,
    Hop,
    Link,
    LinkKind,
    LinkMaking,
    Route,
)
from agent.core.rtnl import links
from agent.core.rtnl.addresses import added
from agent.linux.libc import check, libc
from tests.privileged import modules

CLONE_NEWNET = 0x40000000
TIMEOUT = 60.0

# Of the networks that `Lab.veth("192.0.2.1/24", "2001:db8::1/64")` is in.
GATE4, GATE4B = IPv4Address("192.0.2.254"), IPv4Address("192.0.2.253")
GATE6, GATE6B = IPv6Address("2001:db8::fe"), IPv6Address("2001:db8::fd")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lab:
    """A network namespace: its descriptor, and a Netlink in it."""

    namespace: int
    netlink: KernelNetlink

    @property
    def deadline(self) -> Deadline:
        """A fresh one, far away: tests do not measure time."""
        return Deadline.after(TIMEOUT)

    def within(self, function: Callable[[], T]) -> T:
        """Call a function in a thread that is in the namespace; sockets that it makes and
        programs that it starts belong there, and /proc/sys/net is the namespace's."""
        return within(self.namespace, function)

    def run(self, *command: str, fails: bool = False) -> str:
        """What a program in the namespace writes; skips where it is not installed."""
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed here")
        done = self.within(
            lambda: subprocess.run(command, capture_output=True, text=True, check=False)
        )
        assert fails or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout + (done.stderr if fails else "")

    def ip(self, *arguments: str) -> Any:
        """ip(8) in the namespace: its JSON with -j, else its text."""
        text = self.run("ip", *arguments)
        return json.loads(text or "[]") if "-j" in arguments else text

    def bridge(self, *arguments: str) -> Any:
        """bridge(8) in the namespace: its JSON with -j, else its text."""
        text = self.run("bridge", *arguments)
        return json.loads(text or "[]") if "-j" in arguments else text

    async def steady(
        self, read: Callable[[], Awaitable[T]], witness: Callable[[], Any]
    ) -> tuple[T, Any]:
        """What both say of one moment: a link that just came up gets addresses and routes
        from the kernel a little later, and not between these two."""
        for _ in range(20):
            before = witness()
            found = await read()
            if witness() == before:
                return found, before
        raise AssertionError("what the witness says changes all the time")

    async def do(self, *changes: Change) -> None:
        """Make changes. Raises NetlinkRefusal."""
        await self.netlink.change(*changes, deadline=self.deadline)

    async def link(self, name: str) -> Link:
        """The interface of a name."""
        found = await links.one_link(self.netlink, self.deadline, name=name)
        assert found is not None, f"no interface {name}"
        return found

    async def up(self, *names: str) -> None:
        for name in names:
            index = (await self.link(name)).index
            await self.do(links.changed(index, f"set {name} up", up=True))

    async def make(self, name: str, making: LinkMaking, *, parent: int = 0) -> Link:
        """A virtual interface; skips where this kernel has none of its kind."""
        _load(making.kind)
        change = links.created(name, making, f"make {name}", parent=parent)
        try:
            await self.do(change)
        except NetlinkRefusal as error:
            if error.errno == errno.EOPNOTSUPP:
                pytest.skip(f"this kernel makes no such {making.kind} ({error})")
            raise
        return await self.link(name)

    async def veth(self, *addresses: str) -> Link:
        """The end v0 of a pair, whose other end is v1; both and lo are up, and v0 has
        addresses, which are usable at once."""
        made = await self.make("v0", LinkMaking(kind=LinkKind.VETH, peer_name="v1"))
        await self.up("lo", "v0", "v1")
        for text in addresses:
            address = Address(
                index=made.index, interface=ip_interface(text), flags=AddressFlag.NODAD
            )
            await self.do(added(address, f"add {text} to v0"))
        return await self.link("v0")


@contextlib.asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    """A fresh network namespace while the block runs."""
    with namespace() as descriptor, contextlib.closing(open_netlink(descriptor)) as netlink:
        yield Lab(descriptor, netlink)


@contextlib.contextmanager
def namespace() -> Iterator[int]:
    """A fresh network namespace's descriptor."""

    def fresh() -> int:
        check(libc.unshare(CLONE_NEWNET), "unshare", "the network namespace")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    descriptor = apart(fresh)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def within(descriptor: int, function: Callable[[], T]) -> T:
    """Call a function in a thread that is in a network namespace."""

    def entered() -> T:
        check(libc.setns(descriptor, CLONE_NEWNET), "setns", descriptor)
        return function()

    return apart(entered)


def apart(function: Callable[[], T]) -> T:
    """Call a function in a thread that ends with it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def r4(destination: str, *hops: Hop, **more: Any) -> Route:
    more = {"table": MAIN_TABLE} | more
    return Route(family=Family.V4, destination=ip_network(destination), hops=hops, **more)


def r6(destination: str, *hops: Hop, **more: Any) -> Route:
    # 1024 is what the kernel makes of 0 (IP6_RT_PRIO_USER).
    more = {"table": MAIN_TABLE, "metric": 1024} | more
    return Route(family=Family.V6, destination=ip_network(destination), hops=hops, **more)


def _load(kind: str) -> None:
    """Where kinds of interfaces are modules the kernel asks modprobe(8) for "rtnl-link-KIND",
    if that is where it looks for it; this does not depend on that."""
    modules.load({"vlan": "8021q", "bond": "bonding"}.get(kind, kind))
