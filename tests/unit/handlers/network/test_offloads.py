"""Names of offloads as ethtool(8) has them (`off_flag_def` of its common.c)."""

from __future__ import annotations

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.rtnl.ethtool import Features
from agent.handlers.network.offloads import check_fulfilled, features_to_set

pytestmark = [pytest.mark.unit, pytest.mark.network]

TSO = frozenset({"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation"})
FEATURES = Features(
    active=TSO | {"rx-gro", "tx-checksum-ip-generic", "netns-local"},
    wanted=TSO | {"rx-gro", "tx-checksum-ip-generic"},
    changeable=TSO | {"rx-gro", "tx-checksum-ip-generic", "rx-hashing"},
    fixed=frozenset({"tx-tcp-mangleid-segmentation", "rx-lro", "netns-local", "tx-checksum-ipv4"}),
)


@pytest.mark.parametrize("name", ["tso", "tcp-segmentation-offload"])
def test_a_name_for_several(name: str) -> None:
    """Those of them that can be changed: the fixed one is left out."""
    assert features_to_set({name: False}, FEATURES, "eth0") == dict.fromkeys(TSO, False)
    assert features_to_set({name: True}, FEATURES, "eth0") == {}


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("gro", "rx-gro"),
        ("generic-receive-offload", "rx-gro"),
        ("rx-gro", "rx-gro"),
        ("tx", "tx-checksum-ip-generic"),
        ("tx-checksumming", "tx-checksum-ip-generic"),
    ],
)
def test_every_kind_of_name(name: str, feature: str) -> None:
    assert features_to_set({name: False}, FEATURES, "eth0") == {feature: False}


def test_a_single_one_goes_before_a_name_for_several() -> None:
    wishes = {"tx-tcp6-segmentation": True, "tso": False}
    expected = dict.fromkeys(TSO - {"tx-tcp6-segmentation"}, False)
    assert features_to_set(wishes, FEATURES, "eth0") == expected


@pytest.mark.parametrize("wish", [{"lro": True}, {"rx-lro": True}, {"netns-local": False}])
def test_one_that_is_fixed(wish: dict[str, bool]) -> None:
    with pytest.raises(AgentError) as caught:
        features_to_set(wish, FEATURES, "eth0")
    assert caught.value.reason is Reason.OFFLOAD_REFUSED
    assert "eth0" in caught.value.message


@pytest.mark.parametrize("wish", [{"lro": False}, {"ufo": False}, {"netns-local": True}])
def test_one_that_is_fixed_as_it_is_wanted(wish: dict[str, bool]) -> None:
    assert features_to_set(wish, FEATURES, "eth0") == {}


def test_one_that_there_is_not() -> None:
    with pytest.raises(AgentError) as caught:
        features_to_set({"warp": True}, FEATURES, "eth0")
    assert caught.value.reason is Reason.BAD_FIELD


def test_one_that_the_kernel_keeps_off() -> None:
    """It needs another that is off (netdev_fix_features): the wish is noted, no more."""
    check_fulfilled({"tso": True, "rxhash": False}, FEATURES, "eth0")
    with pytest.raises(AgentError) as caught:
        check_fulfilled({"rxhash": True}, FEATURES, "eth0")
    assert caught.value.reason is Reason.OFFLOAD_REFUSED
    assert caught.value.fields["offloads"] == "rxhash"
