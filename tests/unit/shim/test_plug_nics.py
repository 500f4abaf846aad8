"""Plugging interfaces: what they have of the host comes with them, and goes with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.helpers import Helpers
from innkeeper.v1 import host_pb2
from tests.fakes.passt import fake_passt
from tests.fakes.plug_bench import LIMIT, PlugBench, plug_bench

pytestmark = [pytest.mark.unit, pytest.mark.network]

ON_WIRE = {"nic": host_pb2.Nic(backend=host_pb2.NIC_BACKEND_WIRE, wire="lab")}
ON_PASST = {"nic": host_pb2.Nic(backend=host_pb2.NIC_BACKEND_PASST)}


@pytest.fixture
def vm(tmp_path: Path) -> Path:
    """The VM's own directory, below that of all."""
    directory = tmp_path / "web"
    directory.mkdir()
    return directory


@pytest_asyncio.fixture
async def bench(vm: Path) -> AsyncIterator[PlugBench]:
    async with plug_bench(vm) as made:
        yield made


def wires(vm: Path) -> list[str]:
    return [path.name for path in vm.parent.rglob(".wires/*/*")]


def sockets(vm: Path) -> list[str]:
    return [str(path) for path in vm.iterdir() if path.is_socket()]


async def test_a_wire_comes_and_goes_with_its_device(bench: PlugBench, vm: Path) -> None:
    await bench.plug_kinds(("x", ON_WIRE))
    (netdev,) = bench.qemu.netdevs.values()
    assert netdev["local"]["path"] == str(vm.parent / ".wires/lab/0")
    assert wires(vm) == ["0.lock"]
    await bench.plugger.unplug("x", LIMIT)
    bench.assert_untouched()
    assert wires(vm) == []


@pytest.mark.parametrize("command", ["netdev_add", "device_add"])
async def test_what_qemu_refuses_leaves_no_end_taken(
    bench: PlugBench, vm: Path, command: str
) -> None:
    bench.qemu.refuse[command] = "no"
    with pytest.raises(ShimError):
        await bench.plug_kinds(("x", ON_WIRE))
    bench.assert_untouched()
    assert wires(vm) == []


async def test_a_wire_with_two_users_takes_no_third(bench: PlugBench, vm: Path) -> None:
    for name in ("x", "y"):
        await bench.plug_kinds((name, ON_WIRE))
    bench.table.ports.give_back(bench.table.find("y").port)  # type: ignore[arg-type]
    with pytest.raises(ShimError) as caught:
        await bench.plug_kinds(("z", ON_WIRE))
    assert caught.value.reason is Reason.ADDRESS_IN_USE
    assert bench.states() == {"x": "plugged", "y": "plugged"}
    bench.table.release()
    assert wires(vm) == []


async def test_passt_ends_with_its_device(
    bench: PlugBench, vm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{fake_passt(vm / 'bin')}:/usr/bin:/bin")
    await bench.plug_kinds(("x", ON_PASST))
    (netdev,) = bench.qemu.netdevs.values()
    assert sockets(vm) == [netdev["addr"]["path"]]
    await bench.plugger.unplug("x", LIMIT)
    bench.assert_untouched()
    assert sockets(vm) == []


async def test_a_passt_that_ends_while_it_is_plugged_is_no_plug(
    bench: PlugBench, vm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{fake_passt(vm / 'bin')}:/usr/bin:/bin")
    helpers: Helpers = bench.plugger._helpers
    attach = type(bench.guest).attach

    async def attach_late(*words: Any, **named: Any) -> Any:
        running = helpers._running["x"]
        running.process.kill()
        await running.watch
        return await attach(*words, **named)

    monkeypatch.setattr(type(bench.guest), "attach", attach_late)
    with pytest.raises(ShimError, match="passt ended, killed by SIGKILL") as caught:
        await bench.plug_kinds(("x", ON_PASST))
    assert caught.value.reason is Reason.HOST_LACKS
    bench.assert_untouched()


async def test_an_interface_without_its_passt_can_be_taken_away(
    bench: PlugBench, vm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the guest waits for it, as it does for a share's server."""
    monkeypatch.setenv("PATH", f"{fake_passt(vm / 'bin')}:/usr/bin:/bin")
    await bench.plug_kinds(("x", ON_PASST))
    helpers: Helpers = bench.plugger._helpers
    helpers._running["x"].process.kill()
    await helpers._running["x"].watch
    plug = bench.table.find("x")
    assert (plug.failure, plug.not_removable) == ("passt ended, killed by SIGKILL", "")
    await bench.plugger.unplug("x", LIMIT)
    bench.assert_untouched()
