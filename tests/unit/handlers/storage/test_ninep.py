"""9p over virtio: options, tags, and the flavour that has none."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import Code, Reason
from agent.core.sources import NinePSource
from agent.handlers.storage.ninep import NinePStorage
from tests.fakes.hotplug import turns
from tests.fakes.served import ServedBench, served_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

SHARED = NinePSource(tag="shared")
USUAL = ["trans=virtio", "version=9p2000.L", "msize=524288", "cache=mmap"]


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedBench]:
    async with served_bench(tmp_path, NinePStorage(), monkeypatch) as made:
        yield made


def plug(lab: ServedBench, name: str = "virtio5", *, driver: bool = True) -> Path:
    """A virtio device of the kind 9 (Virtual I/O Device 1.2, section 5)."""
    sysfs = lab.guest.sysfs
    port = sysfs.port_with_slot()
    function = sysfs.function(port, "0000:01:00.0", driver="virtio-pci")
    device = sysfs.virtio(function, name, driver="9pnet_virtio" if driver else None)
    sysfs.write(device / "device", "0x0009\n")
    sysfs.write(device / "modalias", "virtio:d00000009v00001AF4\n")
    sysfs.link(sysfs.roots.sys / "bus/virtio/devices" / name, str(device))
    return device


def show(lab: ServedBench, device: Path, tag: str) -> None:
    """net/9p/trans_virtio.c ends the text with a NUL."""
    lab.guest.sysfs.write(device / "mount_tag", f"{tag}\0")


async def test_a_mount(lab: ServedBench) -> None:
    show(lab, plug(lab), "shared")
    call = await lab.call(SHARED)
    assert (call.fs_type, call.source) == ("9p", "shared")
    assert [str(each) for each in call.options] == USUAL


async def test_the_users_options_win(lab: ServedBench) -> None:
    show(lab, plug(lab), "shared")
    options = await lab.options(SHARED, "cache=loose,msize=8192,access=any")
    assert options == [*USUAL[:2], "cache=loose", "msize=8192", "access=any"]
    larger = NinePSource(tag="shared", msize=1 << 20)
    assert await lab.options(larger) == [*USUAL[:2], "msize=1048576", "cache=mmap"]
    error = await lab.refusal(larger, "msize=8192")
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, "source.nine_p.msize")


async def test_a_device_that_comes_later(lab: ServedBench) -> None:
    attaching = asyncio.create_task(lab.plan(SHARED))
    await turns()
    device = plug(lab)
    lab.guest.announce("add", device, "virtio")
    await turns()
    assert not attaching.done()
    show(lab, device, "shared")
    # p9_virtio_probe: KOBJ_CHANGE, "Let udev rules use the new mount_tag attribute".
    lab.guest.announce("change", device, "virtio")
    await turns()
    assert attaching.done()
    await attaching


async def test_a_device_without_a_driver_is_told(lab: ServedBench) -> None:
    plug(lab, driver=False)
    error = await lab.refusal(SHARED, timeout=0.01)
    assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, Reason.DEVICE_NOT_READY)
    assert "tags that are there: none; 9p devices without a driver: 1" in error.message


async def test_another_tag_is_told(lab: ServedBench) -> None:
    show(lab, plug(lab), "other")
    error = await lab.refusal(SHARED, timeout=0.01)
    assert "tags that are there: 'other'" in error.message


async def test_a_flavour_without_9p(lab: ServedBench) -> None:
    lab.names.unknown_types = {"9p"}
    error = await lab.refusal(SHARED)
    assert (error.code, error.fields["errno"]) == (Code.FAILED_PRECONDITION, "ENODEV")
    assert "flavour generic" in str(error)


async def test_a_tag_serves_one_mount(lab: ServedBench) -> None:
    """net/9p/trans_virtio.c: EBUSY while the channel is in use."""
    show(lab, plug(lab), "shared")
    assert "mounted already" in (await lab.plan(SHARED)).hints[errno.EBUSY]
