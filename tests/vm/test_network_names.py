"""The same topology gives the same names, whatever the order in which its parts come."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from innkeeper.shim import commands
from innkeeper.shim.client import ColdDevice, VmSpec
from innkeeper.v1 import host_pb2 as host
from tests.vm.guest import Guest, booted
from tests.vm.netguest import HARDWARE_NAMES, PATIENCE, NetGuest, at_path

pytestmark = [pytest.mark.vm, pytest.mark.network, pytest.mark.timeout(900)]

BOOTS = 10


@dataclass(frozen=True, slots=True)
class Card:
    """Where it is, and the name by the rule at the head of network.proto, made by hand."""

    port: str
    mac: str
    path: str
    name: str
    model: str = "NIC_MODEL_VIRTIO"

    @property
    def nic(self) -> dict[str, str]:
        return {"mac": self.mac, "model": self.model}


# Two drivers, three kinds of bridges, two root buses.
CARDS = (
    Card("port0", "52:54:00:00:00:01", "10/00", "n10s0"),
    Card("port1", "52:54:00:00:00:02", "10.1/00", "n10f1s0", "NIC_MODEL_E1000E"),
    Card("bridge.1", "52:54:00:00:00:03", "18/00/01", "n18s0s1"),
    Card("far0", "52:54:00:00:00:04", "0000:80/00/00", "np80b0s0", "NIC_MODEL_E1000E"),
)


@pytest.fixture(scope="module")
def generic(root: Path) -> Path:
    """The flavour with drivers of other machines' hardware."""
    program = str(root / "build/venv/bin/innkeeper")
    commands.run([program, "image", "build", "--flavour", "generic"], deadline=1500)
    return root / "build/images/generic"


async def names(guest: Guest) -> dict[str, str]:
    """By MAC address, as the kernel has them."""
    said = await guest.probe(HARDWARE_NAMES)
    return dict(line.split() for line in said.splitlines())


async def boot(generic: Path, number: int) -> tuple[dict[str, str], dict[str, str]]:
    """The kernel's own names, and those afterwards. Some cards are there from the start,
    others come later, and each time in another order."""
    order = random.Random(number).sample(CARDS, len(CARDS))
    cold, hot = order[: number % 4], order[number % 4 :]
    spec = VmSpec(
        name=f"boot-{number}",
        image=f"{generic}/",
        transport="serial",
        ports=2,
        bridge=True,
        second_root=True,
        cold=tuple(
            ColdDevice(
                id=f"nic-{card.mac[-1]}", hardware=json.dumps({"nic": card.nic}), port=card.port
            )
            for card in cold
        ),
    )
    async with booted(spec) as guest:
        side = NetGuest(guest=guest)
        for card in hot:
            model = host.NicModel.Value(card.model)
            await side.plug(f"nic-{card.mac[-1]}", card.port, mac=card.mac, model=model)
        wishes = [at_path(card.path, timeout_seconds=PATIENCE) for card in order]
        states = await side.apply(*wishes)
        kernels = {
            state.mac: altname
            for state in states
            for altname in state.alternative_names
            if not altname.startswith("pci-")
        }
        return kernels, await names(guest)


async def test_ten_boots_in_another_order_each_give_the_same_names(generic: Path) -> None:
    """Two at a time: more would only wait for each other."""
    turns = asyncio.Semaphore(2)

    async def one(number: int) -> tuple[dict[str, str], dict[str, str]]:
        async with turns:
            return await boot(generic, number)

    async with asyncio.TaskGroup() as group:
        boots = [group.create_task(one(number)) for number in range(BOOTS)]
    kernels, given = zip(*(each.result() for each in boots), strict=True)
    assert list(given) == [{card.mac: card.name for card in CARDS}] * BOOTS
    # The order did differ: by it alone the kernel would have called them otherwise each time.
    assert len({tuple(sorted(each.items())) for each in kernels}) > 3, kernels
