"""The sandbox's resolv.conf, hosts and hostname in containers."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.fileops import FsMount
from agent.core.model import ContainerRequest
from agent.core.network import DnsState
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.bed import Life

pytestmark = [pytest.mark.unit, pytest.mark.containers]

DNS = DnsState(resolv_conf="nameserver 192.0.2.1\n", hosts="127.0.0.1 localhost\n", hostname="web")
OTHER = DnsState(resolv_conf="nameserver 2001:db8::1\n", hosts="::1 localhost\n", hostname="db")
ALL = ["/etc/resolv.conf", "/etc/hosts", "/etc/hostname"]


def request(bed: Bed, mounts: list[str] | None = None, **linux: Any) -> ContainerRequest:
    spec: dict[str, Any] = {"process": {"args": ["/bin/sh", "-c", "sleep 100"]}}
    if mounts is not None:
        spec["mounts"] = [{"destination": each, "type": "tmpfs"} for each in mounts]
    if linux:
        spec["linux"] = linux
    return replace(bed.request(), spec=json.dumps(spec).encode())


def etc(bed: Bed) -> Path:
    return bed.roots.bundles / "c1" / "etc"


def texts(bed: Bed) -> dict[str, str]:
    return {path.name: path.read_text() for path in etc(bed).iterdir()}


def mounted(bed: Bed) -> list[str]:
    """Where the runtime was told to bind the files."""
    config = json.loads((bed.roots.bundles / "c1" / "config.json").read_text())
    files = {str(path): path.name for path in etc(bed).iterdir()} if etc(bed).exists() else {}
    found = [each for each in config["mounts"] if each.get("source") in files]
    assert [each["type"] for each in found] == ["bind"] * len(found)
    assert not [each for each in found if "ro" in each["options"]]
    return [each["destination"] for each in found]


async def test_each_container_has_its_own_copy(bed: Bed, life: Life) -> None:
    bed.network.dns = DNS
    await life.containers.create(request(bed))
    assert texts(bed) == {
        "resolv.conf": "nameserver 192.0.2.1\n",
        "hosts": "127.0.0.1 localhost\n",
        "hostname": "web\n",
    }
    assert mounted(bed) == ALL
    assert {path.stat().st_mode & 0o777 for path in etc(bed).iterdir()} == {0o644}
    [call] = [call for target, call in bed.noted.mounts if target == str(etc(bed))]
    assert isinstance(call, FsMount)
    assert call.fs_type == "tmpfs"
    assert {option.key for option in call.options} == {"size", "nr_inodes", "mode"}
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_before_anybody_asked_for_dns_nothing_changes(bed: Bed, life: Life) -> None:
    await life.containers.create(request(bed))
    assert mounted(bed) == []
    await life.containers.dns_applied(DNS)
    assert not etc(bed).exists()


@pytest.mark.parametrize(
    ("mounts", "left"),
    [
        (["/etc/hosts"], ["/etc/resolv.conf", "/etc/hostname"]),
        (["/etc//resolv.conf/"], ["/etc/hosts", "/etc/hostname"]),
        (["/etc"], []),
        (["/etc/hosts.d", "/et"], ALL),
    ],
)
async def test_what_a_container_mounts_itself_stays_its_own(
    bed: Bed, life: Life, mounts: list[str], left: list[str]
) -> None:
    bed.network.dns = DNS
    await life.containers.create(request(bed, mounts))
    assert mounted(bed) == left


async def test_a_change_reaches_those_that_are_there(bed: Bed, life: Life) -> None:
    """In place: a bind mount shows an inode, not a name. What the container wrote goes."""
    bed.network.dns = DNS
    await life.containers.create(request(bed))
    before = {path.name: path.stat().st_ino for path in etc(bed).iterdir()}
    (etc(bed) / "hosts").write_text("10.0.0.1 written.by.the.container and.long\n")
    bed.network.dns = OTHER
    await life.containers.dns_applied(OTHER)
    assert texts(bed) == {
        "resolv.conf": "nameserver 2001:db8::1\n",
        "hosts": "::1 localhost\n",
        "hostname": "db\n",
    }
    assert {path.name: path.stat().st_ino for path in etc(bed).iterdir()} == before


async def test_what_a_container_wrote_stays_while_nothing_changes(bed: Bed, life: Life) -> None:
    bed.network.dns = DNS
    await life.containers.create(request(bed))
    (etc(bed) / "hosts").write_text("own\n")
    heir = await bed.restart(life)
    await heir.containers.dns_applied(DNS)
    assert (etc(bed) / "hosts").read_text() == "own\n"


async def test_a_change_that_the_earlier_agent_did_not_finish(bed: Bed, life: Life) -> None:
    bed.network.dns = DNS
    await life.containers.create(request(bed))
    bed.network.dns = OTHER
    await bed.restart(life)
    assert texts(bed)["hostname"] == "db\n"


async def test_a_file_that_a_container_made_one_big_hole(bed: Bed, life: Life) -> None:
    """Its length is no reason to read a terabyte of it."""
    bed.network.dns = DNS
    await life.containers.create(request(bed))
    os.truncate(etc(bed) / "hosts", 1 << 40)
    await life.containers.dns_applied(OTHER)
    assert texts(bed)["hosts"] == "::1 localhost\n"


async def test_a_file_that_a_container_made_a_link(bed: Bed, life: Life) -> None:
    """It can't, having the file alone; were it so, the link would not be followed."""
    bed.network.dns = DNS
    await life.containers.create(request(bed))
    aim = bed.top / "aim"
    aim.write_text("kept")
    (etc(bed) / "hosts").unlink()
    (etc(bed) / "hosts").symlink_to(aim)
    with pytest.raises(AgentError) as caught:
        await life.containers.dns_applied(OTHER)
    assert caught.value.fields["errno"] == "ELOOP"
    assert aim.read_text() == "kept"


