"""Class codes in words, by the PCI Code and ID Assignment Specification."""

from __future__ import annotations

import pytest

from innkeeper.shim.pci_classes import in_words, is_bridge

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0x010802, "NVMe controller"),
        (0x010000, "SCSI controller"),
        (0x018000, "storage controller"),
        (0x020000, "Ethernet controller"),
        (0x030000, "VGA controller"),
        (0x030200, "3D controller"),
        (0x060400, "PCI bridge"),
        (0x068000, "bridge"),
        (0x0B4000, "co-processor"),
        (0x120000, "processing accelerator"),
        (0xFFFF00, "unclassified device"),
        (0x550000, "device of class 0x55"),
    ],
)
def test_in_words(code: int, words: str) -> None:
    assert in_words(code) == words


@pytest.mark.parametrize(
    ("code", "bridge"),
    [(0x060000, True), (0x060401, True), (0x060700, True), (0x068000, False), (0x020000, False)],
)
def test_bridges(code: int, *, bridge: bool) -> None:
    assert is_bridge(code) is bridge
