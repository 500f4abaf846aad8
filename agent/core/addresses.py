"""Every form of a device's address, each strict to read, with one canonical text.

`core/pci.py` has the two forms of PCI; here are the others and the union of all.
An address is an `Address` by its kind ("scsi") and text ("0:0:1:10"), which is how
it is saved and how errors name it. Facts: SCSI is host:channel:target:lun as in
/sys/bus/scsi/devices (Documentation/scsi/scsi_mid_low_api.rst), LUNs up to 64 bits;
CCW is channel subsystem, subchannel set and device number
(Documentation/arch/s390/driver-model.rst).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self, TypeAlias

from agent.core.errors import AgentError, Reason, invalid
from agent.core.pci import Bdf, PciPath

_NUMBER = r"(0|[1-9][0-9]{0,%d})"
_SCSI_NAME = re.compile(":".join(_NUMBER % digits for digits in (9, 9, 9, 19)))
_CCW = re.compile(r"([0-9a-f]{1,2})\.([0-3])\.([0-9a-f]{4})")
_MMIO = re.compile(r"0x(0|[1-9a-f][0-9a-f]{0,15})")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_NODE = re.compile(r"/dev(/[A-Za-z0-9_+@,:=-][A-Za-z0-9_.+@,:=-]{0,63}){1,8}")

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class ScsiName:
    """A SCSI device as sysfs names it: host, channel, target, lun."""

    host: int
    channel: int
    target: int
    lun: int

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From a name in /sys/bus/scsi/devices; None for hosts and targets, which are there too."""
        match = _SCSI_NAME.fullmatch(text)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return f"{self.host}:{self.channel}:{self.target}:{self.lun}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScsiAddress:
    """A SCSI device: `host` None means any host; `adapter` is the PCI path of the host's
    adapter, None for any. Text: `[ADAPTER]HOST:CHANNEL:TARGET:LUN`, with `*` for any host."""

    channel: int
    target: int
    lun: int
    host: int | None = None
    adapter: PciPath | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS."""
        match = re.fullmatch(r"(?:\[([^\]]*)\])?(.*)", text)
        adapter, name = match.groups() if match else (None, text)
        any_host = name.startswith("*:")
        found = ScsiName.of(f"0{name[1:]}" if any_host else name)
        if found is None:
            raise _bad(text, "a SCSI address", "[ADAPTER]HOST:CHANNEL:TARGET:LUN in decimal")
        return cls(
            channel=found.channel,
            target=found.target,
            lun=found.lun,
            host=None if any_host else found.host,
            adapter=PciPath.parse(adapter) if adapter is not None else None,
        ).checked()

    def checked(self) -> Self:
        """Raises BAD_ADDRESS for numbers that no device can have."""
        small = (self.channel, self.target, self.host or 0)
        if any(number > _U32 for number in small) or self.lun > _U64:
            raise _bad(str(self), "a SCSI address", "32-bit numbers and a 64-bit LUN")
        return self

    def matches(self, name: ScsiName) -> bool:
        """Whether the numbers are this address's; the adapter is for sysfs to tell."""
        same = (self.channel, self.target, self.lun) == (name.channel, name.target, name.lun)
        return same and self.host in (None, name.host)

    def __str__(self) -> str:
        adapter = f"[{self.adapter}]" if self.adapter else ""
        host = "*" if self.host is None else self.host
        return f"{adapter}{host}:{self.channel}:{self.target}:{self.lun}"


@dataclass(frozen=True, slots=True, order=True)
class CcwAddress:
    """A channel device of s390: `0.0.0001`."""

    cssid: int
    ssid: int
    devno: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS."""
        match = _CCW.fullmatch(text.lower())
        if match is None:
            raise _bad(text, "a CCW address", "CSSID.SSID.DEVNO in hex, e.g. 0.0.0001")
        return cls(*(int(part, 16) for part in match.groups()))

    def __str__(self) -> str:
        return f"{self.cssid:x}.{self.ssid:x}.{self.devno:04x}"


@dataclass(frozen=True, slots=True, order=True)
class MmioAddress:
    """A virtio-mmio device by the base address of its registers: `0xd0000000`."""

    base: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS."""
        match = _MMIO.fullmatch(text.lower())
        if match is None:
            raise _bad(text, "an MMIO address", "0x and up to 16 hex digits, e.g. 0xd0000000")
        return cls(int(match[1], 16))

    def __str__(self) -> str:
        return f"{self.base:#x}"


@dataclass(frozen=True, slots=True, order=True)
class NodePath:
    """A node below /dev by its path: `/dev/vdb`, `/dev/dri/card0`."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS; no part may begin with a dot, so none leads out of /dev."""
        if _NODE.fullmatch(text) is None:
            raise _bad(text, "a device node's path", "/dev/NAME without . and .., e.g. /dev/vdb")
        return cls(text)

    @property
    def name(self) -> str:
        """The path below /dev."""
        return self.text.removeprefix("/dev/")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, order=True)
class MacAddress:
    """A network interface by the address it has now, lower case with colons."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BAD_ADDRESS, also for group addresses (IEEE 802: the lowest bit of the first
        octet) and for all zeros, which no interface has for its own."""
        if _MAC.fullmatch(text) is None:
            raise _bad(text, "a MAC address", "six octets in hex with colons")
        if int(text[:2], 16) & 1 or not int(text.replace(":", ""), 16):
            raise _bad(text, "an interface's own MAC address", "no group address, not all zeros")
        return cls(text.lower())

    def __str__(self) -> str:
        return self.text


Address: TypeAlias = PciPath | Bdf | ScsiAddress | CcwAddress | MmioAddress | NodePath | MacAddress

_KINDS: dict[str, type[Address]] = {
    "pci_path": PciPath,
    "pci_bdf": Bdf,
    "scsi": ScsiAddress,
    "ccw": CcwAddress,
    "mmio": MmioAddress,
    "path": NodePath,
    "mac": MacAddress,
}


def kind_of(address: Address) -> str:
    """The name of an address's form, as in the protocol's DeviceAddress."""
    return next(name for name, form in _KINDS.items() if isinstance(address, form))


def parse(kind: str, text: str) -> Address:
    """An address by form and text; raises BAD_ADDRESS, KeyError for a form there is not."""
    return _KINDS[kind].parse(text)


def _bad(text: str, what: str, form: str) -> AgentError:
    return invalid(
        f"{text[:200]!r} is not {what}: expected {form}", reason=Reason.BAD_ADDRESS, address=text
    )
