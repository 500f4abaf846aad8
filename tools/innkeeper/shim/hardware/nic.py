"""Network interfaces: virtio-net, Intel's 82574L and 82576, on QEMU's user mode network."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import ClassVar

from innkeeper.shim.hardware.base import Backend, Hardware, Names, Setting, bad_field
from innkeeper.v1 import devices_pb2, host_pb2

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def parse(message: host_pb2.Nic, device_id: str, setting: Setting) -> Hardware:
    mac = _mac(message.mac) if message.mac else mac_for(setting.vm, device_id)
    backends = (host_pb2.NIC_BACKEND_UNSPECIFIED, host_pb2.NIC_BACKEND_ISOLATED)
    if message.backend not in (*backends, host_pb2.NIC_BACKEND_USER):
        raise bad_field("backend", f"NIC backend {message.backend}: unknown")
    isolated = message.backend in backends
    match message.model:
        case host_pb2.NIC_MODEL_UNSPECIFIED | host_pb2.NIC_MODEL_VIRTIO:
            return VirtioNic(mac=mac, isolated=isolated)
        case host_pb2.NIC_MODEL_E1000E:
            return E1000eNic(mac=mac, isolated=isolated)
        case host_pb2.NIC_MODEL_IGB:
            return IgbNic(mac=mac, isolated=isolated)
        case _:
            raise bad_field("model", f"NIC model {message.model}: unknown")


def mac_for(vm: str, device_id: str) -> str:
    """The same for the same device of the same VM: locally administered, unicast."""
    digest = hashlib.sha256(f"{vm}/{device_id}".encode()).digest()
    return ":".join(f"{octet:02x}" for octet in (0x02, *digest[:5]))


def _mac(text: str) -> str:
    mac = text.lower()
    if not _MAC.fullmatch(mac) or int(mac[:2], 16) & 1 or not int(mac.replace(":", ""), 16):
        hint = "six octets in hex with colons, of one station: 52:54:00:12:34:56"
        raise bad_field("mac", f"mac {text!r}: not possible", hint)
    return mac


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nic(Hardware):
    mac: str
    isolated: bool

    def backends(self, names: Names) -> tuple[Backend, ...]:
        return (
            Backend(
                add="netdev_add",
                arguments={"type": "user", "id": names.backend, "restrict": self.isolated},
                remove="netdev_del",
                removal={"id": names.backend},
            ),
        )

    def properties(self, names: Names) -> dict[str, object]:
        # No option ROM: nothing boots from it, and QEMU would look for a file.
        return {"netdev": names.backend, "mac": self.mac, "romfile": ""}

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(nic=devices_pb2.NicDevice(expect_mac=self.mac))


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioNic(_Nic):
    """virtio-net."""

    @property
    def driver(self) -> str:
        return "virtio-net-pci"


@dataclass(frozen=True, slots=True, kw_only=True)
class E1000eNic(_Nic):
    """Intel 82574L."""

    flavour: ClassVar[str] = "generic"
    express: ClassVar[bool] = True

    @property
    def driver(self) -> str:
        return "e1000e"


@dataclass(frozen=True, slots=True, kw_only=True)
class IgbNic(_Nic):
    """Intel 82576, whose virtual functions the guest may enable."""

    flavour: ClassVar[str] = "generic"
    express: ClassVar[bool] = True
    since: ClassVar[str] = "8.0"

    @property
    def driver(self) -> str:
        return "igb"
