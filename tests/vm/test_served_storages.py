"""Storages that a server serves, for real: by the kernel's own servers, in the guest itself.

NFS is set up without its tools: nfsd(7) says what the files of /proc/fs/nfsd are, and
linux/nfsd/export.h what the flags of an export. It speaks version 4 alone, which needs
neither rpcbind nor mountd. SMB is ksmbd, whose user-space half is a package.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from innkeeper.image.builder import build
from innkeeper.image.model import BuildOptions, Flavour
from innkeeper.image.progress import Silent
from innkeeper.shim import virtiofsd
from innkeeper.shim.client import VmSpec
from innkeeper.shim.errors import ShimError
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from tests.fakes.plugs import plug
from tests.vm.guest import PROBE, Guest, booted
from tests.vm.refusals import Refusal, refusal
from tests.vm.test_shares import servers_of

pytestmark = [pytest.mark.vm, pytest.mark.storage]

# NFSEXP_INSECURE_PORT | NFSEXP_ASYNC | NFSEXP_NOSUBTREECHECK | NFSEXP_FSID
_FLAGS = 0x2 | 0x10 | 0x400 | 0x2000
_LATER = (1 << 31) - 1
# In the guest's /run, so that the server outlives the container that sets it up.
_EXPORT = "/guest/run/export"
_NFSD = "/proc/fs/nfsd"
# The server ends when this is unmounted: so not in the container's own table of mounts.
_MOUNT = f"""
set -e
chroot /guest modprobe nfsd
nsenter -t 1 -m /usr/bin/busybox mount -t nfsd nfsd {_NFSD}
"""
_VERSIONS = f"""
set -e
cd {_NFSD}
echo "-3 +4 +4.1 +4.2" > versions
echo 10 > nfsv4leasetime
echo 10 > nfsv4gracetime
"""
# A server that stops forgets whom it serves.
_START = rf"""
set -e
cd /proc/net/rpc
printf 'nfsd 127.0.0.1 {_LATER} us\n' > auth.unix.ip/channel
printf 'us {_EXPORT} {_LATER} {_FLAGS} 65534 65534 0\n' > nfsd.export/channel
printf 'us 1 \\x00000000 {_LATER} {_EXPORT}\n' > nfsd.fh/channel
echo 2 > {_NFSD}/threads
"""
_STOP = f"echo 0 > {_NFSD}/threads"

_KSMBD_PACKAGES = (
    *("ksmbd-tools", "libglib2.0-0t64", "libmount1"),
    *("libselinux1", "libpcre2-8-0", "libatomic1"),
)
# What mount(2) would take apart, and a shell.
PASSWORD = 'hunter2, "too"'
_SMB = f"""
set -e
mkdir /guest/run/ksmbd
cat > /guest/run/ksmbd/ksmbd.conf <<END
[global]
    interfaces = lo
    bind interfaces only = yes
[share]
    path = /run/export
    read only = no
    valid users = eve
END
chroot /guest modprobe ksmbd
FILES="-C /run/ksmbd/ksmbd.conf -P /run/ksmbd/users.db"
chroot /guest ksmbd.adduser $FILES -p '{PASSWORD}' eve
exec chroot /guest ksmbd.mountd $FILES --nodetach
"""


async def in_container(guest: Guest, script: str) -> str:
    """What a script says that has the share at /data."""
    mount = containers.StorageMount(storage_id="share", destination="/data")
    finished = await guest.run(script, storages=(mount,))
    assert finished.code == 0, finished
    return finished.text


class Nfs:
    """A guest with a server, whose exports it mounts itself."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    async def attach(self, **source: str) -> storages.AttachedStorage:
        told = storages.NfsSource(**{"server": "127.0.0.1", "path": "/", **source})
        storage = storages.Storage(id="share", nfs=told, timeout_seconds=20)
        return await self.guest.storages.Attach(storages.AttachStorageRequest(storage=storage))

    async def refused(self, *options: str, **source: str) -> Refusal:
        told = storages.NfsSource(**{"server": "127.0.0.1", "path": "/", **source})
        storage = storages.Storage(id="share", nfs=told, options=options, timeout_seconds=20)
        found = await refusal(
            self.guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
        )
        listed = await self.guest.storages.List(storages.ListStoragesRequest())
        assert [each.storage.id for each in listed.storages] == []
        return found

    async def detach(self, seconds: float = 20) -> storages.DetachStorageResponse:
        request = storages.DetachStorageRequest(id="share", timeout_seconds=seconds)
        return await self.guest.storages.Detach(request)

    async def stats(self) -> storages.StorageStatsResponse:
        return await self.guest.storages.Stats(storages.StorageStatsRequest(id="share"))

    async def start(self) -> None:
        await self.guest.probe(_START)

    async def stop(self) -> None:
        await self.guest.probe(_STOP)

    async def speak(self, version: str) -> None:
        """A word for nfsd: "+4.2" or "-4.2"."""
        await self.stop()
        await self.guest.probe(f"echo {version} > {_NFSD}/versions")
        await self.start()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    """A guest whose kernel has the servers."""
    place = tmp_path_factory.mktemp("served")
    options = BuildOptions(
        flavour=Flavour.CLOUD, out=place, modules=("nfsd", "ksmbd"), packages=_KSMBD_PACKAGES
    )
    image = build(options, Silent())
    spec = VmSpec(name="served", image=f"{image.directory}/", transport="serial", cpus=2)
    async with booted(spec) as guest:
        await guest.probe(f"mkdir -p {_EXPORT}/deep; echo hello > {_EXPORT}/file")
        # Users of SMB are nobody here.
        await guest.probe(f"chmod 1777 {_EXPORT}")
        yield guest


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def nfs(machine: Guest) -> Nfs:
    await machine.probe(_MOUNT)
    await machine.probe(_VERSIONS)
    made = Nfs(machine)
    await made.start()
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def smb(machine: Guest) -> AsyncIterator[Guest]:
    """Its user-space half lives as long as its container."""
    name = await machine.start(_SMB, **PROBE)
    await machine.probe("until netstat -ltn | grep -q :445; do usleep 100000; done")
    yield machine
    await machine.remove(name)


