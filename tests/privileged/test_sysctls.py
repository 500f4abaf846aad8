"""Sysctls of the real kernel, in a network namespace of the test's own.

The witness is /proc/sys as another process of that namespace reads it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.handlers.network import sysctls
from agent.linux.netns import entered
from tests.privileged import netlab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]


@pytest.fixture(autouse=True)
def namespace() -> Iterator[None]:
    with netlab.namespace() as fd, entered(fd):
        subprocess.run(["ip", "link", "add", "v0", "type", "veth"], check=True)
        yield


def tell(*paths: str) -> list[str]:
    command = ["cat", *(f"/proc/sys/net/{path}" for path in paths)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def write(path: str, value: str) -> None:
    command = ["sh", "-c", f"echo {value} >/proc/sys/net/{path}"]
    subprocess.run(command, check=True)


async def apply(values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    return await sysctls.apply(Roots(), values, Deadline.after(60))


async def refused(values: Mapping[str, str]) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await apply(values)
    return caught.value


async def test_values_are_what_the_kernel_makes_of_them() -> None:
    before = tell("ipv4/tcp_rmem")
    now, former = await apply({"net.ipv4.tcp_rmem": "4096 8192 16384", "net.core.somaxconn": "77"})
    assert now == {"net.ipv4.tcp_rmem": "4096\t8192\t16384", "net.core.somaxconn": "77"}
    assert former["net.ipv4.tcp_rmem"] == before[0]
    assert tell("ipv4/tcp_rmem", "core/somaxconn") == ["4096\t8192\t16384", "77"]


async def test_one_refused_value_puts_all_back() -> None:
    before = tell("ipv4/ip_default_ttl", "ipv4/tcp_fin_timeout")
    error = await refused({"net.ipv4.ip_default_ttl": "99", "net.ipv4.tcp_fin_timeout": "soon"})
    assert error.reason is Reason.KERNEL_REFUSED
    assert error.fields["errno"] == "EINVAL"
    assert "tcp_fin_timeout = 'soon'" in error.message
    assert tell("ipv4/ip_default_ttl", "ipv4/tcp_fin_timeout") == before


@pytest.mark.parametrize("name", ["net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"])
async def test_forwarding_is_put_back_on_each_interface(name: str) -> None:
    """The kernel sets it everywhere, and `accept_redirects` the other way round."""
    paths = [f"ipv4/conf/{where}/forwarding" for where in ("all", "default", "lo", "v0")]
    write("ipv4/conf/v0/forwarding", "1")
    write("ipv4/conf/all/accept_redirects", "0")
    paths.append("ipv4/conf/all/accept_redirects")
    before = tell(*paths)
    assert before == ["0", "0", "0", "1", "0"]
    await refused({name: "1", "net.ipv4.tcp_fin_timeout": "soon"})
    assert tell(*paths) == before


async def test_ipv6_of_all_interfaces_is_put_back_on_each() -> None:
    paths = [f"ipv6/conf/{where}/disable_ipv6" for where in ("all", "default", "lo", "v0")]
    write("ipv6/conf/v0/disable_ipv6", "1")
    before = tell(*paths)
    await refused({"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv4.tcp_fin_timeout": "soon"})
    assert tell(*paths) == before


async def test_an_interface_may_differ_from_all_in_one_request() -> None:
    now, _ = await apply({"net.ipv4.conf.v0.forwarding": "0", "net.ipv4.ip_forward": "1"})
    assert now == {"net.ipv4.conf.v0.forwarding": "0", "net.ipv4.ip_forward": "1"}
    assert tell("ipv4/ip_forward", "ipv4/conf/v0/forwarding") == ["1", "0"]


async def test_one_that_can_only_be_written() -> None:
    now, former = await apply({"net.ipv4.route.flush": "1"})
    assert "net.ipv4.route.flush" not in former
    assert "net.ipv4.route.flush" not in now


async def test_keys_are_set_and_not_told() -> None:
    key = "11111111-22222222-33333333-44444444"
    now, former = await apply({"net.ipv4.tcp_fastopen_key": key})
    assert (now, former) == ({}, {})
    assert tell("ipv4/tcp_fastopen_key") == [key]
    error = await refused({"net.ipv4.tcp_fastopen_key": "no such key"})
    assert "no such key" not in str(error)


async def test_an_interface_that_is_not_there() -> None:
    error = await refused({"net.ipv4.conf.nosuch.forwarding": "1"})
    assert error.fields["errno"] == "ENOENT"
    assert "interface" in (error.hint or "")
