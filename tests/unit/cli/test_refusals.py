"""Why a device did not come or go, as an operator reads it."""

from __future__ import annotations

import json

import pytest

from innkeeper.cli.attached import ranges, where
from innkeeper.cli.errors import CliError
from innkeeper.cli.refusals import explain, told
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.v1 import devices_pb2

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def test_evidence_is_told_field_by_field_and_line_by_line() -> None:
    fields = {
        "guest_reason": "DEVICE_NOT_READY",
        "driver": "none",
        "kernel_log": "first line\nsecond line",
        "events": "",
    }
    assert explain("disk x: did not come", "GUEST_REFUSED", fields).splitlines() == [
        "disk x: did not come",
        "  reason: DEVICE_NOT_READY",
        "  driver: none",
        "  kernel_log:",
        "    first line",
        "    second line",
    ]


def test_holders_are_a_table() -> None:
    holders = [
        {"kind": "mount", "name": "/dev/vdb", "path": "/mnt", "pid": 12, "command": "sh"},
        {"kind": "container", "name": "web"},
    ]
    text = explain("x: in use", "STILL_IN_USE", {"holders": json.dumps(holders)})
    assert [line.split() for line in text.splitlines()[3:]] == [
        ["KIND", "NAME", "PATH", "PID", "COMMAND"],
        ["mount", "/dev/vdb", "/mnt", "12", "sh"],
        ["container", "web", "-", "-", "-"],
    ]


@pytest.mark.parametrize("cut", ['[{"kind": "mou', "[1]", "7"])
def test_a_list_that_was_cut_is_shown_as_it_is(cut: str) -> None:
    assert f"  holders: {cut}" in explain("x", "STILL_IN_USE", {"holders": cut})


def test_a_refusal_keeps_its_hint() -> None:
    error = ShimError(Reason.NOT_REMOVABLE, "x: stays", hint="stop the VM")
    with pytest.raises(CliError) as caught, told():
        raise error
    assert caught.value.hint == "stop the VM"
    assert caught.value.message == "x: stays\n  reason: NOT_REMOVABLE"


def test_what_a_device_became() -> None:
    nic = devices_pb2.AttachedDevice(
        pci_path="10/00",
        pci_bdf="0000:01:00.0",
        nic=devices_pb2.NicInfo(name="eth0", mac="52:54:00:12:34:56"),
    )
    assert where(nic) == "PCI path 10/00, 0000:01:00.0, eth0 (52:54:00:12:34:56)"
    vfio = devices_pb2.AttachedDevice(
        pci_bdf="0000:01:00.0",
        nodes=[devices_pb2.DeviceNode(path="/dev/vfio/7")],
        vfio=devices_pb2.VfioInfo(group=7, mode=devices_pb2.VFIO_MODE_VFIO),
    )
    assert where(vfio) == "0000:01:00.0, /dev/vfio/7, group 7"


def test_numbers_as_the_kernel_lists_them() -> None:
    """As in /sys/devices/system/cpu/online."""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert ranges([]) == ""
