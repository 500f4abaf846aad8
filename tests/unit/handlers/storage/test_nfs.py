"""NFS: what the kernel is told without mount.nfs (fs/nfs/fs_context.c, nfs(5))."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import Code, Reason
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import NfsSource
from agent.handlers.storage.nfs import NfsStorage
from agent.linux.mounting import MountFlag
from tests.fakes.served import ServedBench, served_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

EXPORT = NfsSource(server="files.example", path="/export")
V3 = NfsSource(server="files.example", path="/export", version="3")


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedBench]:
    async with served_bench(tmp_path, NfsStorage(), monkeypatch) as made:
        made.names.hosts = {"files.example": ("192.0.2.7",), "both": ("2001:db8::5", "192.0.2.8")}
        made.network.answers = {
            *(("192.0.2.7", port) for port in (111, 2049)),
            *((address, 2049) for address in ("2001:db8::5", "192.0.2.8")),
        }
        yield made


async def test_the_address_is_resolved_and_added(lab: ServedBench) -> None:
    """cases.md, kubernetes/kubernetes#6269."""
    call = await lab.call(EXPORT, "vers=4.2", "noatime", "_netdev", read_only=True)
    assert call == FsMount(
        fs_type="nfs4",
        source="files.example:/export",
        options=(
            MountOption(key="vers", value="4.2"),
            MountOption(key="addr", value="192.0.2.7"),
        ),
        flags=MountFlag.NOATIME | MountFlag.RDONLY,
    )
    assert lab.network.tried == [("192.0.2.7", 2049)]


@pytest.mark.parametrize("server", ["2001:db8::5", "[2001:db8::5]"])
async def test_an_ipv6_address_is_in_brackets_in_the_source(lab: ServedBench, server: str) -> None:
    call = await lab.call(NfsSource(server=server, path="/x"))
    assert call.source == "[2001:db8::5]:/x"
    assert [str(each) for each in call.options] == ["vers=4.2", "addr=2001:db8::5"]
    assert lab.names.asked == []


async def test_a_hand_made_address_is_kept(lab: ServedBench) -> None:
    assert await lab.options(EXPORT, "addr=192.0.2.99,soft") == [
        "vers=4.2",
        "addr=192.0.2.99",
        "soft",
    ]
    assert (lab.names.asked, lab.network.tried) == ([], [])


async def test_a_name_that_can_t_be_resolved(lab: ServedBench) -> None:
    error = await lab.refusal(NfsSource(server="gone.example", path="/export"))
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.NAME_NOT_RESOLVED)
    assert "gone.example" in error.message


async def test_all_addresses_are_tried_in_order(lab: ServedBench) -> None:
    lab.network.answers = {("192.0.2.8", 2049)}
    options = await lab.options(NfsSource(server="both", path="/x"))
    assert options == ["vers=4.2", "addr=192.0.2.8"]
    assert lab.network.tried == [("2001:db8::5", 2049), ("192.0.2.8", 2049)]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [("proto=tcp", "192.0.2.8"), ("proto=tcp6", "2001:db8::5"), ("tcp", "2001:db8::5")],
)
async def test_proto_chooses_the_family(lab: ServedBench, words: str, chosen: str) -> None:
    """The kernel refuses an address of another family than proto= says."""
    assert f"addr={chosen}" in await lab.options(NfsSource(server="both", path="/x"), words)


async def test_no_address_of_the_family_of_proto(lab: ServedBench) -> None:
    error = await lab.refusal(EXPORT, "proto=tcp6")
    assert error.reason is Reason.NAME_NOT_RESOLVED
    assert "192.0.2.7 does not fit proto=tcp6" in error.message


@pytest.mark.parametrize("words", ["udp", "proto=udp", "rdma", "proto=rdma,port=20049"])
async def test_other_transports_are_not_tried_by_tcp(lab: ServedBench, words: str) -> None:
    assert "addr=192.0.2.7" in await lab.options(V3, words)
    assert lab.network.tried == []


