"""The PCI topology of a VM, decided before QEMU starts.

Every port for hot-plug has its guest PCI path (DESIGN D8) before the guest
enumerates anything: slots do not change, bus numbers do.

q35's own root bus takes no hot-plug, so what is on it is there from the start
(paths of one level). Hot-plug goes into pcie-root-ports, eight functions to a
slot (two levels), and, where a VM wants it, into the slots of a conventional
bridge behind a root port (three levels).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from innkeeper.shim.errors import Reason, ShimError

ROOT_BUS = "pcie.0"

# Slots of the root bus. 0 is the host bridge and 1f the ISA bridge (ICH9).
ROOT_DISK_SLOT = 0x01
SERIAL_SLOT = 0x02
RANDOM_SLOT = 0x03
TRANSPORT_SLOT = 0x04
_COLD_DISKS = range(0x05, 0x10)
_PORTS = range(0x10, 0x18)
_BRIDGE_SLOT = 0x18
_FUNCTIONS = 8

# Slots of a pcie-pci-bridge that take hot-plug; slot 0 belongs to its own
# hot-plug controller.
_BRIDGE_PORTS = range(1, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """Where one device can be plugged."""

    name: str
    bus: str
    """QEMU's id of the bus."""
    slot: int
    """Slot on that bus."""
    pci_path: str
    """The device's path in the guest, in the protocol's spelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Bridges as QEMU's `-device` wants them, and the ports that they make."""

    devices: tuple[str, ...]
    ports: tuple[Port, ...]


def build(*, ports: int, bridge: bool = False) -> Topology:
    """`ports` root ports, then, with `bridge`, the slots of a bridge behind one more."""
    devices = [_root_port(index) for index in range(ports)]
    found = [_behind_root_port(index) for index in range(ports)]
    if bridge:
        devices += _bridge(ports + 1)
        found += [_behind_bridge(slot) for slot in _BRIDGE_PORTS]
    return Topology(devices=tuple(devices), ports=tuple(found))


def cold_slot(index: int) -> int:
    """The root bus slot of the index-th disk that is there from the start."""
    if index >= len(_COLD_DISKS):
        raise ShimError(
            Reason.BAD_FIELD,
            f"cold_disks: more than {len(_COLD_DISKS)}",
            hint="plug further disks into the running VM",
            fields={"field": "cold_disks"},
        )
    return _COLD_DISKS[index]


def _root_port(index: int) -> str:
    slot, function = _place(index)
    # Without io-reserve=0 the firmware gives every port 4 KiB of the 64 KiB of
    # I/O space, and the sixteenth gets none; virtio over PCIe needs none.
    return (
        f"pcie-root-port,id=port{index},bus={ROOT_BUS},addr={slot:02x}.{function}"
        f",multifunction=on,chassis={index + 1},io-reserve=0"
    )


def _behind_root_port(index: int) -> Port:
    slot, function = _place(index)
    return Port(
        name=f"port{index}",
        bus=f"port{index}",
        slot=0,
        pci_path=f"{_step(slot, function)}/00",
    )


def _bridge(chassis: int) -> list[str]:
    return [
        f"pcie-root-port,id=bridge-port,bus={ROOT_BUS},addr={_BRIDGE_SLOT:02x}.0,chassis={chassis}",
        "pcie-pci-bridge,id=bridge,bus=bridge-port,addr=00.0",
    ]


def _behind_bridge(slot: int) -> Port:
    return Port(
        name=f"bridge.{slot}",
        bus="bridge",
        slot=slot,
        pci_path=f"{_BRIDGE_SLOT:02x}/00/{slot:02x}",
    )


def _place(index: int) -> tuple[int, int]:
    return _PORTS[index // _FUNCTIONS], index % _FUNCTIONS


def _step(slot: int, function: int) -> str:
    return f"{slot:02x}.{function}" if function else f"{slot:02x}"


@dataclass(slots=True)
class PortPool:
    """Which ports are free. Taking is synchronous, so two plugs at once never
    get the same port."""

    ports: tuple[Port, ...]
    _taken: dict[str, Port] = field(default_factory=dict)

    @property
    def free(self) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.name not in self._taken)

    def take(self) -> Port:
        """The first free port; raises PORT_POOL_EMPTY."""
        for port in self.free:
            self._taken[port.name] = port
            return port
        raise ShimError(
            Reason.PORT_POOL_EMPTY,
            f"no free port: all {len(self.ports)} are taken",
            hint="detach a device, or start the VM with more ports",
            fields={"ports": len(self.ports)},
        )

    def give_back(self, port: Port) -> None:
        del self._taken[port.name]
