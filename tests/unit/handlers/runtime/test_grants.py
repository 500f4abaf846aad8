"""Grants: which nodes, at which places, with which rights."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.model import DeviceGrant, DeviceNode, HostTuple, NodeType
from agent.handlers.runtime.grants import (
    Claim,
    Granted,
    PlacedNode,
    User,
    effective,
    grant_device,
    place,
    select,
)
from tests.fakes.managers import attached, node

pytestmark = [pytest.mark.unit, pytest.mark.containers]

VDA, VDB = node("/dev/vda", 254, 0), node("/dev/vdb", 254, 16)
PART = node("/dev/vdb1", 254, 17)
CONTROL = node("/dev/nvidiactl", 195, 255, NodeType.CHAR)
GPUS = [node(f"/dev/nvidia{number}", 195, number, NodeType.CHAR) for number in range(2)]
USER = User(1000, 50)


def granted(*nodes: DeviceNode, host: Sequence[str] = (), **members: str) -> Granted:
    return select(DeviceGrant(**{"device_id": "d", **members}), nodes, host)


def placed(*all_granted: Granted, claims: Sequence[Claim] = ()) -> tuple[PlacedNode, ...]:
    return place(all_granted, {claim.path: claim for claim in claims}, USER)


def places(nodes: Sequence[PlacedNode]) -> dict[str, str]:
    return {each.path: each.node.path for each in nodes}


def test_all_nodes_of_a_device_at_their_own_paths() -> None:
    found = placed(granted(VDB, PART, permissions="rw"))
    assert places(found) == {"/dev/vdb": "/dev/vdb", "/dev/vdb1": "/dev/vdb1"}
    assert {(each.permissions, each.mode, each.uid, each.gid) for each in found} == {
        ("rw", 0o660, 1000, 50)
    }


def test_one_node_of_several_at_a_path() -> None:
    one = granted(VDB, PART, node="/dev/vdb1", container_path="/dev/data")
    assert places(placed(one)) == {"/dev/data": "/dev/vdb1"}


@pytest.mark.parametrize(
    ("grant", "nodes"),
    [
        (DeviceGrant(device_id="d", permissions="x"), [VDB]),
        (DeviceGrant(device_id="d", permissions="rr"), [VDB]),
        (DeviceGrant(device_id="d", permissions="rwmr"), [VDB]),
        (DeviceGrant(device_id="d", node="/dev/vdc"), [VDB]),
        (DeviceGrant(device_id="d", node="/dev/vdb"), []),
        (DeviceGrant(device_id="d", container_path="/dev/x"), [VDB, PART]),
        (DeviceGrant(device_id="d", container_path="/dev/x"), []),
        (DeviceGrant(device_id="d", container_path="dev/x"), [VDB]),
        (DeviceGrant(device_id="d", container_path="/dev/../x"), [VDB]),
        (DeviceGrant(device_id="d", container_path="/dev//x"), [VDB]),
        (DeviceGrant(device_id="d", container_path="/"), [VDB]),
    ],
)
def test_bad_grants_are_refused(grant: DeviceGrant, nodes: list[DeviceNode]) -> None:
    with pytest.raises(AgentError) as caught:
        select(grant, nodes)
    assert caught.value.reason is Reason.BAD_FIELD


@pytest.mark.parametrize(
    "both",
    [
        [granted(VDB), granted(VDB)],
        [granted(VDB, permissions="r"), granted(VDB, permissions="w")],
        [granted(VDA, device_id="a"), granted(VDB, device_id="b", container_path="/dev/vda")],
        [
            granted(VDA, device_id="a", container_path="/dev/x"),
            granted(VDB, device_id="b", container_path="/dev/x"),
        ],
    ],
)
def test_two_nodes_at_one_path_are_refused(both: list[Granted]) -> None:
    with pytest.raises(AgentError) as caught:
        placed(*both)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_node_that_devices_share_is_one() -> None:
    """All GPUs of a vendor have one control node."""
    first = granted(GPUS[0], CONTROL, device_id="a", permissions="r")
    second = granted(GPUS[1], CONTROL, device_id="b", permissions="wm")
    found = placed(first, second)
    assert [each.path for each in found] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia1"]
    assert {each.path: each.permissions for each in found}["/dev/nvidiactl"] == "rwm"


def test_paths_of_two_devices_can_be_swapped() -> None:
    """By the grants, and by what the host calls the devices: the guest's names yield."""
    by_grant = placed(
        granted(VDA, device_id="a", container_path="/dev/vdb"),
        granted(VDB, device_id="b", container_path="/dev/vda"),
    )
    assert places(by_grant) == {"/dev/vdb": "/dev/vda", "/dev/vda": "/dev/vdb"}
    by_host = placed(
        granted(VDA, device_id="a", host=["/dev/vdb"]),
        granted(VDB, device_id="b", host=["/dev/vda"]),
        claims=[Claim(path="/dev/vda"), Claim(path="/dev/vdb")],
    )
    assert places(by_host) == {"/dev/vdb": "/dev/vda", "/dev/vda": "/dev/vdb"}


