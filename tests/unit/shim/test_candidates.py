"""What of a host can be given to a VM: groups, what the host uses, and the way there."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.shim import candidates as module
from innkeeper.shim.candidates import Candidate, CandidatesError, Obstacle, candidates, survey
from innkeeper.shim.host_use import HostUse
from tests.fakes.udev import FakeHost

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ETHERNET = "0x020000"
SATA = "0x010601"
NVME = "0x010802"
VGA = "0x030000"
AUDIO = "0x040300"
PORT = "0x060400"
NIC = "0000:3b:00.0"
NOTHING = HostUse()


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def look(host: FakeHost, address: str, use: HostUse = NOTHING) -> Candidate:
    found = {candidate.address: candidate for candidate in candidates(host.devices, use, host.sys)}
    return found[address]


def obstacles(candidate: Candidate) -> list[Obstacle]:
    return [objection.obstacle for objection in candidate.objections]


def whys(candidate: Candidate) -> list[str]:
    return [objection.why for objection in candidate.objections]


def test_a_function_that_can_be_given_and_how(host: FakeHost) -> None:
    """The order of the three writes is that of sysfs-bus-pci: with the override set first
    no other driver can take the function between unbind and probe."""
    host.function(
        NIC,
        ETHERNET,
        group=14,
        driver="i40e",
        numa_node="1",
        ID_VENDOR_FROM_DATABASE="Intel Corporation",
        ID_MODEL_FROM_DATABASE="Ethernet Controller X710",
    )
    found = look(host, NIC)
    assert found.name == "Intel Corporation Ethernet Controller X710"
    assert (found.kind, found.pci_class) == ("Ethernet controller", ETHERNET)
    assert (found.pci_id, found.driver) == ("8086:1572", "i40e")
    assert (found.group, found.numa_node) == (14, 1)
    assert [member.address for member in found.members] == [NIC]
    assert found.can_be_given
    assert not found.is_bound
    assert found.bind == (
        "echo vfio-pci > /sys/bus/pci/devices/0000:3b:00.0/driver_override",
        "echo 0000:3b:00.0 > /sys/bus/pci/devices/0000:3b:00.0/driver/unbind",
        "echo 0000:3b:00.0 > /sys/bus/pci/drivers_probe",
    )
    assert found.release == ()


def test_without_a_database_the_name_is_the_ids(host: FakeHost) -> None:
    host.function(NIC, ETHERNET, group=14, vendor="0x15b3", device="0x101d")
    found = look(host, NIC)
    assert found.name == found.pci_id == "15b3:101d"
    assert found.numa_node is None


def test_a_function_without_a_driver_needs_no_unbind(host: FakeHost) -> None:
    """`driver/unbind` is not there then."""
    host.function(NIC, ETHERNET, group=14)
    assert [command.rpartition("/")[2] for command in look(host, NIC).bind] == [
        "driver_override",
        "drivers_probe",
    ]


def test_a_host_without_the_driver_loads_it_first(tmp_path: Path) -> None:
    """drivers_probe loads no module."""
    host = FakeHost(tmp_path, vfio=False)
    host.function(NIC, ETHERNET, group=14, driver="i40e")
    assert look(host, NIC).bind[0] == "modprobe vfio-pci"


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci"])
def test_one_that_is_bound_can_be_given_back(host: FakeHost, driver: str) -> None:
    """An empty line clears driver_override (sysfs-bus-pci)."""
    host.function(NIC, ETHERNET, group=14, driver=driver)
    found = look(host, NIC)
    assert found.is_bound
    assert found.can_be_given
    assert found.bind == ()
    assert found.release == (
        "echo > /sys/bus/pci/devices/0000:3b:00.0/driver_override",
        "echo 0000:3b:00.0 > /sys/bus/pci/devices/0000:3b:00.0/driver/unbind",
        "echo 0000:3b:00.0 > /sys/bus/pci/drivers_probe",
    )


def test_a_host_without_an_iommu(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, iommu=False)
    host.function(NIC, ETHERNET, driver="i40e")
    found = look(host, NIC)
    assert obstacles(found) == [Obstacle.NO_IOMMU]
    assert "intel_iommu=on" in found.objections[0].remedy
    assert found.bind == ()


def test_a_function_that_the_iommu_does_not_serve(host: FakeHost) -> None:
    host.function(NIC, ETHERNET, driver="i40e")
    assert obstacles(look(host, NIC)) == [Obstacle.NO_GROUP]


def test_a_group_without_an_iommu_behind_it(host: FakeHost) -> None:
    """Its file `name` reads vfio-noiommu, and is not there for other groups."""
    host.function(NIC, ETHERNET, group=14, driver="vfio-pci")
    (host.sys / "kernel/iommu_groups/14/name").write_text("vfio-noiommu\n")
    assert obstacles(look(host, NIC)) == [Obstacle.UNSAFE_GROUP]


def test_a_group_with_two_functions_goes_as_a_whole(host: FakeHost) -> None:
    """A display and its sound: while the host's driver has one, VFIO opens neither."""
    host.function("0000:01:00.0", VGA, group=16, driver="nouveau")
    host.function("0000:01:00.1", AUDIO, group=16, driver="snd_hda_intel")
    found = look(host, "0000:01:00.0")
    assert [(m.address, m.kind, m.driver) for m in found.members] == [
        ("0000:01:00.0", "VGA controller", "nouveau"),
        ("0000:01:00.1", "audio device", "snd_hda_intel"),
    ]
    assert obstacles(found) == [Obstacle.GROUP_MEMBER]
    assert "0000:01:00.1 (audio device) of its group 16 has the driver snd_hda_intel" in (
        found.objections[0].why
    )
    assert len(found.bind) == 6
    assert "echo 0000:01:00.1 > /sys/bus/pci/drivers_probe" in found.bind


