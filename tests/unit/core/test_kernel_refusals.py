"""Why a device does not work, from lines of kernels 5.10 to 6.12 as people have reported them."""

from __future__ import annotations

import pytest

from agent.core.errors import Reason
from agent.core.kernel_refusals import Refusal, refusal
from agent.linux.kmsg import KernelRecord

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def said(*texts: str) -> Refusal | None:
    return refusal(
        KernelRecord(sequence=number, micros=0, level=4, text=text)
        for number, text in enumerate(texts)
    )


PROBES = (
    ("virtio_blk: probe of virtio3 failed with error -22", "virtio_blk", "virtio3", "EINVAL"),
    ("e1000e: probe of 0000:01:00.0 failed with error -5", "e1000e", "0000:01:00.0", "EIO"),
    (
        "virtio_blk virtio3: probe with driver virtio_blk failed with error -22",
        "virtio_blk",
        "virtio3",
        "EINVAL",
    ),
    (
        "vfio-pci 0000:01:00.0: probe with driver vfio-pci failed with error -16",
        "vfio-pci",
        "0000:01:00.0",
        "EBUSY",
    ),
    ("sd 0:0:0:1: probe with driver sd failed with error -524", "sd", "0:0:0:1", "error 524"),
)


@pytest.mark.parametrize(("text", "driver", "device", "error"), PROBES)
def test_a_driver_that_gave_up(text: str, driver: str, device: str, error: str) -> None:
    expected = f"the driver {driver} refused {device} [{error}]"
    assert said(text) == Refusal(
        reason=Reason.DRIVER_REFUSED, text=expected, final=True, driver=driver
    )


def test_firmware_that_is_missing() -> None:
    text = (
        "amdgpu 0000:01:00.0: Direct firmware load for amdgpu/navi10_sos.bin failed with error -2"
    )
    found = said(text)
    assert found is not None
    assert (found.reason, found.final, found.driver) == (Reason.FIRMWARE_MISSING, False, "")
    assert "amdgpu/navi10_sos.bin" in found.text


def test_missing_firmware_is_why_the_driver_gave_up() -> None:
    found = said(
        "amdgpu 0000:01:00.0: Direct firmware load for amdgpu/navi10_sos.bin failed with error -2",
        "amdgpu 0000:01:00.0: amdgpu: Fatal error during GPU init",
        "amdgpu 0000:01:00.0: probe with driver amdgpu failed with error -19",
    )
    assert found is not None
    assert (found.reason, found.final) == (Reason.FIRMWARE_MISSING, True)
    assert "amdgpu/navi10_sos.bin" in found.text
    assert "the driver amdgpu refused 0000:01:00.0 [ENODEV]" in found.text


def test_firmware_that_is_there_and_unreadable_is_not_missing() -> None:
    assert said("x 0000:01:00.0: Direct firmware load for a.bin failed with error -22") is None


BARS = (
    (
        "pci 0000:01:00.0: BAR 0: no space for [mem size 0x100000000 64bit pref]",
        "pci 0000:01:00.0: BAR 0: failed to assign [mem size 0x100000000 64bit pref]",
    ),
    (
        "pci 0000:01:00.0: BAR 0 [mem size 0x100000000 64bit pref]: can't assign; no space",
        "pci 0000:01:00.0: BAR 0 [mem size 0x100000000 64bit pref]: failed to assign",
    ),
    ("pci 0000:01:00.0: BAR 0: can't assign [mem size 0x100000000 64bit pref] (bogus alignment)",),
    ("pci 0000:01:00.0: BAR 0 [mem size 0x100000000 64bit pref]: can't assign; bogus alignment",),
)


@pytest.mark.parametrize("lines", BARS)
def test_a_bar_without_an_address(lines: tuple[str, ...]) -> None:
    expected = "BAR 0 [mem size 0x100000000 64bit pref] of 0000:01:00.0 got no address"
    assert said(*lines) == Refusal(reason=Reason.NO_BAR_ADDRESS, text=expected, final=False)


@pytest.mark.parametrize(
    "assigned",
    [
        "pci 0000:01:00.0: BAR 0: assigned [mem 0x380000000000-0x3800ffffffff 64bit pref]",
        "pci 0000:01:00.0: BAR 0 [mem 0x380000000000-0x3800ffffffff 64bit pref]: assigned",
    ],
)
def test_the_last_word_about_a_bar_counts(assigned: str) -> None:
    """A first pass fails, a second one with larger bridge windows succeeds."""
    assert said(*BARS[0], assigned) is None
    other = "pci 0000:01:00.0: BAR 2 [mem size 0x1000]: can't assign; no space"
    found = said(*BARS[1], other, assigned)
    assert found is not None
    assert found.text.startswith("BAR 2 [mem size 0x1000]")


def test_a_driver_that_gave_up_for_want_of_an_address() -> None:
    found = said(*BARS[1], "xe 0000:01:00.0: probe with driver xe failed with error -5")
    assert found is not None
    assert (found.reason, found.final, found.driver) == (Reason.NO_BAR_ADDRESS, True, "xe")


@pytest.mark.parametrize(
    "text",
    [
        # I/O ports and windows of bridges, which devices of today do without.
        "pci 0002:01:00.0: BAR 4 [io  size 0x0020]: can't assign; no space",
        "pci 0000:00:00.0: bridge window [mem size 0x00b00000]: can't assign; no space",
        "pcieport 0000:02:02.0: BAR 15: failed to assign [mem size 0x00200000 64bit pref]",
        "pci 0006:03:00.0: VF BAR 0 [mem size 0x02000000 64bit pref]: can't assign; no space",
        "pci 0000:01:00.0: [1af4:1042] type 00 class 0x010000 PCIe Endpoint",
        "virtio_blk virtio3: [vdb] 131072 512-byte logical blocks (67.1 MB/64.0 MiB)",
        # Not the kernel's own form: some program's name in front.
        "evil[12]: virtio_blk: probe of virtio3 failed with error -22",
    ],
)
def test_lines_that_are_no_refusal(text: str) -> None:
    assert said(text) is None


def test_no_lines() -> None:
    assert said() is None
