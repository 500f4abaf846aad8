"""Loading modules at boot: names, aliases of cold devices, and a modprobe that misbehaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.pid1 import modules
from tests.fakes.modprobe import unknown
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.boot]

# Devices 4 and 19 of virtio 1.2, 5: an entropy source and a socket device.
RNG = "virtio:d00000004v00001AF4"
VSOCK = "virtio:d00000013v00001AF4"


def test_modules_of_the_image_and_of_the_command_line() -> None:
    listed = "virtio_net\n# a comment\n\n  overlay  # why\nvirtio_net\n"
    names, strange = modules.wanted(listed, "fuse,overlay,,../x,-r,vfio-pci")
    assert names == ["virtio_net", "overlay", "fuse", "vfio-pci"]
    assert strange == ["../x", "-r"]


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_what_modprobe_complains_about_is_a_warning_each(tmp_path: Path) -> None:
    modprobe = program(
        tmp_path / "modprobe",
        'for name in "$@"; do echo "modprobe: FATAL: $name" >&2; done; exit 1',
    )
    loading = modules.start(modprobe, ["one", "two"])
    warnings = modules.finish(loading, 10.0)
    assert warnings[-2:] == ["modprobe: FATAL: one", "modprobe: FATAL: two"]


def test_a_modprobe_that_hangs_is_given_up(tmp_path: Path) -> None:
    modprobe = program(tmp_path / "modprobe", "exec sleep infinity")
    loading = modules.start(modprobe, ["one"])
    (warning,) = modules.finish(loading, 0.05)
    assert "had not ended after 0.05 s" in warning
    # Only in a test: in PID 1 the reaper takes it.
    os.waitpid(loading.pid, 0) if os.path.exists(f"/proc/{loading.pid}") else None


def test_a_missing_modprobe_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        modules.start(str(tmp_path / "missing"), ["one"])


def virtio(sysfs: FakeSysfs, name: str, alias: str) -> Path:
    """A virtio device that no driver serves, on its bus."""
    path = sysfs.virtio(sysfs.sys / "devices/pci0000:00/0000:00:03.0", name, driver=None)
    sysfs.write(path / "modalias", alias)
    sysfs.link(sysfs.sys / f"bus/virtio/devices/{name}", str(path))
    return path


def test_cold_devices_without_a_driver_ask_for_modules_once(tmp_path: Path) -> None:
    """What a first pass brought is what the second is for."""
    sysfs = FakeSysfs(tmp_path)
    virtio(sysfs, "virtio0", RNG)
    virtio(sysfs, "virtio1", RNG)
    bound = virtio(sysfs, "virtio2", "virtio:d00000002v00001AF4")
    sysfs.link(bound / "driver", "../../../../bus/virtio/drivers/virtio_blk")
    cold = modules.ColdDevices(str(sysfs.sys))
    assert cold.new_aliases() == [RNG]
    virtio(sysfs, "virtio3", VSOCK)
    assert cold.new_aliases() == [VSOCK]
    assert cold.new_aliases() == []


def test_an_alias_without_a_module_is_no_warning_but_a_name_is(tmp_path: Path) -> None:
    aliases = [RNG, "acpi:PNP0A08:PNP0A03:", "pci:v00008086d000029C0sv00001AF4"]
    lines = "\n".join(unknown(name, "WARNING") for name in [*aliases, "virtio_gpu"])
    modprobe = program(tmp_path / "modprobe", f"cat >&2 <<'END'\n{lines}\nEND\nexit 1")
    loading = modules.start(modprobe, [*aliases, "virtio_gpu"])
    assert modules.finish(loading, 10.0) == [unknown("virtio_gpu", "WARNING")]
