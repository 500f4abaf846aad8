"""GPUs of any driver by their DRM nodes, and AMD's partitions, as sysfs shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.addresses import NodePath
from agent.core.errors import Reason
from agent.core.kinds import GpuExpectation, GpuInfo
from agent.core.pci import parse_address
from agent.core.places import find
from agent.core.tree import SysfsTree
from agent.core.undo import UndoStack
from agent.core.verdict import Failed, Ready, Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.gpu import GpuDevices, plan
from tests.fakes import gpu_trees as trees
from tests.fakes.device_jobs import (
    attached,
    failed,
    hands,
    job,
    look,
    ready,
    request,
    waiting,
)
from tests.fakes.hotplug import Bench, bench
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = GpuExpectation()
BDF = "0000:01:00.0"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def probe(
    sysfs: FakeSysfs, expected: GpuExpectation = ANY, address: str = "02/00"
) -> Verdict[Found]:
    return look(GpuDevices(trees.FakeNodes(sysfs)).probe, sysfs.tree, address, expected)


def info(found: Found) -> GpuInfo:
    assert isinstance(found.info, GpuInfo)
    return found.info


def names(sysfs: FakeSysfs, found: Found) -> list[str]:
    dev = sysfs.roots.dev
    return [str(Path(node.path).relative_to(dev)) for node in found.nodes]


def virtio_gpu(sysfs: FakeSysfs, *, own_directory: bool) -> Path:
    """Where its DRM device is: in the function's directory, in older kernels in the virtio
    device's."""
    port = sysfs.port_with_slot()
    function = trees.gpu(sysfs, port, BDF, ids=("1af4", "1050"), driver="virtio-pci")
    device = sysfs.virtio(function, "virtio3", driver="virtio_gpu")
    return function if own_directory else device


def test_a_display_has_a_card_node_alone(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF)
    trees.drm(sysfs, function)
    found = ready(probe(sysfs))
    assert names(sysfs, found) == ["dri/card0"]
    assert (found.nodes[0].major, found.nodes[0].minor) == (226, 0)
    assert info(found).vendor == "1234:1111"
    assert info(found).card_node.endswith("/dev/dri/card0")
    assert info(found).render_node == ""
    lacking = waiting(probe(sysfs, GpuExpectation(render_node=True)))
    assert "no render node" in lacking.evidence
    assert lacking.reason is Reason.DEVICE_NOT_READY


def test_a_card_first_and_its_render_node_late(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="xe")
    trees.drm(sysfs, function, card=1)
    waiting(probe(sysfs, GpuExpectation(render_node=True)))
    trees.drm(sysfs, function, card=None, render=129)
    found = ready(probe(sysfs, GpuExpectation(render_node=True)))
    assert set(names(sysfs, found)) == {"dri/card1", "dri/renderD129"}
    assert info(found).render_node.endswith("/dev/dri/renderD129")


def test_a_render_node_without_a_card(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="panthor")
    trees.drm(sysfs, function, card=None, render=128)
    assert names(sysfs, ready(probe(sysfs))) == ["dri/renderD128"]


@pytest.mark.parametrize("own_directory", [True, False])
def test_virtio_gpu_is_not_ready_before_its_card(sysfs: FakeSysfs, own_directory: bool) -> None:
    """DRM makes the render node first, and nothing tells when the virtio driver is through."""
    device = virtio_gpu(sysfs, own_directory=own_directory)
    trees.drm(sysfs, device, card=None, render=128)
    assert "no card node" in waiting(probe(sysfs)).evidence
    trees.drm(sysfs, device, card=0)
    found = ready(probe(sysfs, GpuExpectation(driver="virtio_gpu", render_node=True)))
    assert set(names(sysfs, found)) == {"dri/card0", "dri/renderD128"}
    ready(probe(sysfs, GpuExpectation(driver="virtio-pci")))


