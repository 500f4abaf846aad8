"""What QEMU's events tell of the removal of a device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from innkeeper.shim.plugged import Fate

if TYPE_CHECKING:
    from collections.abc import Mapping

# ACPI 6.5, 6.3.5 (_OST): the source events of an ejection, and the status codes
# that are no refusal: success, and an ejection that has begun.
_EJECTION = (0x3, 0x103)
_LAPIC = re.compile(r"/machine/peripheral/([^/]+)/lapic")
_NO_REFUSAL = (0x0, 0x84)
_STATUS = {
    0x1: "it failed",
    0x80: "it does not support ejection",
    0x81: "it is in use",
    0x82: "it is busy",
    0x83: "something that depends on it is busy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event, about one of our devices or another's."""

    device: str
    """QEMU's id."""
    fate: Fate
    why: str = ""


def read(name: str, data: Mapping[str, Any]) -> Told | None:
    """None for events about something else.

    A virtio device has a second DEVICE_DELETED, of its inner half, without an id.
    A CPU has none but that of its interrupt controller (QEMU 7.2 with TCG).
    """
    match name:
        case "DEVICE_DELETED":
            lapic = _LAPIC.fullmatch(str(data.get("path", "")))
            return _told({"device": lapic[1]} if lapic else data, Fate.REMOVED)
        case "DEVICE_UNPLUG_GUEST_ERROR":
            return _told(data, Fate.KEPT)
        case "MEM_UNPLUG_ERROR":
            return _told(data, Fate.KEPT, str(data.get("msg", "")))
        case "ACPI_DEVICE_OST":
            return _from_acpi(data.get("info") or {})
        case _:
            return None


def _from_acpi(info: Mapping[str, Any]) -> Told | None:
    """Memory and CPUs: QEMU 7.2 tells a guest's refusal this way alone."""
    status = info.get("status")
    if info.get("source") not in _EJECTION or status in _NO_REFUSAL:
        return None
    return _told(info, Fate.KEPT, _STATUS.get(status, f"ACPI status {status}") if status else "")


def _told(data: Mapping[str, Any], fate: Fate, why: str = "") -> Told | None:
    device = data.get("device")
    return Told(device=device, fate=fate, why=why) if isinstance(device, str) else None