def test_the_hosts_path_counts_only_where_the_specification_has_it() -> None:
    assert places(placed(granted(VDB, host=["/dev/sdc"]))) == {"/dev/vdb": "/dev/vdb"}
    both = placed(granted(VDB, host=["/dev/sdc"]), claims=[Claim(path="/dev/sdc")])
    assert places(both) == {"/dev/sdc": "/dev/vdb", "/dev/vdb": "/dev/vdb"}


def test_a_path_that_a_grant_names_is_stronger_than_the_hosts() -> None:
    found = placed(
        granted(VDA, device_id="a", host=["/dev/x"]),
        granted(VDB, device_id="b", container_path="/dev/x"),
        claims=[Claim(path="/dev/x")],
    )
    assert places(found) == {"/dev/x": "/dev/vdb", "/dev/vda": "/dev/vda"}


def test_a_hosts_path_means_the_node_of_that_name_or_the_first() -> None:
    gpu = granted(GPUS[0], CONTROL, host=["/dev/nvidia3", "/dev/nvidiactl"])
    claims = [Claim(path="/dev/nvidia3"), Claim(path="/dev/nvidiactl")]
    assert places(placed(gpu, claims=claims)) == {
        "/dev/nvidia3": "/dev/nvidia0",
        "/dev/nvidiactl": "/dev/nvidiactl",
        "/dev/nvidia0": "/dev/nvidia0",
    }


def test_a_claimed_entry_keeps_what_it_asked_for() -> None:
    claim = Claim(path="/dev/x", mode=0o600, uid=7, gid=0, access="r")
    (found,) = placed(granted(VDB, container_path="/dev/x"), claims=[claim])
    assert (found.mode, found.uid, found.gid, found.permissions) == (0o600, 7, 0, "r")


def test_permissions_of_the_grant_are_stronger_than_those_of_the_rules() -> None:
    claim = Claim(path="/dev/x", access="r")
    (found,) = placed(granted(VDB, container_path="/dev/x", permissions="w"), claims=[claim])
    assert found.permissions == "w"


def test_rights_are_the_same_at_all_places_of_a_node() -> None:
    """Rules know numbers only: with all at one path it would be all at the other, too."""
    claim = Claim(path="/dev/sdc", access="r")
    found = placed(granted(VDB, host=["/dev/sdc"]), claims=[claim])
    assert {each.permissions for each in found} == {"r"}


def test_the_status_has_the_permissions_that_came_of_it() -> None:
    all_granted = [
        granted(VDB, container_path="/dev/x"),
        granted(VDA, device_id="a"),
        granted(PART, device_id="p", permissions="mr"),
        granted(device_id="nic"),
    ]
    found = placed(*all_granted, claims=[Claim(path="/dev/x", access="w")])
    letters = {each.device_id: each.permissions for each in effective(all_granted, found)}
    assert letters == {"d": "w", "a": "rwm", "p": "mr", "nic": "rwm"}


def test_a_grant_that_gives_nothing_is_refused() -> None:
    """A NIC has no node; what it gives is the translation of the host's address, if any."""
    with pytest.raises(AgentError, match="nothing by which the host knows it"):
        grant_device(DeviceGrant(device_id="nic"), attached("nic"))
    known = (HostTuple(type="pci", id="0000:3b:02.1"),)
    assert grant_device(DeviceGrant(device_id="nic"), attached("nic", host=known)).addresses


def test_what_the_host_knows_of_a_device() -> None:
    tuples = (
        HostTuple(type="pci", id="0000:3B:02.1"),
        HostTuple(type="path", id="/dev//vfio/./45"),
    )
    first = grant_device(DeviceGrant(device_id="d"), attached("d", VDB, host=tuples))
    assert first.host_paths == ("/dev/vfio/45",)
    assert first.addresses == (("0000:3b:02.1", "0000:01:00.0"),)