def test_a_virtio_device_without_its_driver_waits_for_it(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="virtio-pci")
    device = sysfs.virtio(function, "virtio3", driver=None)
    sysfs.write(device / "modalias", "virtio:d00000010v00001AF4")
    lacking = waiting(probe(sysfs, GpuExpectation(driver="virtio_gpu")))
    assert lacking.driverless == (device,)
    assert "virtio3 (no driver)" in lacking.evidence


def test_an_accelerator_has_a_node_of_its_own_kind(sysfs: FakeSysfs) -> None:
    function = trees.gpu(
        sysfs, sysfs.port_with_slot(), BDF, ids=("8086", "7d1d"), driver="intel_vpu"
    )
    trees.accel(sysfs, function)
    found = ready(probe(sysfs))
    assert names(sysfs, found) == ["accel/accel0"]
    assert info(found).vendor == "intel"
    assert (info(found).card_node, info(found).links) == ("", ())


def test_another_gpu_or_driver_than_expected_is_waited_out(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, ids=("8086", "56c0"), driver="i915")
    trees.drm(sysfs, function, render=128)
    ready(probe(sysfs, GpuExpectation(pci_id="8086:56c0", driver="i915")))
    for other in (GpuExpectation(pci_id="8086:56c1"), GpuExpectation(driver="xe")):
        assert waiting(probe(sysfs, other)).reason is Reason.UNEXPECTED_DEVICE


def test_a_gpu_by_the_path_of_its_render_node_is_the_whole_function(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="xe")
    trees.drm(sysfs, function, render=128)
    listed = sysfs.sys / "dev/char/226:128"
    sysfs.link(listed, str(function / "drm/renderD128"))
    tree = sysfs.tree
    place = find(tree, NodePath.parse("/dev/dri/renderD128"))
    assert isinstance(place, Ready)
    assert place.result.directory == function / "drm/renderD128"
    verdict = plan(tree, place.result, ANY)
    (read,) = waiting(verdict).needs
    tree.slow_texts[read] = ""
    assert len(ready(plan(tree, place.result, ANY)).nodes) == 2


def test_nodes_come_after_their_devices(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF)
    trees.drm(sysfs, function, node=False)
    assert "there is no node" in waiting(probe(sysfs)).evidence
    trees.put(sysfs, "dri/card0", "226:1")
    assert "card0 is c 226:1, but card0 is c 226:0" in waiting(probe(sysfs)).evidence
    trees.put(sysfs, "dri/card0", "226:0", "b")
    waiting(probe(sysfs))


def test_a_minor_above_255(sysfs: FakeSysfs) -> None:
    """DRM has had minors beyond the first 192 since Linux 6.12."""
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="xe")
    trees.drm(sysfs, function, card=700, render=701)
    assert {node.minor for node in ready(probe(sysfs)).nodes} == {700, 701}


def test_the_drivers_probe_is_waited_out(sysfs: FakeSysfs) -> None:
    """The driver's link and the first node are there before the probe is over."""
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="amdgpu")
    trees.drm(sysfs, function, card=None, render=128)
    tree = sysfs.tree
    place = find(tree, parse_address("02/00"))
    assert isinstance(place, Ready)
    (read,) = waiting(GpuDevices().probe(tree, place.result, ANY)).needs
    assert read.path == function / "power/control"


def test_a_driver_without_any_node_is_told(sysfs: FakeSysfs) -> None:
    trees.gpu(sysfs, sysfs.port_with_slot(), BDF)
    assert "no DRM or accelerator node" in waiting(probe(sysfs)).evidence


