"""Routes and policy rules of one device, and the default routes in their older spelling."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from innkeeper.netplan.fields import Fields
from innkeeper.netplan.words import Policy, Prefix, Way

if TYPE_CHECKING:
    from innkeeper.netplan.tree import NetplanError

TABLES = range(1, 1 << 32)
_LOCAL_TABLE = 255
# 0, 32766 and 32767 are the kernel's own rules.
_PRIORITIES = range(1, 32766)
_MARKS = range(1 << 32)
_METRICS = range(1 << 32)
# A larger one the kernel cuts (ip_metrics_convert of net/ipv4/metrics.c).
_MTUS = range(1, 65521)

_TYPES = frozenset({"unicast", "blackhole", "unreachable", "prohibit", "throw"})
_SCOPES = frozenset({"global", "link", "host"})
_DEFAULT = "default"
_WINDOWS = ("congestion-window", "advertised-receive-window", "advertised-mss")


def read_ways(fields: Fields) -> tuple[Way, ...]:
    """Those of `routes`, and of `gateway4` and `gateway6`."""
    ways = [_way(Fields(node, f"{fields.what}: routes")) for node in fields.sequence("routes")]
    ways += [_gateway(fields, f"gateway{version}", version) for version in (4, 6)]
    return tuple(way for way in ways if way is not None)


def read_policies(fields: Fields) -> tuple[Policy, ...]:
    what = f"{fields.what}: routing-policy"
    return tuple(_policy(Fields(node, what)) for node in fields.sequence("routing-policy"))


def _gateway(fields: Fields, name: str, version: int) -> Way | None:
    text = fields.text(name)
    if not text:
        return None
    via = _address(fields, name, text)
    if via.version != version:
        raise fields.wrong(name, f"{text} is no IPv{version} address")
    return Way(line=fields.line_of(name), to=_everything(version), via=str(via))


def _way(fields: Fields) -> Way | None:
    via = fields.text("via")
    to = _destination(fields, via)
    fields.refuse("routes here have none; leave it out", *_WINDOWS)
    way = Way(
        line=fields.line,
        to=to,
        type=fields.choice("type", _TYPES) or "unicast",
        via=str(_address(fields, "via", via)) if via else "",
        on_link=bool(fields.flag("on-link")),
        metric=fields.number("metric", _METRICS) or 0,
        scope=fields.choice("scope", _SCOPES),
        table=read_table(fields),
        source=_source(fields, to),
        mtu=fields.number("mtu", _MTUS) or 0,
    )
    fields.finish()
    if way.via and way.type != "unicast":
        raise fields.wrong("via", f"a {way.type} route has no gateway")
    if way.on_link and not way.via:
        raise fields.wrong("on-link", "it says that a gateway is reachable; via is missing")
    return way


def _destination(fields: Fields, via: str) -> Prefix:
    text = fields.text("to")
    if text == _DEFAULT and via:
        return _everything(_address(fields, "via", via).version)
    if text == _DEFAULT:
        raise fields.wrong("to", "default of which version?", "write 0.0.0.0/0 or ::/0")
    if not text:
        raise fields.wrong("to", "is missing", "a network, an address, or default")
    to = _prefix(fields, "to", text)
    if via and _address(fields, "via", via).version < to.version:
        raise fields.wrong("via", f"{via}: an IPv6 route has no IPv4 gateway")
    return to


def _source(fields: Fields, to: Prefix) -> str:
    text = fields.text("from")
    if not text:
        return ""
    address = _address(fields, "from", text)
    if address.version != to.version:
        raise fields.wrong("from", f"{text} is not of the version of {to}")
    return str(address)


def read_table(fields: Fields) -> int:
    """0 when none is said."""
    table = fields.number("table", TABLES) or 0
    if table == _LOCAL_TABLE:
        raise fields.wrong("table", f"{table} is the kernel's own")
    return table


def _policy(fields: Fields) -> Policy:
    ends = {name: _end(fields, name) for name in ("from", "to")}
    versions = {prefix.version for prefix in ends.values() if prefix is not None}
    if len(versions) != 1:
        why = "of one version" if versions else "needed, if only as 0.0.0.0/0 or ::/0"
        raise fields.wrong("from", f"from and to: one or both are {why}")
    fields.refuse("rules here have none; leave it out", "type-of-service")
    policy = Policy(
        line=fields.line,
        version=versions.pop(),
        source=str(ends["from"] or ""),
        to=str(ends["to"] or ""),
        table=read_table(fields),
        priority=fields.number("priority", _PRIORITIES) or 0,
        mark=fields.number("mark", _MARKS),
    )
    fields.finish()
    return policy


def _end(fields: Fields, name: str) -> Prefix | None:
    text = fields.text(name)
    return _prefix(fields, name, text) if text else None


def _prefix(fields: Fields, name: str, text: str) -> Prefix:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise _no_address(fields, name, text, str(error)) from None


def _address(fields: Fields, name: str, text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise _no_address(fields, name, text, str(error)) from None


def _no_address(fields: Fields, name: str, text: str, why: str) -> NetplanError:
    return fields.wrong(name, why if repr(text) in why else f"{text!r}: {why}")


def _everything(version: int) -> Prefix:
    return ipaddress.ip_network("0.0.0.0/0" if version == 4 else "::/0")
