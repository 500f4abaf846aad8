"""Servers by name: which address the kernel gets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, exhausted
from agent.core.fileops import FileWorkers, Resolution
from agent.handlers.storage import resolving
from agent.handlers.storage.resolving import Service, addresses_of, host_of, of_family
from tests.fakes.served import FakeNames, FakeNetwork

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    made = FakeNetwork()
    monkeypatch.setattr(resolving, "connect", made.connect)
    return made


def soon() -> Deadline:
    return Deadline.after(30)


@pytest.mark.parametrize(
    ("server", "host"),
    [
        ("files.example", "files.example"),
        ("files", "files"),
        ("files.example.", "files.example."),
        ("nas_1", "nas_1"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::5", "2001:db8::5"),
        ("[2001:db8::5]", "2001:db8::5"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_host_is_a_name_or_an_address(server: str, host: str) -> None:
    assert host_of(server, "source.nfs.server") == host


@pytest.mark.parametrize(
    "server",
    [
        *("", "a b", "a/b", "a:b", "a,b", "a..b", ".a", "a@b", "a=b", "[files]", "[192.0.2.7", "ü"),
        *("x" * 64, ".".join(["x" * 63] * 4) + ".x", "a\n", "a\0b"),
    ],
)
def test_what_is_neither_is_refused(server: str) -> None:
    with pytest.raises(AgentError) as caught:
        host_of(server, "source.nfs.server")
    assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, Reason.BAD_FIELD)
    assert "source.nfs.server" in str(caught.value)


async def test_an_address_needs_no_resolver() -> None:
    names = FakeNames()
    assert await addresses_of(names, "2001:db8::5", soon()) == ("2001:db8::5",)
    assert names.asked == []


async def test_a_name_that_is_not_known() -> None:
    """cases.md, kubernetes/kubernetes#6269: UNAVAILABLE, with the host's name."""
    names = FakeNames()
    names.failures["files.example"] = "Temporary failure in name resolution"
    with pytest.raises(AgentError) as caught:
        await addresses_of(names, "files.example", soon())
    error = caught.value
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.NAME_NOT_RESOLVED)
    assert error.fields == {"host": "files.example"}
    assert "Temporary failure in name resolution" in str(error)


async def test_a_resolver_that_does_not_answer_is_an_unresolved_name() -> None:
    names = FakeNames()
    names.late.add("files.example")
    with pytest.raises(AgentError) as caught:
        await addresses_of(names, "files.example", soon())
    assert caught.value.reason is Reason.NAME_NOT_RESOLVED


async def test_workers_that_are_all_stuck_are_not_the_names_fault() -> None:
    class Stuck:
        async def resolve(self, host: str, deadline: Deadline) -> Resolution:
            raise exhausted("all workers are busy", reason=Reason.LIMIT_REACHED)

    with pytest.raises(AgentError) as caught:
        await addresses_of(Stuck(), "files.example", soon())
    assert caught.value.reason is Reason.LIMIT_REACHED


def test_families() -> None:
    both = ("2001:db8::5", "192.0.2.7")
    assert of_family(both, None) == both
    assert of_family(both, 4) == ("192.0.2.7",)
    assert of_family(both, 6) == ("2001:db8::5",)


async def test_the_first_address_that_answers_is_taken(network: FakeNetwork) -> None:
    network.answers = {("192.0.2.8", 2049), ("192.0.2.9", 2049)}
    service = Service(what="NFS server files", port=2049)
    assert await service.first(("192.0.2.7", "192.0.2.8", "192.0.2.9"), soon()) == "192.0.2.8"
    assert network.tried == [("192.0.2.7", 2049), ("192.0.2.8", 2049)]


async def test_no_address_answers(network: FakeNetwork) -> None:
    service = Service(what="NFS server files", port=2049)
    with pytest.raises(AgentError) as caught:
        await service.first(("192.0.2.7", "2001:db8::5"), soon())
    error = caught.value
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.MOUNT_REFUSED)
    assert "192.0.2.7: Connection refused; 2001:db8::5: Connection refused" in str(error)
    assert error.fields == {"addresses": "192.0.2.7, 2001:db8::5", "port": "2049"}


async def test_silent_addresses_leave_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def connect(address: str, port: int) -> None:
        tried.append(address)
        if address != "192.0.2.9":
            await asyncio.Event().wait()

    monkeypatch.setattr(resolving, "connect", connect)
    deadline = Deadline.after(0.2)
    addresses = ("192.0.2.7", "192.0.2.8", "192.0.2.9")
    assert await Service(what="x", port=1).first(addresses, deadline) == "192.0.2.9"
    assert tried == list(addresses)


@contextlib.contextmanager
def listening(family: socket.AddressFamily, host: str) -> Iterator[int]:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        sock.listen()
        yield sock.getsockname()[1]


async def test_connections_are_real() -> None:
    with listening(socket.AF_INET, "127.0.0.1") as port:
        await resolving.connect("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        await resolving.connect("127.0.0.1", port)


async def test_an_address_of_a_link_names_its_interface() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV) + "|no interface"):
        await resolving.connect("fe80::1%nosuch0", 1)


async def test_the_worker_resolves() -> None:
    workers = FileWorkers()
    try:
        local = await workers.resolve("127.0.0.1", soon())
        assert local == Resolution(addresses=("127.0.0.1",))
        # RFC 6761: nobody may ever have a name below "invalid".
        nobody = await workers.resolve(f"{'x' * 64}.invalid", soon())
        assert nobody.addresses == ()
        assert nobody.failure
    finally:
        await workers.close()


async def test_the_worker_knows_file_systems() -> None:
    workers = FileWorkers()
    try:
        with pytest.raises(OSError, match="nosuchfs") as caught:
            await workers.know_fs_type("nosuchfs", soon())
        assert caught.value.errno in {errno.ENODEV, errno.EPERM}
    finally:
        await workers.close()