@pytest.mark.parametrize(
    ("source", "words", "port"),
    [(EXPORT, "port=2050", 2050), (V3, "port=2050", 2050), (V3, "soft", 111), (EXPORT, "", 2049)],
)
async def test_the_port_that_is_tried(
    lab: ServedBench, source: NfsSource, words: str, port: int
) -> None:
    """Version 3 asks the portmapper unless the port is given (RFC 1833)."""
    lab.network.answers = {("192.0.2.7", port)}
    await lab.plan(source, words)
    assert lab.network.tried == [("192.0.2.7", port)]


@pytest.mark.parametrize(
    ("version", "words", "fs_type", "told"),
    [
        ("", "", "nfs4", "4.2"),
        ("3", "", "nfs", "3"),
        ("4", "", "nfs4", "4"),
        ("4.0", "", "nfs4", "4.0"),
        ("4.1", "vers=4.1", "nfs4", "4.1"),
        ("", "nfsvers=4.1", "nfs4", "4.1"),
        ("", "v3", "nfs", "3"),
        ("", "v4.1", "nfs4", "4.1"),
        ("", "vers=3,vers=4.1", "nfs4", "4.1"),
        ("", "vers=4,minorversion=1", "nfs4", "4.1"),
        ("", "minorversion=2", "nfs4", "4.2"),
    ],
)
async def test_versions(
    lab: ServedBench, version: str, words: str, fs_type: str, told: str
) -> None:
    """mountinfo shows nfs4 for every version 4. fsconfig(2) has no default version."""
    call = await lab.call(NfsSource(server="192.0.2.7", path="/x", version=version), words)
    assert call.fs_type == fs_type
    assert [each.value for each in call.options if each.key == "vers"] == [told]
    keys = {each.key for each in call.options}
    assert keys <= {"vers", "addr", "nolock"}


@pytest.mark.parametrize(
    ("version", "words", "field"),
    [
        ("2", "", "source.nfs.version"),
        ("4.9", "", "source.nfs.version"),
        ("3", "vers=4.2", "source.nfs.version"),
        ("4.1", "v4.2", "source.nfs.version"),
        ("", "vers=5", "options"),
        ("", "vers=4,minorversion=7", "options"),
    ],
)
async def test_versions_that_are_refused(
    lab: ServedBench, version: str, words: str, field: str
) -> None:
    error = await lab.refusal(NfsSource(server="192.0.2.7", path="/x", version=version), words)
    assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, Reason.BAD_FIELD)
    assert error.fields["field"] == field


async def test_version_3_has_no_locks_on_the_server(lab: ServedBench) -> None:
    """nfs(5), lock/nolock: without rpc.statd only nolock works."""
    assert await lab.options(V3) == ["vers=3", "nolock", "addr=192.0.2.7"]
    assert "nolock" not in await lab.options(V3, "lock")
    assert "nolock" not in await lab.options(EXPORT)


async def test_without_a_version_the_newest_that_the_server_speaks(lab: ServedBench) -> None:
    """nfs(5), vers=: the client tries 4.2 first and negotiates down until the server takes it."""
    plan = await lab.plan(EXPORT, "soft")
    calls = [call for call in (plan.call, *plan.others) if isinstance(call, FsMount)]
    assert [(call.fs_type, ",".join(map(str, call.options))) for call in calls] == [
        ("nfs4", "vers=4.2,soft,addr=192.0.2.7"),
        ("nfs4", "vers=4.1,soft,addr=192.0.2.7"),
        ("nfs4", "vers=4.0,soft,addr=192.0.2.7"),
        ("nfs", "vers=3,nolock,soft,addr=192.0.2.7"),
    ]
    assert (await lab.plan(EXPORT, "vers=4.2")).others == ()
    assert (await lab.plan(V3)).others == ()


async def test_a_path_is_absolute(lab: ServedBench) -> None:
    error = await lab.refusal(NfsSource(server="files.example", path="export"))
    assert error.fields["field"] == "source.nfs.path"


async def test_a_server_that_takes_no_connection(lab: ServedBench) -> None:
    lab.network.answers = set()
    error = await lab.refusal(EXPORT)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.MOUNT_REFUSED)
    assert "NFS server files.example takes no connection on port 2049" in error.message


async def test_nothing_of_it_is_waited_for(lab: ServedBench) -> None:
    """A refusal of a server is final: only devices come later."""
    assert (await lab.plan(EXPORT)).transient == frozenset()
