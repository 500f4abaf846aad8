"""The sandbox's record: what a host name may be, what survives, what is another request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.life import PressureResource, PressureThreshold
from agent.core.network import DnsWish
from agent.core.sandbox import (
    Identity,
    KernelModule,
    Made,
    Sandbox,
    SandboxPhase,
    SandboxRecord,
    SandboxWish,
    check_hostname,
)
from agent.core.state import StateStore

pytestmark = [pytest.mark.unit, pytest.mark.operations]

RECORD = SandboxRecord(
    identity=Identity(id="s1", hostname="guest"),
    fingerprint="f",
    phase=SandboxPhase.CREATED,
    made=Made(
        modules=("crc", "xfs"),
        sysctls=(("vm/max_map_count", "65530"),),
        hostname="before",
        dns_changed=True,
        dns_before={"resolv_conf": ""},
    ),
    hooks={"prestart": ["/hooks/prestart/10-a"]},
    pressure=(PressureThreshold(resource=PressureResource.IO, full=True, stall=1, window=500_000),),
)


@pytest.mark.parametrize(
    "name", ["ok-1", "a", "a" * 63, "A.b.c3", "9", "", "a" * 32 + "." + "b" * 31]
)
def test_names_of_rfc_1123_are_host_names(name: str) -> None:
    assert check_hostname(name) == name


@pytest.mark.parametrize(
    "name",
    ["a b", "x\n127.0.0.1 evil", "-a", "a-", "é", "a" * 64, "a.", ".a", "a..b", "a\n", "a_b"],
)
def test_everything_else_is_none(name: str) -> None:
    """64 letters in one label are too many: a label has at most 63 (RFC 1035 2.3.4)."""
    with pytest.raises(AgentError) as caught:
        check_hostname(name)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_restarted_agent_knows_all_of_it(tmp_path: Path) -> None:
    Sandbox(StateStore(tmp_path)).save(RECORD)
    again = Sandbox(StateStore(tmp_path))
    assert again.record == RECORD
    assert again.current == Identity(id="s1", hostname="guest")


@pytest.mark.parametrize("phase", [SandboxPhase.CREATING, SandboxPhase.GONE])
def test_one_that_is_half_made_or_half_gone_is_none(tmp_path: Path, phase: SandboxPhase) -> None:
    sandbox = Sandbox(StateStore(tmp_path))
    sandbox.save(replace(RECORD, phase=phase))
    assert sandbox.current is None
    assert sandbox.record is not None


def test_after_it_is_forgotten_another_one_can_come(tmp_path: Path) -> None:
    sandbox = Sandbox(StateStore(tmp_path))
    sandbox.save(RECORD)
    sandbox.forget()
    assert (sandbox.record, sandbox.current) == (None, None)
    assert Sandbox(StateStore(tmp_path)).record is None


def test_a_record_of_another_shape_is_no_sandbox(tmp_path: Path) -> None:
    """As an older agent's is: the guest must be usable all the same."""
    StateStore(tmp_path).save("sandbox", "sandbox", {"id": "s1", "hostname": "guest"})
    assert Sandbox(StateStore(tmp_path)).record is None


def test_the_same_wish_with_another_timeout_is_the_same() -> None:
    wish = SandboxWish(id="s1", dns=DnsWish(searches=("example.com",)), timeout=3)
    assert replace(wish, timeout=None).fingerprint == wish.fingerprint


def test_any_other_difference_makes_another_one() -> None:
    wish = SandboxWish(id="s1")
    others = [
        replace(wish, id="s2"),
        replace(wish, hostname="guest"),
        replace(wish, dns=DnsWish()),
        replace(wish, modules=(KernelModule(name="loop"),)),
        replace(wish, modules=(KernelModule(name="loop", parameters=("max_loop=1",)),)),
        replace(wish, sysctls=(("vm.max_map_count", "1"),)),
        replace(wish, shared_namespaces=("pid",)),
        replace(wish, guest_hooks="/hooks"),
        replace(wish, pressure=RECORD.pressure),
    ]
    assert len({each.fingerprint for each in (wish, *others)}) == 1 + len(others)


def test_values_of_sysctls_are_not_kept(tmp_path: Path) -> None:
    """Some are secrets (net.ipv6.conf.*.stable_secret)."""
    wish = SandboxWish(id="s1", sysctls=(("net.ipv6.conf.all.stable_secret", "2001:db8::1"),))
    record = replace(RECORD, fingerprint=wish.fingerprint)
    assert "2001:db8::1" not in json.dumps(record.to_data())
