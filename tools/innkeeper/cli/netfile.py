"""`innkeeper net apply`: a file in netplan's words, read whole, then sent."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.cli import netdns, nets
from innkeeper.cli.errors import CliError
from innkeeper.netplan import NetplanError, Requests, read, requests_of

if TYPE_CHECKING:
    from innkeeper.shim.client import Vm
    from innkeeper.v1 import network_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What the guest made of it."""

    interfaces: network_pb2.ApplyInterfacesResponse
    routes: network_pb2.RoutesState
    dns: network_pb2.DnsState | None

    @property
    def changes(self) -> list[str]:
        names = self.dns.changed if self.dns is not None else ()
        lines = nets.changes(self.interfaces.interfaces, self.routes.changed)
        return [*lines, *(f"dns: {line}" for line in names)]


def requests_from(file: str) -> Requests:
    """`-` is stdin. Raises CliError, with the line, for anything that is not right."""
    name = "stdin" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        return requests_of(read(text))
    except UnicodeDecodeError as error:
        raise CliError(f"{name}: is no text: {error}") from error
    except OSError as error:
        raise CliError(f"{name}: {error.strerror}") from error
    except NetplanError as error:
        raise CliError(f"{name}: {error}", hint=error.hint) from error


def as_dict(requests: Requests) -> dict[str, object]:
    """By the methods that they are for, in their order."""
    made: dict[str, object] = {
        "Network.ApplyInterfaces": nets.as_dict(requests.interfaces),
        "Network.ApplyRoutes": nets.as_dict(requests.routes),
    }
    if requests.dns is not None:
        made["Network.ApplyDns"] = nets.as_dict(requests.dns)
    return made


async def apply(vm: Vm, requests: Requests) -> Applied:
    """Interfaces, then routes, which need them, then name servers. Each of the three is done
    wholly or not at all; one that fails leaves those before it. A file says name servers and
    search domains; options, hosts and the guest's own name stay."""
    async with nets.network(vm) as network:
        interfaces = await network.ApplyInterfaces(requests.interfaces)
        routes = await network.ApplyRoutes(requests.routes)
        dns = None
        if requests.dns is not None:
            said = netdns.Change(servers=requests.dns.servers, searches=requests.dns.searches)
            dns = await netdns.change(network, said)
    return Applied(interfaces=interfaces, routes=routes, dns=dns)
