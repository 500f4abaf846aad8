"""PCI addresses in both forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Code, Reason
from agent.core.pci import Bdf, PciBus, PciPath, PciSlot, parse_address

pytestmark = [pytest.mark.unit, pytest.mark.devices]

slots = st.builds(PciSlot, st.integers(0, 31), st.integers(0, 7))
buses = st.builds(PciBus, st.integers(0, 0xFFFF_FFFF), st.integers(0, 255))
paths = st.builds(PciPath, buses, st.lists(slots, min_size=1, max_size=32).map(tuple))
bdfs = st.builds(Bdf, buses, slots)


@given(st.one_of(paths, bdfs))
def test_the_text_of_an_address_means_the_same_address(address: PciPath | Bdf) -> None:
    assert parse_address(str(address)) == address


@given(st.text(alphabet="0123456789abcdefABCDEF:/.g \n", max_size=24))
def test_any_text_is_an_address_or_a_typed_refusal(text: str) -> None:
    address = refusal = None
    try:
        address = parse_address(text)
    except AgentError as error:
        refusal = error.reason
    assert refusal in (None, Reason.BAD_ADDRESS)
    assert address is None or parse_address(str(address)) == address


def test_a_path_of_slots_starts_at_the_root_bus() -> None:
    assert PciPath.parse("02/03.1") == PciPath(PciBus(0, 0), (PciSlot(2), PciSlot(3, 1)))


def test_a_path_may_start_at_another_root_complex() -> None:
    path = parse_address("0000:20/00/02")
    assert path == PciPath(PciBus(0, 0x20), (PciSlot(0), PciSlot(2)))
    assert str(path) == "0000:20/00/02"


def test_domains_of_more_than_four_digits() -> None:
    """Functions behind Intel VMD are in domains from 10000 on."""
    assert Bdf.parse("10001:80:05.5") == Bdf(PciBus(0x10001, 0x80), PciSlot(5, 5))
    assert str(Bdf.parse("10000:e1:00.0")) == "10000:e1:00.0"
    assert PciPath.parse("10000:e1/00").root == PciBus(0x10000, 0xE1)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1F", "1f"),
        ("02.0/03.0", "02/03"),
        ("0000:00/02", "02"),
        ("0000:0A:1F.7", "0000:0a:1f.7"),
    ],
)
def test_one_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_address(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "2",
        "20",
        "02/",
        "/02",
        "02//03",
        "02.8",
        "02.",
        "02.10",
        "02/3",
        "0000:00",
        "0000:00/",
        "000:00/02",
        "00000:00/02",
        "0x02",
        " 02",
        "02\n",
        "02/../03",
        "٠٢",
        "0000:00:02",
        "0000:00:02.8",
        "0000:00:20.0",
        "0000:100:02.0",
        "00:02.0",
        "012345678:00:00.0",
        "0000:00:02.0\n",
        "0000:00:02.0/01",
        "/".join(["00"] * 33),
    ],
)
def test_malformed_addresses_are_refused_with_the_form_expected(text: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_address(text)
    assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, Reason.BAD_ADDRESS)
    assert "in hex" in caught.value.message
    assert "expected" in caught.value.message


def test_the_parent_of_a_path_is_its_bridge() -> None:
    path = PciPath.parse("02/03/01")
    assert path.parent == PciPath.parse("02/03")
    assert PciPath.parse("02").parent is None