def test_the_last_member_is_all_that_is_missing(host: FakeHost) -> None:
    host.function("0000:01:00.0", VGA, group=16, driver="vfio-pci")
    host.function("0000:01:00.1", AUDIO, group=16, driver="snd_hda_intel")
    found = look(host, "0000:01:00.0")
    assert obstacles(found) == [Obstacle.GROUP_MEMBER]
    assert [command for command in found.bind if "0000:01:00.0" in command] == []
    assert len(found.bind) == 3


@pytest.mark.parametrize(
    ("pci_class", "driver"),
    [(PORT, "pcieport"), (AUDIO, ""), (AUDIO, "vfio-pci"), (AUDIO, "pci-stub")],
    ids=["bridge", "no driver", "vfio", "stub"],
)
def test_members_that_are_not_in_the_way(host: FakeHost, pci_class: str, driver: str) -> None:
    """Drivers that leave DMA to their user (`driver_managed_dma` in drivers/iommu)."""
    host.function("0000:01:00.0", VGA, group=16, driver="nouveau")
    host.function("0000:01:00.1", pci_class, group=16, driver=driver)
    assert look(host, "0000:01:00.0").can_be_given


def test_a_member_that_the_host_uses_is_named_with_its_use(host: FakeHost) -> None:
    """Without ACS a whole switch is one group; no command may take the host's root."""
    host.function(NIC, ETHERNET, group=3, driver="i40e")
    sata = host.function("0000:3b:00.1", SATA, group=3, driver="ahci")
    host.disk(sata / "ata1/block", "sda", "8:0")
    found = look(host, NIC, HostUse(mounts={"8:0": "/"}))
    assert obstacles(found) == [Obstacle.GROUP_MEMBER]
    assert found.objections[0].why.endswith("the driver ahci, and its disk sda is mounted on /")
    assert found.bind == ()


def test_a_member_of_another_bus(host: FakeHost) -> None:
    host.function(NIC, ETHERNET, group=3, driver="i40e")
    host.stranger(3, "INTC1057:00", "intel-lpss")
    found = look(host, NIC)
    assert "INTC1057:00 (not a PCI function)" in found.objections[0].why
    assert found.bind == ()


