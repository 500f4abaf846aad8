"""PCI addresses, in the two forms that the protocol knows (DESIGN D8).

`PciPath` says where a function sits: slots from a root bus downwards, in hex,
`[DDDD:BB/]SS[.F]/SS[.F]...`. The host knows it before the guest enumerates, and
it stays when bus numbers change. `Bdf` says what the guest calls the function
now: `DDDD:BB:SS.F`. Domains have four or more hex digits (behind Intel VMD they
begin at 10000; PCI domain numbers are 32 bits wide in the kernel).

Both are strict to read and have one canonical text: lower-case, function 0 of a
path's step and the root bus 0000:00 left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self, TypeAlias

from agent.core.errors import AgentError, Reason, invalid

PATH_FORM = "[DDDD:BB/]SS[.F]/SS[.F]... in hex, e.g. 02/03.1 or 0000:20/00/02"
BDF_FORM = "DDDD:BB:SS.F in hex, e.g. 0000:01:03.1"

# A switch costs two steps (its upstream and its downstream port), and 256 buses
# per root complex end a tree long before this.
MAX_STEPS = 32

# `$` would let a line feed through and `\d` other scripts' digits.
_DOMAIN = "([0-9a-fA-F]{4}|[1-9a-fA-F][0-9a-fA-F]{4,7})"
_BUS = "([0-9a-fA-F]{2})"
_SLOT = "([01][0-9a-fA-F])"
_ROOT = re.compile(f"{_DOMAIN}:{_BUS}")
_STEP = re.compile(rf"{_SLOT}(?:\.([0-7]))?")
_BDF = re.compile(rf"{_DOMAIN}:{_BUS}:{_SLOT}\.([0-7])")


@dataclass(frozen=True, slots=True, order=True)
class PciBus:
    """A bus by domain and number; sysfs writes it `DDDD:BB`."""

    domain: int = 0
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _ROOT.fullmatch(text)
        if match is None:
            raise invalid(
                f"{text!r} is not a PCI bus: expected DDDD:BB in hex",
                reason=Reason.BAD_ADDRESS,
                address=text,
            )
        return cls(int(match[1], 16), int(match[2], 16))

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.number:02x}"


@dataclass(frozen=True, slots=True, order=True)
class PciSlot:
    """One step of a path: slot 0 to 31 and function 0 to 7 on some bus."""

    slot: int
    function: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _STEP.fullmatch(text)
        if match is None:
            raise _bad(text, "a step of a PCI path", "SS[.F], slot 00 to 1f, function 0 to 7")
        return cls(int(match[1], 16), int(match[2] or "0"))

    def __str__(self) -> str:
        return f"{self.slot:02x}.{self.function}" if self.function else f"{self.slot:02x}"


@dataclass(frozen=True, slots=True, order=True)
class Bdf:
    """A function by the bus number it has now."""

    bus: PciBus
    slot: PciSlot

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS for anything but `DDDD:BB:SS.F`."""
        match = _BDF.fullmatch(text)
        if match is None:
            raise _bad(text, "a PCI address (BDF)", BDF_FORM)
        domain, bus, slot, function = (int(part, 16) for part in match.groups())
        return cls(PciBus(domain, bus), PciSlot(slot, function))

    @classmethod
    def is_name(cls, text: str) -> bool:
        """Whether a name in sysfs is that of a PCI function."""
        return _BDF.fullmatch(text) is not None

    def __str__(self) -> str:
        return f"{self.bus}:{self.slot.slot:02x}.{self.slot.function}"


@dataclass(frozen=True, slots=True, order=True)
class PciPath:
    """A function by its place below a root bus."""

    root: PciBus
    steps: tuple[PciSlot, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS, naming the part that is wrong."""
        parts = text.split("/")
        root = PciBus.parse(parts.pop(0)) if ":" in parts[0] else PciBus()
        if not parts or len(parts) > MAX_STEPS:
            raise _bad(text, f"a PCI path of 1 to {MAX_STEPS} steps", PATH_FORM)
        for part in parts:
            if _STEP.fullmatch(part) is None:
                raise _bad(text, f"a PCI path, its part {part!r}", PATH_FORM)
        return cls(root, tuple(PciSlot.parse(part) for part in parts))

    @property
    def parent(self) -> PciPath | None:
        """The bridge above, or None on a root bus."""
        return PciPath(self.root, self.steps[:-1]) if len(self.steps) > 1 else None

    def __str__(self) -> str:
        steps = "/".join(map(str, self.steps))
        return steps if self.root == PciBus() else f"{self.root}/{steps}"


PciAddress: TypeAlias = PciPath | Bdf


def parse_address(text: str) -> PciAddress:
    """Either form: a colon without a slash makes it a BDF.

    Raises BAD_ADDRESS naming the form expected.
    """
    return Bdf.parse(text) if ":" in text and "/" not in text else PciPath.parse(text)


def _bad(text: str, what: str, form: str) -> AgentError:
    return invalid(
        f"{text!r} is not {what}: expected {form}", reason=Reason.BAD_ADDRESS, address=text
    )
