"""Why the kernel could not make a device work, read from what it logged.

Texts of Linux 5.10 to 6.12: drivers/base/dd.c (call_driver_probe), in
drivers/base/firmware_loader/main.c (_request_firmware), drivers/pci/setup-res.c. A
driver that answers ENODEV or ENXIO says nothing, and one that has to wait for
something else (EPROBE_DEFER) is asked again: neither shows here.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.linux.kmsg import KernelRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """`reason` is DRIVER_REFUSED, FIRMWARE_MISSING or NO_BAR_ADDRESS.

    `final`: a driver has given up, so that waiting is of no use. Without it the
    explanation holds only if the device does not get ready by itself: a driver may
    try other names of its firmware, the PCI core other places for an address. `driver`
    is the one that has given up last, empty where none has: what it said stays in the
    log when another one gets its turn.
    """

    reason: Reason
    text: str
    final: bool
    driver: str = ""


# Before 6.10 "DRIVER: probe of DEVICE failed with error N", since then
# "DRIVER DEVICE: probe with driver DRIVER failed with error N".
_PROBE = re.compile(
    r"(?:(?P<old>\S+): probe of (?P<old_device>\S+)"
    r"|\S+ (?P<device>\S+): probe with driver (?P<driver>\S+))"
    r" failed with error -(?P<error>[0-9]+)"
)
_FIRMWARE = re.compile(
    r"\S+ (?P<device>\S+): Direct firmware load for (?P<file>\S+) failed with error -2\b"
)
# Before 6.10 "BAR 0: no space for [mem size ...]", "BAR 0: failed to assign [mem ...]" and
# "BAR 0: assigned [mem ...]"; since then "BAR 0 [mem size ...]: can't assign; no space",
# "BAR 0 [mem ...]: failed to assign" and "BAR 0 [mem ...]: assigned". I/O ports are left
# out: devices of today do without. Numbers from 6 on are the ROM and bridge windows.
_BAR = re.compile(
    r"\S+ (?P<device>\S+): BAR (?P<number>[0-5])"
    r"(?: (?P<range>\[mem[^]]*\]): (?P<said>can't assign|failed to assign|assigned)"
    r"|: (?P<old_said>no space for|can't assign|failed to assign|assigned)"
    r" (?P<old_range>\[mem[^]]*\]))"
)


def refusal(records: Iterable[KernelRecord]) -> Refusal | None:
    """Why the device that the records are about does not work; None where they do not tell.

    `records` are those of one device, the oldest first (`KernelLog.records`).
    """
    texts = [record.text for record in records]
    probe = _last(_PROBE, texts)
    if bar := _bar_without_address(texts):
        return _because(Reason.NO_BAR_ADDRESS, bar, probe)
    if firmware := _last(_FIRMWARE, texts):
        text = f"the firmware {firmware['file']} of {firmware['device']} is not in the guest"
        return _because(Reason.FIRMWARE_MISSING, text, probe)
    if probe is not None:
        return _given_up(Reason.DRIVER_REFUSED, _probe_text(probe), probe)
    return None


def _because(reason: Reason, text: str, probe: re.Match[str] | None) -> Refusal:
    if probe is None:
        return Refusal(reason=reason, text=text, final=False)
    return _given_up(reason, f"{text}, and {_probe_text(probe)}", probe)


def _given_up(reason: Reason, text: str, probe: re.Match[str]) -> Refusal:
    return Refusal(reason=reason, text=text, final=True, driver=probe["old"] or probe["driver"])


def _bar_without_address(texts: list[str]) -> str | None:
    """The kernel tries again and again: for each BAR its last word counts."""
    last = {match["number"]: match for text in texts if (match := _BAR.match(text))}
    for number, match in sorted(last.items()):
        if (match["said"] or match["old_said"]) != "assigned":
            size = match["range"] or match["old_range"]
            return f"BAR {number} {size} of {match['device']} got no address"
    return None


def _probe_text(match: re.Match[str]) -> str:
    driver = match["old"] or match["driver"]
    device = match["old_device"] or match["device"]
    number = int(match["error"])
    name = errno.errorcode.get(number, f"error {number}")
    return f"the driver {driver} refused {device} [{name}]"


def _last(pattern: re.Pattern[str], texts: list[str]) -> re.Match[str] | None:
    return next((match for text in reversed(texts) if (match := pattern.match(text))), None)
