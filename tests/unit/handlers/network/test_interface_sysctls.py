"""IPv6 of one interface by its files (Documentation/networking/ip-sysctl.rst)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.handlers.network.interface_sysctls import Ipv6Settings, LinkSysctls

pytestmark = [pytest.mark.unit, pytest.mark.network]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "sys/net/ipv6/conf/eth0.100"
    place.mkdir(parents=True)
    for name, text in (("disable_ipv6", "0"), ("accept_ra", "1"), ("forwarding", "0")):
        (place / name).write_text(f"{text}\n")
    return place


@pytest.fixture
def sysctls(tmp_path: Path) -> LinkSysctls:
    return LinkSysctls(Roots(proc=tmp_path))


async def test_reading(files: Path, sysctls: LinkSysctls) -> None:
    assert await sysctls.read("eth0.100") == Ipv6Settings(enabled=True, accept_ra=True)
    assert await sysctls.read("eth9") == Ipv6Settings()
    (files / "disable_ipv6").write_text("1\n")
    assert (await sysctls.read("eth0.100")).enabled is False


async def test_a_router_takes_advertisements_only_when_it_is_told_twice(
    files: Path, sysctls: LinkSysctls
) -> None:
    """accept_ra: 1 is "if forwarding is disabled", 2 "even if forwarding is enabled"."""
    (files / "forwarding").write_text("1\n")
    assert (await sysctls.read("eth0.100")).accept_ra is False
    await sysctls.write("eth0.100", Ipv6Settings(accept_ra=True))
    assert (files / "accept_ra").read_text().strip() == "2"
    assert (await sysctls.read("eth0.100")).accept_ra is True
    await sysctls.write("eth0.100", Ipv6Settings(accept_ra=False))
    assert (files / "accept_ra").read_text().strip() == "0"
    assert (files / "disable_ipv6").read_text() == "0\n"


async def test_without_ipv6(sysctls: LinkSysctls) -> None:
    with pytest.raises(AgentError) as caught:
        await sysctls.write("eth0", Ipv6Settings(enabled=True))
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert "eth0" in caught.value.message
