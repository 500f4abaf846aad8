"""Interfaces in a network namespace of their own, and what the real ip(8) says of them."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.netlink import Change, Netlink, NetlinkRefusal, Question
from agent.core.network import (
    AddressWish,
    InterfaceState,
    InterfaceWish,
    LinkKind,
    LinkMaking,
)
from agent.core.roots import Roots
from agent.core.rtnl import links
from agent.core.rtnl.ethtool import open_ethtool
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.network.interfaces import Interfaces
from agent.linux.uevents import KernelUevents
from tests.fakes.failing_netlink import FailingNetlink
from tests.privileged.counts import STEP
from tests.privileged.netlab import Lab, lab

# Counters, what moves by itself, and what a bridge takes from its members for good.
MOVING = {
    "stats",
    "stats64",
    "operstate",
    "ifi_stats",
    "linkmode",
    "inet6_addr_gen_mode",
    "tso_max_size",
    "tso_max_segs",
}
UNSTEADY = {"nodad", "tentative", "label"}
ASKED = {
    "stp_state",
    "vlan_filtering",
    "forward_delay",
    "id",
    "protocol",
    "table",
    "mode",
    "miimon",
}
"""Of what bridges and bonds tell; the rest are timers."""


@dataclass(frozen=True, slots=True)
class InterfaceLab:
    """A namespace, and Interfaces in it."""

    lab: Lab
    interfaces: Interfaces
    board: HotplugBoard
    state: StateStore

    async def apply(self, *wishes: InterfaceWish, timeout: float = 20.0) -> list[InterfaceState]:
        deadline = Deadline.after(timeout)
        found = await self.interfaces.find(wishes, deadline)
        return list(await self.interfaces.apply(found, deadline))

    async def failing(self, netlink: Netlink, *wishes: InterfaceWish) -> list[InterfaceState]:
        """The same through another Netlink."""
        with contextlib.closing(open_ethtool(self.lab.namespace)) as ethtool:
            other = Interfaces(
                netlink=netlink,
                ethtool=ethtool,
                board=self.board,
                state=self.state,
                namespace=self.lab.namespace,
            )
            found = await other.find(wishes, self.lab.deadline)
            return list(await other.apply(found, self.lab.deadline))

    async def failing_once_each(
        self, wishes: tuple[InterfaceWish, ...], done: Callable[[], bool]
    ) -> int:
        """Apply them, after each change of the way there has failed once and everything was
        again as it had been; how many those were. `done`: it fails after it was made. Under
        emulation every fifth is enough."""
        before = self.snapshot()
        for n in itertools.count(1, STEP):
            netlink = FailingNetlink(self.lab.netlink, n, done=done())
            error = await self._refusal(netlink, wishes)
            if error is None:
                assert netlink.seen < n
                return n - 1
            assert "a fake failure" in error.message, error
            assert "not_undone" not in error.fields, error.fields
            assert differences(self.snapshot(), before) == [], (n, error, wishes)
        raise AssertionError("counting ends nowhere")

    async def _refusal(
        self, netlink: Netlink, wishes: tuple[InterfaceWish, ...]
    ) -> AgentError | None:
        try:
            await self.failing(netlink, *wishes)
        except AgentError as error:
            return error
        return None

    async def veth(self, name: str, peer: str, *, up: bool = True) -> None:
        await self.lab.make(name, LinkMaking(kind=LinkKind.VETH, peer_name=peer))
        if up:
            await self.lab.up(name, peer)

    def names(self) -> dict[str, str]:
        """Names by MAC address, but for the loopback's."""
        return {
            each["address"]: each["ifname"]
            for each in self.lab.ip("-j", "link")
            if each["link_type"] != "loopback"
        }

    def snapshot(self) -> dict[str, Any]:
        """All that ip(8) tells of links, addresses and routes, but what moves by itself.

        IPv6: link-local addresses come and go with the links, in the kernel's own time, and
        one that was given back skips duplicate address detection, which shows as a flag.
        IPv4: with a new name the kernel labels the second address NAME:2, and so on
        (inetdev_changename), and nothing changes a label.
        """
        links = self.lab.ip("-j", "-d", "addr")
        return {
            "links": {each["ifname"]: _link(each) for each in links},
            "v4": _sorted(map(_route, self.lab.ip("-j", "-4", "route", "show", "table", "all"))),
            "v6": _sorted(
                _route(each)
                for each in self.lab.ip("-j", "-6", "route", "show", "table", "all")
                if each.get("protocol") != "kernel"
            ),
        }


