"""The firewall by the real nft and iptables, in a network namespace of the test's own.

The witness is the tool itself, asked by another process than the agent's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.network import FirewallFormat
from agent.handlers.network.firewall import Firewall
from agent.linux.netns import entered
from tests.privileged import netlab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="needs the package nftables"),
    pytest.mark.skipif(shutil.which("iptables-save") is None, reason="needs the package iptables"),
]

NFT, IPTABLES, IP6TABLES = FirewallFormat
RULES = """
table inet web {
    counter seen { }
    set friends { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 } }
    map ways { type inet_service : verdict; elements = { 80 : jump plain, 443 : accept } }
    chain plain { ip saddr @friends accept; }
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iifname "lo" counter name seen accept comment "self"
        tcp dport vmap @ways
        udp dport { 53, 123 } limit rate 10/second accept
    }
    chain out { type nat hook postrouting priority srcnat; oifname "eth0" masquerade; }
}
"""
FILTER = """*filter
:INPUT DROP [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:WEB - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m tcp --dport 80 -j WEB
-A WEB -s 192.0.2.0/24 -j ACCEPT
COMMIT
"""
NAT = """*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
"""


@pytest.fixture
def firewall() -> Iterator[Firewall]:
    with netlab.namespace() as fd, entered(fd):
        yield Firewall()


def deadline() -> Deadline:
    return Deadline.after(60)


def run(*argv: str, text: str = "") -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout


def saved(program: str = "iptables-save") -> set[str]:
    """Lines that say something: rules, and policies that are not the default."""
    lines = re.sub(r"\[\d+:\d+\]", "", run(program)).splitlines()
    return {
        line.strip()
        for line in lines
        if line.startswith("-A") or (line.startswith(":") and not line.endswith("ACCEPT "))
    }


def without_handles(rules: bytes | str) -> list[Any]:
    objects = [item for item in json.loads(rules)["nftables"] if "metainfo" not in item]
    for item in objects:
        for content in item.values():
            content.pop("handle", None)
    return objects


def listed() -> list[Any]:
    return without_handles(run("nft", "-j", "list", "ruleset"))


async def test_without_rules_there_is_nothing_in_the_list(firewall: Firewall) -> None:
    kind, rules = await firewall.get(None, deadline())
    assert kind is NFT
    assert without_handles(rules) == []


async def test_what_was_read_can_be_set_again(firewall: Firewall) -> None:
    run("nft", "-f", "-", text=RULES)
    before = listed()
    _, rules = await firewall.get(NFT, deadline())
    run("nft", "flush", "ruleset")
    kind, now = await firewall.set(NFT, rules, deadline())
    assert kind is NFT
    assert without_handles(now) == before == listed()
    assert without_handles((await firewall.set(NFT, now, deadline()))[1]) == before


async def test_rules_of_nft_replace_all_that_were(firewall: Firewall) -> None:
    run("nft", "-f", "-", text="table ip old { chain c { accept; }\n}")
    table = {"table": {"family": "ip6", "name": "new"}}
    await firewall.set(NFT, json.dumps({"nftables": [table]}).encode(), deadline())
    assert listed() == [table]
    await firewall.set(NFT, b"", deadline())
    assert listed() == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ([{"bogus": 1}], "Unknown statement object 'bogus'"),
        # It is the kernel that knows of no such chain.
        ([{"jump": {"target": "nowhere"}}], "No such file or directory"),
    ],
)
async def test_what_nft_refuses_changes_nothing(firewall: Firewall, rule: Any, said: str) -> None:
    run("nft", "-f", "-", text=RULES)
    before = listed()
    place = {"family": "inet", "table": "t"}
    wanted = [
        {"table": {"family": "inet", "name": "t"}},
        {"chain": {**place, "name": "c"}},
        {"rule": {**place, "chain": "c", "expr": rule}},
    ]
    with pytest.raises(AgentError) as caught:
        await firewall.set(NFT, json.dumps({"nftables": wanted}).encode(), deadline())
    assert caught.value.reason is Reason.FIREWALL_REFUSED
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert said in caught.value.message
    assert listed() == before


async def test_rules_of_iptables_come_as_they_were_given(firewall: Firewall) -> None:
    kind, now = await firewall.set(IPTABLES, (FILTER + NAT).encode(), deadline())
    assert kind is IPTABLES
    assert {line for line in (FILTER + NAT).splitlines() if line.startswith("-A")} <= saved()
    assert ":INPUT DROP" in saved()
    assert b"-A WEB -s 192.0.2.0/24 -j ACCEPT\n" in now
    before = saved()
    await firewall.set(IPTABLES, now, deadline())
    assert saved() == before


async def test_tables_and_policies_that_are_not_given_go_back(firewall: Firewall) -> None:
    await firewall.set(IPTABLES, (FILTER + NAT).encode(), deadline())
    await firewall.set(IPTABLES, b"*filter\n-A INPUT -p udp -j ACCEPT\nCOMMIT\n", deadline())
    assert saved() == {"-A INPUT -p udp -j ACCEPT"}
    await firewall.set(IPTABLES, NAT.encode(), deadline())
    assert saved() == {"-A POSTROUTING -o eth0 -j MASQUERADE"}
    await firewall.set(IPTABLES, FILTER.encode(), deadline())
    await firewall.set(IPTABLES, b"", deadline())
    assert saved() == set()


async def test_bad_data_in_line_3_changes_nothing_and_names_the_line(firewall: Firewall) -> None:
    await firewall.set(IPTABLES, FILTER.encode(), deadline())
    before = saved()
    bad = b"*filter\n-A INPUT -p udp -j ACCEPT\n-A INPUT -p bogus -j ACCEPT\nCOMMIT\n"
    with pytest.raises(AgentError) as caught:
        await firewall.set(IPTABLES, bad, deadline())
    assert caught.value.reason is Reason.FIREWALL_REFUSED
    assert re.search(r"bogus.*line:? 3", caught.value.message, flags=re.DOTALL)
    assert saved() == before


async def test_a_refusal_in_a_later_table_takes_the_earlier_ones_back(firewall: Firewall) -> None:
    """iptables-restore has committed the first table when the kernel refuses the second."""
    await firewall.set(IPTABLES, (FILTER + NAT).encode(), deadline())
    run("iptables", "-A", "INPUT", "-p", "udp", "-c", "7", "700", "-j", "ACCEPT")
    before = saved()
    bad = b"*filter\n-A INPUT -j DROP\nCOMMIT\n*nat\n-A INPUT -j MASQUERADE\nCOMMIT\n"
    with pytest.raises(AgentError) as caught:
        await firewall.set(IPTABLES, bad, deadline())
    assert re.search(r"line:? 5", caught.value.message)
    assert "not_undone" not in caught.value.fields
    assert saved() == before
    assert "[7:700] -A INPUT -p udp -j ACCEPT" in run("iptables-save", "-c")


async def test_a_table_that_was_not_there_is_emptied_again(firewall: Firewall) -> None:
    bad = b"*filter\n-A INPUT -j DROP\nCOMMIT\n*nat\n-A INPUT -j MASQUERADE\nCOMMIT\n"
    with pytest.raises(AgentError):
        await firewall.set(IPTABLES, bad, deadline())
    assert saved() == set()


@pytest.mark.parametrize(
    "bad", [b"garbage\n", b"*filter\n-A INPUT -j DROP\n", b"*nosuch\nCOMMIT\n"]
)
async def test_text_that_is_no_list_of_rules(firewall: Firewall, bad: bytes) -> None:
    await firewall.set(IPTABLES, FILTER.encode(), deadline())
    before = saved()
    with pytest.raises(AgentError) as caught:
        await firewall.set(IPTABLES, bad, deadline())
    assert caught.value.reason is Reason.FIREWALL_REFUSED
    assert saved() == before


async def test_both_versions_of_ip_are_apart(firewall: Firewall) -> None:
    await firewall.set(IPTABLES, FILTER.encode(), deadline())
    before = saved()
    rules = b"*filter\n:INPUT DROP [0:0]\n-A INPUT -p ipv6-icmp -j ACCEPT\nCOMMIT\n"
    kind, now = await firewall.set(IP6TABLES, rules, deadline())
    assert kind is IP6TABLES
    assert b"-A INPUT -p ipv6-icmp -j ACCEPT\n" in now
    assert saved("ip6tables-save") == {":INPUT DROP", "-A INPUT -p ipv6-icmp -j ACCEPT"}
    assert saved() == before
    await firewall.set(IP6TABLES, b"", deadline())
    assert saved("ip6tables-save") == set()
    assert saved() == before


async def test_two_at_once_do_not_mix(firewall: Firewall) -> None:
    """Each answer is what that caller asked for, and the last one stays."""
    ports = range(1000, 1008)
    wanted = [f"-A INPUT -p tcp -m tcp --dport {port} -j ACCEPT" for port in ports]
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(
                firewall.set(IPTABLES, f"*filter\n{rule}\nCOMMIT\n".encode(), deadline())
            )
            for rule in wanted
        ]
    for rule, call in zip(wanted, calls, strict=True):
        _, now = call.result()
        assert [line for line in now.decode().splitlines() if line.startswith("-A")] == [rule]
    assert saved() == {wanted[-1]}


async def test_a_caller_that_leaves_takes_its_change_along(firewall: Firewall) -> None:
    """Whenever it leaves: the rules are those of before or those that it asked for."""
    await firewall.set(IPTABLES, FILTER.encode(), deadline())
    before = saved()
    for turns in (1, 3, 10, 30):
        call = asyncio.ensure_future(firewall.set(IPTABLES, NAT.encode(), deadline()))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert saved() in (before, {"-A POSTROUTING -o eth0 -j MASQUERADE"})


async def test_many_rules_come_back_whole(firewall: Firewall) -> None:
    """More than a command's output may be elsewhere (4 MiB)."""
    place = {"family": "inet", "table": "t"}
    expression = [
        {"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 1}},
        {"log": {"prefix": "x" * 120}},
    ]
    rule = {"rule": {**place, "chain": "c", "comment": "y" * 120, "expr": expression}}
    wanted = [
        {"table": {"family": "inet", "name": "t"}},
        {"chain": {**place, "name": "c"}},
        *([rule] * 10_000),
    ]
    _, now = await firewall.set(NFT, json.dumps({"nftables": wanted}).encode(), deadline())
    assert len(now) > 4 << 20
    assert without_handles(now) == wanted
