"""DNS, sysctls and the firewall of a guest, asked for by the protocol.

The witnesses are the guest's own files and programs, seen from a container that shares
everything with it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
import pytest

from innkeeper.v1 import network_pb2 as network
from innkeeper.v1 import network_pb2_grpc
from tests.vm.guest import PROBE, Guest, refused

pytestmark = [pytest.mark.vm, pytest.mark.network]

NFT = network.FIREWALL_FORMAT_NFTABLES
IPTABLES = network.FIREWALL_FORMAT_IPTABLES
IP6TABLES = network.FIREWALL_FORMAT_IP6TABLES
# The guest's own programs and libraries over the container's small root.
_OWN = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
WITNESS: dict[str, Any] = {
    **PROBE,
    "mounts": [
        *PROBE["mounts"],
        *(
            {"destination": where, "type": "bind", "source": source, "options": ["rbind"]}
            for where, source in _OWN.items()
        ),
    ],
}


def stub(guest: Guest) -> network_pb2_grpc.NetworkAsyncStub:
    return network_pb2_grpc.NetworkStub(guest.channel)


async def set_rules(
    guest: Guest, form: network.FirewallFormat.ValueType, rules: bytes = b""
) -> network.FirewallState:
    """With time for the modules: each takes a second of an emulated CPU that others want too."""
    request = network.SetFirewallRequest(format=form, rules=rules, timeout_seconds=120)
    return await stub(guest).SetFirewall(request)


async def witness(guest: Guest, script: str) -> str:
    finished = await guest.run(script, **WITNESS)
    assert finished.code == 0, finished
    return finished.text


def rules_of(text: bytes | str) -> list[str]:
    lines = text.decode() if isinstance(text, bytes) else text
    return [line for line in lines.splitlines() if line.startswith("-A")]


async def test_dns_of_the_guest_and_of_containers(guest: Guest) -> None:
    request = network.ApplyDnsRequest(
        servers=["192.0.2.53", "fe80::53%eth0"],
        searches=["example.org"],
        options=["ndots:3"],
        hosts=[network.HostEntry(address="2001:db8::5", names=["db.example.org", "db"])],
        hostname="inn",
    )
    before = (await witness(guest, "hostname")).strip()
    try:
        state = await stub(guest).ApplyDns(request)
        assert list(state.warnings) == []
        names = " ".join(f"/guest/etc/{name}" for name in ("resolv.conf", "hosts", "hostname"))
        said = await witness(guest, f"cat {names}; hostname")
        assert said == f"{state.resolv_conf}{state.hosts}inn\ninn\n"
        assert state.resolv_conf == (
            "nameserver 192.0.2.53\nnameserver fe80::53%eth0\nsearch example.org\noptions ndots:3\n"
        )
        assert "127.0.1.1 inn\n2001:db8::5 db.example.org db\n" in state.hosts
        told = await stub(guest).GetDns(network.GetDnsRequest())
        assert (told.wanted, told.resolv_conf) == (request, state.resolv_conf)
        assert list((await stub(guest).ApplyDns(told.wanted)).changed) == []
        inside = await guest.run("cat /etc/resolv.conf; cat /etc/hosts; cat /etc/hostname")
        assert inside.text == f"{state.resolv_conf}{state.hosts}inn\n"
    finally:
        state = await stub(guest).ApplyDns(network.ApplyDnsRequest(hostname=before))
    assert state.resolv_conf == ""
    assert await witness(guest, "cat /guest/etc/resolv.conf; hostname") == f"{before}\n"


async def test_sysctls_of_the_guest(guest: Guest) -> None:
    request = network.ApplySysctlsRequest(
        values={"net.ipv4.ip_default_ttl": "99", "net/core/somaxconn": "77"}
    )
    state = await stub(guest).ApplySysctls(request)
    assert dict(state.values) == dict(request.values)
    files = "/proc/sys/net/ipv4/ip_default_ttl /proc/sys/net/core/somaxconn"
    assert await witness(guest, f"cat {files}") == "99\n77\n"
    back = network.ApplySysctlsRequest(values=dict(state.former))
    assert dict((await stub(guest).ApplySysctls(back)).former) == dict(request.values)


async def test_sysctls_of_something_else_are_refused(guest: Guest) -> None:
    request = network.ApplySysctlsRequest(values={"kernel.core_pattern": "|/bin/sh"})
    code, why = await refused(stub(guest).ApplySysctls(request))
    assert (code, why) == (grpc.StatusCode.PERMISSION_DENIED, "SYSCTL_NOT_ALLOWED")


async def test_rules_of_nft_load_what_they_need(guest: Guest) -> None:
    """Chains of NAT, connections, logs: the kernel asks for its modules by their aliases."""
    place = {"family": "inet", "table": "t"}
    expressions: list[list[Any]] = [
        [_match({"ct": {"key": "state"}}, "established", op="in"), {"accept": None}],
        [_match(_dport("tcp"), "ssh"), {"log": {"prefix": "ssh "}}, {"reject": None}],
        [_match(_dport("udp"), 53), {"limit": {"rate": 10, "per": "second"}}, {"drop": None}],
    ]
    hook = {"type": "filter", "hook": "input", "prio": 0, "policy": "accept"}
    nat = {"type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}
    objects = [
        {"table": {"family": "inet", "name": "t"}},
        {"chain": {**place, "name": "in", **hook}},
        {"chain": {**place, "name": "out", **nat}},
        *({"rule": {**place, "chain": "in", "expr": each}} for each in expressions),
        {"rule": {**place, "chain": "out", "expr": [{"masquerade": None}]}},
    ]
    text = json.dumps({"nftables": objects}).encode()
    try:
        state = await set_rules(guest, NFT, text)
        assert len([each for each in json.loads(state.rules)["nftables"] if "rule" in each]) == 4
        said = await witness(guest, "nft list ruleset")
        assert re.search(r'tcp dport 22 log prefix "ssh " reject', said)
        assert "masquerade" in said
        await set_rules(guest, NFT, state.rules)
        assert await witness(guest, "nft list ruleset") == said
    finally:
        await set_rules(guest, NFT)
    assert await witness(guest, "nft list ruleset") == ""


async def test_rules_of_iptables_of_both_versions(guest: Guest) -> None:
    four = (
        b"*filter\n:INPUT DROP [0:0]\n"
        b"-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
        b"-A INPUT -p tcp -m multiport --dports 80,443 -m comment --comment web -j ACCEPT\nCOMMIT\n"
        b"*nat\n-A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.0.2.9:8080\n"
        b"-A POSTROUTING -j MASQUERADE\nCOMMIT\n"
    )
    six = b"*filter\n-A INPUT -p udp -m udp --dport 9 -j REJECT\nCOMMIT\n"
    try:
        for form, rules, tool in ((IPTABLES, four, "iptables"), (IP6TABLES, six, "ip6tables")):
            state = await set_rules(guest, form, rules)
            assert state.format == form
            said = await witness(guest, f"{tool}-save")
            assert sorted(rules_of(said)) == sorted(rules_of(state.rules))
            assert len(rules_of(said)) == len(rules_of(rules))
        bad = b"*filter\n-A INPUT -j ACCEPT\n-A INPUT -j NOSUCH\nCOMMIT\n"
        code, why = await refused(set_rules(guest, IPTABLES, bad))
        assert (code, why) == (grpc.StatusCode.INVALID_ARGUMENT, "FIREWALL_REFUSED")
        said = await witness(guest, "iptables-save")
        assert len(rules_of(said)) == len(rules_of(four))
    finally:
        for form in (IPTABLES, IP6TABLES):
            await set_rules(guest, form)
    assert rules_of(await witness(guest, "iptables-save; ip6tables-save")) == []


async def test_the_guest_has_nft_so_that_is_what_it_tells(guest: Guest) -> None:
    state = await stub(guest).GetFirewall(network.GetFirewallRequest())
    assert state.format == NFT
    assert "metainfo" in json.loads(state.rules)["nftables"][0]


def _match(left: dict[str, Any], right: Any, *, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def _dport(protocol: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": "dport"}}