@pytest.mark.parametrize("pci_class", [PORT, "0x060000", "0x060100"])
def test_bridges_stay(host: FakeHost, pci_class: str) -> None:
    host.function("0000:00:1c.0", pci_class, group=5, driver="pcieport")
    found = look(host, "0000:00:1c.0")
    assert obstacles(found) == [Obstacle.BRIDGE]
    assert found.is_bridge


def test_a_bridge_of_the_other_kind_is_a_candidate(host: FakeHost) -> None:
    """NVIDIA's NVSwitch has class 0680 and is given to VMs."""
    host.function("0000:05:00.0", "0x068000", group=9)
    assert look(host, "0000:05:00.0").can_be_given


def test_a_disk_behind_a_bridge_is_not_the_bridges(host: FakeHost) -> None:
    """Each disk belongs to the nearest function above it."""
    host.function("0000:00:1c.0", "0x068000", group=5)
    sata = host.function("0000:01:00.0", SATA, group=6, below="0000:00:1c.0")
    host.disk(sata / "ata1/block", "sda", "8:0")
    use = HostUse(mounts={"8:0": "/srv"})
    assert look(host, "0000:00:1c.0", use).can_be_given
    assert obstacles(look(host, "0000:01:00.0", use)) == [Obstacle.DISK_IN_USE]


class TestDisks:
    @pytest.fixture
    def disk(self, host: FakeHost) -> Path:
        sata = host.function("0000:00:17.0", SATA, group=7, driver="ahci")
        return host.disk(sata / "ata1/host0/block", "sda", "8:0")

    def test_a_mounted_partition(self, host: FakeHost, disk: Path) -> None:
        host.disk(disk, "sda1", "8:1")
        found = look(host, "0000:00:17.0", HostUse(mounts={"8:1": "/boot"}))
        assert whys(found) == ["its disk sda1 is mounted on /boot"]
        assert found.objections[0].remedy == "unmount or stop that first"
        assert found.bind == ()

    def test_the_hosts_root_has_no_remedy(self, host: FakeHost, disk: Path) -> None:
        found = look(host, "0000:00:17.0", HostUse(mounts={"8:0": "/"}))
        assert found.objections[0].remedy == "keep it: the host runs from it"

    def test_a_file_system_with_numbers_of_its_own(self, host: FakeHost, disk: Path) -> None:
        """btrfs: mountinfo has 0:NN, and only the source names the disk."""
        found = look(host, "0000:00:17.0", HostUse(mounts={"0:25": "/home", "/dev/sda": "/home"}))
        assert whys(found) == ["its disk sda is mounted on /home"]

    def test_swap(self, host: FakeHost, disk: Path) -> None:
        found = look(host, "0000:00:17.0", HostUse(swaps=frozenset({"/dev/sda"})))
        assert whys(found) == ["its disk sda is swap"]

    def test_what_lies_on_a_stack(self, host: FakeHost, disk: Path) -> None:
        """A partition in a mirror with a logical volume on it that is mounted."""
        host.disk(disk, "sda2", "8:2", "md0")
        host.disk(host.virtual("block"), "md0", "9:0", "dm-0")
        host.disk(host.virtual("block"), "dm-0", "253:0")
        found = look(host, "0000:00:17.0", HostUse(mounts={"253:0": "/"}))
        assert whys(found) == [
            "its disk sda2 is part of md0, which is part of dm-0, which is mounted on /"
        ]

    def test_a_stack_that_nothing_lies_on(self, host: FakeHost, disk: Path) -> None:
        host.disk(disk, "sda2", "8:2", "md0")
        host.disk(host.virtual("block"), "md0", "9:0")
        assert whys(look(host, "0000:00:17.0")) == ["its disk sda2 is part of md0"]

    def test_one_that_nobody_uses(self, host: FakeHost, disk: Path) -> None:
        assert look(host, "0000:00:17.0", HostUse(mounts={"8:16": "/"})).can_be_given