async def test_a_root_without_these_files_that_is_read_only(bed: Bed, life: Life) -> None:
    """The files are left out, with a line in the log; the container is made."""
    bed.network.dns = DNS
    refusal = OSError(errno.EROFS, "make_targets", "/etc/hosts")
    bed.noted.refuse_targets = {"/etc/hosts": refusal}
    await life.containers.create(request(bed))
    assert mounted(bed) == ["/etc/resolv.conf", "/etc/hostname"]


async def test_another_target_that_can_not_be_made_is_still_a_refusal(bed: Bed, life: Life) -> None:
    bed.network.dns = DNS
    refusal = OSError(errno.EROFS, "make_targets", "/data")
    bed.noted.refuse_targets = {"/data": refusal}
    with pytest.raises(AgentError) as caught:
        await life.containers.create(request(bed, ["/data"]))
    assert caught.value.reason is Reason.MOUNT_REFUSED
    assert bed.left() == {}


async def test_the_tmpfs_is_refused(bed: Bed, life: Life) -> None:
    bed.network.dns = DNS
    bed.noted.fail = {"etc"}
    with pytest.raises(AgentError) as caught:
        await life.containers.create(request(bed))
    assert caught.value.reason is Reason.MOUNT_REFUSED
    bed.noted.fail = set()


async def test_files_are_of_the_root_of_a_user_namespace(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[tuple[str, int, int]] = []

    def chown(path: Path, uid: int, gid: int, **_: bool) -> None:
        owners.append((path.name, uid, gid))

    monkeypatch.setattr(os, "chown", chown)
    bed.network.dns = DNS
    mappings = [
        {"containerID": 1, "hostID": 5, "size": 1},
        {"containerID": 0, "hostID": 100_000, "size": 65_536},
    ]
    namespaces = [{"type": "mount"}, {"type": "user"}]
    await life.containers.create(
        request(bed, namespaces=namespaces, uidMappings=mappings, gidMappings=mappings)
    )
    assert owners == [(Path(each).name, 100_000, 100_000) for each in ALL]
