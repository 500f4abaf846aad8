"""NVIDIA's nodes: found by number, made where nobody makes them, gone with the last user."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.kinds import GpuExpectation, GpuInfo
from agent.core.tree import SysfsTree
from agent.core.undo import UndoStack
from agent.core.verdict import Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.gpu import GpuDevices, plan
from agent.handlers.devices.gpus.parts import CharNode
from tests.fakes import gpu_trees as trees
from tests.fakes.device_jobs import attached, failed, hands, job, look, ready, request, waiting
from tests.fakes.hotplug import Bench, bench
from tests.fakes.sysfs import FakeSysfs
from tests.unit.handlers.devices.test_gpu import Log

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = GpuExpectation()
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def planned(sysfs: FakeSysfs, address: str = "02/00", **parts: Any) -> Verdict[Found]:
    """What there should be, whether or not the nodes are made."""
    tree = SysfsTree(roots=sysfs.roots, node_numbers=sysfs.nodes.get, **parts)
    return look(plan, tree, address, ANY)


def info(found: Found) -> GpuInfo:
    assert isinstance(found.info, GpuInfo)
    return found.info


def nodes(sysfs: FakeSysfs, found: Found) -> dict[str, tuple[int, int]]:
    dev = sysfs.roots.dev
    return {str(Path(node.path).relative_to(dev)): (node.major, node.minor) for node in found.nodes}


BASE = {
    "nvidia0": (195, 0),
    "nvidiactl": (195, 255),
    "nvidia-uvm": (511, 0),
    "nvidia-uvm-tools": (511, 1),
}


def test_one_gpu_and_what_all_share(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    found = ready(planned(sysfs))
    assert nodes(sysfs, found) == BASE
    told = info(found)
    assert (told.vendor, told.model, told.minor) == ("nvidia", "NVIDIA H100 PCIe", 0)
    assert told.uuid == "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"
    assert [Path(path).name for path in told.shared_nodes] == [
        *("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"),
    ]


def test_the_majors_name_before_release_550(sysfs: FakeSysfs) -> None:
    """/proc/devices said nvidia-frontend; both mean 195."""
    trees.nvidia_driver(sysfs, name="nvidia-frontend", majors=())
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    assert nodes(sysfs, ready(planned(sysfs))) == {"nvidia0": (195, 0), "nvidiactl": (195, 255)}


def test_a_block_device_of_the_name_is_no_major(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs, majors=())
    text = (sysfs.roots.proc / "devices").read_text()
    (sysfs.roots.proc / "devices").write_text(f"{text}252 nvidia-uvm\n")
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    assert "nvidia-uvm" not in nodes(sysfs, ready(planned(sysfs)))


def test_without_the_driver_in_proc_it_is_not_loaded(sysfs: FakeSysfs) -> None:
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    sysfs.write(sysfs.roots.proc / "devices", "Character devices:\n  1 mem\n\nBlock devices:")
    assert "the driver is not loaded" in waiting(planned(sysfs)).evidence


def test_minors_do_not_follow_pci_addresses(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot("02", "01"), FIRST, minor=1)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot("03", "02"), SECOND, minor=0)
    assert nodes(sysfs, ready(planned(sysfs, "02/00")))["nvidia1"] == (195, 1)
    assert nodes(sysfs, ready(planned(sysfs, "03/00")))["nvidia0"] == (195, 0)


def test_a_gpu_that_was_never_opened_has_no_uuid_yet(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs)
    uuid = "GPU-????????-????-????-????-????????????"
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST, uuid=uuid)
    assert info(ready(planned(sysfs))).uuid == ""


def test_modeset_and_drm_nodes_are_there_with_their_modules(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs)
    function = trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    (sysfs.sys / "module/nvidia_modeset").mkdir(parents=True)
    trees.drm(sysfs, function, card=0, render=128)
    found = ready(planned(sysfs))
    assert nodes(sysfs, found) == BASE | {
        "nvidia-modeset": (195, 254),
        "dri/card0": (226, 0),
        "dri/renderD128": (226, 128),
    }
    assert info(found).render_node.endswith("renderD128")


def test_an_imex_channel_only_when_the_module_is_told_so(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs, majors=("498 nvidia-caps-imex-channels",), imex=1)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    channel = "nvidia-caps-imex-channels/channel0"
    assert nodes(sysfs, ready(planned(sysfs)))[channel] == (498, 0)
    trees.nvidia_driver(sysfs, majors=("498 nvidia-caps-imex-channels",), imex=0)
    assert channel not in nodes(sysfs, ready(planned(sysfs)))


def test_mig_instances_of_this_gpu_alone(sysfs: FakeSysfs) -> None:
    """Minors far above 255: the table goes on for 32 GPUs."""
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST, minor=3)
    trees.mig_instance(sysfs, 3, "gi2", 426)
    trees.mig_instance(sysfs, 3, "gi2/ci0", 427)
    trees.mig_instance(sysfs, 3, "gi10", 498)
    trees.mig_instance(sysfs, 0, "gi1", 12)
    sysfs.write(sysfs.roots.proc / "driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1")
    found = ready(planned(sysfs))
    mig = [str(Path(path).relative_to(sysfs.roots.dev)) for path in info(found).mig_nodes]
    assert mig == [f"nvidia-caps/nvidia-cap{minor}" for minor in (426, 427, 498)]
    assert nodes(sysfs, found)["nvidia-caps/nvidia-cap426"] == (508, 426)


def test_a_mig_instance_by_the_table_when_its_file_tells_nothing(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    top = sysfs.roots.proc / "driver/nvidia/capabilities/gpu0/mig"
    sysfs.write(top / "gi1/access", "")
    sysfs.write(
        sysfs.roots.proc / "driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi1/access 12",
    )
    assert info(ready(planned(sysfs))).mig_nodes == (
        str(sysfs.roots.dev / "nvidia-caps/nvidia-cap12"),
    )


def test_an_nvswitch_is_told_by_the_name_of_its_bar(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs, majors=("510 nvidia-nvswitch", "509 nvidia-nvlink"))
    trees.nvswitch(sysfs, sysfs.port_with_slot("02", "01"), FIRST, minor=12, base="f0000000")
    trees.nvswitch(sysfs, sysfs.port_with_slot("03", "02"), SECOND, minor=2, base="f2000000")
    assert nodes(sysfs, ready(planned(sysfs, "03/00"))) == {
        "nvidia-nvswitch2": (510, 2),
        "nvidia-nvswitchctl": (510, 255),
        "nvidia-nvlink": (509, 0),
    }
    assert info(ready(planned(sysfs, "02/00"))).minor == 12


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0xffff:1863)",
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",
    ],
)
def test_a_gpu_that_the_driver_gave_up_is_final(sysfs: FakeSysfs, line: str) -> None:
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    verdict = failed(planned(sysfs, log=Log("NVRM: loading", line)))
    assert verdict.reason is Reason.DRIVER_REFUSED
    assert line in verdict.why
    other = line.replace("01:00", "09:00")
    ready(planned(sysfs, log=Log(other)))


def test_a_gpu_that_the_driver_does_not_support(sysfs: FakeSysfs) -> None:
    trees.gpu(sysfs, sysfs.port_with_slot(), FIRST, ids=("10de", "1b80"), driver=None)
    line = (
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80) installed in this system is not "
        "supported by open nvidia.ko"
    )
    assert failed(planned(sysfs, log=Log(line))).reason is Reason.DRIVER_REFUSED


def test_a_gpu_that_the_driver_was_told_to_leave_alone(sysfs: FakeSysfs) -> None:
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST, excluded="Yes")
    assert failed(planned(sysfs)).reason is Reason.DRIVER_REFUSED


@pytest.mark.parametrize("text", ["", "Model: \t\t NVIDIA", "Device Minor: \t none"])
def test_a_driver_that_tells_no_minor_is_not_ready(sysfs: FakeSysfs, text: str) -> None:
    """An empty text is what a GPU gives that can't be woken up."""
    trees.nvidia_driver(sysfs)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot(), FIRST)
    sysfs.write(sysfs.roots.proc / "driver/nvidia/gpus" / FIRST / "information", text)
    assert "tells no minor" in waiting(planned(sysfs)).evidence


