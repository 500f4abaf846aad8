"""The PCI topology of a VM, decided before QEMU starts.

Every port for hot-plug has its guest PCI path before the guest enumerates
anything: slots do not change, bus numbers do.

q35's own root bus takes no hot-plug, so what is on it is there from the start
(paths of one level). Hot-plug goes into pcie-root-ports, eight functions to a
slot (two levels), and, where a VM wants it, into the slots of a conventional
bridge behind a root port (three levels), the downstream ports of a PCI Express
switch (four), and the root ports of a second root complex (two, on another bus).
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
_SWITCH_SLOT = 0x19
_SECOND_ROOT_SLOT = 0x1A
_FUNCTIONS = 8

# The last root ports have windows for a display's frame buffer (16 MiB below 4 GiB);
# by itself the firmware gives each 2 MiB.
_ROOMY_PORTS = 8
_ROOM = ",mem-reserve=32M"

# The second root complex's own bus; what is behind its ports is numbered from there.
_SECOND_ROOT_BUS = 0x80

# Slots of a pcie-pci-bridge that take hot-plug; slot 0 belongs to its own
# hot-plug controller.
_BRIDGE_PORTS = range(1, 5)
_SWITCH_PORTS = range(4)
_SECOND_ROOT_PORTS = range(2)


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
    express: bool = True
    """PCI Express; a conventional bridge's slots are not."""
    roomy: bool = False
    """Its bridge's memory window is large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Bridges as QEMU's `-device` wants them, and the ports that they make."""

    devices: tuple[str, ...]
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a VM has beside its `ports` root ports."""

    ports: int
    bridge: bool = False
    switch: bool = False
    second_root: bool = False


def build(layout: Layout) -> Topology:
    """The root ports, then the slots of the bridge, the switch, and the second root complex.

    Each port and bridge has a chassis number of its own: QEMU refuses two with
    the same chassis and slot.
    """
    roomy = range(max(layout.ports - _ROOMY_PORTS, 0), layout.ports)
    devices = [_root_port(index, roomy=index in roomy) for index in range(layout.ports)]
    found = [_behind_root_port(index, roomy=index in roomy) for index in range(layout.ports)]
    chassis = layout.ports + 1
    if layout.bridge:
        devices += _bridge(chassis)
        found += [_behind_bridge(slot) for slot in _BRIDGE_PORTS]
        chassis += 1
    if layout.switch:
        devices += _switch(chassis)
        found += [_behind_switch(slot) for slot in _SWITCH_PORTS]
        chassis += 1 + len(_SWITCH_PORTS)
    if layout.second_root:
        devices += _second_root(chassis)
        found += [_behind_second_root(slot) for slot in _SECOND_ROOT_PORTS]
    return Topology(devices=tuple(devices), ports=tuple(found))


def cold_slot(index: int) -> int:
    """The root bus slot of the index-th disk that is there from the start."""
    if index >= len(_COLD_DISKS):
        raise ShimError(
            Reason.BAD_FIELD,
            f"cold_disks: more than {len(_COLD_DISKS)}, shares by 9p among them",
            hint="plug further disks and shares into the running VM",
            fields={"field": "cold_disks"},
        )
    return _COLD_DISKS[index]


def _root_port(index: int, *, roomy: bool) -> str:
    slot, function = _place(index)
    # Without io-reserve=0 the firmware gives every port 4 KiB of the 64 KiB of
    # I/O space, and the sixteenth gets none; virtio over PCIe needs none.
    return (
        f"pcie-root-port,id=port{index},bus={ROOT_BUS},addr={slot:02x}.{function}"
        f",multifunction=on,chassis={index + 1},io-reserve=0"
        f"{_ROOM if roomy else ''}"
    )


def _behind_root_port(index: int, *, roomy: bool) -> Port:
    slot, function = _place(index)
    return Port(
        name=f"port{index}",
        bus=f"port{index}",
        slot=0,
        pci_path=f"{_step(slot, function)}/00",
        roomy=roomy,
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
        express=False,
    )


def _switch(chassis: int) -> list[str]:
    port = f"pcie-root-port,id=switch-port,bus={ROOT_BUS},addr={_SWITCH_SLOT:02x}.0"
    return [
        f"{port},chassis={chassis},io-reserve=0",
        "x3130-upstream,id=switch,bus=switch-port,addr=00.0",
        *(
            f"xio3130-downstream,id=switch{slot},bus=switch,addr={slot:02x}.0"
            f",chassis={chassis + 1 + slot},slot={slot}"
            for slot in _SWITCH_PORTS
        ),
    ]


def _behind_switch(slot: int) -> Port:
    """Root port, upstream port, downstream port, device."""
    return Port(
        name=f"switch{slot}",
        bus=f"switch{slot}",
        slot=0,
        pci_path=f"{_SWITCH_SLOT:02x}/00/{slot:02x}/00",
    )


def _second_root(chassis: int) -> list[str]:
    place = f"bus={ROOT_BUS},addr={_SECOND_ROOT_SLOT:02x}.0,bus_nr={_SECOND_ROOT_BUS}"
    return [
        f"pxb-pcie,id=far,{place}",
        *(
            f"pcie-root-port,id=far{slot},bus=far,addr={slot:02x}.0"
            f",chassis={chassis + slot},io-reserve=0"
            for slot in _SECOND_ROOT_PORTS
        ),
    ]


def _behind_second_root(slot: int) -> Port:
    return Port(
        name=f"far{slot}",
        bus=f"far{slot}",
        slot=0,
        pci_path=f"0000:{_SECOND_ROOT_BUS:02x}/{slot:02x}/00",
    )


def _place(index: int) -> tuple[int, int]:
    return _PORTS[index // _FUNCTIONS], index % _FUNCTIONS


def _step(slot: int, function: int) -> str:
    return f"{slot:02x}.{function}" if function else f"{slot:02x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a device wants of its port."""

    express: bool = False
    roomy: bool = False
    unspent: bool = False
    """None in which QEMU still has something of an earlier device."""


