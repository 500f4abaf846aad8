"""Random wanted states, one after the other: reached, kept, and taken back when they fail.

Every change of the way to each state fails once, before it is made or after, and everything
is then as it was. What it was and what it is says ip(8).
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.network import InterfaceWish, LinkKind, LinkMaking
from tests.privileged.counts import often
from tests.privileged.interfacelab import InterfaceLab, at, interface_lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
]

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))
STATES = 12 if SOAK else 1 + often(5) // 5
SEEDS = range(20 if SOAK else often(5))

NAMES = ("eth0", "eth1", "eth2", "web0", "lan0")
POOL = (
    "192.0.2.1/24",
    "192.0.2.2/24",
    "192.0.2.3/24",
    "192.0.2.3/25",
    "198.51.100.1/32 peer 198.51.100.2",
    "2001:db8::1/64",
    "2001:db8::1/72",
    "2001:db8:1::2/128",
    "10.0.0.1/31",
)


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[InterfaceLab]:
    async with interface_lab(tmp_path) as made:
        yield made


class Wisher:
    """Random requests about three interfaces and a bridge."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def request(self, present: list[str]) -> tuple[InterfaceWish, ...]:
        chance = self._chance
        chosen = chance.sample(present, chance.randint(1, len(present)))
        names = chance.sample(NAMES, len(chosen))
        bridge = [self._bridge()] if chance.random() < 0.6 else []
        wishes = [
            self._wish(now, name, masters=["br0", ""] if bridge else [""])
            for now, name in zip(chosen, names, strict=True)
        ]
        return tuple(chance.sample(wishes + bridge, len(wishes) + len(bridge)))

    def _bridge(self) -> InterfaceWish:
        making = LinkMaking(kind=LinkKind.BRIDGE, stp=self._chance.random() < 0.5)
        return InterfaceWish(name="br0", making=making, addresses=self._addresses(["10.9.9.1/24"]))

    def _wish(self, now: str, name: str, *, masters: list[str]) -> InterfaceWish:
        chance = self._chance
        return InterfaceWish(
            current_name=now,
            name=name,
            mtu=chance.choice([0, 1280, 1500, 9000]),
            mac=chance.choice(["", f"02:00:00:00:00:{chance.randint(1, 200):02x}"]),
            addresses=self._addresses(list(POOL)),
            keep_addresses=chance.random() < 0.3,
            up=chance.random() < 0.8,
            arp=chance.choice([None, True, False]),
            multicast=chance.choice([None, True, False]),
            all_multicast=chance.choice([None, True, False]),
            promiscuous=chance.choice([None, True, False]),
            master=chance.choice([None, *masters]),
            transmit_queue_length=chance.choice([None, 100, 1000]),
            altnames=chance.choice([(), (), (f"alt-{chance.getrandbits(40):x}",)]),
        )

    def _addresses(self, pool: list[str]) -> Any:
        chosen = self._chance.sample(pool, self._chance.randint(0, min(4, len(pool))))
        hosts: dict[str, str] = {text.split("/")[0]: text for text in chosen}
        return at(*hosts.values())


def unlike(wish: InterfaceWish, told: dict[str, Any]) -> list[str]:
    """What ip(8) says otherwise than was wished for."""
    flags = set(told["flags"])
    name = wish.name or wish.current_name
    pairs: list[tuple[str, object, object]] = [("name", name, told["ifname"])]
    pairs += [("mtu", wish.mtu, told["mtu"])] if wish.mtu else []
    pairs += [("mac", wish.mac, told["address"])] if wish.mac else []
    pairs += [("up", wish.up, "UP" in flags)]
    for what, value, word in (
        ("multicast", wish.multicast, "MULTICAST"),
        ("all_multicast", wish.all_multicast, "ALLMULTI"),
        ("promiscuous", wish.promiscuous, "PROMISC"),
    ):
        pairs += [] if value is None else [(what, value, word in flags)]
    pairs += [] if wish.arp is None else [("arp", wish.arp, "NOARP" not in flags)]
    pairs += [] if wish.master is None else [("master", wish.master, told.get("master", ""))]
    wanted = {f"{a.interface.ip}/{a.interface.network.prefixlen}" for a in wish.addresses}
    there = {
        f"{each['local']}/{each['prefixlen']}"
        for each in told["addr_info"]
        if not each["local"].startswith("fe80:")
    }
    same = wanted <= there if wish.keep_addresses else wanted == there
    pairs += [] if same else [("addresses", wanted, there)]
    missing = set(wish.altnames) - set(told.get("altnames", []))
    pairs += [("altnames", set(), missing)]
    return [f"{what}: {wanted} != {there}" for what, wanted, there in pairs if wanted != there]


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_states(net: InterfaceLab, seed: int) -> None:
    chance = random.Random(seed)
    wisher = Wisher(seed)
    for number in range(3):
        await net.veth(f"eth{number}", f"far{number}")
    for _ in range(STATES):
        present = [name for name in net.names().values() if name in NAMES]
        net.lab.run("ip", "route", "replace", "203.0.113.0/24", "dev", present[0], fails=True)
        wishes = wisher.request(present)
        await net.failing_once_each(wishes, lambda: chance.random() < 0.5)
        links = {each["ifname"]: each for each in net.lab.ip("-j", "addr")}
        for wish in wishes:
            assert unlike(wish, links[wish.name]) == [], wish
        # By the names of now: those of before may be others'.
        again = tuple(replace(wish, current_name=wish.name) for wish in wishes)
        assert [state.changed for state in await net.apply(*again)] == [()] * len(wishes)
