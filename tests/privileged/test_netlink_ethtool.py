"""Features and channels, with ethtool's ioctl as the witness."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from agent.core.netlink import NetlinkRefusal
from agent.core.network import (
    LinkKind,
    LinkMaking,
    Queues,
)
from agent.core.rtnl.ethtool import open_ethtool
from tests.privileged import ethtool_ioctl
from tests.privileged.netlab import (
    Lab,
    lab,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


async def test_features_are_as_the_ioctl_tells_them(net: Lab) -> None:
    link = await net.make("v0", VETH)
    with contextlib.closing(open_ethtool(net.namespace)) as ethtool:
        found = await ethtool.features(link.index, net.deadline)
        assert found is not None
        told = net.within(lambda: ethtool_ioctl.features("v0"))
        assert found.active == {name for name, each in told.items() if each.active}
        assert found.wanted == {name for name, each in told.items() if each.requested}
        changeable = {
            name for name, each in told.items() if each.available and not each.never_changed
        }
        assert found.changeable == changeable
        assert found.fixed == set(told) - changeable


async def test_features_are_set_by_name(net: Lab) -> None:
    link = await net.make("v0", VETH)
    wanted = {"tx-checksum-ip-generic": False, "rx-gro": True}
    with contextlib.closing(open_ethtool(net.namespace)) as ethtool:
        await ethtool.set_features(link.index, wanted, "set v0's offloads", net.deadline)
        told = net.within(lambda: ethtool_ioctl.features("v0"))
        assert {name: told[name].active for name in wanted} == wanted
        with pytest.raises(NetlinkRefusal, match=r"set v0's offloads: .*bit name not found"):
            await ethtool.set_features(
                link.index, {"tx-warp": True}, "set v0's offloads", net.deadline
            )


async def test_a_feature_that_is_fixed_is_not_changed(net: Lab) -> None:
    with contextlib.closing(open_ethtool(net.namespace)) as ethtool:
        lo = await net.link("lo")
        before = await ethtool.features(lo.index, net.deadline)
        assert before is not None
        assert "loopback" in before.fixed & before.active
        with contextlib.suppress(NetlinkRefusal):
            await ethtool.set_features(lo.index, {"loopback": False}, "x", net.deadline)
        assert await ethtool.features(lo.index, net.deadline) == before


async def test_channels_are_as_the_ioctl_tells_them(net: Lab) -> None:
    net.ip("link", "add", "v0", "numtxqueues", "4", "numrxqueues", "4", "type", "veth")
    link = await net.link("v0")
    with contextlib.closing(open_ethtool(net.namespace)) as ethtool:
        found = await ethtool.channels(link.index, net.deadline)
        assert found is not None
        told = net.within(lambda: ethtool_ioctl.channels("v0"))
        assert (found.now.receive, found.now.transmit) == (told["rx"], told["tx"])
        assert (found.most.receive, found.most.transmit) == (told["max_rx"], told["max_tx"])
        assert found.most.transmit == 4
        await ethtool.set_channels(
            link.index, Queues(receive=1, transmit=2), "set v0's queues", net.deadline
        )
        told = net.within(lambda: ethtool_ioctl.channels("v0"))
        assert (told["rx"], told["tx"]) == (1, 2)


async def test_an_interface_without_channels(net: Lab) -> None:
    lo = await net.link("lo")
    with contextlib.closing(open_ethtool(net.namespace)) as ethtool:
        assert await ethtool.channels(lo.index, net.deadline) is None
        with pytest.raises(NetlinkRefusal, match="Operation not supported"):
            await ethtool.set_channels(
                lo.index, Queues(combined=2), "set lo's queues", net.deadline
            )