@pytest.mark.parametrize("version", ["", "4.1", "4.0"])
async def test_an_export_is_mounted_and_given_to_a_container(nfs: Nfs, version: str) -> None:
    attached = await nfs.attach(version=version)
    assert (attached.fs_type, attached.source) == ("nfs4", "127.0.0.1:/")
    text = await in_container(
        nfs.guest, "set -e; cat /data/file; echo new > /data/written; grep /data /proc/mounts"
    )
    greeting, line = text.splitlines()
    assert greeting == "hello"
    options = line.split()[3].split(",")
    assert f"vers={version or '4.2'}" in options
    # The kernel finds its own address for callbacks by itself.
    assert {"addr=127.0.0.1", "clientaddr=127.0.0.1", "hard", "proto=tcp"} <= set(options)
    stats = await nfs.stats()
    assert stats.health == storages.STORAGE_HEALTH_GOOD
    assert 0 < stats.available <= stats.size
    assert not (await nfs.detach()).lazily
    assert (
        await nfs.guest.probe(f"cat {_EXPORT}/written; grep -c nfs4 /proc/mounts || :")
        == "new\n0\n"
    )


async def test_a_directory_of_an_export(nfs: Nfs) -> None:
    await nfs.attach(path="/deep")
    await in_container(nfs.guest, "echo below > /data/file")
    await nfs.detach()
    assert await nfs.guest.probe(f"cat {_EXPORT}/deep/file") == "below\n"


async def test_what_the_server_refuses(nfs: Nfs) -> None:
    missing = await nfs.refused(path="/missing")
    assert (missing.code, missing.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "MOUNT_REFUSED",
    )
    assert missing.fields["errno"] == "ENOENT"
    assert missing.fields["hint"] == "the server has no /missing"


async def test_nobody_listens(nfs: Nfs) -> None:
    found = await nfs.refused("port=2050")
    assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "MOUNT_REFUSED")
    assert "takes no connection on port 2050: 127.0.0.1: Connection refused" in found.text


async def test_a_name_that_nobody_knows(nfs: Nfs) -> None:
    """RFC 6761: no host has a name below "invalid"."""
    found = await nfs.refused(server="files.invalid")
    assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "NAME_NOT_RESOLVED")
    assert found.fields["host"] == "files.invalid"


async def test_an_option_that_nfs_does_not_have(nfs: Nfs) -> None:
    found = await nfs.refused("nosuchoption=1")
    assert found.fields["errno"] == "EINVAL"
    assert "nosuchoption" in found.text


async def test_a_version_that_the_server_does_not_speak(nfs: Nfs) -> None:
    await nfs.speak("-4.2")
    try:
        found = await nfs.refused(version="4.2")
        assert found.fields["errno"] == "EPROTONOSUPPORT"
        assert "set source.nfs.version" in found.fields["hint"]
        # Without a version, the newest that both know.
        await nfs.attach()
        assert "vers=4.1," in await in_container(nfs.guest, "grep /data /proc/mounts")
        await nfs.detach()
    finally:
        await nfs.speak("+4.2")


async def test_a_server_that_is_gone(nfs: Nfs) -> None:
    """A hard mount waits for its server for ever; Stats and Detach do not."""
    await nfs.attach()
    await nfs.stop()
    try:
        stats = await nfs.stats()
        assert stats.health == storages.STORAGE_HEALTH_STALLED
        assert await nfs.detach(seconds=6)
        assert await nfs.guest.probe("grep -c nfs4 /proc/mounts || :") == "0\n"
        assert await nfs.guest.probe("ls /guest/run/innkeeper/storages") == ""
    finally:
        await nfs.start()
    # All goes on as before.
    await nfs.attach()
    assert await in_container(nfs.guest, "cat /data/file") == "hello\n"
    await nfs.detach()


