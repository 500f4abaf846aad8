"""Network interfaces: virtio-net, Intel's 82574L and 82576; netdevs.py has their other ends."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim.hardware import netdevs
from innkeeper.shim.hardware.base import Backend, Hardware, Helper, Names, Setting, bad_field
from innkeeper.v1 import devices_pb2, host_pb2

if TYPE_CHECKING:
    from innkeeper.shim.errors import ShimError
    from innkeeper.shim.hardware.netdevs import Netdev
    from innkeeper.shim.qmp import QemuRefusedError

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def parse(message: host_pb2.Nic, device_id: str, setting: Setting) -> Hardware:
    mac = _mac(message.mac) if message.mac else mac_for(setting.vm, device_id)
    match message.model:
        case host_pb2.NIC_MODEL_UNSPECIFIED | host_pb2.NIC_MODEL_VIRTIO:
            netdev = netdevs.parse(message, device_id, setting)
            mtu = _mtu(message.mtu, netdev)
            return VirtioNic(mac=mac, netdev=netdev, mtu=mtu, pairs=message.queue_pairs or 1)
        case host_pb2.NIC_MODEL_E1000E:
            _require_plain(message, "e1000e")
            return E1000eNic(mac=mac, netdev=netdevs.parse(message, device_id, setting))
        case host_pb2.NIC_MODEL_IGB:
            _require_plain(message, "igb")
            return IgbNic(mac=mac, netdev=netdevs.parse(message, device_id, setting))
        case _:
            raise bad_field("model", f"NIC model {message.model}: unknown")


def _mtu(mtu: int, netdev: Netdev) -> int:
    """Raises BAD_FIELD. 0 stays 0."""
    if not mtu:
        return 0
    if mtu not in netdevs.MTUS:
        hint = f"{netdevs.MTUS[0]} to {netdevs.MTUS[-1]}"
        raise bad_field("mtu", f"mtu {mtu}: not possible", hint)
    if mtu > netdev.largest_mtu:
        text = f"mtu {mtu}: QEMU's user mode network carries {netdev.largest_mtu} at most"
        raise bad_field("mtu", text, "a tap, a wire or passt carries more")
    return mtu


def _require_plain(message: host_pb2.Nic, model: str) -> None:
    """Only virtio-net has a way to tell the guest. Raises BAD_FIELD."""
    if message.mtu:
        hint = "the guest can set it itself, as in: innkeeper net attach --mtu"
        raise bad_field("mtu", f"mtu {message.mtu}: an {model} can't tell the guest", hint)
    if message.queue_pairs > 1:
        raise bad_field("queue_pairs", f"queue_pairs {message.queue_pairs}: not for {model}")


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
    netdev: Netdev

    @property
    def source(self) -> str:
        return self.netdev.source

    def claim(self) -> Hardware:
        return replace(self, netdev=self.netdev.claim())

    def release(self) -> None:
        self.netdev.release()

    def helper(self, names: Names) -> Helper | None:
        return self.netdev.helper(names)

    def backends(self, names: Names) -> tuple[Backend, ...]:
        return (self.netdev.backend(names),)

    def properties(self, names: Names) -> dict[str, object]:
        # No option ROM: nothing boots from it, and QEMU would look for a file.
        return {"netdev": names.backend, "mac": self.mac, "romfile": ""}

    def guest(self) -> devices_pb2.Device:
        return devices_pb2.Device(nic=devices_pb2.NicDevice(expect_mac=self.mac))

    def explain(self, error: QemuRefusedError) -> ShimError:
        return self.netdev.explain(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtioNic(_Nic):
    """virtio-net."""

    mtu: int = 0
    """What the guest takes as its initial MTU; 0: nothing is said."""
    pairs: int = 1
    """Of queues."""

    @property
    def driver(self) -> str:
        return "virtio-net-pci"

    def properties(self, names: Names) -> dict[str, object]:
        told: dict[str, object] = {"host_mtu": self.mtu} if self.mtu else {}
        # An interrupt for each queue, one for the control queue, one for changes.
        many = {"mq": True, "vectors": 2 * self.pairs + 2} if self.pairs > 1 else {}
        return _Nic.properties(self, names) | told | many


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
