"""PCI class codes in words (PCI Code and ID Assignment Specification, section 1)."""

from __future__ import annotations

_BASES = {
    0x00: "device older than class codes",
    0x01: "storage controller",
    0x02: "network controller",
    0x03: "display controller",
    0x04: "multimedia device",
    0x05: "memory controller",
    0x06: "bridge",
    0x07: "communication controller",
    0x08: "system peripheral",
    0x09: "input controller",
    0x0A: "docking station",
    0x0B: "processor",
    0x0C: "serial bus controller",
    0x0D: "wireless controller",
    0x0E: "intelligent controller",
    0x0F: "satellite controller",
    0x10: "encryption controller",
    0x11: "signal processor",
    0x12: "processing accelerator",
    0x13: "instrumentation",
    0x40: "co-processor",
    0xFF: "unclassified device",
}

_KINDS = {
    0x0100: "SCSI controller",
    0x0101: "IDE controller",
    0x0104: "RAID controller",
    0x0106: "SATA controller",
    0x0107: "SAS controller",
    0x0108: "NVMe controller",
    0x0200: "Ethernet controller",
    0x0207: "InfiniBand controller",
    0x0208: "fabric controller",
    0x0300: "VGA controller",
    0x0302: "3D controller",
    0x0380: "display controller",
    0x0401: "audio device",
    0x0403: "audio device",
    0x0500: "memory",
    0x0502: "CXL memory",
    0x0600: "host bridge",
    0x0601: "ISA bridge",
    0x0604: "PCI bridge",
    0x0607: "CardBus bridge",
    0x0609: "PCI bridge",
    0x0700: "serial port",
    0x0800: "interrupt controller",
    0x0801: "DMA controller",
    0x0806: "IOMMU",
    0x0B40: "co-processor",
    0x0C00: "FireWire controller",
    0x0C03: "USB controller",
    0x0C05: "SMBus controller",
    0x1000: "encryption controller",
}

_BRIDGE = 0x06
# Of no kind that a bus hangs on; NVIDIA's NVSwitch, which is given away, is one.
_OTHER_BRIDGE = 0x0680


def in_words(code: int) -> str:
    """What a class code (24 bits: base, kind, programming interface) says of a function."""
    base = _BASES.get(code >> 16)
    return _KINDS.get(code >> 8) or base or f"device of class 0x{code >> 16:02x}"


def is_bridge(code: int) -> bool:
    """Whether it belongs to the host's own buses, so that no driver can give it away."""
    return code >> 16 == _BRIDGE and code >> 8 != _OTHER_BRIDGE


def is_display(code: int) -> bool:
    return code >> 16 == 0x03
