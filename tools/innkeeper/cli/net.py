"""`innkeeper net`: network interfaces of a running VM, and the guest's network."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import hints, netdns, netfile, nets, nics, options, output, refusals
from innkeeper.cli.errors import CliError
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import Vm, find_vm
from innkeeper.shim.hardware.netdevs import MTUS, QUEUE_PAIRS
from innkeeper.v1 import host_pb2, network_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

app = typer.Typer(
    no_args_is_help=True,
    help="The network of a running VM: interfaces, addresses, routes, names, firewall.",
)
firewall = typer.Typer(no_args_is_help=True, help="The guest's firewall, as its own tools' text.")
app.add_typer(firewall, name="firewall")

VmArgument = Annotated[
    str, typer.Argument(metavar="VM", help="Name of the VM.", callback=hints.about)
]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time for plugging it, in the guest too.")
]

_ATTACH_HELP = """Plugs a network interface in, and gives it a name and addresses in the guest.

One option says what is at its other end:

\b
  --user       QEMU's own network: the guest opens connections as you; the host
               is 10.0.2.2. Without --address the guest is 10.0.2.15/24, with a
               default route and the name server 10.0.2.3, in place of others.
  --passt      the same, faster, with the host's own address (apt install passt)
  --tap NAME   a tap interface of the host, which exists already
  --wire NAME  the one other VM that names the same wire
  --isolated   nothing

Without --name the interface is called after its PCI path (n10s0 is in slot 10), so
that it has the same name each time. Whatever fails, nothing stays plugged in.

\b
Examples:
  innkeeper net attach web --user
  innkeeper net attach web --user --name eth0 --address 10.0.2.20/24 --gateway 10.0.2.2
  innkeeper net attach web --wire lab --address 192.0.2.1/24 --mtu 9000
  innkeeper net attach web --tap tap0 --queues 2 --address 2001:db8::2/64
  innkeeper net attach web --isolated --model e1000e --no-configure