def _link(told: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in told.items() if key not in MOVING}
    kept["flags"] = sorted(set(told["flags"]) - {"LOWER_UP", "NO-CARRIER", "M-DOWN"})
    kept["altnames"] = sorted(told.get("altnames", []))
    kept["addr_info"] = _sorted(
        {key: value for key, value in each.items() if key not in UNSTEADY}
        for each in told["addr_info"]
        if each and not each["local"].startswith("fe80:")
    )
    info = told.get("linkinfo", {})
    data = info.get("info_data", {})
    kept["linkinfo"] = (info.get("info_kind"), {k: v for k, v in data.items() if k in ASKED})
    return kept


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two snapshots differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [
            line
            for key in keys
            for line in differences(one.get(key), other.get(key), f"{path}/{key}")
        ]
    return [] if one == other else [f"{path}: {one!r} != {other!r}"]


def _route(told: dict[str, Any]) -> dict[str, Any]:
    """Whether there is a carrier shows in the flags."""
    return told | {"flags": sorted(set(told["flags"]) - {"linkdown", "dead"})}


def _sorted(things: Any) -> list[str]:
    return sorted(repr(sorted(each.items(), key=str)) for each in things)


class WantsItDown:
    """A kernel that makes some changes only of an interface that is down (EBUSY), as older
    ones do of names, and some drivers of addresses; by the first words of the change."""

    def __init__(self, netlink: Netlink, words: str) -> None:
        self._netlink = netlink
        self._words = words
        self.lowered = 0

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        for change in changes:
            lowers = change.what.endswith("goes down")
            self.lowered += lowers
            if change.what.startswith(self._words) and not lowers and await self._is_up(change):
                raise NetlinkRefusal(errno.EBUSY, "", change)
            await self._netlink.change(change, deadline=deadline)

    async def _is_up(self, change: Change) -> bool:
        # struct ifinfomsg: family, type, index.
        (index,) = struct.unpack_from("=4xi", change.payload)
        link = await links.one_link(self._netlink, deadline=Deadline.after(20), index=index)
        return link is not None and link.up

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        return await self._netlink.ask(question, deadline)

    def close(self) -> None:
        self._netlink.close()


@contextlib.asynccontextmanager
async def interface_lab(directory: Path) -> AsyncIterator[InterfaceLab]:
    """A fresh namespace; sysfs is empty, as the real one is that of another namespace."""
    files = FileWorkers()
    tree = SysfsTree(roots=Roots(sys=directory / "sys", run=directory))
    board = HotplugBoard(tree=tree, source=KernelUevents(), files=files)
    board.start()
    state = StateStore(directory / "state")
    try:
        async with lab() as net:
            with contextlib.closing(open_ethtool(net.namespace)) as ethtool:
                yield InterfaceLab(
                    net,
                    Interfaces(
                        netlink=net.netlink,
                        ethtool=ethtool,
                        board=board,
                        state=state,
                        namespace=net.namespace,
                    ),
                    board,
                    state,
                )
    finally:
        board.close()
        await files.close()


def at(*texts: str) -> tuple[AddressWish, ...]:
    """Addresses: "192.0.2.1/24", "192.0.2.1/32 peer 192.0.2.2"."""
    return tuple(_wish(*text.split(" peer ")) for text in texts)


def _wish(cidr: str, peer: str = "") -> AddressWish:
    return AddressWish(
        interface=ipaddress.ip_interface(cidr),
        peer=ipaddress.ip_address(peer) if peer else None,
    )