class Log:
    """A kernel log with one line that says why."""

    def __init__(self, *lines: str, why: Failed | None = None) -> None:
        self._lines = lines
        self._why = why

    def lines(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(line for line in self._lines if any(name in line for name in names))

    def refusal(self, names: tuple[str, ...]) -> Failed | None:
        return self._why

    def explanation(self, names: tuple[str, ...]) -> Failed | None:
        return self._why


def test_missing_firmware_is_told_at_once(sysfs: FakeSysfs) -> None:
    trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver=None)
    why = Failed("amdgpu/psp_13_0_6_sos.bin is missing", Reason.FIRMWARE_MISSING)
    tree = SysfsTree(roots=sysfs.roots, node_numbers=sysfs.nodes.get, log=Log(why=why))
    verdict = failed(look(GpuDevices().probe, tree, "02/00", ANY))
    assert verdict.reason is Reason.FIRMWARE_MISSING


def test_what_another_driver_said_before_is_not_the_bound_drivers(sysfs: FakeSysfs) -> None:
    trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="xe")
    why = Failed("the driver i915 refused 0000:01:00.0 [ENODEV]", Reason.DRIVER_REFUSED)
    tree = SysfsTree(roots=sysfs.roots, node_numbers=sysfs.nodes.get, log=Log(why=why))
    waiting(look(GpuDevices().probe, tree, "02/00", ANY))


def test_a_bar_without_an_address_is_told_at_once(sysfs: FakeSysfs) -> None:
    function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver=None)
    sysfs.write(function / "resource", "0x0 0x0000000fffffffff 0x0000000020140204")
    sysfs.added("01", "00.0")
    assert failed(probe(sysfs)).reason is Reason.NO_BAR_ADDRESS


def test_amd_shares_the_compute_interface(sysfs: FakeSysfs) -> None:
    trees.amd_gpu(sysfs, sysfs.port_with_slot(), BDF)
    trees.kfd(sysfs)
    trees.kfd_node(sysfs, 0, render=0)
    trees.kfd_node(sysfs, 1, render=128, location=0x0100)
    found = ready(probe(sysfs))
    assert names(sysfs, found) == ["dri/card0", "dri/renderD128", "kfd"]
    told = info(found)
    assert told.vendor == "amd"
    assert told.model == "AMD Instinct MI300X"
    assert told.uuid == "GPU-3f2a1b0c5d6e7f80"
    assert [Path(path).name for path in told.shared_nodes] == ["kfd"]
    row = replace(attached("g", "02/00", BDF, told), nodes=found.nodes)
    own = GpuDevices().own_nodes(row)
    assert [Path(node.path).name for node in own] == ["card0", "renderD128"]


def test_amd_without_compute_has_graphics_alone(sysfs: FakeSysfs) -> None:
    """KFD knows another GPU, at the same bus address of another domain."""
    trees.amd_gpu(sysfs, sysfs.port_with_slot(), BDF)
    trees.kfd(sysfs)
    trees.kfd_node(sysfs, 1, render=129, location=0x0100, domain=1)
    assert names(sysfs, ready(probe(sysfs))) == ["dri/card0", "dri/renderD128"]


def test_partitions_of_an_amd_gpu_are_found_by_topology(sysfs: FakeSysfs) -> None:
    """Their DRM devices are platform devices; the partition is in location_id's top bits."""
    trees.amd_gpu(sysfs, sysfs.port_with_slot("02", "41"), "0000:41:00.0")
    trees.kfd(sysfs)
    trees.kfd_node(sysfs, 1, render=128, location=0x4100)
    trees.kfd_node(sysfs, 2, render=129, location=0x1000_4100)
    trees.kfd_node(sysfs, 3, render=130, location=0x4200)
    trees.amd_partition(sysfs, 0, card=1, render=129)
    trees.amd_partition(sysfs, 8, card=2, render=130)
    found = ready(probe(sysfs))
    assert set(names(sysfs, found)) == {
        *("dri/card0", "dri/renderD128", "dri/card1", "dri/renderD129"),
        "kfd",
    }
    assert info(found).render_node.endswith("renderD128")
    trees.FakeNodes(sysfs).remove(sysfs.roots.dev / "kfd")
    assert "kfd" in waiting(probe(sysfs)).evidence