"""

_FIREWALL_FORMATS = {
    "nftables": network_pb2.FIREWALL_FORMAT_NFTABLES,
    "iptables": network_pb2.FIREWALL_FORMAT_IPTABLES,
    "ip6tables": network_pb2.FIREWALL_FORMAT_IP6TABLES,
}


@app.command(help=_ATTACH_HELP)
def attach(  # noqa: PLR0913 - typer makes each parameter an option
    vm: VmArgument,
    tap: Annotated[str, typer.Option(metavar="NAME", help="A tap interface of the host.")] = "",
    wire: Annotated[str, typer.Option(metavar="NAME", help="A wire to another VM.")] = "",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Its name in the guest.", show_default="its path's")
    ] = "",
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="CIDR", help="An address with its prefix; repeatable."),
    ] = None,
    gateway: Annotated[
        list[str] | None,
        typer.Option(metavar="IP", help="A default route; one for IPv4 and one for IPv6."),
    ] = None,
    dns: Annotated[
        list[str] | None,
        typer.Option(metavar="IP", help="A name server, in place of those there are; repeatable."),
    ] = None,
    mac: Annotated[
        str, typer.Option(metavar="MAC", help="Its MAC address.", show_default="made from its id")
    ] = "",
    mtu: Annotated[int, typer.Option(metavar="N", help="Its MTU.", show_default="1500")] = 0,
    model: Annotated[
        str, typer.Option(metavar="virtio|e1000e|igb", help="What it is to the guest.")
    ] = "virtio",
    queues: Annotated[
        int, typer.Option(metavar="N", help="Pairs of queues, on a tap with multi_queue.")
    ] = 0,
    device_id: Annotated[
        str,
        typer.Option("--id", metavar="ID", help="Id of the device.", show_default="nic-XXXX"),
    ] = "",
    port: Annotated[
        str, typer.Option(metavar="PORT", help="Where to plug it; see `device ports`.")
    ] = "",
    timeout: TimeoutOption = 30,
    *,
    user: Annotated[bool, typer.Option("--user", help="QEMU's own network.")] = False,
    passt: Annotated[bool, typer.Option("--passt", help="passt.")] = False,
    isolated: Annotated[bool, typer.Option("--isolated", help="Nothing.")] = False,
    no_configure: Annotated[
        bool, typer.Option("--no-configure", help="Only plug it; the guest's agent leaves it.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    backend, backend_name = _backend(
        {"user": user, "passt": passt, "isolated": isolated, "tap": tap, "wire": wire}
    )
    if no_configure and (name or address or gateway or dns):
        raise typer.BadParameter("--no-configure: nothing is configured then, not even that")
    wanted = nics.Configuration(
        name=name,
        addresses=tuple(address or ()),
        gateways=tuple(gateway or ()),
        servers=tuple(dns or ()),
    )
    nic = nics.Nic(
        backend=backend,
        backend_name=backend_name,
        model=_model(model),
        mac=mac,
        mtu=options.check_number("--mtu", mtu, MTUS) if mtu else 0,
        queue_pairs=options.check_number("--queues", queues, QUEUE_PAIRS) if queues else 0,
        configuration=None if no_configure else wanted,
    )
    function = host_pb2.PlugFunction(id=device_id or f"nic-{secrets.token_hex(2)}")
    plugging = nics.Plugging(port=port, timeout=options.check_seconds("--timeout", timeout))
    completed = nics.complete(nic)
    with refusals.told():
        attached = wait_for(nics.attach(find_vm(vm), completed, function, plugging))
    if json:
        output.say_json(nics.as_dict(attached))
    else:
        output.say("\n".join(nics.in_words(attached)))


def _backend(given: dict[str, bool | str]) -> tuple[str, str]:
    """The one that was given, and its name. Raises typer.BadParameter."""
    chosen = [name for name, value in given.items() if value]
    if len(chosen) != 1:
        words = ", ".join(f"--{name}" for name in given)
        told = " and ".join(f"--{name}" for name in chosen) or "none"
        raise typer.BadParameter(f"one of {words} is needed, and {told} given")
    value = given[chosen[0]]
    return chosen[0], value if isinstance(value, str) else ""


def _model(text: str) -> str:
    if text not in nics.MODELS:
        raise typer.BadParameter(f"--model {text}: one of {', '.join(nics.MODELS)}")
    return text


@app.command()
def detach(
    vm: VmArgument,
    device_id: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="Id of the device, or its name in the guest.")
    ],
    timeout: TimeoutOption = 30,
) -> None:
    """Unplugs an interface; its routes go with it.

    \b
    Examples:
      innkeeper net detach web nic-1a2b
      innkeeper net detach web eth0
    """
    with refusals.told():
        found = wait_for(_detach(find_vm(vm), device_id, timeout))
    output.say(f"{found}: detached")


async def _detach(vm: Vm, text: str, timeout: float) -> str:
    """The id that it was plugged in by."""
    plugged = {each.id for each in await vm.plugged()}
    device_id = text
    if text not in plugged:
        there = await nets.interfaces(vm)
        found = [each.device_id for each in there if each.name == text]
        device_id = next((each for each in found if each in plugged), "")
        if not device_id:
            raise _not_plugged(vm, text, there)
    await vm.unplug(device_id, timeout)
    return device_id


def _not_plugged(vm: Vm, text: str, there: Iterable[network_pb2.InterfaceState]) -> CliError:
    if any(each.name == text and not each.pci_path for each in there):
        return CliError(
            f"{text}: is no hardware, so there is nothing to unplug",
            hint=f"what is virtual goes by: innkeeper net remove {vm.name} {text}",
        )
    known = ", ".join(f"{each.device_id} ({each.name})" for each in there if each.device_id)
    return CliError(
        f"{text}: no interface of VM {vm.name} has that id or name",
        hint=f"these can be unplugged: {known or 'none'}",
    )


@app.command("list")
def list_(
    vm: VmArgument,
    *,
    routes: Annotated[bool, typer.Option("--routes", help="Routes instead.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Policy rules instead.")] = False,
    neighbors: Annotated[
        bool, typer.Option("--neighbors", help="Which MAC address has which address instead.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Shows the guest's interfaces, with those that containers were given.

    \b
    Examples:
      innkeeper net list web
      innkeeper net list web --routes
      innkeeper net list web --json
    """
    if routes + rules + neighbors > 1:
        raise typer.BadParameter("one of --routes, --rules, --neighbors")
    found = find_vm(vm)
    with refusals.told():
        if neighbors:
            state = wait_for(nets.neighbors(found))
            _show(state, nets.NEIGHBOR_COLUMNS, nets.neighbor_rows(state), as_json=json)
        elif routes or rules:
            ways = wait_for(nets.routes(found))
            columns = nets.RULE_COLUMNS if rules else nets.ROUTE_COLUMNS
            rows = nets.rule_rows(ways) if rules else nets.route_rows(ways)
            _show(ways, columns, rows, as_json=json)
        else:
            interfaces = wait_for(nets.interfaces(found))
            answer = network_pb2.ListInterfacesResponse(interfaces=interfaces)
            rows = [nets.interface_row(each) for each in interfaces]
            _show(answer, nets.COLUMNS, rows, as_json=json)


