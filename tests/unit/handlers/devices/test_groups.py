"""IOMMU groups as sysfs shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.kinds import VfioExpectation, VfioInfo, VfioMode
from agent.core.model import AttachedDevice, DeviceRequest
from agent.core.pci import parse_address
from agent.core.places import function_of
from agent.core.tree import PciFunction
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.groups import (
    agree,
    allows_no_iommu,
    arrived,
    has_no_iommu,
    members,
)
from tests.fakes.device_jobs import attached
from tests.fakes.sysfs import PORT
from tests.fakes.vfio_sysfs import VfioSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ONE, TWO = "0000:01:00.0", "0000:01:00.1"
VFIO_INFO = VfioInfo(mode=VfioMode.VFIO, group=7)


@pytest.fixture
def sysfs(tmp_path: Path) -> VfioSysfs:
    return VfioSysfs(tmp_path)


def function(sysfs: VfioSysfs, bdf: str) -> PciFunction:
    found = function_of(sysfs.tree, sysfs.where(bdf))
    assert found is not None
    return found


def wanted(name: str, address: str) -> DeviceRequest:
    return DeviceRequest(id=name, address=parse_address(address), kind=VfioExpectation())


def agreement(
    sysfs: VfioSysfs, peers: dict[str, DeviceRequest | AttachedDevice], *others: str
) -> Verdict[None]:
    return agree(function(sysfs, ONE), others or tuple(peers), peers.get, sysfs.tree)


def refusal(
    sysfs: VfioSysfs, peers: dict[str, DeviceRequest | AttachedDevice], *others: str
) -> AgentError:
    with pytest.raises(AgentError) as caught:
        agreement(sysfs, peers, *others)
    return caught.value


def test_which_drivers_leave_a_group_to_user_space(sysfs: VfioSysfs) -> None:
    """Those that manage DMA for others or do none, and none at all (vfio.rst)."""
    port = sysfs.port_with_slot()
    sysfs.join(port, 7)
    for number, driver in enumerate(("vfio-pci", "mlx5_vfio_pci", "pci-stub", "", "nvme")):
        sysfs.card(port, f"0000:01:00.{number}", group=7, driver=driver)
    found = members(sysfs.tree, 7)
    assert [(each.driver, each.is_safe) for each in found] == [
        ("pcieport", True),
        ("vfio-pci", True),
        ("mlx5_vfio_pci", True),
        ("pci-stub", True),
        ("", True),
        ("nvme", False),
    ]
    assert [each.can_be_taken for each in found] == [False, True, True, False, True, True]


def test_a_bridge_with_another_driver_is_not_safe(sysfs: VfioSysfs) -> None:
    sysfs.join(sysfs.function(sysfs.root_bus(), "0000:00:03.0", pci_class=PORT, driver="shpchp"), 7)
    (bridge,) = members(sysfs.tree, 7)
    assert (bridge.is_bridge, bridge.is_safe, bridge.can_be_taken) == (True, False, False)


def test_a_device_of_another_bus_can_be_a_member(sysfs: VfioSysfs) -> None:
    device = sysfs.sys / "devices/platform/dma"
    sysfs.link(device / "driver", "../../../bus/platform/drivers/dma")
    sysfs.link(sysfs.sys / "kernel/iommu_groups/7/devices/dma", str(device))
    (member,) = members(sysfs.tree, 7)
    assert (member.is_function, member.is_safe, member.can_be_taken) == (False, False, False)


def test_no_such_group_has_no_members(sysfs: VfioSysfs) -> None:
    assert members(sysfs.tree, 9) == ()


def test_groups_without_an_iommu_are_named_so(sysfs: VfioSysfs) -> None:
    sysfs.write(sysfs.sys / "kernel/iommu_groups/3/name", "vfio-noiommu")
    assert (has_no_iommu(sysfs.tree, 3), has_no_iommu(sysfs.tree, 4)) == (True, False)


@pytest.mark.parametrize("allowed", [True, False])
def test_whether_vfio_makes_groups(sysfs: VfioSysfs, *, allowed: bool) -> None:
    assert not allows_no_iommu(sysfs.tree), "the module is not there"
    sysfs.load_vfio(no_iommu=allowed)
    assert allows_no_iommu(sysfs.tree) is allowed


def test_the_group_counts_once_the_function_is_added(sysfs: VfioSysfs) -> None:
    """Its directory is there before its group is (device_add, then pci_bus_add_device)."""
    path = sysfs.function(sysfs.port_with_slot(), ONE)
    one = function(sysfs, ONE)
    assert isinstance(arrived(one, sysfs.tree), NotYet)
    sysfs.added("01", "00.0")
    assert arrived(one, sysfs.tree) == Ready(None)
    sysfs.join(path, 7)
    assert arrived(one, sysfs.tree) == Ready(7)
    sysfs.remove(path)
    assert isinstance(arrived(one, sysfs.tree), Failed)


def test_one_group_with_those_attached_and_those_coming(sysfs: VfioSysfs) -> None:
    port = sysfs.port_with_slot()
    sysfs.card(port, ONE, group=7)
    sysfs.card(port, TWO, group=7)
    here = attached("b", "02/00.1", TWO, VFIO_INFO)
    assert agreement(sysfs, {"b": here}) == Ready(None)
    assert agreement(sysfs, {"b": wanted("b", "02/00.1")}) == Ready(None)


def test_a_device_of_the_batch_that_is_not_there_is_waited_for(sysfs: VfioSysfs) -> None:
    sysfs.card(sysfs.port_with_slot(), ONE, group=7)
    verdict = agreement(sysfs, {"b": wanted("b", "02/00.1")})
    assert isinstance(verdict, NotYet)
    assert "0000:01:00.1" in verdict.evidence


def test_two_groups_that_should_be_one(sysfs: VfioSysfs) -> None:
    """Both devices and both groups are named (FAILED_PRECONDITION)."""
    port = sysfs.port_with_slot()
    sysfs.card(port, ONE, group=7)
    sysfs.card(port, TWO, group=8)
    error = refusal(sysfs, {"b": wanted("b", "02/00.1")})
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.GROUP_MISMATCH)
    assert f"{ONE} is in the IOMMU group 7, the device b ({TWO}) in the group 8" in str(error)


def test_another_device_in_no_group(sysfs: VfioSysfs) -> None:
    port = sysfs.port_with_slot()
    sysfs.card(port, ONE, group=7)
    sysfs.card(port, TWO, group=None)
    error = refusal(sysfs, {"b": wanted("b", "02/00.1")})
    assert error.reason is Reason.NO_IOMMU_GROUP
    assert (f"{TWO} is in no IOMMU group" in str(error), "intel_iommu=on" in str(error)) == (
        True,
        True,
    )


def test_itself_in_no_group(sysfs: VfioSysfs) -> None:
    port = sysfs.port_with_slot()
    sysfs.card(port, ONE, group=None)
    sysfs.card(port, TWO, group=7)
    error = refusal(sysfs, {"b": wanted("b", "02/00.1")})
    assert error.reason is Reason.NO_IOMMU_GROUP
    assert f"{ONE} is in no IOMMU group" in str(error)


def test_a_device_that_nobody_knows(sysfs: VfioSysfs) -> None:
    sysfs.card(sysfs.port_with_slot(), ONE, group=7)
    error = refusal(sysfs, {}, "nobody")
    assert (error.code, error.reason) == (Code.NOT_FOUND, Reason.UNKNOWN_DEVICE)
    assert "nobody" in str(error)
