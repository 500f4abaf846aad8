"""`run --device`: which of the guest's devices is meant."""

from __future__ import annotations

import pytest

from innkeeper.cli.errors import CliError
from innkeeper.cli.grants import Wanted, resolve
from innkeeper.cli.options import parse_grant
from innkeeper.v1 import devices_pb2

pytestmark = [pytest.mark.unit, pytest.mark.devices]

DISK = devices_pb2.AttachedDevice(
    device=devices_pb2.Device(id="data"),
    pci_path="02/00",
    pci_bdf="0000:01:00.0",
    nodes=[devices_pb2.DeviceNode(path="/dev/vdb", type="b", major=254, minor=16)],
)
FUNCTION = devices_pb2.AttachedDevice(
    device=devices_pb2.Device(
        id="fn",
        host=[
            devices_pb2.HostTuple(type="pci", id="0000:3b:02.1"),
            devices_pb2.HostTuple(type="path", id="/dev/vfio/45"),
        ],
    ),
    pci_path="02.3/00",
    pci_bdf="0000:02:00.0",
    nodes=[
        devices_pb2.DeviceNode(path="/dev/vfio/16", type="c", major=241, minor=0),
        devices_pb2.DeviceNode(path="/dev/vfio/vfio", type="c", major=10, minor=196),
    ],
)
NIC = devices_pb2.AttachedDevice(device=devices_pb2.Device(id="nic"), pci_bdf="0000:03:00.0")


def wanted(*texts: str, everything: bool = False) -> Wanted:
    options = [parse_grant(text) for text in texts]
    return resolve(options, [DISK, FUNCTION, NIC], "app", everything=everything)


def grants(*texts: str, everything: bool = False) -> list[tuple[str, str, str, str]]:
    found = wanted(*texts, everything=everything)
    assert not found.attach
    return [
        (each.device_id, each.node, each.container_path, each.permissions) for each in found.grants
    ]


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("data:/dev/x:r", ("data", "", "/dev/x", "r")),
        ("0000:01:00.0:rw", ("data", "", "", "rw")),
        ("01:00.0", ("data", "", "", "")),
        ("02/00", ("data", "", "", "")),
        ("0000:00/02.0/00.0", ("data", "", "", "")),
        ("02.3/00", ("fn", "", "", "")),
        ("/dev/vdb:/dev/disk", ("data", "/dev/vdb", "/dev/disk", "")),
        ("/dev/vfio/vfio", ("fn", "/dev/vfio/vfio", "", "")),
    ],
)
def test_a_device_is_found_by_each_of_its_names(
    text: str, grant: tuple[str, str, str, str]
) -> None:
    assert grants(text) == [grant]


def test_a_group_comes_with_its_control_node() -> None:
    """A driver in user space opens /dev/vfio/vfio first (Documentation/driver-api/vfio.rst)."""
    assert grants("/dev/vfio/16") == [("fn", "", "", "")]


def test_what_the_host_knows_it_by_does_too_where_the_guest_has_nothing_of_that_name() -> None:
    assert grants("/dev/vfio/45", "3b:02.1") == [("fn", "", "", ""), ("fn", "", "", "")]


def test_what_is_not_attached_is_attached_for_the_container() -> None:
    found = wanted("/dev/fuse", "05/00", "0000:07:00.0:r", "nobody-knows-it")
    assert [each.id for each in found.attach] == ["app-device1", "app-device2", "app-device3"]
    addresses = [each.address for each in found.attach]
    assert [addresses[0].path, addresses[1].pci_path, addresses[2].pci_bdf] == [
        "/dev/fuse",
        "05/00",
        "0000:07:00.0",
    ]
    assert [each.device_id for each in found.grants] == [
        "app-device1",
        "app-device2",
        "app-device3",
        "nobody-knows-it",
    ]
    assert [each.node for each in found.grants] == [""] * 4


def test_a_group_that_is_not_there_is_told_with_the_nodes_that_are() -> None:
    with pytest.raises(CliError, match=r"nodes: /dev/vdb, /dev/vfio/16, /dev/vfio/vfio"):
        wanted("/dev/vfio/17")


def test_a_privileged_container_gets_all_that_has_nodes() -> None:
    assert grants("data:r", everything=True) == [("data", "", "", "r"), ("fn", "", "", "")]
