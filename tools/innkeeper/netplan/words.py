"""What a file says, as data: devices with their addresses, routes, rules and resolvers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import TypeAlias

Prefix: TypeAlias = IPv4Network | IPv6Network
Interface: TypeAlias = IPv4Interface | IPv6Interface


class Kind(StrEnum):
    """Sorts of devices, by the key that they are under."""

    ETHERNET = "ethernets"
    VLAN = "vlans"
    BRIDGE = "bridges"
    BOND = "bonds"
    VRF = "vrfs"
    DUMMY = "dummy-devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A route."""

    line: int
    to: Prefix
    type: str = "unicast"
    via: str = ""
    on_link: bool = False
    metric: int = 0
    scope: str = ""
    table: int = 0
    """0: the device's own, which is a VRF's, or the main one."""
    source: str = ""
    mtu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy rule; `priority` 0: none is said."""

    line: int
    version: int
    source: str = ""
    to: str = ""
    table: int = 0
    priority: int = 0
    mark: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a device is found: exactly one of these."""

    mac: str = ""
    pci_path: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device that belongs to another, by its id."""

    line: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How a device is made; only its own kind's are set."""

    vlan_id: int = 0
    link: Member | None = None
    members: tuple[Member, ...] = ()
    table: int = 0
    mode: str = ""
    monitor_millis: int = 0
    stp: bool = True
    forward_delay_millis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, complete."""

    id: str
    line: int
    kind: Kind
    match: Match | None = None
    set_name: str = ""
    making: Making = field(default_factory=Making)
    mac: str = ""
    mtu: int = 0
    addresses: tuple[Interface, ...] = ()
    accept_ra: bool | None = None
    ipv6: bool | None = None
    down: bool = False
    offloads: dict[str, bool] = field(default_factory=dict)
    ways: tuple[Way, ...] = ()
    policies: tuple[Policy, ...] = ()
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    has_nameservers: bool = False

    @property
    def name(self) -> str:
        """What it is called once it is as it shall be; empty where the file does not tell."""
        if self.match is None:
            return self.id
        return self.set_name or self.match.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A whole file."""

    devices: tuple[Device, ...] = ()
