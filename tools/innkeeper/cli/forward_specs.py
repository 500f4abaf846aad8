"""How forwards are written on the command line: -p as for containers, -L and -R as for ssh."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from innkeeper.shim.forwarding.words import End, Forward

PublishOption = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--publish",
        metavar="[[ADDR:]PORT:]GUESTPORT",
        help="A port of this host is one of the guest (no NIC needed); repeatable.",
    ),
]
ForwardOption = Annotated[
    list[str] | None,
    typer.Option(
        "-L",
        "--forward",
        metavar="HOST:GUEST",
        help="Connections to HOST, a port or a socket's path, go to GUEST; repeatable.",
    ),
]
ReverseOption = Annotated[
    list[str] | None,
    typer.Option(
        "-R",
        "--reverse",
        metavar="GUEST:HOST",
        help="Connections in the guest to GUEST go to HOST on this host; repeatable.",
    ),
]

# Of others than this machine a VM's ports are none of their business, unless that is asked
# for: docker's own default opens them to the whole network.
_HERE = "127.0.0.1"
_LOCALHOST = "localhost"
_ARROW = "->"
_MOST_PORTS = 256

_END = (
    r"(?:(?P<{0}_container>[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}})@)?"
    r"(?:(?P<{0}_path>\.{{0,2}}/[^:]+)|"
    r"(?:(?:\[(?P<{0}_six>[^\[\]]+)\]|(?P<{0}_host>(?![0-9]+:)[A-Za-z0-9_.*-]*)):)?"
    r"(?P<{0}_port>[0-9]{{1,5}}))"
)
_ONE = re.compile(_END.format("a").replace("[^:]+", ".+"))
_PAIR = re.compile(f"{_END.format('a')}:{_END.format('b')}")

_PORTS = r"(?P<{0}_first>[0-9]{{1,5}})(?:-(?P<{0}_last>[0-9]{{1,5}}))?"
_ADDRESS = r"(?:(?:\[(?P<{0}_six>[^\[\]]+)\]|(?P<{0}_host>[0-9]+(?:\.[0-9]+){{3}}|localhost|\*)):)?"
_ALL = _ADDRESS + _PORTS
_PUBLISH = re.compile(
    f"(?:{_ALL.format('a')}:{_ADDRESS.format('b')})?{_PORTS.format('b')}(?:/(?P<protocol>[a-z]+))?"
)


class _Parsed(NamedTuple):
    """An end as it was written; None for what was not."""

    container: str | None
    path: str | None
    host: str | None
    port: int


def parse_all(
    publish: list[str] | None,
    forward: list[str] | None = None,
    reverse: list[str] | None = None,
) -> tuple[Forward, ...]:
    """Raises typer.BadParameter."""
    return (
        *(each for text in publish or [] for each in parse_publish(text)),
        *(parse_forward(text) for text in forward or []),
        *(parse_reverse(text) for text in reverse or []),
    )


def parse_publish(text: str) -> tuple[Forward, ...]:
    """`-p`: as many forwards as its ranges have ports. Raises typer.BadParameter."""
    match = _PUBLISH.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"-p {text}: write HOSTPORT:GUESTPORT, as in 8080:80, 0.0.0.0:8080:80, [::1]:8080:80"
            " or 8000-8002:9000-9002"
        )
    if match["protocol"] not in (None, "tcp"):
        protocol = match["protocol"].upper()
        raise typer.BadParameter(
            f"-p {text}: only TCP is forwarded, not {protocol}: give the VM a NIC for that"
        )
    theirs = _ports(text, match["b_first"], match["b_last"])
    ours = _ports(text, match["a_first"] or "0", match["a_last"])
    if ours == range(1):
        # A free one for each.
        ours = range(0)
    elif len(ours) != len(theirs) or 0 in ours:
        raise typer.BadParameter(f"-p {text}: both ranges must have as many ports, and no 0")
    here = _host(_written(text, match, "a"), _HERE)
    there = _host(_written(text, match, "b"), _LOCALHOST)
    return tuple(
        Forward(
            listen=End(host=here, port=ours[at] if ours else 0),
            target=_target(text, End(host=there, port=port)),
        )
        for at, port in enumerate(theirs)
    )


def parse_forward(text: str) -> Forward:
    """`-L`: this host listens. Raises typer.BadParameter."""
    first, second = _pair("-L", text)
    listen = _on_host(text, first, _HERE)
    return Forward(listen=listen, target=_target(text, _in_guest(text, second)))


def parse_reverse(text: str) -> Forward:
    """`-R`: the guest listens. Raises typer.BadParameter."""
    first, second = _pair("-R", text)
    target = _target(text, _on_host(text, second, _LOCALHOST))
    return Forward(listen=_in_guest(text, first), target=target, reverse=True)


def _pair(option: str, text: str) -> tuple[_Parsed, _Parsed]:
    if _ARROW in text:
        left, _, right = text.partition(_ARROW)
        one, other = _ONE.fullmatch(left.strip()), _ONE.fullmatch(right.strip())
        if one is not None and other is not None:
            return _parsed(text, one, "a"), _parsed(text, other, "a")
    elif (match := _PAIR.fullmatch(text)) is not None:
        return _parsed(text, match, "a"), _parsed(text, match, "b")
    eaten = "; the shell takes > for itself: quote it" if text.endswith("-") else ""
    raise typer.BadParameter(
        f"{option} {text}: write LISTEN:TARGET, each a PORT, ADDR:PORT, [IPV6]:PORT or /PATH, as in"
        f" 8080:80, 8080:[::1]:80 or /tmp/app.sock:main@/run/app.sock{eaten}"
    )


def _parsed(text: str, match: re.Match[str], side: str) -> _Parsed:
    path = match[f"{side}_path"]
    return _Parsed(
        container=match[f"{side}_container"],
        path=path,
        host=_written(text, match, side),
        port=0 if path else _port(text, match[f"{side}_port"]),
    )


def _on_host(text: str, end: _Parsed, default: str) -> End:
    if end.container:
        raise typer.BadParameter(f"{text}: {end.container}@ is for the guest's side alone")
    if end.path:
        # The daemon has another working directory than we.
        return End(path=str(Path(end.path).absolute()))
    return End(host=_host(end.host, default), port=end.port)


def _in_guest(text: str, end: _Parsed) -> End:
    if end.path and not end.path.startswith("/"):
        raise typer.BadParameter(f"{text}: {end.path}: a path in the guest is absolute")
    container = end.container or ""
    if end.path:
        return End(path=end.path, container=container)
    return End(host=_host(end.host, _LOCALHOST), port=end.port, container=container)


def _target(text: str, end: End) -> End:
    if not end.path and not (end.host and end.port):
        raise typer.BadParameter(f"{text}: {end}: what is connected to has a host and a port")
    return end


def _host(host: str | None, default: str) -> str:
    """Empty for all addresses."""
    if host is None:
        return default
    return "" if host == "*" else host


def _written(text: str, match: re.Match[str], side: str) -> str | None:
    six: str | None = match[f"{side}_six"]
    if six is None:
        return match[f"{side}_host"]
    try:
        return str(IPv6Address(six))
    except ValueError:
        raise typer.BadParameter(f"{text}: [{six}] is no IPv6 address") from None


def _ports(text: str, first: str, last: str | None) -> range:
    ports = range(_port(text, first), _port(text, last or first) + 1)
    if not 1 <= len(ports) <= _MOST_PORTS:
        raise typer.BadParameter(f"-p {text}: a range has 1 to {_MOST_PORTS} ports")
    return ports


def _port(text: str, number: str) -> int:
    if int(number) > 0xFFFF:
        raise typer.BadParameter(f"{text}: {number} is no port, at most {0xFFFF} is one")
    return int(number)
