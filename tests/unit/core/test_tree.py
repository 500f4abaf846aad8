"""From PCI addresses to sysfs and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.pci import Bdf, PciPath, parse_address
from agent.core.tree import PciFunction, locate, path_of
from agent.core.verdict import Failed, NotYet, Ready
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def found(sysfs: FakeSysfs, address: str) -> PciFunction:
    verdict = locate(sysfs.tree, parse_address(address))
    assert isinstance(verdict, Ready), verdict
    return verdict.result


def missing(sysfs: FakeSysfs, address: str) -> NotYet:
    verdict = locate(sysfs.tree, parse_address(address))
    assert isinstance(verdict, NotYet), verdict
    return verdict


def test_one_two_and_three_levels(sysfs: FakeSysfs) -> None:
    """A bridge's bus number is whatever the guest gave it; the path does not know it."""
    upper = sysfs.port_with_slot("02", "05")
    lower = sysfs.bridge(upper, "0000:05:03.0", "0000:06")
    sysfs.function(lower, "0000:06:01.0")
    assert str(found(sysfs, "02").bdf) == "0000:00:02.0"
    assert str(found(sysfs, "02/03").bdf) == "0000:05:03.0"
    leaf = found(sysfs, "02/03/01")
    assert str(leaf.bdf) == "0000:06:01.0"
    assert leaf.directory == lower / "0000:06:01.0"


def test_functions_of_a_slot_are_apart(sysfs: FakeSysfs) -> None:
    port = sysfs.port_with_slot("02", "01")
    sysfs.function(port, "0000:01:03.1")
    assert str(found(sysfs, "02/03.1").bdf) == "0000:01:03.1"
    assert "has 0000:01:03.1" in missing(sysfs, "02/03").evidence


def test_a_bridge_without_a_bus_is_waited_for_and_counted(sysfs: FakeSysfs) -> None:
    port = sysfs.bridge(sysfs.root_bus(), "0000:00:02.0")
    verdict = missing(sysfs, "02/03")
    assert "the bridge 0000:00:02.0 (path 02) has 0 buses" in verdict.evidence
    assert verdict.near == (sysfs.devpath(port),)


def test_a_bridge_with_two_buses_is_an_error_with_the_count_and_the_path(sysfs: FakeSysfs) -> None:
    sysfs.bridge(sysfs.root_bus(), "0000:00:02.0", "0000:01", "0000:02")
    verdict = locate(sysfs.tree, parse_address("02/03"))
    assert isinstance(verdict, Failed)
    assert "(path 02) has 2 buses: 0000:01, 0000:02" in verdict.why


def test_nothing_can_be_behind_a_function_that_is_no_bridge(sysfs: FakeSysfs) -> None:
    sysfs.function(sysfs.root_bus(), "0000:00:02.0")
    verdict = locate(sysfs.tree, parse_address("02/00"))
    assert isinstance(verdict, Failed)
    assert "not a bridge but of class 0x010000" in verdict.why


def test_the_evidence_says_how_far_sysfs_goes(sysfs: FakeSysfs) -> None:
    port = sysfs.port_with_slot("02", "01")
    assert "sysfs goes not beyond the root bus" in missing(sysfs, "03").evidence
    verdict = missing(sysfs, "02/00")
    assert "sysfs goes up to 02 of the path 02/00: no 0000:01:00.0" in verdict.evidence
    assert verdict.near == (f"{sysfs.devpath(port)}/0000:01:00.0",)


def test_another_root_complex(sysfs: FakeSysfs) -> None:
    sysfs.port_with_slot()
    sysfs.function(sysfs.root_bus("0000:20"), "0000:20:00.0")
    assert found(sysfs, "0000:20/00").path == PciPath.parse("0000:20/00")
    assert "no root bus 0000:21" in missing(sysfs, "0000:21/00").evidence
    assert "0000:20" in missing(sysfs, "0000:21/00").evidence


def test_a_domain_behind_a_controller(sysfs: FakeSysfs) -> None:
    """Intel VMD: its buses lie below its own PCI function, in a domain of five digits."""
    controller = sysfs.function(sysfs.root_bus("0000:80"), "0000:80:05.5", pci_class="0x010400")
    below = sysfs.root_bus("10001:80", below=str(controller.relative_to(sysfs.sys)))
    port = sysfs.bridge(below, "10001:80:01.0", "10001:81")
    sysfs.function(port, "10001:81:00.0")
    by_path = found(sysfs, "10001:80/01/00")
    by_bdf = found(sysfs, "10001:81:00.0")
    assert by_path == by_bdf
    assert str(by_bdf.path) == "10001:80/01/00"


def test_a_bdf_gives_the_path_too(sysfs: FakeSysfs) -> None:
    port = sysfs.port_with_slot("02", "01")
    sysfs.function(port, "0000:01:03.1")
    function = found(sysfs, "0000:01:03.1")
    assert str(function.path) == "02/03.1"
    assert function.directory == port / "0000:01:03.1"


def test_a_bdf_that_is_not_there_says_what_is_on_its_bus(sysfs: FakeSysfs) -> None:
    sysfs.function(sysfs.port_with_slot("02", "01"), "0000:01:03.1")
    assert "on bus 0000:01 is 0000:01:03.1" in missing(sysfs, "0000:01:03.0").evidence
    assert "on bus 0000:09 is nothing" in missing(sysfs, "0000:09:00.0").evidence


def test_what_lies_inside_a_function_has_no_path_of_its_own(sysfs: FakeSysfs) -> None:
    function = sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    assert path_of(sysfs.tree, function / "virtio_vdb") is None
    assert path_of(sysfs.tree, sysfs.sys / "devices/virtual/mem/null") is None
    assert path_of(sysfs.tree, function) == PciPath.parse("02/00")


def test_a_replaced_device_is_another_instance(sysfs: FakeSysfs) -> None:
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0")
    before = sysfs.tree.instance(function)
    assert before == sysfs.tree.instance(function)
    # A file system may give a freed number to the next directory; sysfs does not.
    function.rename(function.with_name("old"))
    sysfs.function(function.parent, "0000:01:00.0")
    assert sysfs.tree.instance(function) not in (None, before)
    assert sysfs.tree.instance(function / "nowhere") is None


def test_bdf_names() -> None:
    assert Bdf.is_name("10000:e1:00.0")
    assert not Bdf.is_name("pci0000:00")
    assert not Bdf.is_name("0000:01")