def test_an_nvme_disk_with_several_paths(host: FakeHost) -> None:
    """With multipath the controller has a hidden path; the disk is a virtual device."""
    nvme = host.function("0000:02:00.0", NVME, group=8, driver="nvme")
    host.disk(nvme / "nvme/nvme0", "nvme0c0n1", "0:0")
    head = host.virtual("nvme-subsystem/nvme-subsys0")
    host.disk(head, "nvme0n1", "259:0", "dm-0")
    found = look(host, "0000:02:00.0")
    assert whys(found) == ["its disk nvme0n1 is part of dm-0"]


class TestInterfaces:
    @pytest.fixture
    def nic(self, host: FakeHost) -> Path:
        return host.function(NIC, ETHERNET, group=14, driver="i40e") / "net"

    def test_the_default_route(self, host: FakeHost, nic: Path) -> None:
        host.interface(nic, "eth0")
        found = look(host, NIC, HostUse(routes=frozenset({"eth0"})))
        assert obstacles(found) == [Obstacle.NIC_IN_USE]
        assert whys(found) == ["its interface eth0 has the default route"]

    def test_the_default_route_of_a_bridge(self, host: FakeHost, nic: Path) -> None:
        host.interface(nic, "eth0", upper="br0")
        host.interface(host.virtual("net"), "br0")
        found = look(host, NIC, HostUse(routes=frozenset({"br0"})))
        assert whys(found) == ["its interface eth0 is part of br0, which has the default route"]

    def test_a_bond(self, host: FakeHost, nic: Path) -> None:
        host.interface(nic, "eth0", upper="bond0")
        host.interface(host.virtual("net"), "bond0")
        assert whys(look(host, NIC)) == ["its interface eth0 is part of bond0"]

    def test_the_default_route_of_another(self, host: FakeHost, nic: Path) -> None:
        host.interface(nic, "eth1")
        assert look(host, NIC, HostUse(routes=frozenset({"eth0", "eth10"}))).can_be_given


def test_the_console(host: FakeHost) -> None:
    host.function("0000:01:00.0", VGA, group=16, driver="i915", boot_vga="1")
    host.function("0000:02:00.0", VGA, group=17, driver="nouveau", boot_vga="0")
    assert obstacles(look(host, "0000:01:00.0")) == [Obstacle.BOOT_DISPLAY]
    assert look(host, "0000:02:00.0").can_be_given


def test_a_console_that_was_given_up(host: FakeHost) -> None:
    host.function("0000:01:00.0", VGA, group=16, driver="vfio-pci", boot_vga="1")
    assert look(host, "0000:01:00.0").can_be_given


def test_the_owner_of_virtual_functions(host: FakeHost) -> None:
    """Its virtual functions go with it; they can be given, it can't."""
    owner = host.function(NIC, ETHERNET, group=14, driver="i40e", sriov_numvfs="2")
    for number in (0, 1):
        virtual = host.function(f"0000:3b:02.{number}", ETHERNET, group=20 + number)
        (virtual / "physfn").symlink_to(owner)
        (owner / f"virtfn{number}").symlink_to(virtual)
    found = look(host, NIC)
    assert obstacles(found) == [Obstacle.VIRTUAL_FUNCTIONS]
    assert found.objections[0].why.endswith("0000:3b:02.0, 0000:3b:02.1")
    assert "echo 0 > /sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs" in found.objections[0].remedy
    assert look(host, "0000:3b:02.1").can_be_given


def test_an_owner_without_virtual_functions(host: FakeHost) -> None:
    host.function(NIC, ETHERNET, group=14, driver="i40e", sriov_numvfs="0")
    assert look(host, NIC).can_be_given


def test_one_that_a_vm_has(host: FakeHost) -> None:
    """To unbind it now would wait for the VM: no command says so."""
    host.function(NIC, ETHERNET, group=14, driver="vfio-pci")
    found = look(host, NIC, HostUse(openers={"/dev/vfio/14": "process 812 (qemu-system-x86)"}))
    assert obstacles(found) == [Obstacle.GIVEN_AWAY]
    assert whys(found) == ["process 812 (qemu-system-x86) has /dev/vfio/14 open"]
    assert found.release == ()


