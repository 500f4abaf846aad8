"""Interfaces: those that are there, and those that are made."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from innkeeper.netplan.fields import Fields
from innkeeper.netplan.tree import NetplanError, Table, Text, parse
from innkeeper.netplan.ways import TABLES, read_policies, read_table, read_ways
from innkeeper.netplan.words import Device, Interface, Kind, Making, Match, Member, Network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innkeeper.netplan.tree import Node

_MOST_DEVICES = 64
_MTUS = range(68, 1 << 16)
_VLANS = range(1, 4095)

# dev_valid_name() of the kernel, and what sysctl's paths and route(8) have of their own.
_NAME = re.compile(r"(?!\.{1,2}$)[^\s/:%\x00-\x20\x7f]{1,15}")
_MAC = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}")

# Slots in hex from the root, with the function where it is not 0; see devices.proto.
_STEP = r"[0-9a-f]{2}(\.[0-7])?"
_PCI_PATH = re.compile(rf"([0-9a-f]{{4,8}}:[0-9a-f]{{2}}/)?{_STEP}(/{_STEP})*")
_DOMAIN = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\.")

_MODES = frozenset(
    {"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad"}
    | {"balance-tlb", "balance-alb"}
)

_NO_DHCP = "there is no DHCP client in the guest: its addresses are told, not asked for"
_INSTEAD = {
    "dhcp4": "give addresses and routes; on QEMU's user network (net attach --user) they are"
    " addresses: [10.0.2.15/24], routes: [{to: default, via: 10.0.2.2}],"
    " nameservers: {addresses: [10.0.2.3]}",
    "dhcp6": "give addresses and routes, or accept-ra: true where a router advertises them",
}

# Netplan's names for what ethtool -k lists.
_OFFLOADS = {
    "receive-checksum-offload": "rx-checksumming",
    "transmit-checksum-offload": "tx-checksumming",
    "tcp-segmentation-offload": "tcp-segmentation-offload",
    "tcp6-segmentation-offload": "tx-tcp6-segmentation",
    "generic-segmentation-offload": "generic-segmentation-offload",
    "generic-receive-offload": "generic-receive-offload",
    "large-receive-offload": "large-receive-offload",
}

# They are about when a system counts as online, and which program does the work.
_WITHOUT_MEANING = (
    *("renderer", "optional", "optional-addresses", "critical", "ignore-carrier"),
    *("dhcp-identifier", "dhcp4-overrides", "dhcp6-overrides"),
)
_NOT_HERE = (
    *("ipv6-mtu", "ipv6-privacy", "ipv6-address-generation", "ipv6-address-token", "auth"),
    *("openvswitch", "networkmanager", "neigh-suppress"),
)
_NOT_OF_ETHERNETS = (
    *("wakeonlan", "emit-lldp", "infiniband-mode", "regulatory-domain", "link"),
    *("virtual-function-count", "embedded-switch-mode", "delay-virtual-functions-rebind"),
)
_OTHER_KINDS = ("modems", "wifis", "tunnels", "virtual-ethernets", "nm-devices", "openvswitch")


def read(text: str) -> Network:
    """Raises NetplanError for the first thing in it that is not right."""
    top = Fields(parse(text), "the file")
    network = top.fields("network")
    if network is None:
        raise NetplanError(top.line, "the file: network is missing", hint="it is the top key")
    top.finish()
    if network.number("version", range(2, 3)) is None:
        raise network.wrong("version", "is missing", "write: version: 2")
    network.ignore("renderer")
    network.refuse("nothing here makes such devices", *_OTHER_KINDS)
    devices = [each for kind in Kind for each in _of_kind(network, kind)]
    network.finish()
    _check_ids(devices)
    return Network(devices=tuple(devices))


def _of_kind(network: Fields, kind: Kind) -> list[Device]:
    group = network.fields(kind)
    if group is None:
        return []
    group.ignore("renderer")
    return [
        _device(name, kind, node, group.line_of(name))
        for name, node in group.items()
        if name != "renderer"
    ]


def _device(id_: str, kind: Kind, node: Node, line: int) -> Device:
    fields = Fields(node, id_)
    _check_common(fields, kind)
    nameservers = fields.fields("nameservers")
    servers, searches = _nameservers(nameservers)
    match = _match(fields) if kind is Kind.ETHERNET else None
    device = Device(
        id=id_,
        line=line,
        kind=kind,
        match=match,
        set_name=_set_name(fields, match) if kind is Kind.ETHERNET else "",
        making=_MAKINGS[kind](fields),
        mac=_mac(fields, "macaddress"),
        mtu=fields.number("mtu", _MTUS) or 0,
        addresses=_addresses(fields),
        accept_ra=fields.flag("accept-ra"),
        ipv6=_ipv6(fields),
        down=fields.choice("activation-mode", frozenset({"off"})) == "off",
        offloads=_offloads(fields) if kind is Kind.ETHERNET else {},
        ways=read_ways(fields),
        policies=read_policies(fields),
        servers=servers,
        searches=searches,
        has_nameservers=nameservers is not None,
    )
    fields.finish()
    if device.name and not _NAME.fullmatch(device.name):
        why = "no name of an interface: 1 to 15 characters, none of them /, :, % or a blank"
        raise NetplanError(line, f"{device.name!r}: {why}")
    return device


def _check_common(fields: Fields, kind: Kind) -> None:
    for name, instead in _INSTEAD.items():
        if fields.flag(name):
            raise fields.wrong(name, _NO_DHCP, instead)
    fields.ignore(*_WITHOUT_MEANING)
    strange = _NOT_HERE + (_NOT_OF_ETHERNETS if kind is Kind.ETHERNET else ())
    fields.refuse("nothing here does that; leave it out", *strange)


def _match(fields: Fields) -> Match | None:
    found = fields.fields("match")
    if found is None:
        return None
    found.refuse("find it by its name, macaddress or pci-path", "driver", "path")
    match = Match(
        mac=_mac(found, "macaddress"), pci_path=found.text("pci-path"), name=found.text("name")
    )
    found.finish()
    if match.pci_path and not _PCI_PATH.fullmatch(match.pci_path):
        raise found.wrong("pci-path", f"{match.pci_path!r}: write the slots, as in 02/00")
    if sum(map(bool, (match.mac, match.pci_path, match.name))) != 1:
        raise fields.wrong("match", "exactly one of name, macaddress, pci-path is needed")
    if set(match.name) & set("*?[]"):
        raise found.wrong("name", "a pattern, which may be several interfaces; name one")
    return match


def _set_name(fields: Fields, match: Match | None) -> str:
    name = fields.text("set-name")
    if name and match is None:
        raise fields.wrong("set-name", "only with match; without it the id is the name")
    return name


def _mac(fields: Fields, name: str) -> str:
    text = fields.text(name).lower()
    if text and not _MAC.fullmatch(text):
        raise fields.wrong(name, f"{text!r} is no MAC address, as in 52:54:00:12:34:56")
    return text.replace("-", ":")


def _addresses(fields: Fields) -> tuple[Interface, ...]:
    return tuple(_interface(fields, node) for node in fields.sequence("addresses"))


def _interface(fields: Fields, node: Node) -> Interface:
    if isinstance(node, Table):
        why = "lifetime and label are nothing that the guest is told; write the address alone"
        raise NetplanError(node.line, f"{fields.what}: addresses: {why}")
    text = node.text if isinstance(node, Text) else ""
    try:
        if "/" not in text:
            raise ValueError(f"{text!r}: its prefix is missing, as in 192.0.2.10/24")
        return ipaddress.ip_interface(text)
    except ValueError as error:
        raise NetplanError(node.line, f"{fields.what}: addresses: {error}") from None


def _ipv6(fields: Fields) -> bool | None:
    """`link-local: []` is the way to have no IPv6 on an interface at all."""
    if not fields.has("link-local"):
        return None
    found = {each.text for each in fields.texts("link-local")}
    if strange := found - {"ipv6"}:
        why = "the guest makes no IPv4 link-local addresses" if "ipv4" in strange else "unknown"
        raise fields.wrong("link-local", f"{', '.join(sorted(strange))}: {why}")
    if found:
        return True
    uses = ["accept-ra"] if fields.flag("accept-ra") else []
    uses += ["gateway6"] if fields.has("gateway6") else []
    uses += ["addresses" for each in _addresses(fields) if each.version == 6]
    if uses:
        why = f"[] switches IPv6 off on this interface, and {uses[0]} needs it"
        raise fields.wrong("link-local", why)
    return False


def _offloads(fields: Fields) -> dict[str, bool]:
    asked = {ours: fields.flag(name) for name, ours in _OFFLOADS.items()}
    return {name: state for name, state in asked.items() if state is not None}


def _nameservers(fields: Fields | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if fields is None:
        return (), ()
    servers = []
    for each in fields.texts("addresses"):
        try:
            servers.append(str(ipaddress.ip_address(each.text)))
        except ValueError as error:
            raise NetplanError(each.line, f"{fields.what}: addresses: {error}") from None
    searches = tuple(each.text for each in fields.texts("search"))
    for search in searches:
        if not _DOMAIN.fullmatch(search):
            raise fields.wrong("search", f"{search!r} is no domain")
    fields.finish()
    return tuple(servers), searches


def _members(fields: Fields) -> tuple[Member, ...]:
    return tuple(Member(line=each.line, id=each.text) for each in fields.texts("interfaces"))


def _vlan(fields: Fields) -> Making:
    number, link = fields.number("id", _VLANS), fields.text("link")
    if number is None or not link:
        raise fields.wrong("id" if number is None else "link", "is missing: a VLAN has id and link")
    return Making(vlan_id=number, link=Member(line=fields.line_of("link"), id=link))


def _bridge(fields: Fields) -> Making:
    members, parameters = _members(fields), fields.fields("parameters")
    if parameters is None:
        return Making(members=members)
    stp = parameters.flag("stp")
    delay = parameters.milliseconds("forward-delay", "s")
    parameters.refuse("bridges here have stp and forward-delay; leave it out", *_OF_BRIDGES)
    parameters.finish()
    return Making(members=members, stp=stp is not False, forward_delay_millis=delay or 0)


def _bond(fields: Fields) -> Making:
    members, parameters = _members(fields), fields.fields("parameters")
    if parameters is None:
        return Making(members=members)
    mode = parameters.choice("mode", _MODES)
    interval = parameters.milliseconds("mii-monitor-interval", "ms")
    if interval == 0:
        why = "0 would leave a bond blind for links that went down; without it: 100"
        raise parameters.wrong("mii-monitor-interval", why)
    parameters.refuse("bonds here have mode and mii-monitor-interval; leave it out", *_OF_BONDS)
    parameters.finish()
    return Making(members=members, mode=mode, monitor_millis=interval or 0)


def _vrf(fields: Fields) -> Making:
    if not fields.has("table"):
        raise fields.wrong("table", f"is missing: a VRF has one, {TABLES[0]} and up")
    return Making(members=_members(fields), table=read_table(fields))


_OF_BRIDGES = (
    *("ageing-time", "aging-time", "priority", "port-priority", "hello-time", "max-age"),
    *("path-cost", "hairpin", "port-mac-learning"),
)
_OF_BONDS = (
    *("lacp-rate", "min-links", "transmit-hash-policy", "ad-select", "all-slaves-active"),
    *("all-members-active", "arp-interval", "arp-ip-targets", "arp-validate", "arp-all-targets"),
    *("up-delay", "down-delay", "fail-over-mac-policy", "gratuitous-arp", "gratuitious-arp"),
    *("packets-per-slave", "packets-per-member", "primary-reselect-policy", "resend-igmp"),
    *("learn-packet-interval", "primary"),
)

_MAKINGS: Mapping[Kind, Callable[[Fields], Making]] = {
    Kind.ETHERNET: lambda _fields: Making(),
    Kind.VLAN: _vlan,
    Kind.BRIDGE: _bridge,
    Kind.BOND: _bond,
    Kind.VRF: _vrf,
    Kind.DUMMY: lambda _fields: Making(),
}


def _check_ids(devices: list[Device]) -> None:
    """Ids and names are there once, and those that others refer to are there."""
    if len(devices) > _MOST_DEVICES:
        raise NetplanError(0, f"{len(devices)} devices: at most {_MOST_DEVICES} at once")
    seen: dict[str, int] = {}
    for device in devices:
        for name in {device.id, device.name} - {""}:
            if name in seen:
                raise NetplanError(device.line, f"{name}: is in line {seen[name]} already")
            seen[name] = device.line
    for device in devices:
        making = device.making
        for member in (*making.members, *((making.link,) if making.link else ())):
            _check_reference(device, member, devices)
    _check_masters(devices)


def _check_masters(devices: list[Device]) -> None:
    masters: dict[str, str] = {}
    for device in devices:
        for member in device.making.members:
            if member.id in masters:
                why = f"belongs to {masters[member.id]} already"
                raise NetplanError(member.line, f"{device.id}: {member.id}: {why}")
            masters[member.id] = device.id


def _check_reference(device: Device, member: Member, devices: list[Device]) -> None:
    found = next((each for each in devices if each.id == member.id), None)
    if found is None or found is device:
        why = "itself" if found else "no device of that id is in the file"
        raise NetplanError(member.line, f"{device.id}: {member.id}: {why}")
