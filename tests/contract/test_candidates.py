"""The host's functions by the real udev library, against sysfs and proc as they are here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from innkeeper.shim.candidates import BDF, Candidate, CandidatesError, Obstacle, survey

pytestmark = [pytest.mark.contract, pytest.mark.devices]

PCI = Path("/sys/bus/pci/devices")


@pytest.fixture(scope="module")
def found() -> dict[str, Candidate]:
    try:
        return {candidate.address: candidate for candidate in survey()}
    except CandidatesError as error:
        pytest.skip(f"nothing to look at on this machine: {error}")


def test_every_function_of_this_machine_as_sysfs_has_it(found: dict[str, Candidate]) -> None:
    links = {path.name: path for path in PCI.iterdir()}
    assert found.keys() == links.keys()
    for address, path in links.items():
        ids = [(path / name).read_text().strip()[2:] for name in ("vendor", "device")]
        driver = path / "driver"
        group = path / "iommu_group"
        candidate = found[address]
        assert candidate.pci_id == ":".join(ids)
        assert candidate.pci_class == (path / "class").read_text().strip()
        assert candidate.driver == (os.readlink(driver).split("/")[-1] if driver.exists() else "")
        assert str(candidate.group) == (group.resolve().name if group.exists() else "None")


def test_the_disk_under_the_root_is_kept(found: dict[str, Candidate]) -> None:
    device = os.stat("/").st_dev
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    owners = [part for part in disk.resolve().parts if BDF.fullmatch(part)]
    if not owners:
        pytest.skip("the root file system of this machine lies on no PCI function")
    candidate = found[owners[-1]]
    assert Obstacle.DISK_IN_USE in [objection.obstacle for objection in candidate.objections]
    assert candidate.bind == ()


def test_bridges_are_never_given(found: dict[str, Candidate]) -> None:
    """Every PCI machine has one on its root bus."""
    bridges = [candidate for candidate in found.values() if candidate.is_bridge]
    assert bridges
    assert not any(candidate.can_be_given for candidate in bridges)