def _show(
    message: Message, columns: tuple[str, ...], rows: list[list[str]], *, as_json: bool
) -> None:
    if as_json:
        output.say_json(nets.as_dict(message))
    else:
        output.table(columns, rows)


@app.command()
def apply(
    vm: VmArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A YAML file; - is stdin.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be sent, as JSON.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Makes the guest's network what a file says, in netplan's words.

    The file is read as a whole before anything is sent: what is wrong in it is told
    with its line. It describes all routes: the main table and each table that it
    names become what it says, and so do the policy rules; interfaces that are not
    in it stay as they are, but for their routes. Applied twice, it changes nothing the second time.

    Netplan's own reference says what its keys mean. Of them there are: ethernets,
    vlans, bridges, bonds, vrfs, dummy-devices; match (name, macaddress, and our own
    pci-path), set-name, macaddress, mtu, addresses, routes, routing-policy,
    gateway4, gateway6, nameservers, accept-ra, link-local, activation-mode (off),
    the offloads, and parameters of bonds and bridges. There is no DHCP client in the
    guest. Where the file has nameservers, they replace the guest's name servers and
    search domains; its resolver options, hosts and host name stay.

    \b
    Example file:
      network:
        version: 2
        ethernets:
          lan:
            match: {pci-path: 10/00}
            set-name: eth0
            addresses: [192.0.2.10/24, "2001:db8::10/64"]
            routes:
              - {to: default, via: 192.0.2.1}
            nameservers: {addresses: [192.0.2.53], search: [example.org]}
        vlans:
          eth0.5: {id: 5, link: lan, addresses: [10.5.0.1/24]}

    \b
    Examples:
      innkeeper net apply web web.yaml
      innkeeper net apply web web.yaml --dry-run
    """
    requests = netfile.requests_from(file)
    if dry_run:
        output.say_json(netfile.as_dict(requests))
        return
    with refusals.told():
        applied = wait_for(netfile.apply(find_vm(vm), requests))
    if json:
        output.say_json({"changed": applied.changes})
    else:
        output.say("\n".join(applied.changes) or "nothing changed")
    for warning in applied.dns.warnings if applied.dns is not None else ():
        output.warn(warning)


@app.command()
def remove(
    vm: VmArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the interface.")],
) -> None:
    """Removes an interface that is no hardware: a VLAN, bridge, bond, VRF or dummy.

    \b
    Example:
      innkeeper net remove web br0
    """
    with refusals.told():
        wait_for(_remove(find_vm(vm), name))
    output.say(f"{name}: removed")


async def _remove(vm: Vm, name: str) -> None:
    async with nets.network(vm) as network:
        await network.RemoveInterface(network_pb2.RemoveInterfaceRequest(name=name))


@app.command()
def dns(  # noqa: PLR0913 - typer makes each parameter an option
    vm: VmArgument,
    server: Annotated[
        list[str] | None, typer.Option(metavar="IP", help="A name server; repeatable.")
    ] = None,
    search: Annotated[
        list[str] | None, typer.Option(metavar="DOMAIN", help="A search domain; repeatable.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="As in ndots:2; repeatable.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="IP=NAME[,NAME]", help="A line of /etc/hosts; repeatable."),
    ] = None,
    hostname: Annotated[
        str, typer.Option(metavar="NAME", help="The guest's own.", show_default="unchanged")
    ] = "",
    clear: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(netdns.KINDS), help="Have none of these; repeatable."),
    ] = None,
    *,
    add: Annotated[
        bool, typer.Option("--add", help="Keep those that are there, and add these.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Shows or says where the guest and its containers look names up.

    Without an option it shows what is set. An option replaces all of its kind: one
    --server takes the place of all name servers, and search domains, options, hosts
    and the host name stay as they are. With --add those that are there stay too.

    \b
    Examples:
      innkeeper net dns web
      innkeeper net dns web --server 192.0.2.53 --search example.org
      innkeeper net dns web --add --host 192.0.2.7=db,db.example.org
      innkeeper net dns web --clear search
    """
    kinds = {"server": server, "search": search, "option": option, "host": host}
    given = _kinds(kinds, clear or [], add=add)
    hosts = given["host"]
    wanted = netdns.Change(
        servers=given["server"],
        searches=given["search"],
        options=given["option"],
        hosts=None if hosts is None else [_host(text) for text in hosts],
        hostname=hostname,
        adds=add,
    )
    is_asked = bool(hostname) or any(said is not None for said in given.values())
    if add and not is_asked:
        raise typer.BadParameter("--add: what? give --server, --search, --option or --host")
    with refusals.told():
        state = wait_for(_dns(find_vm(vm), wanted if is_asked else None))
    if json:
        output.say_json(nets.as_dict(state))
    elif is_asked:
        output.say("\n".join(state.changed) or "nothing changed")
    else:
        output.say("\n".join(netdns.in_words(state)))
    for warning in state.warnings:
        output.warn(warning)


def _kinds(
    said: dict[str, list[str] | None], clear: list[str], *, add: bool
) -> dict[str, list[str] | None]:
    """What of each kind is wanted; None where nothing is said. Raises typer.BadParameter."""
    if clear and add:
        raise typer.BadParameter("--clear and --add: one of them")
    for kind in clear:
        if kind not in said:
            raise typer.BadParameter(f"--clear {kind}: one of {', '.join(said)}")
        if said[kind]:
            raise typer.BadParameter(f"--clear {kind}: and --{kind} too? that alone replaces all")
    return {kind: [] if kind in clear else words or None for kind, words in said.items()}


def _host(text: str) -> network_pb2.HostEntry:
    address, _, names = text.partition("=")
    if not (address and names):
        raise typer.BadParameter(f"--host {text!r}: write IP=NAME, as in 192.0.2.7=db")
    return network_pb2.HostEntry(address=address, names=names.split(","))


async def _dns(vm: Vm, wanted: netdns.Change | None) -> network_pb2.DnsState:
    async with nets.network(vm) as network:
        if wanted is None:
            return await network.GetDns(network_pb2.GetDnsRequest())
        return await netdns.change(network, wanted)


@app.command()
def neighbor(
    vm: VmArgument,
    address: Annotated[str, typer.Argument(metavar="IP", help="Its IP address.")],
    device: Annotated[
        str, typer.Option("--on", metavar="NAME", help="The interface that it is behind.")
    ],
    mac: Annotated[str, typer.Option(metavar="MAC", help="Its MAC address.")] = "",
    *,
    proxy: Annotated[
        bool, typer.Option("--proxy", help="The guest answers for that address.")
    ] = False,
    absent: Annotated[bool, typer.Option("--absent", help="Take the entry away.")] = False,
) -> None:
    """Says which MAC address has an IP address, so that the guest need not ask.

    \b
    Examples:
      innkeeper net neighbor web 192.0.2.1 --on eth0 --mac 52:54:00:12:34:56
      innkeeper net neighbor web 192.0.2.1 --on eth0 --absent
    """
    if sum(map(bool, (mac, proxy, absent))) != 1:
        raise typer.BadParameter("one of --mac, --proxy, --absent")
    entry = network_pb2.Neighbor(
        address=address, mac=mac, device=device, proxy=proxy, absent=absent
    )
    with refusals.told():
        changed = wait_for(_neighbor(find_vm(vm), entry))
    output.say("\n".join(changed) or "nothing changed")


async def _neighbor(vm: Vm, entry: network_pb2.Neighbor) -> list[str]:
    async with nets.network(vm) as network:
        request = network_pb2.ApplyNeighborsRequest(neighbors=[entry])
        return list((await network.ApplyNeighbors(request)).changed)


@app.command()
def sysctl(
    vm: VmArgument,
    words: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="What to set.")],
) -> None:
    """Sets sysctls of the guest's network, all or none.

    \b
    Example:
      innkeeper net sysctl web net.ipv4.ip_forward=1 net.ipv4.conf.eth0.rp_filter=2
    """
    pairs = [word.partition("=") for word in words]
    if wrong := [word for word, (_, equals, _) in zip(words, pairs, strict=True) if not equals]:
        raise typer.BadParameter(f"{wrong[0]!r}: write NAME=VALUE, as in net.ipv4.ip_forward=1")
    values = {name: value for name, _, value in pairs}
    with refusals.told():
        state = wait_for(_sysctl(find_vm(vm), values))
    for name in values:
        before, now = state.former.get(name, ""), state.values.get(name, "")
        output.say(f"{name} = {now}" + (f" (before: {before})" if before != now else ""))


