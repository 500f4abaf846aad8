"""FPGA cards by their drivers' trees in sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.errors import Reason
from agent.core.kinds import FpgaExpectation, FpgaInfo
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.fpga import FpgaDevices
from tests.fakes import fpga_trees as trees
from tests.fakes.device_jobs import failed, look, ready, waiting
from tests.fakes.gpu_trees import put
from tests.fakes.sysfs import FakeSysfs
from tests.unit.handlers.devices.test_gpu import Log

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = FpgaExpectation()
BDF = "0000:01:00.0"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def probe(sysfs: FakeSysfs, expected: FpgaExpectation = ANY) -> Verdict[Found]:
    return look(FpgaDevices().probe, sysfs.tree, "02/00", expected)


def info(found: Found) -> FpgaInfo:
    assert isinstance(found.info, FpgaInfo)
    return found.info


def names(paths: object) -> list[str]:
    assert isinstance(paths, tuple)
    return [Path(path).name for path in paths]


def test_a_physical_function_has_an_engine_and_ports(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    region = trees.region(sysfs, card)
    trees.dfl_engine(sysfs, region)
    for number in (10, 2):
        trees.dfl_port(sysfs, region, number)
    found = ready(probe(sysfs))
    told = info(found)
    assert Path(told.fme).name == "dfl-fme.0"
    assert names(told.ports) == ["dfl-port.2", "dfl-port.10"]
    assert told.afu_ids == (trees.AFU, trees.AFU)
    assert told.regions == ("region0", "region5")
    assert (told.manager_name, told.manager_state) == ("DFL FME FPGA Manager", "operating")
    assert {(node.major, node.minor) for node in found.nodes} == {(240, 0), (241, 2), (241, 10)}


def test_a_virtual_function_has_a_port_alone(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF, ids=("8086", "09c5"))
    trees.dfl_port(sysfs, trees.region(sysfs, card), 3)
    told = info(ready(probe(sysfs, FpgaExpectation(pci_id="8086:09c5", afu_ids=(trees.AFU,)))))
    assert told.fme == ""
    assert names(told.ports) == ["dfl-port.3"]
    assert (told.manager_name, told.manager_state) == ("", "")


def test_regions_and_managers_of_other_cards_are_not_its_own(sysfs: FakeSysfs) -> None:
    port = sysfs.port_with_slot("03", "02")
    trees.dfl_engine(sysfs, trees.region(sysfs, trees.card(sysfs, port, "0000:02:00.0"), 7), 7)
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    trees.dfl_port(sysfs, trees.region(sysfs, card, 1))
    told = info(ready(probe(sysfs)))
    assert told.regions == ("region1",)
    assert told.manager_name == ""


def test_a_port_without_its_driver_can_not_be_opened(sysfs: FakeSysfs) -> None:
    """Its node is there all the same: the platform device has its number from the start."""
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    region = trees.region(sysfs, card)
    trees.dfl_engine(sysfs, region)
    port = trees.dfl_port(sysfs, region, driver=None, afu=None)
    lacking = waiting(probe(sysfs))
    assert "no driver for dfl-port.0" in lacking.evidence
    assert lacking.driverless == (port,)
    trees.dfl_port(sysfs, region, afu=None)
    assert "no AFU id of dfl-port.0" in waiting(probe(sysfs)).evidence
    trees.dfl_port(sysfs, region)
    ready(probe(sysfs))


def test_a_missing_afu_is_told_with_those_present(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    port = trees.dfl_port(sysfs, trees.region(sysfs, card), afu=trees.OTHER_AFU)
    lacking = waiting(probe(sysfs, FpgaExpectation(afu_ids=(trees.AFU,))))
    assert lacking.reason is Reason.UNEXPECTED_DEVICE
    assert f"no AFU {trees.AFU}: there are {trees.OTHER_AFU}" in lacking.evidence
    sysfs.write(port / "afu_id", trees.AFU.upper())
    ready(probe(sysfs, FpgaExpectation(afu_ids=(trees.AFU,))))


def test_a_disabled_port_tells_no_afu(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    port = trees.dfl_port(sysfs, trees.region(sysfs, card), afu=None)
    (port / "afu_id").mkdir()  # stands for a file that can't be read: EBUSY
    assert info(ready(probe(sysfs))).afu_ids == ()
    assert "there are none" in waiting(probe(sysfs, FpgaExpectation(afu_ids=(trees.AFU,)))).evidence


def test_the_state_of_a_manager_that_failed(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    trees.dfl_engine(sysfs, trees.region(sysfs, card), state="write error")
    assert info(ready(probe(sysfs))).manager_state == "write error"


def test_the_driver_before_dfl(sysfs: FakeSysfs) -> None:
    trees.opae(sysfs, sysfs.port_with_slot(), BDF)
    told = info(ready(probe(sysfs, FpgaExpectation(afu_ids=(trees.AFU,)))))
    assert Path(told.fme).name == "intel-fpga-fme.0"
    assert names(told.ports) == ["intel-fpga-port.0"]


def test_xilinx_management_is_named_by_its_instance(sysfs: FakeSysfs) -> None:
    trees.xilinx_management(sysfs, sysfs.port_with_slot(), BDF, instance=259, node=False)
    assert "xclmgmt259" in waiting(probe(sysfs)).evidence
    put(sysfs, "xclmgmt259", "244:258")
    waiting(probe(sysfs))
    put(sysfs, "xclmgmt259", "244:259")
    found = ready(probe(sysfs))
    assert [(node.major, node.minor) for node in found.nodes] == [(244, 259)]
    assert Path(info(found).fme).name == "xclmgmt259"


def test_xilinx_management_before_its_device(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF, ids=("10ee", "5000"), driver="xclmgmt")
    sysfs.write(card / "instance", "256")
    assert "no device xclmgmt256" in waiting(probe(sysfs)).evidence


def test_xilinx_users_get_a_render_node_and_subdevices(sysfs: FakeSysfs) -> None:
    """The render node comes after the probe; names of subdevices have a folder."""
    port = sysfs.port_with_slot()
    trees.xilinx_user(sysfs, port, BDF, render=None)
    assert "no render node" in waiting(probe(sysfs)).evidence
    trees.xilinx_user(sysfs, port, BDF, render=129)
    found = ready(probe(sysfs))
    dev = sysfs.roots.dev
    assert {str(Path(node.path).relative_to(dev)) for node in found.nodes} == {
        "dri/renderD129",
        "xfpga/dma.qdma.u256.0",
    }
    assert names(info(found).ports) == ["renderD129"]


def test_any_other_driver_by_whatever_nodes_it_has(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF, driver="vendor_fpga")
    assert "no node, FPGA region or FPGA manager" in waiting(probe(sysfs)).evidence
    trees.device(sysfs, card / "vendor_class/fpga0", "246:300", subsystem="vendor_class")
    (node,) = ready(probe(sysfs)).nodes
    assert (Path(node.path).name, node.minor) == ("fpga0", 300)


def test_a_manager_without_any_node(sysfs: FakeSysfs) -> None:
    """Upstream managers have none: the card is programmed by the kernel alone."""
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF, driver="altera-cvp")
    manager = card / "fpga_manager/fpga0"
    sysfs.write(manager / "name", "Altera CvP FPGA Manager @0000:01:00.0")
    sysfs.write(manager / "state", "unknown")
    sysfs.link(sysfs.sys / "class/fpga_manager/fpga0", str(manager))
    found = ready(probe(sysfs))
    assert found.nodes == ()
    assert info(found).manager_state == "unknown"


def test_another_card_than_expected_is_waited_out(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF)
    trees.dfl_port(sysfs, trees.region(sysfs, card))
    lacking = waiting(probe(sysfs, FpgaExpectation(pci_id="8086:0b30")))
    assert lacking.reason is Reason.UNEXPECTED_DEVICE


def test_a_card_without_a_driver(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF, driver=None)
    sysfs.write(card / "modalias", "pci:v00008086d000009C4")
    assert waiting(probe(sysfs)).driverless == (card,)
    why = Failed("probe of 0000:01:00.0 failed with error -22", Reason.DRIVER_REFUSED)
    tree = SysfsTree(roots=sysfs.roots, node_numbers=sysfs.nodes.get, log=Log(why=why))
    assert failed(look(FpgaDevices().probe, tree, "02/00", ANY)) == why


def test_a_bar_without_an_address_is_told_at_once(sysfs: FakeSysfs) -> None:
    card = trees.card(sysfs, sysfs.port_with_slot(), BDF, driver=None)
    sysfs.write(card / "resource", "0x0 0x00000000000fffff 0x0000000020140204")
    sysfs.added("01", "00.0")
    assert failed(probe(sysfs)).reason is Reason.NO_BAR_ADDRESS