def test_nouveau_has_nodes_of_drm_alone(sysfs: FakeSysfs) -> None:
    function = trees.gpu(
        sysfs, sysfs.port_with_slot(), FIRST, ids=("10de", "1eb8"), driver="nouveau"
    )
    trees.drm(sysfs, function, render=128)
    found = ready(planned(sysfs))
    assert set(nodes(sysfs, found)) == {"dri/card0", "dri/renderD128"}
    assert (info(found).vendor, info(found).minor) == ("nvidia", -1)


class Gpus:
    """Two GPUs, attached by an agent that may be another each time."""

    def __init__(self, guest: Bench) -> None:
        self.guest = guest
        self.sysfs = guest.sysfs
        self.made: list[CharNode] = []
        self.known: set[str] = set()

    async def take(self, device: str, address: str, **more: Any) -> Found:
        self.known.add(device)
        nodes = trees.FakeNodes(self.sysfs)
        nodes.refusal = more.get("refusal")
        asked = request(device, address, ANY)
        async with UndoStack("attach") as undo:
            made = hands(self.guest, *self.known)
            timeout = more.get("timeout", 30)
            taken = await GpuDevices(nodes).take(job(made, asked, undo, timeout=timeout))
            if not more.get("fails_later"):
                undo.commit()
        self.made += nodes.made
        return taken.sighting.found

    async def give_back(self, device: str) -> None:
        row = attached(device, "02/00", FIRST, GpuInfo(vendor="nvidia"))
        await GpuDevices(trees.FakeNodes(self.sysfs)).give_back(
            hands(self.guest, *self.known), row, {}
        )
        self.known.discard(device)

    def there(self) -> set[str]:
        return trees.there(self.sysfs)


