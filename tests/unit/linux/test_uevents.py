"""Messages of the kernel's event socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux.uevents import parse
from tests.fakes.uevents import message

pytestmark = [pytest.mark.unit, pytest.mark.devices]

# The form of lib/kobject_uevent.c, with the variables of a hot-plugged virtio-blk disk.
DISK = (
    b"add@/devices/pci0000:00/0000:00:02.0/0000:01:00.0/virtio3/block/vdb\0"
    b"ACTION=add\0DEVPATH=/devices/pci0000:00/0000:00:02.0/0000:01:00.0/virtio3/block/vdb\0"
    b"SUBSYSTEM=block\0MAJOR=254\0MINOR=16\0DEVNAME=vdb\0DEVTYPE=disk\0DISKSEQ=3\0SEQNUM=1186\0"
)


def test_the_event_of_a_disk() -> None:
    event = parse(DISK, 0)
    assert event is not None
    assert event.action == "add"
    assert event.subsystem == "block"
    assert event.node == "vdb"
    assert event.sequence == 1186
    assert event.components[-3:] == ("virtio3", "block", "vdb")
    assert event.properties["DISKSEQ"] == "3"
    assert str(event) == f"add block {event.devpath} (vdb)"


def test_only_port_0_is_the_kernel() -> None:
    assert parse(DISK, 1) is None
    assert parse(DISK, 2**32 - 1) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"libudev\0\xfe\xed\xca\xfe",
        b"add",
        b"add@",
        b"@/devices/x",
        b"add@devices/x\0ACTION=add\0",
    ],
)
def test_what_is_not_an_event_is_none(data: bytes) -> None:
    assert parse(data, 0) is None


def test_values_may_hold_anything_but_nul() -> None:
    event = parse(b'change@/devices/x\0NAME="a=b"\0RAW=\xff\0EMPTY=\0SEQNUM=x\0', 0)
    assert event is not None
    assert event.properties["NAME"] == '"a=b"'
    assert event.properties["RAW"] == "\udcff"
    assert event.properties["EMPTY"] == ""
    assert event.sequence == 0


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(data: bytes) -> None:
    parse(data, 0)


@given(st.lists(st.sampled_from(["a", "0000:00:02.0", "block"]), min_size=1, max_size=5))
def test_the_fake_speaks_what_is_parsed(parts: list[str]) -> None:
    devpath = "/devices/" + "/".join(parts)
    event = parse(message("add", devpath, "block", DEVNAME="vda"), 0)
    assert event is not None
    assert event.components == ("devices", *parts)
