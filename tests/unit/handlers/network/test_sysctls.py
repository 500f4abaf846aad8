"""Names and values of sysctls, and a tree like /proc/sys. Names: sysctl(8), sysctl.d(5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.network import sysctls
from agent.handlers.network.sysctls import path_of, wishes_of

pytestmark = [pytest.mark.unit, pytest.mark.network]


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    values = {
        "ipv4/ip_forward": "0",
        "ipv4/tcp_rmem": "4096\t131072\t6291456",
        "ipv4/conf/all/forwarding": "0",
        "ipv4/conf/default/forwarding": "0",
        "ipv4/conf/eth0.100/forwarding": "0",
        "core/somaxconn": "4096",
        "core/rmem_max": "212992",
    }
    for name, value in values.items():
        file = tmp_path / "sys/net" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    (tmp_path / "sys/net/ipv4/link").symlink_to("../core/rmem_max")
    return Roots(proc=tmp_path)


def deadline() -> Deadline:
    return Deadline.after(30)


def value(roots: Roots, path: str) -> str:
    return (roots.proc / "sys/net" / path).read_text().rstrip("\n")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
        ("net/ipv4/ip_forward", "net/ipv4/ip_forward"),
        # The first separator is the name's; the other one is part of a step.
        ("net.ipv4.conf.eth0/100.forwarding", "net/ipv4/conf/eth0.100/forwarding"),
        ("net/ipv4/conf/eth0.100/forwarding", "net/ipv4/conf/eth0.100/forwarding"),
    ],
)
def test_names_with_dots_and_with_slashes(name: str, path: str) -> None:
    assert path_of(name) == path


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "net..ipv4", "net/ipv4/", "net/../kernel/core_pattern", "net.ipv4.//.kernel"),
    ],
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(AgentError) as caught:
        path_of(name)
    assert caught.value.reason is Reason.BAD_FIELD


@pytest.mark.parametrize(
    "name",
    [
        "net.ipv4.tcp_rmem",
        "net.ipv6.conf.all.disable_ipv6",
        "net.netfilter.nf_conntrack_max",
        "net.mptcp.enabled",
        "net.unix.max_dgram_qlen",
        "net.core.somaxconn",
        "net.core.optmem_max",
        "net/core/xfrm_acq_expires",
    ],
)
def test_what_may_be_set(name: str) -> None:
    assert [wish.name for wish in wishes_of({name: "1"})] == [name]


@pytest.mark.parametrize(
    "name",
    [
        "kernel.core_pattern",
        "vm.overcommit_memory",
        "net.core.rmem_max",
        "net.core.bpf_jit_enable",
        "net.core.somaxconn.more",
        "net.unix.other",
        "net.ipv4",
        "net.ipv4x.ip_forward",
        "net.nf_conntrack_max",
        "net.vsock.child_ns_mode",
    ],
)
def test_what_may_not_be_set(name: str) -> None:
    with pytest.raises(AgentError) as caught:
        wishes_of({name: "1"})
    assert caught.value.code is Code.PERMISSION_DENIED
    assert caught.value.reason is Reason.SYSCTL_NOT_ALLOWED
    assert name in caught.value.message


def test_one_may_be_named_once() -> None:
    with pytest.raises(AgentError) as caught:
        wishes_of({"net.ipv4.ip_forward": "1", "net/ipv4/ip_forward": "1"})
    assert caught.value.reason is Reason.BAD_FIELD


def test_what_sets_others_comes_first() -> None:
    """ip-sysctl.rst: ip_forward resets others, conf/all sets some of every interface."""
    names = (
        "net.ipv4.conf.eth0.forwarding",
        "net.ipv4.conf.default.forwarding",
        "net.ipv4.conf.all.forwarding",
        "net.ipv4.ip_forward",
    )
    assert [wish.name for wish in wishes_of(dict.fromkeys(names, "1"))] == list(reversed(names))


async def test_values_now_and_before_by_the_names_of_the_request(roots: Roots) -> None:
    wanted = {
        "net.ipv4.conf.eth0/100.forwarding": "1",
        "net/ipv4/tcp_rmem": "4096\t111111\t1111111",
    }
    now, former = await sysctls.apply(roots, wanted, deadline())
    assert now == wanted
    assert former == {
        "net.ipv4.conf.eth0/100.forwarding": "0",
        "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    }
    assert value(roots, "ipv4/conf/eth0.100/forwarding") == "1"


async def test_one_that_is_not_there_changes_none(roots: Roots) -> None:
    wanted = {"net.ipv4.ip_forward": "1", "net.ipv4.nosuch": "1"}
    with pytest.raises(AgentError) as caught:
        await sysctls.apply(roots, wanted, deadline())
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert caught.value.fields["errno"] == "ENOENT"
    assert "net.ipv4.nosuch" in caught.value.message
    assert value(roots, "ipv4/ip_forward") == "0"


async def test_a_group_is_no_sysctl(roots: Roots) -> None:
    with pytest.raises(AgentError) as caught:
        await sysctls.apply(roots, {"net.ipv4.conf": "1"}, deadline())
    assert caught.value.fields["errno"] == "EISDIR"


async def test_links_lead_nowhere(roots: Roots) -> None:
    """There are none in /proc/sys, so one would be somebody's."""
    with pytest.raises(AgentError) as caught:
        await sysctls.apply(roots, {"net.ipv4.link": "1"}, deadline())
    assert caught.value.fields["errno"] == "ELOOP"
    assert value(roots, "core/rmem_max") == "212992"


async def test_past_the_deadline_nothing_has_changed(roots: Roots) -> None:
    with pytest.raises(AgentError) as caught:
        await sysctls.apply(roots, {"net.ipv4.ip_forward": "1"}, Deadline.after(0))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert value(roots, "ipv4/ip_forward") == "0"


async def test_nothing_wanted(roots: Roots) -> None:
    assert await sysctls.apply(roots, {}, deadline()) == ({}, {})