_ANY = Needs()


@dataclass(slots=True)
class PortPool:
    """Which ports are free. Taking is synchronous, so two plugs at once never
    get the same port."""

    ports: tuple[Port, ...]
    _taken: dict[str, Port] = field(default_factory=dict)
    _spent: set[str] = field(default_factory=set)

    @property
    def free(self) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.name not in self._taken)

    def take(self, name: str = "", needs: Needs = _ANY) -> Port:
        """The port of that name, or the first free one that will do.

        Raises UNKNOWN_PORT, PORT_IN_USE, PORT_POOL_EMPTY.
        """
        port = self._named(name, needs) if name else self._first(needs)
        self._taken[port.name] = port
        return port

    def give_back(self, port: Port, *, spent: bool = False) -> None:
        """`spent`: see `Needs.unspent`."""
        del self._taken[port.name]
        if spent:
            self._spent.add(port.name)

    def is_spent(self, port: Port) -> bool:
        """Whether it takes no display any more."""
        return port.name in self._spent

    def _first(self, needs: Needs) -> Port:
        for port in self.free:
            if self._will_do(port, needs):
                return port
        raise self._none_left(needs)

    def _none_left(self, needs: Needs) -> ShimError:
        kind = "PCI Express port" if needs.express else "port"
        kind = f"{kind} with a large window" if needs.roomy else kind
        fitting = [port for port in self.ports if self._fits(port, needs)]
        spent = [port.name for port in fitting if self._is_used_up(port, needs)]
        taken = [port.name for port in fitting if port.name not in spent]
        why = [f"{', '.join(taken)} taken"] if taken else []
        hint = "detach a device, or start the VM with more ports"
        if spent:
            why.append(f"QEMU still holds displays that were in {', '.join(spent)}")
            hint = "for displays each port serves once: start another VM"
            hint = f"detach a device from {', '.join(taken)}; {hint}" if taken else hint
        return ShimError(
            Reason.PORT_POOL_EMPTY,
            f"no free {kind}: {'; '.join(why) or 'the VM has none'}",
            hint=hint,
            fields={"ports": len(self.ports), "used_up": ", ".join(spent)},
        )

    def _will_do(self, port: Port, needs: Needs) -> bool:
        return self._fits(port, needs) and not self._is_used_up(port, needs)

    def _fits(self, port: Port, needs: Needs) -> bool:
        return (port.express or not needs.express) and (port.roomy or not needs.roomy)

    def _is_used_up(self, port: Port, needs: Needs) -> bool:
        return needs.unspent and port.name in self._spent

    def _named(self, name: str, needs: Needs) -> Port:
        fields: dict[str, object] = {"port": name}
        for port in self.ports:
            if port.name != name:
                continue
            if name in self._taken:
                raise ShimError(Reason.PORT_IN_USE, f"port {name}: is taken", fields=fields)
            if needs.unspent and name in self._spent:
                message = f"port {name}: QEMU still holds the display that was in it"
                hint = "take another, or a new VM; for other devices it is free"
                raise ShimError(Reason.PORT_IN_USE, message, hint=hint, fields=fields)
            return port
        names = ", ".join(port.name for port in self.ports) or "it has none"
        hint = f"its ports: {names}"
        raise ShimError(Reason.UNKNOWN_PORT, f"port {name}: not there", hint=hint, fields=fields)