def two_gpus(guest: Bench, **driver: Any) -> Gpus:
    sysfs = guest.sysfs
    trees.nvidia_driver(sysfs, **driver)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot("02", "01"), FIRST, minor=0)
    trees.nvidia_gpu(sysfs, sysfs.port_with_slot("03", "02"), SECOND, minor=1)
    return Gpus(guest)


SHARED = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}


async def test_shared_nodes_stay_for_the_last_gpu(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        await gpus.take("a", "02/00")
        assert gpus.there() == SHARED | {"nvidia0"}
        await gpus.take("b", "03/00")
        assert gpus.there() == SHARED | {"nvidia0", "nvidia1"}
        await gpus.give_back("a")
        assert gpus.there() == SHARED | {"nvidia1"}
        await gpus.give_back("b")
        assert gpus.there() == set()


async def test_nodes_that_somebody_else_made_stay(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        trees.put(guest.sysfs, "nvidiactl", "195:255")
        await gpus.take("a", "02/00")
        await gpus.give_back("a")
        assert gpus.there() == {"nvidiactl"}


async def test_a_node_with_wrong_numbers_is_made_again(tmp_path: Path) -> None:
    """The module was loaded again, and got another dynamic major."""
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        trees.put(guest.sysfs, "nvidia-uvm", "400:0")
        await gpus.take("a", "02/00")
        numbers = guest.sysfs.nodes[guest.sysfs.roots.dev / "nvidia-uvm"]
        assert (numbers.major, numbers.minor) == (511, 0)


async def test_what_became_something_else_is_not_removed(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        await gpus.take("a", "02/00")
        trees.put(guest.sysfs, "nvidia0", "195:7")
        await gpus.give_back("a")
        assert gpus.there() == {"nvidia0"}


async def test_owner_and_mode_are_the_modules_parameters(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest, owner=(0, 44), mode=0o660)
        trees.mig_instance(guest.sysfs, 0, "gi1", 12, mode=0o444)
        await gpus.take("a", "02/00")
        rights = {node.path.name: (node.mode, node.uid, node.gid) for node in gpus.made}
        assert rights["nvidia0"] == rights["nvidiactl"] == (0o660, 0, 44)
        assert rights["nvidia-uvm"] == (0o666, 0, 0)
        assert rights["nvidia-cap12"] == (0o444, 0, 0)


async def test_modify_device_files_0_leaves_all_to_the_administrator(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest, modify=0)
        with pytest.raises(AgentError) as caught:
            await gpus.take("a", "02/00", timeout=0.05)
        assert caught.value.reason is Reason.DEVICE_NOT_READY
        assert "nvidia0 should be c 195:0, and is not there" in str(caught.value)
        trees.put(guest.sysfs, "nvidia0", "195:0")
        trees.put(guest.sysfs, "nvidiactl", "195:255")
        found = await gpus.take("a", "02/00")
        assert [Path(node.path).name for node in found.nodes] == ["nvidia0", "nvidiactl"]
        assert gpus.made == []
        await gpus.give_back("a")
        assert gpus.there() == {"nvidia0", "nvidiactl"}


async def test_a_refused_mknod_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        refusal = OSError(errno.EPERM, "mknod", "nvidia0")
        with pytest.raises(AgentError) as caught:
            await gpus.take("a", "02/00", refusal=refusal)
        assert caught.value.reason is Reason.KERNEL_REFUSED
        assert caught.value.fields["errno"] == "EPERM"
        assert gpus.there() == set()


async def test_a_later_failure_takes_the_nodes_away(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        await gpus.take("a", "02/00")
        await gpus.take("b", "03/00", fails_later=True)
        assert gpus.there() == SHARED | {"nvidia0"}


async def test_what_an_agent_left_that_died_goes_with_the_last_gpu(tmp_path: Path) -> None:
    """It had made nodes, and was gone before the device was in the table."""
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        await gpus.take("lost", "03/00")
        gpus.known.discard("lost")
        await gpus.take("a", "02/00")
        await gpus.give_back("a")
        assert gpus.there() == set()


async def test_taking_again_makes_what_is_new_and_owns_all(tmp_path: Path) -> None:
    """After a switch of the MIG profile the same device is taken again."""
    async with bench(tmp_path) as guest:
        gpus = two_gpus(guest)
        await gpus.take("a", "02/00")
        trees.mig_instance(guest.sysfs, 0, "gi1", 12)
        found = await gpus.take("a", "02/00")
        assert info(found).mig_nodes == (str(guest.sysfs.roots.dev / "nvidia-caps/nvidia-cap12"),)
        trees.mig_instance(guest.sysfs, 0, "gi2", 21)
        with pytest.raises(AgentError):
            await gpus.take("a", "02/00", refusal=OSError(errno.ENOSPC, "mknod", "x"))
        assert gpus.there() == SHARED | {"nvidia0", "nvidia-caps/nvidia-cap12"}
        await gpus.give_back("a")
        assert gpus.there() == set()
