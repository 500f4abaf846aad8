"""virtio-fs: the tag may come late, and is told when it never comes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import Code, Reason
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import VirtiofsSource
from agent.handlers.storage.virtiofs import VirtiofsStorage
from agent.linux.mounting import MountFlag
from tests.fakes.hotplug import turns
from tests.fakes.served import ServedBench, served_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

SHARED = VirtiofsSource(tag="shared")


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedBench]:
    async with served_bench(tmp_path, VirtiofsStorage(), monkeypatch) as made:
        (made.guest.sysfs.roots.sys / "fs/virtiofs").mkdir(parents=True)
        yield made


def show(lab: ServedBench, tag: str, number: int = 3) -> Path:
    """Documentation/ABI/testing/sysfs-fs-virtiofs: /sys/fs/virtiofs/N/tag."""
    folder = lab.guest.sysfs.roots.sys / f"fs/virtiofs/{number}"
    lab.guest.sysfs.write(folder / "tag", f"{tag}\n")
    return folder


async def test_a_tag_that_is_there(lab: ServedBench) -> None:
    show(lab, "shared")
    plan = await lab.plan(SHARED, "nosuid", "dax=inode", read_only=True)
    assert plan.call == FsMount(
        fs_type="virtiofs",
        source="shared",
        options=(MountOption(key="dax", value="inode"),),
        flags=MountFlag.NOSUID | MountFlag.RDONLY,
    )
    # The tag is there: EINVAL is about an option, and waiting is of no use.
    assert plan.transient == frozenset()


async def test_a_tag_that_comes_later(lab: ServedBench) -> None:
    attaching = asyncio.create_task(lab.plan(SHARED))
    await turns()
    assert not attaching.done()
    lab.guest.announce("add", show(lab, "other", 2), "virtiofs")
    await turns()
    assert not attaching.done()
    lab.guest.announce("add", show(lab, "shared"), "virtiofs")
    await turns()
    assert attaching.done()
    assert (await attaching).near == ()


async def test_a_tag_that_never_comes(lab: ServedBench) -> None:
    show(lab, "other", 2)
    show(lab, "spare", 4)
    error = await lab.refusal(SHARED, timeout=0.01)
    assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, Reason.DEVICE_NOT_READY)
    assert "'shared'" in error.message
    assert "tags that are there: 'other', 'spare'" in error.message
    assert error.fields["tags"] == "other, spare"


async def test_a_kernel_that_shows_no_tags(lab: ServedBench) -> None:
    """Before Linux 6.9 only the mount knows: EINVAL for a tag that is not there (yet)."""
    (lab.guest.sysfs.roots.sys / "fs/virtiofs").rmdir()
    plan = await lab.plan(SHARED)
    assert plan.transient == {errno.EINVAL}
    # Any event is worth a new try: the device's place is not known.
    assert plan.near == ()


async def test_a_kernel_without_virtiofs(lab: ServedBench) -> None:
    lab.names.unknown_types = {"virtiofs"}
    error = await lab.refusal(SHARED)
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.MOUNT_REFUSED)
    assert error.fields["errno"] == "ENODEV"
    assert "CONFIG_VIRTIO_FS" in str(error)
