"""QEMU's events about removal, as QEMU 7.2 sends them."""

from __future__ import annotations

from typing import Any

import pytest

from innkeeper.shim import removal
from innkeeper.shim.plugged import Fate

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def fate(name: str, data: dict[str, Any]) -> tuple[str, Fate] | None:
    told = removal.read(name, data)
    return (told.device, told.fate) if told is not None else None


def test_a_device_that_is_gone_is_told_by_its_id() -> None:
    path = "/machine/peripheral/dev-a"
    assert fate("DEVICE_DELETED", {"device": "dev-a", "path": path}) == ("dev-a", Fate.REMOVED)


def test_the_inner_half_of_a_virtio_device_tells_nothing() -> None:
    path = "/machine/peripheral/dev-a/virtio-backend"
    assert fate("DEVICE_DELETED", {"path": path}) is None


def test_a_cpu_is_told_by_its_interrupt_controller() -> None:
    path = "/machine/peripheral/part-c-0/lapic"
    assert fate("DEVICE_DELETED", {"path": path}) == ("part-c-0", Fate.REMOVED)


@pytest.mark.parametrize(
    ("source", "status", "refused"),
    [
        (1, 0, False),  # it has come, and is used
        (3, 0x84, False),  # the ejection has begun
        (3, 0, False),
        (3, 1, True),
        (3, 0x82, True),
        (0x103, 0x81, True),
    ],
)
def test_memory_that_a_guest_keeps_is_told_by_acpi(
    source: int,
    status: int,
    refused: bool,
) -> None:
    """ACPI 6.5, table 6.x of _OST: source 3 is an ejection request."""
    info = {"device": "dev-m", "slot": "0", "slot-type": "DIMM", "source": source, "status": status}
    expected = ("dev-m", Fate.KEPT) if refused else None
    assert fate("ACPI_DEVICE_OST", {"info": info}) == expected


def test_an_unnamed_socket_is_nobodys() -> None:
    info = {"slot": "0", "slot-type": "DIMM", "source": 3, "status": 1}
    assert fate("ACPI_DEVICE_OST", {"info": info}) is None


def test_the_two_older_events() -> None:
    told = removal.read("MEM_UNPLUG_ERROR", {"device": "dev-m", "msg": "busy"})
    assert told is not None
    assert (told.fate, told.why) == (Fate.KEPT, "busy")
    assert fate("DEVICE_UNPLUG_GUEST_ERROR", {"device": "dev-m", "path": "/x"}) == (
        "dev-m",
        Fate.KEPT,
    )
    assert fate("RTC_CHANGE", {"offset": 0}) is None
