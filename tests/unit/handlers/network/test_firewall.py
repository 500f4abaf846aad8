"""The firewall without its tools; with them: tests/privileged/test_firewall.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.network import FirewallFormat
from agent.handlers.network.firewall import Firewall

pytestmark = [pytest.mark.unit, pytest.mark.network]


def program(place: Path, name: str, text: str) -> None:
    file = place / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))
    return place


@pytest.fixture
def firewall(programs: Path) -> Firewall:
    return Firewall()


def deadline() -> Deadline:
    return Deadline.after(30)


@pytest.mark.parametrize("kind", [None, *FirewallFormat])
async def test_a_guest_without_the_tool(firewall: Firewall, kind: FirewallFormat | None) -> None:
    with pytest.raises(AgentError) as caught:
        await firewall.get(kind, deadline())
    assert caught.value.reason is Reason.NOT_INSTALLED
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert "--package" in (caught.value.hint or "")


async def test_iptables_where_there_is_no_nft(firewall: Firewall, programs: Path) -> None:
    program(programs, "iptables-save", "echo '*filter'")
    assert await firewall.get(None, deadline()) == (FirewallFormat.IPTABLES, b"*filter\n")


async def test_nft_where_both_are(firewall: Firewall, programs: Path) -> None:
    program(programs, "iptables-save", "echo '*filter'")
    program(programs, "nft", 'echo "$@"')
    kind, rules = await firewall.get(None, deadline())
    assert kind is FirewallFormat.NFTABLES
    assert rules == b"-j list ruleset\n"


async def test_another_program_holds_the_lock(firewall: Firewall, programs: Path) -> None:
    """iptables before nf_tables waits for /run/xtables.lock, iptables(8) `--wait`."""
    said = "Another app is currently holding the xtables lock; still 0s 0us time ahead"
    program(programs, "iptables-save", "echo '*filter'\necho COMMIT")
    program(programs, "iptables-restore", f"echo '{said}' >&2\nexit 4")
    with pytest.raises(AgentError) as caught:
        await firewall.set(FirewallFormat.IPTABLES, b"", deadline())
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert said in caught.value.message


async def test_what_cannot_be_put_back_is_told(firewall: Firewall, programs: Path) -> None:
    program(programs, "iptables-save", "echo '*filter'\necho COMMIT")
    program(programs, "iptables-restore", "echo 'line 1 failed' >&2\nexit 1")
    with pytest.raises(AgentError) as caught:
        await firewall.set(FirewallFormat.IPTABLES, b"*filter\nCOMMIT\n", deadline())
    assert caught.value.reason is Reason.FIREWALL_REFUSED
    assert "line 1 failed" in caught.value.message
    assert "the rules before" in caught.value.fields["not_undone"]
