"""Which devices wait for a driver, from sysfs's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.linux import modalias
from tests.fakes.modprobe import unknown
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

# Device 4 of virtio 1.2, 5: an entropy source; 0x1af4 is its PCI vendor.
RNG = "virtio:d00000004v00001AF4"


@pytest.fixture
def device(tmp_path: Path) -> Path:
    sysfs = FakeSysfs(tmp_path)
    function = sysfs.function(sysfs.root_bus(), "0000:00:02.0", driver="virtio-pci")
    rng = sysfs.virtio(function, "virtio2", driver=None)
    sysfs.write(rng / "modalias", RNG)
    sysfs.link(sysfs.sys / "bus/virtio/devices/virtio2", str(rng))
    return rng


def test_a_device_without_a_driver_wants_its_alias(device: Path) -> None:
    assert modalias.wanted(device) == RNG


def test_a_bound_device_wants_nothing(device: Path) -> None:
    # Dangling here: only that there is a link counts.
    (device / "driver").symlink_to("../../../../bus/virtio/drivers/virtio_rng")
    assert modalias.wanted(device) is None


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_device_without_an_alias_wants_nothing(device: Path, text: str | None) -> None:
    """ACPI gives devices without a hardware id an empty file."""
    (device / "modalias").unlink()
    if text is not None:
        (device / "modalias").write_text(text)
    assert modalias.wanted(device) is None


def test_a_device_that_is_gone_wants_nothing(tmp_path: Path) -> None:
    assert modalias.wanted(tmp_path / "gone") is None


def test_devices_of_all_buses(device: Path, tmp_path: Path) -> None:
    found = sorted(modalias.on_buses(tmp_path / "sys"))
    below = f"{tmp_path}/sys/bus"
    assert found == [f"{below}/pci/devices/0000:00:02.0", f"{below}/virtio/devices/virtio2"]


def test_a_kernel_without_buses_has_no_devices(tmp_path: Path) -> None:
    assert list(modalias.on_buses(tmp_path)) == []


@pytest.mark.parametrize("kind", ["FATAL", "WARNING"])
@pytest.mark.parametrize("alias", [RNG, "acpi:PNP0A08:PNP0A03:", "scsi:t-0x00"])
def test_an_unknown_alias_is_no_failure(alias: str, kind: str) -> None:
    """modprobe has one text with -a and one without."""
    assert modalias.is_unknown(unknown(alias, kind))


@pytest.mark.parametrize(
    "complaint",
    [
        unknown("virtio_gpu"),
        "modprobe: ERROR: could not insert 'nvme': Cannot allocate memory",
        f"modprobe: ERROR: could not insert {RNG!r}: Exec format error",
    ],
)
def test_a_missing_name_and_a_refused_module_are_failures(complaint: str) -> None:
    assert not modalias.is_unknown(complaint)
