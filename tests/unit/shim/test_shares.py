"""A share: virtiofsd's process comes before QEMU's half, and goes after it, whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from innkeeper.shim import hardware
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.virtiofsd import VARIABLE
from innkeeper.v1 import host_pb2
from tests.fakes.plug_bench import LIMIT, PlugBench, plug_bench
from tests.fakes.virtiofsd import fake_virtiofsd

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlugBench]:
    monkeypatch.setenv(VARIABLE, str(fake_virtiofsd(tmp_path / "virtiofsd")))
    async with plug_bench(tmp_path) as made:
        yield made


async def share(bench: PlugBench, name: str = "src", **words: Any) -> None:
    message = host_pb2.Share(directory=str(bench.setting.directory), **words)
    await bench.plugger.plug((bench.wanted(name, share=message),), LIMIT)


def pids(bench: PlugBench) -> list[int]:
    return [each.process.pid for each in bench.plugger._helpers._running.values()]


def failure(bench: PlugBench) -> str:
    ((_, plug),) = bench.plugger.list()
    return plug.failure


async def test_it_is_a_socket_a_device_with_a_tag_and_nothing_for_the_agent(
    bench: PlugBench,
) -> None:
    await share(bench)
    assert bench.qemu.commands == ["chardev-add", "device_add"]
    device = bench.qemu.devices["dev-src"]
    assert (device["driver"], device["tag"]) == ("vhost-user-fs-pci", "src")
    assert bench.qemu.chardevs[device["chardev"]]["id"] == device["chardev"]
    assert bench.guest.asked == []
    (pid,) = pids(bench)
    await bench.plugger.unplug("src", LIMIT)
    assert bench.qemu.commands[2:] == ["device_del", "chardev-remove"]
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240 - of no file system
    assert list(bench.setting.directory.glob("*.sock")) == []
    bench.assert_untouched()


async def test_one_that_is_mounted_stays_and_says_as_what(bench: PlugBench) -> None:
    await share(bench, tag="code")
    bench.guest.mounted["code"] = ["data", "more"]
    with pytest.raises(ShimError, match="as storage data, more") as caught:
        await bench.plugger.unplug("src", LIMIT)
    assert caught.value.reason is Reason.STILL_IN_USE
    assert bench.states() == {"src": "plugged"}
    bench.guest.mounted.clear()
    await bench.plugger.unplug("src", LIMIT)
    bench.assert_untouched()


async def test_an_agent_that_is_away_changes_nothing(bench: PlugBench) -> None:
    await share(bench)
    bench.guest.refuse["storages"] = ShimError(Reason.AGENT_AWAY, "away")
    with pytest.raises(ShimError, match="away"):
        await bench.plugger.unplug("src", LIMIT)
    assert bench.states() == {"src": "plugged"}


async def die(bench: PlugBench) -> None:
    (pid,) = pids(bench)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT):
        await bench.plugger._helpers._running["src"].watch
    await bench.until_idle()


async def test_a_server_that_dies_is_told_and_the_rest_goes_on(bench: PlugBench) -> None:
    await share(bench)
    await die(bench)
    assert failure(bench) == "virtiofsd ended, killed by SIGKILL"
    await bench.plugger.unplug("src", LIMIT)
    bench.assert_untouched()
    await share(bench)
    assert failure(bench) == ""


async def test_a_dead_share_that_was_mounted_is_never_taken_from_the_guest(
    bench: PlugBench,
) -> None:
    """fs/fuse/virtio_fs.c: its removal waits for every answer, with the lock of PCI hot-plug."""
    await share(bench)
    bench.guest.mounted["src"] = ["data"]
    await die(bench)
    bench.guest.mounted.clear()
    with pytest.raises(ShimError, match="server has ended while it was mounted") as caught:
        await bench.plugger.unplug("src", LIMIT)
    assert caught.value.reason is Reason.NOT_REMOVABLE
    assert "device_del" not in bench.qemu.commands


async def test_a_server_that_does_not_start_is_quoted(
    bench: PlugBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_virtiofsd(tmp_path / "broken", fails="no capability for that")
    monkeypatch.setenv(VARIABLE, str(program))
    # QEMU notices when it talks to it, at the latest.
    bench.qemu.refuse["device_add"] = "Failed to read msg header. Read 0 instead of 12."
    with pytest.raises(ShimError, match="exit status 3") as caught:
        await share(bench)
    assert caught.value.reason is Reason.HOST_LACKS
    assert "no capability for that" in caught.value.message
    bench.assert_untouched()
    assert pids(bench) == []


@pytest.mark.parametrize("command", ["chardev-add", "device_add"])
async def test_whatever_qemu_refuses_leaves_no_process(bench: PlugBench, command: str) -> None:
    bench.qemu.refuse[command] = "no"
    with pytest.raises(ShimError) as caught:
        await share(bench)
    assert caught.value.reason is Reason.QEMU_REFUSED
    assert pids(bench) == []
    bench.assert_untouched()


async def test_one_tag_is_one_share(bench: PlugBench) -> None:
    """fs/fuse/virtio_fs.c, virtio_fs_add_instance: EEXIST."""
    await share(bench, "one", tag="code")
    with pytest.raises(ShimError, match="share one has the tag code") as caught:
        await share(bench, "two", tag="code")
    assert caught.value.reason is Reason.ADDRESS_IN_USE


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"directory": "relative"}, Reason.BAD_FIELD),
        ({"directory": "/nowhere"}, Reason.FILE_NOT_FOUND),
        ({"directory": "/dev/null"}, Reason.BAD_FIELD),
        ({"directory": "/", "tag": "t" * 37}, Reason.BAD_FIELD),
    ],
)
def test_what_can_never_be_shared(words: dict[str, Any], reason: Reason) -> None:
    setting = hardware.Setting(vm="web", shared_memory=True)
    message = host_pb2.Hardware(share=host_pb2.Share(**words))
    with pytest.raises(ShimError) as caught:
        hardware.parse(message, "x", setting)
    assert caught.value.reason is reason


def test_private_memory_has_no_share_and_says_which_option() -> None:
    setting = hardware.Setting(vm="web", shared_memory=False)
    message = host_pb2.Hardware(share=host_pb2.Share(directory="/"))
    with pytest.raises(ShimError) as caught:
        hardware.parse(message, "x", setting)
    assert caught.value.reason is Reason.NOT_PLUGGABLE
    assert "--private-memory" in caught.value.hint
    assert hardware.parse(message, "x", replace(setting, shared_memory=True)).model == "virtiofs"