async def _sysctl(vm: Vm, values: dict[str, str]) -> network_pb2.SysctlsState:
    async with nets.network(vm) as network:
        return await network.ApplySysctls(network_pb2.ApplySysctlsRequest(values=values))


FormatOption = Annotated[
    str,
    typer.Option("--format", metavar="nftables|iptables|ip6tables", help="How rules are written."),
]


@firewall.command("get")
def firewall_get(vm: VmArgument, format_: FormatOption = "nftables") -> None:
    """Prints the rules: JSON of nft -j list ruleset, or as iptables-save does.

    \b
    Examples:
      innkeeper net firewall get web > rules.json
      innkeeper net firewall get web --format iptables
    """
    request = network_pb2.GetFirewallRequest(format=_format(format_))
    with refusals.told():
        state = wait_for(_firewall_get(find_vm(vm), request))
    sys.stdout.buffer.write(state.rules)


async def _firewall_get(
    vm: Vm, request: network_pb2.GetFirewallRequest
) -> network_pb2.FirewallState:
    async with nets.network(vm) as network:
        return await network.GetFirewall(request)


@firewall.command("set")
def firewall_set(
    vm: VmArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The rules; - is stdin.")] = "-",
    format_: FormatOption = "nftables",
) -> None:
    """Replaces all rules by those of a file, as one transaction.

    What the guest's tool refuses is told in its own words, and the rules are as before.

    \b
    Examples:
      innkeeper net firewall set web rules.json
      iptables-save | innkeeper net firewall set web --format iptables
    """
    request = network_pb2.SetFirewallRequest(format=_format(format_), rules=_rules_of(file))
    with refusals.told():
        wait_for(_firewall_set(find_vm(vm), request))
    output.say(f"{vm}: {format_} rules replaced")


async def _firewall_set(vm: Vm, request: network_pb2.SetFirewallRequest) -> None:
    async with nets.network(vm) as network:
        await network.SetFirewall(request)


def _rules_of(file: str) -> bytes:
    """Never nothing: that is what a failed command before a pipe gives, and would open all."""
    try:
        rules = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from error
    if not rules.strip():
        raise CliError(
            f"{'standard input' if file == '-' else file}: no rules are in it",
            hint='to have no rules, say so: {"nftables": []}, or for iptables *filter and COMMIT',
        )
    return rules


def _format(text: str) -> network_pb2.FirewallFormat.ValueType:
    if text not in _FIREWALL_FORMATS:
        raise typer.BadParameter(f"--format {text}: one of {', '.join(_FIREWALL_FORMATS)}")
    return _FIREWALL_FORMATS[text]