def smb_storage(**more: str) -> storages.AttachStorageRequest:
    told = {"server": "127.0.0.1", "share": "share", "user": "eve", **more}
    storage = storages.Storage(id="share", cifs=storages.CifsSource(**told), timeout_seconds=20)
    return storages.AttachStorageRequest(storage=storage)


async def test_a_share_of_smb(smb: Guest) -> None:
    attached = await smb.storages.Attach(smb_storage(password=PASSWORD))
    assert (attached.fs_type, attached.source) == ("cifs", "//127.0.0.1/share")
    script = "set -e; cat /data/file; echo smb > /data/smb; grep /data /proc/mounts"
    text = await in_container(smb, script)
    greeting, line = text.splitlines()
    assert greeting == "hello"
    assert {"vers=3.1.1", "username=eve", "addr=127.0.0.1"} <= set(line.split()[3].split(","))
    assert await smb.probe(f"cat {_EXPORT}/smb") == "smb\n"
    # The same request again is the same with or without its password.
    again = await smb.storages.Attach(smb_storage())
    assert again == attached
    assert attached.storage.cifs == storages.CifsSource(
        server="127.0.0.1", share="share", user="eve"
    )
    # Neither in the agent's state, nor in a log, nor in the table of mounts. Only the scripts of
    # this test name it, which are the arguments of its containers.
    places = "/guest/run/innkeeper/state/[!c]* /proc/mounts"
    assert await smb.probe(f"grep -rl hunter2 {places}; dmesg | grep -c hunter2 || :") == "0\n"
    answer = await smb.storages.Detach(storages.DetachStorageRequest(id="share"))
    assert (answer.lazily, list(answer.left)) == (False, [])


async def test_a_password_that_is_wrong(smb: Guest) -> None:
    found = await refusal(smb.storages.Attach(smb_storage(password="hunter3")))
    assert found.fields["errno"] == "EACCES"
    assert "hunter3" not in repr(found)
    assert "password=***" in found.text


async def test_a_share_that_is_not_there(smb: Guest) -> None:
    found = await refusal(smb.storages.Attach(smb_storage(share="none", password=PASSWORD)))
    assert found.fields["errno"] == "ENOENT"


async def test_tags_that_nobody_has(machine: Guest) -> None:
    """9p is not in the cloud flavour at all; a directory of virtiofs may still come."""
    nine_p = storages.Storage(id="share", nine_p=storages.NinePSource(tag="none"))
    found = await refusal(machine.storages.Attach(storages.AttachStorageRequest(storage=nine_p)))
    assert (found.reason, found.fields["errno"]) == ("MOUNT_REFUSED", "ENODEV")
    assert "flavour generic" in found.fields["hint"]
    virtiofs = storages.Storage(
        id="share", virtiofs=storages.VirtiofsSource(tag="none"), timeout_seconds=0.5
    )
    found = await refusal(machine.storages.Attach(storages.AttachStorageRequest(storage=virtiofs)))
    assert (found.code, found.reason) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEVICE_NOT_READY",
    )
    assert "tags that are there: none" in found.text


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _nothing_stays(machine: Guest) -> AsyncIterator[None]:
    """A test that fails does not make the others fail."""
    yield
    listed = await machine.storages.List(storages.ListStoragesRequest())
    for each in listed.storages:
        await machine.storages.Detach(storages.DetachStorageRequest(id=each.storage.id))


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Processes of the host that go on again, whatever happens."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_a_virtiofsd_that_hangs(machine: Guest, tmp_path: Path, stopped: list[int]) -> None:
    """Its requests are in state D in the guest: Stats and Detach are bounded all the same."""
    try:
        virtiofsd.find()
    except ShimError as error:
        pytest.skip(str(error))
    folder = tmp_path / "shared"
    folder.mkdir()
    await machine.host.Plug(plug("hung", share=host.Share(directory=str(folder))))
    storage = storages.Storage(id="share", virtiofs=storages.VirtiofsSource(tag="hung"))
    await machine.storages.Attach(storages.AttachStorageRequest(storage=storage))
    asked = storages.StorageStatsRequest(id="share")
    assert (await machine.storages.Stats(asked)).health == storages.STORAGE_HEALTH_GOOD
    for pid in servers_of(folder):
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)
    assert (await machine.storages.Stats(asked)).health == storages.STORAGE_HEALTH_STALLED
    detach = storages.DetachStorageRequest(id="share", timeout_seconds=4)
    assert (await machine.storages.Detach(detach)).lazily
    assert await machine.probe("grep -c virtiofs /guest/proc/1/mounts || :") == "0\n"
    assert await machine.probe("ls /guest/run/innkeeper/storages") == ""
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    await machine.host.Unplug(host.UnplugRequest(id="hung"))