async def take(guest: Bench, *, device: str = "g1", known: tuple[str, ...] = ()) -> Found:
    asked = request(device, "02/00", ANY)
    async with UndoStack("attach") as undo:
        made = GpuDevices(trees.FakeNodes(guest.sysfs))
        taken = await made.take(job(hands(guest, device, *known), asked, undo))
        undo.commit()
    return taken.sighting.found


async def give_back(guest: Bench, *, device: str = "g1", known: tuple[str, ...] = ()) -> None:
    made = GpuDevices(trees.FakeNodes(guest.sysfs))
    row = attached(device, "02/00", BDF, GpuInfo(vendor=""))
    await made.give_back(hands(guest, device, *known), row, {})


async def test_links_by_path_come_and_go(tmp_path: Path) -> None:
    """Names and targets are those of systemd's 60-drm.rules."""
    async with bench(tmp_path) as guest:
        function = trees.gpu(guest.sysfs, guest.sysfs.port_with_slot(), BDF, driver="xe")
        trees.drm(guest.sysfs, function, card=0, render=128)
        found = await take(guest)
        by_path = guest.sysfs.roots.dev / "dri/by-path"
        assert info(found).links == (
            str(by_path / f"pci-{BDF}-card"),
            str(by_path / f"pci-{BDF}-render"),
        )
        assert str((by_path / f"pci-{BDF}-card").readlink()) == "../card0"
        assert str((by_path / f"pci-{BDF}-render").readlink()) == "../renderD128"
        await give_back(guest)
        assert trees.there(guest.sysfs) == {"dri/card0", "dri/renderD128"}
        assert not by_path.exists()


async def test_files_are_noted_before_they_are_made(tmp_path: Path) -> None:
    """So that they go again when the agent dies in the middle, as `give_back` has it."""
    async with bench(tmp_path) as guest:
        function = trees.gpu(guest.sysfs, guest.sysfs.port_with_slot(), BDF, driver="xe")
        trees.drm(guest.sysfs, function, card=0, render=128)
        by_path = guest.sysfs.roots.dev / "dri/by-path"
        noted: list[bool] = []
        asked = request("g1", "02/00", ANY)
        async with UndoStack("attach") as undo:
            whole = job(hands(guest, "g1"), asked, undo)
            whole = replace(whole, note=lambda _: noted.append(by_path.exists()))
            await GpuDevices(trees.FakeNodes(guest.sysfs)).take(whole)
            undo.commit()
        assert noted == [False]
        await give_back(guest)
        assert not by_path.exists()


async def test_links_of_others_are_left_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        sysfs = guest.sysfs
        function = trees.gpu(sysfs, sysfs.port_with_slot(), BDF, driver="xe")
        trees.drm(sysfs, function, card=0, render=128)
        trees.put(sysfs, "dri/card9", "226:9")
        by_path = sysfs.roots.dev / "dri/by-path"
        for name, target in (
            (f"pci-{BDF}-card", "../card9"),
            (f"pci-{BDF}-render", "../renderD128"),
            ("pci-0000:09:00.0-card", "../card9"),
        ):
            sysfs.link(by_path / name, target)
        before = trees.there(sysfs)
        found = await take(guest)
        assert info(found).links == (str(by_path / f"pci-{BDF}-render"),)
        assert str((by_path / f"pci-{BDF}-card").readlink()) == "../card9"
        await give_back(guest)
        assert trees.there(sysfs) == before


async def test_a_link_that_leads_nowhere_is_replaced(tmp_path: Path) -> None:
    """An earlier GPU of this address was taken by surprise."""
    async with bench(tmp_path) as guest:
        function = trees.gpu(guest.sysfs, guest.sysfs.port_with_slot(), BDF)
        trees.drm(guest.sysfs, function, card=1)
        link = guest.sysfs.roots.dev / f"dri/by-path/pci-{BDF}-card"
        guest.sysfs.link(link, "../card0")
        await take(guest)
        assert str(link.readlink()) == "../card1"
        await give_back(guest)
        assert not link.is_symlink()
