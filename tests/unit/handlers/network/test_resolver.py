"""The sandbox's resolv.conf, hosts and hostname in a guest whose /etc has links to them.

Binding them over other files: tests/privileged/test_resolver.py.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.network import DnsState, DnsWish, HostEntry
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.handlers.network import inplace
from agent.handlers.network.resolver import HostName, Resolver
from tests.fakes.inline_workers import InlineWorkers

pytestmark = [pytest.mark.unit, pytest.mark.network]

NAMES = ("resolv.conf", "hosts", "hostname")
WISH = DnsWish(servers=(ip_address("192.0.2.53"),), hostname="web")


@dataclass
class Guest:
    """A root directory with an /etc of links, and a host name."""

    root: Path
    name: str = "booted"
    refused: bool = False

    @property
    def roots(self) -> Roots:
        return Roots(run=self.root / "run/innkeeper")

    def etc(self, name: str) -> str:
        return (self.root / "etc" / name).read_text()

    def set_name(self, name: str) -> None:
        if self.refused:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        self.name = name

    def resolver(self) -> Resolver:
        """As a fresh agent has it."""
        return Resolver(
            self.roots,
            workers=InlineWorkers(),
            state=StateStore(self.roots.state),
            host_name=HostName(get=lambda: self.name, set=self.set_name),
            root=self.root,
        )


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    (tmp_path / "etc").mkdir()
    for name in NAMES:
        (tmp_path / "etc" / name).symlink_to(f"../run/innkeeper/network/{name}")
    return Guest(root=tmp_path)


def deadline() -> Deadline:
    return Deadline.after(30)


async def test_all_three_are_in_etc(guest: Guest) -> None:
    resolver = guest.resolver()
    assert resolver.current is None
    state = await resolver.apply(WISH, deadline())
    assert state.warnings == ()
    assert guest.etc("resolv.conf") == state.resolv_conf == "nameserver 192.0.2.53\n"
    assert "127.0.1.1 web\n" in guest.etc("hosts") == state.hosts
    assert guest.etc("hostname") == "web\n"
    assert (state.hostname, guest.name) == ("web", "web")
    assert resolver.state() == replace(state, changed=())


async def test_before_the_first_only_the_name_is_told(guest: Guest) -> None:
    """/etc is then the image's own."""
    state = guest.resolver().state()
    assert state == DnsState(resolv_conf="", hosts="", hostname="booted")
    assert state.wanted is None


async def test_it_says_what_it_changed(guest: Guest) -> None:
    resolver = guest.resolver()
    hosts = (HostEntry(address=ip_address("192.0.2.1"), names=("db", "db.lab")),)
    wish = replace(WISH, searches=("example.org",), hosts=hosts)
    state = await resolver.apply(wish, deadline())
    assert state.wanted == wish
    assert state.changed == (
        *("server +192.0.2.53", "search +example.org", "hosts +192.0.2.1 db db.lab"),
        "hostname booted -> web",
    )
    state = await resolver.apply(replace(wish, searches=(), hostname=""), deadline())
    assert state.changed == ("search -example.org",)
    assert guest.name == "web"


async def test_the_same_twice_changes_nothing(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is written, the saved state neither, and nothing is renamed."""
    await guest.resolver().apply(WISH, deadline())
    again = guest.resolver()

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(inplace, "rewrite", fail)
    monkeypatch.setattr(StateStore, "save", fail)
    monkeypatch.setattr(Guest, "set_name", fail)
    state = await again.apply(WISH, deadline())
    assert (state.changed, state.wanted) == ((), WISH)


async def test_what_others_changed_is_put_right_and_told(guest: Guest) -> None:
    resolver = guest.resolver()
    await resolver.apply(WISH, deadline())
    resolver.files.hosts.write_text("192.0.2.66 bank\n")
    assert (await resolver.apply(WISH, deadline())).changed == ("hosts: written anew",)
    guest.name = "other"
    assert (await resolver.apply(WISH, deadline())).changed == ("hostname other -> web",)
    assert guest.name == "web"


async def test_the_first_one_makes_the_files_whatever_it_says(guest: Guest) -> None:
    state = await guest.resolver().apply(DnsWish(), deadline())
    assert state.changed == tuple(f"{name}: written anew" for name in NAMES)


async def test_without_a_host_name_it_is_that_of_now(guest: Guest) -> None:
    state = await guest.resolver().apply(DnsWish(), deadline())
    assert state.hostname == guest.name == "booted"
    assert guest.etc("hostname") == "booted\n"


async def test_who_has_bound_the_files_sees_every_change(guest: Guest) -> None:
    """A bind mount shows an inode, and so does an open descriptor."""
    resolver = guest.resolver()
    await resolver.apply(WISH, deadline())
    with resolver.files.resolv_conf.open() as bound:
        await resolver.apply(DnsWish(servers=(ip_address("192.0.2.54"),)), deadline())
        assert bound.read() == "nameserver 192.0.2.54\n"


async def test_a_new_agent_knows_and_repairs_them(guest: Guest) -> None:
    """The old one was killed between two writes."""
    state = await guest.resolver().apply(WISH, deadline())
    files = guest.resolver().files
    files.resolv_conf.write_text("nameserver 192.0.2.53\n\n\n\n")
    files.hosts.unlink()
    again = guest.resolver()
    assert again.state() == replace(state, changed=())
    await again.restore()
    assert again.state() == replace(state, changed=())
    assert guest.etc("resolv.conf") == state.resolv_conf
    assert guest.etc("hosts") == state.hosts


async def test_nothing_to_restore_before_the_first(guest: Guest) -> None:
    resolver = guest.resolver()
    await resolver.restore()
    assert resolver.current is None
    assert not resolver.files.directory.exists()


async def test_a_name_that_the_kernel_refuses_changes_nothing(guest: Guest) -> None:
    resolver = guest.resolver()
    guest.refused = True
    with pytest.raises(AgentError) as caught:
        await resolver.apply(WISH, deadline())
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert resolver.current is None
    assert guest.resolver().current is None


async def test_a_full_run_directory_leaves_all_as_it_was(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file does not fit: the first, the name and the saved state go back."""
    resolver = guest.resolver()
    before = await resolver.apply(WISH, deadline())
    real = inplace.rewrite

    def full(path: Path, text: str) -> None:
        if path.name == "hosts" and "other" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, text)

    monkeypatch.setattr(inplace, "rewrite", full)
    with pytest.raises(AgentError) as caught:
        await resolver.apply(DnsWish(searches=("a",), hostname="other"), deadline())
    assert caught.value.reason is Reason.NO_SPACE
    assert [guest.etc(name) for name in NAMES] == [before.resolv_conf, before.hosts, "web\n"]
    assert guest.name == "web"
    assert guest.resolver().state() == replace(before, changed=())


async def test_listeners_are_told_and_may_fail(guest: Guest) -> None:
    resolver = guest.resolver()
    told: list[DnsState] = []

    async def refuse(_: DnsState) -> None:
        raise OSError(errno.EROFS, "container c1 can't have it")

    resolver.listen(refuse)
    resolver.listen(told.append)
    state = await resolver.apply(WISH, deadline())
    assert [each.hostname for each in told] == ["web"]
    assert len(state.warnings) == 1
    assert "container c1" in state.warnings[0]


async def test_a_second_sandbox_starts_without_them(guest: Guest) -> None:
    resolver = guest.resolver()
    await resolver.apply(WISH, deadline())
    await resolver.clear(deadline())
    assert resolver.current is None
    assert guest.resolver().current is None
    assert list(resolver.files.directory.iterdir()) == []
    await resolver.clear(deadline())
