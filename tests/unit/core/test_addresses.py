"""Addresses: strict to read, one text each, every malformed form refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core import addresses
from agent.core.addresses import (
    Address,
    CcwAddress,
    MacAddress,
    MmioAddress,
    NodePath,
    ScsiAddress,
    ScsiName,
    kind_of,
)
from agent.core.errors import AgentError, Reason
from agent.core.pci import Bdf, PciBus, PciPath, PciSlot

pytestmark = [pytest.mark.unit, pytest.mark.devices]

U32 = st.integers(0, (1 << 32) - 1)
SLOTS = st.builds(PciSlot, st.integers(0, 31), st.integers(0, 7))
BUSES = st.builds(PciBus, U32, st.integers(0, 255))
PATHS = st.builds(PciPath, BUSES, st.lists(SLOTS, min_size=1, max_size=4).map(tuple))
NAMES = st.from_regex(r"\A[a-z][a-z0-9_.-]{0,20}\Z")
OCTETS = st.lists(st.integers(0, 255), min_size=6, max_size=6).filter(
    lambda octets: not octets[0] & 1 and any(octets)
)

ADDRESSES = st.one_of(
    PATHS,
    st.builds(Bdf, BUSES, SLOTS),
    st.builds(
        ScsiAddress,
        channel=st.integers(0, 10**9),
        target=st.integers(0, 10**9),
        lun=st.integers(0, (1 << 64) - 1),
        host=st.none() | st.integers(0, 10**9),
        adapter=st.none() | PATHS,
    ),
    st.builds(CcwAddress, st.integers(0, 255), st.integers(0, 3), st.integers(0, 0xFFFF)),
    st.builds(MmioAddress, st.integers(0, (1 << 64) - 1)),
    st.lists(NAMES, min_size=1, max_size=4).map(lambda parts: NodePath(f"/dev/{'/'.join(parts)}")),
    OCTETS.map(lambda octets: MacAddress(":".join(f"{octet:02x}" for octet in octets))),
)


@given(address=ADDRESSES)
def test_what_is_written_reads_back_the_same(address: Address) -> None:
    assert addresses.parse(kind_of(address), str(address)) == address


@pytest.mark.parametrize(
    ("kind", "text", "canonical"),
    [
        ("pci_path", "02/03.0", "02/03"),
        ("pci_path", "0000:00/1F", "1f"),
        ("pci_path", "10000:e1/00/02.1", "10000:e1/00/02.1"),
        ("pci_bdf", "10001:80:05.0", "10001:80:05.0"),
        ("pci_bdf", "10000:E1:00.0", "10000:e1:00.0"),
        ("scsi", "2:0:0:1", "2:0:0:1"),
        ("scsi", "*:0:255:16383", "*:0:255:16383"),
        ("scsi", "[10/00]*:0:1:10", "[10/00]*:0:1:10"),
        # A LUN of 64 bits, as Linux prints the flat addressing of SAM-4.
        ("scsi", "0:0:0:4611686018427387904", "0:0:0:4611686018427387904"),
        ("ccw", "0.0.0001", "0.0.0001"),
        ("ccw", "FE.3.ABCD", "fe.3.abcd"),
        ("mmio", "0xD0000000", "0xd0000000"),
        ("path", "/dev/mapper/vg-lv", "/dev/mapper/vg-lv"),
        ("mac", "52:54:00:AB:CD:EF", "52:54:00:ab:cd:ef"),
    ],
)
def test_other_spellings_become_the_one_text(kind: str, text: str, canonical: str) -> None:
    assert str(addresses.parse(kind, text)) == canonical


MALFORMED = {
    "pci_path": ["", "/", "02/", "/02", "2", "20", "02.8", "02//03", "02/03/", "0000:00", "02\n"],
    "pci_bdf": ["", "01:00.0", "0000:01:00", "0000:01:20.0", "0000:01:00.8", "00000:01:00.0"],
    "scsi": [
        *("", "0:0:0", "0:0:0:0:0", "0:0:0:-1", "0:0:0:01", "a:0:0:0", "0:0:0:0x1", "0:0:*:0"),
        *("0:0:0:18446744073709551616", "0:4294967296:0:0", "[]0:0:0:0", "[zz]*:0:0:0"),
        *("0:0:0:1\n", "[10/00*:0:0:1", "*0:0:0:1", "0:0:0:١"),
    ],
    "ccw": [
        "",
        "0.0.1",
        "0.4.0001",
        "0.0.00001",
        "0.0.000g",
        "100.0.0001",
        "0-0-0001",
        "0.0.0001 ",
    ],
    "mmio": ["", "d0000000", "0x", "0x00", "0x10000000000000000", "0xd000_0000", "-0x1", "0xg"],
    "path": [
        *("", "/dev", "/dev/", "dev/vda", "/dev/../etc/passwd", "/dev/./vda", "/dev//vda"),
        *("/dev/vda/", "/dev/.hidden", "/sys/block/vda", "/dev/v da", "/dev/vda\n", "/dev/a\0b"),
        "/dev/" + "x" * 65,
    ],
    "mac": [
        *("", "52:54:00:ab:cd", "52-54-00-ab-cd-ef", "52:54:00:ab:cd:eg", "525400abcdef"),
        *("52:54:00:ab:cd:ef:00", "5:54:00:ab:cd:ef", "00:00:00:00:00:00"),
        *("01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "52:54:00:ab:cd:ef\n"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in MALFORMED.items() for text in texts]
)
def test_every_malformed_form_is_refused(kind: str, text: str) -> None:
    with pytest.raises(AgentError) as caught:
        addresses.parse(kind, text)
    assert caught.value.reason is Reason.BAD_ADDRESS


@given(text=st.text(max_size=40), kind=st.sampled_from(sorted(MALFORMED)))
def test_any_text_is_read_or_refused_and_never_a_bug(text: str, kind: str) -> None:
    address: Address | None = None
    reason: Reason | None = None
    try:
        address = addresses.parse(kind, text)
    except AgentError as error:
        reason = error.reason
    if address is None:
        assert reason is Reason.BAD_ADDRESS
    else:
        assert addresses.parse(kind, str(address)) == address


def test_a_lun_is_compared_as_a_number_of_its_own() -> None:
    """LUN 1 was once found for LUN 10 and 11, by text that one begins with."""
    wanted = ScsiAddress.parse("*:0:0:1")
    names = [ScsiName.of(text) for text in ("0:0:0:10", "0:0:0:11", "0:0:0:1", "10:0:0:1")]
    assert [name and wanted.matches(name) for name in names] == [False, False, True, True]
    assert not ScsiAddress.parse("1:0:0:1").matches(ScsiName(10, 0, 0, 1))


@pytest.mark.parametrize("text", ["host0", "target0:0:0", "0:0:0", "", "0:0:0:00"])
def test_hosts_and_targets_are_no_devices(text: str) -> None:
    """/sys/bus/scsi/devices lists them too (Documentation/scsi/scsi_mid_low_api.rst)."""
    assert ScsiName.of(text) is None