def test_one_that_a_vm_has_by_its_own_node(host: FakeHost) -> None:
    nic = host.function(NIC, ETHERNET, group=14, driver="vfio-pci")
    host.node(nic / "vfio-dev", "vfio3", "vfio-dev", "/dev/vfio/devices/vfio3")
    use = HostUse(openers={"/dev/vfio/devices/vfio3": "process 812 (qemu-system-x86)"})
    assert obstacles(look(host, NIC, use)) == [Obstacle.GIVEN_AWAY]


def test_a_node_that_a_process_has_open(host: FakeHost) -> None:
    gpu = host.function("0000:01:00.0", VGA, group=16, driver="amdgpu")
    host.node(gpu / "drm", "card0", "drm", "/dev/dri/card0")
    found = look(host, "0000:01:00.0", HostUse(openers={"/dev/dri/card0": "process 7 (Xorg)"}))
    assert obstacles(found) == [Obstacle.NODE_IN_USE]


def test_several_obstacles_are_all_told(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, iommu=False)
    nic = host.function(NIC, ETHERNET, driver="i40e", sriov_numvfs="1")
    host.interface(nic / "net", "eth0")
    found = look(host, NIC, HostUse(routes=frozenset({"eth0"})))
    assert obstacles(found) == [
        Obstacle.NO_IOMMU,
        Obstacle.NIC_IN_USE,
        Obstacle.VIRTUAL_FUNCTIONS,
    ]


def test_functions_come_in_the_order_of_their_addresses(host: FakeHost) -> None:
    """Domains of VMD have more than four digits."""
    for bdf in ("10000:e1:00.0", "0001:00:00.0", "0000:af:00.0"):
        host.function(bdf, ETHERNET, group=1)
    found = [candidate.address for candidate in candidates(host.devices, NOTHING, host.sys)]
    assert found == ["0000:00:00.0", "0000:af:00.0", "0001:00:00.0", "10000:e1:00.0"]


def test_a_function_that_went_away_meanwhile(host: FakeHost) -> None:
    nic = host.function(NIC, ETHERNET, group=14)
    (nic / "class").unlink()
    found = [candidate.address for candidate in candidates(host.devices, NOTHING, host.sys)]
    assert found == ["0000:00:00.0"]


def test_a_host_without_pci(tmp_path: Path) -> None:
    with pytest.raises(CandidatesError, match="no PCI bus"):
        survey(tmp_path / "sys", tmp_path / "proc")


def test_a_host_without_libudev(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyudev finds the library when a context is made, and raises ImportError without it."""
    pyudev = pytest.importorskip("pyudev", exc_type=ImportError)

    def no_library(name: str, *rest: object) -> None:
        raise ImportError(f"No library named {name}")

    monkeypatch.setattr(pyudev.core, "load_ctypes_library", no_library)
    with pytest.raises(CandidatesError, match="No library named udev") as caught:
        survey(host.sys, host.proc)
    assert "libudev1" in caught.value.hint


@pytest.mark.parametrize(("losses", "found"), [(1, True), (100, False)])
def test_a_device_that_goes_while_it_is_listed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, losses: int, *, found: bool
) -> None:
    """pyudev's enumeration raises then, and can't go on."""
    pyudev = pytest.importorskip("pyudev", exc_type=ImportError)
    left = losses

    class Context:
        def list_devices(self) -> list[object]:
            nonlocal left
            left -= 1
            if left >= 0:
                raise pyudev.DeviceNotFoundAtPathError("/sys/devices/virtual/block/loop9")
            return [*host.devices]

    monkeypatch.setattr(pyudev, "Context", Context)
    if found:
        assert len(survey(host.sys, host.proc)) == 1
    else:
        with pytest.raises(CandidatesError, match=f"each of {module._LISTINGS} tries"):
            survey(host.sys, host.proc)
