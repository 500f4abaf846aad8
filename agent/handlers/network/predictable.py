"""The name that an interface on PCI has without being given one.

A pure function of where it is, so that the same topology gives the same names whatever
the order in which drivers were ready. The rule is at the head of network.proto:

    n [domain] p bus b   for another root bus than 0000:00; the domain where it is not 0
    slot [f function]    of each step of the path, `s` between steps, all in hex
    d dev_port           where that is not 0, in decimal
    v phys_port_name     where there is one

What is longer than 15 bytes, or has a port's name that is more than letters and digits,
becomes `nx` and 13 digits in base 32 (65 bits) of its SHA-256. It can't be taken apart in
two ways: `p`, `s`, `v` and `x` are no hex digits, a slot is at most 1f and so never goes on
with `f` or `d` and a digit, and a function is one digit.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.core.pci import PciBus
from agent.handlers.network.names import NAME_BYTES

if TYPE_CHECKING:
    from agent.core.pci import PciPath, PciSlot

_PLAIN = re.compile(r"[0-9A-Za-z]+")
_HASH_DIGITS: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """What tells the interfaces of one function apart
    (Documentation/ABI/testing/sysfs-class-net: dev_port, phys_port_name)."""

    number: int = 0
    name: str = ""


def predictable_name(path: PciPath, port: Port) -> str:
    """1 to 15 bytes, never that of another path or port."""
    name = "n" + _root(path.root) + "s".join(map(_step, path.steps)) + _port(port)
    if _PLAIN.fullmatch(name) and len(name) <= NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).digest()
    return "nx" + base64.b32encode(digest).decode().lower()[:_HASH_DIGITS]


def path_altname(path: PciPath, port: Port) -> str:
    """The PCI path as an alternative name: with `-` for `/` and `:`, which tools refuse in
    names ("pci-02-03.1", "pci-0000-20-00-02")."""
    text = "pci-" + str(path).replace("/", "-").replace(":", "-")
    if port.number:
        text += f"-d{port.number}"
    return f"{text}-v{port.name}" if _PLAIN.fullmatch(port.name) else text


def _root(bus: PciBus) -> str:
    if bus == PciBus():
        return ""
    domain = f"{bus.domain:x}" if bus.domain else ""
    return f"{domain}p{bus.number:x}b"


def _step(step: PciSlot) -> str:
    return f"{step.slot:x}f{step.function}" if step.function else f"{step.slot:x}"


def _port(port: Port) -> str:
    number = f"d{port.number}" if port.number else ""
    return f"{number}v{port.name}" if port.name else number
