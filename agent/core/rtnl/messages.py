"""The one door to pyroute2: its classes that encode and decode messages.

`import pyroute2` brings its whole world (NDB, IPRoute, ssl, asyncio servers): 0.25 s and
28 MB. Its message modules need nothing of that but the package's name, so a bare package
stands in for it: 0.06 s and 6 MB. Where somebody has imported the real one, that stays.

Of what the kernel sends only the framing is left to pyroute2: values are read from the
attributes' bytes. Its own readers guess (an address by the message's family, a MAC by six
bytes whatever its length) and log what they cannot read; bytes say it exactly, and an
attribute that nobody knows is skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.network import IpAddress

HEADER_SIZE = 16
_ATTRIBUTE_SIZE = 4


def _package() -> None:
    if "pyroute2" in sys.modules:
        return
    spec = importlib.util.find_spec("pyroute2")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("pyroute2 is not installed", name="pyroute2")
    package = types.ModuleType("pyroute2", "A bare package: message classes alone.")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    # All that the messages want of the configuration; the real one brings multiprocessing.
    config: Any = types.ModuleType("pyroute2.config", "A bare module.")
    config.AF_BRIDGE = 7
    config.data_plugins_pkgs = []
    config.data_plugins_path = []
    sys.modules |= {"pyroute2": package, "pyroute2.config": config}


_package()
netlink: Any = importlib.import_module("pyroute2.netlink")
link_message: Any = importlib.import_module("pyroute2.netlink.rtnl.ifinfmsg").ifinfmsg
address_message: Any = importlib.import_module("pyroute2.netlink.rtnl.ifaddrmsg").ifaddrmsg
route_message: Any = importlib.import_module("pyroute2.netlink.rtnl.rtmsg").rtmsg
rule_message: Any = importlib.import_module("pyroute2.netlink.rtnl.fibmsg").fibmsg
neighbor_message: Any = importlib.import_module("pyroute2.netlink.rtnl.ndmsg").ndmsg

# <linux/rtnetlink.h>
RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22
RTM_NEWROUTE = 24
RTM_DELROUTE = 25
RTM_GETROUTE = 26
RTM_NEWNEIGH = 28
RTM_DELNEIGH = 29
RTM_GETNEIGH = 30
RTM_NEWRULE = 32
RTM_DELRULE = 33
RTM_GETRULE = 34
RTM_NEWLINKPROP = 108
RTM_DELLINKPROP = 109


def body(kind: Any, fields: dict[str, Any], *attributes: tuple[str, Any]) -> bytes:
    """A message of a class of pyroute2, encoded, without its header.

    Attributes whose value is None are left out.
    """
    message = kind()
    message.update(fields)
    message["attrs"] = nested(*attributes)["attrs"]
    message.encode()
    return bytes(message.data[HEADER_SIZE:])


def nested(*attributes: tuple[str, Any]) -> dict[str, list[list[Any]]]:
    """The value of an attribute that has attributes."""
    return {"attrs": [[name, value] for name, value in attributes if value is not None]}


def decoded(kind: Any, data: bytes) -> Any:
    """A whole message, header included."""
    message = kind(data)
    message.decode()
    return message


class Attributes:
    """The attributes of a decoded message, or of one inside it, by name."""

    __slots__ = ("_slots",)

    def __init__(self, holder: Any) -> None:
        found = holder["attrs"] if holder is not None and "attrs" in holder else ()
        self._slots = {slot.name: slot for slot in found}

    def raw(self, name: str) -> bytes | None:
        slot = self._slots.get(name)
        return None if slot is None else content(slot)

    def number(self, name: str, default: int = 0) -> int:
        """An unsigned number of any size, in the machine's byte order."""
        raw = self.raw(name)
        return default if not raw else int.from_bytes(raw, sys.byteorder)

    def text(self, name: str) -> str:
        return text(self.raw(name) or b"")

    def address(self, name: str) -> IpAddress | None:
        return address(self.raw(name))

    def inside(self, name: str) -> Any:
        """The decoded value of an attribute that holds more than a value; None without."""
        slot = self._slots.get(name)
        return None if slot is None else slot.value

    def within(self, name: str) -> Attributes:
        """The attributes inside an attribute; none where it is missing."""
        return Attributes(self.inside(name))

    @property
    def names(self) -> frozenset[str]:
        """ "UNKNOWN" stands for those that pyroute2 has no name for."""
        return frozenset(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots


def content(slot: Any) -> bytes:
    """An attribute's bytes, without its header."""
    cell = slot.cell[1]
    start = cell.offset
    return bytes(cell.data[start + _ATTRIBUTE_SIZE : start + cell.length])


def text(raw: bytes) -> str:
    """A name: the kernel's are bytes, and what is not UTF-8 is shown as \\xNN."""
    return raw.split(b"\0", 1)[0].decode(errors="backslashreplace")


def address(raw: bytes | None) -> IpAddress | None:
    """An IP address by its length: 4 or 16 bytes; None for anything else."""
    match len(raw or b""):
        case 4:
            return ipaddress.IPv4Address(raw or b"")
        case 16:
            return ipaddress.IPv6Address(raw or b"")
        case _:
            return None


def mac(raw: bytes | None) -> str:
    """A link-layer address of any length; empty for none, or for nothing but zeros."""
    return raw.hex(":") if raw and any(raw) else ""
