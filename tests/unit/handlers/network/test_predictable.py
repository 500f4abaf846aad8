"""Names from PCI paths, as the head of network.proto gives them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.pci import PciBus, PciPath, PciSlot
from agent.handlers.network.names import check_altname, check_name
from agent.handlers.network.predictable import Port, path_altname, predictable_name

pytestmark = [pytest.mark.unit, pytest.mark.network]

slots = st.builds(PciSlot, st.integers(0, 31), st.integers(0, 7))
buses = st.builds(PciBus, st.sampled_from([0, 1, 0xD, 0x10000]), st.integers(0, 255))
paths = st.builds(PciPath, buses, st.lists(slots, min_size=1, max_size=6).map(tuple))
short = st.builds(PciPath, buses, st.lists(slots, min_size=1, max_size=2).map(tuple))
ports = st.builds(
    Port, number=st.integers(0, 300), name=st.sampled_from(["", "p0", "p1", "pf0vf1", "pf1vf1"])
)
odd_ports = st.builds(Port, number=st.integers(0, 9), name=st.text(max_size=20))


@pytest.mark.parametrize(
    ("path", "port", "name"),
    [
        ("02/00", Port(), "n2s0"),
        ("02.3/00", Port(), "n2f3s0"),
        ("02/03.1", Port(), "n2s3f1"),
        ("1f", Port(), "n1f"),
        ("0000:20/00/02", Port(), "np20b0s2"),
        ("0001:00/1f", Port(), "n1p0b1f"),
        ("02/00", Port(number=1), "n2s0d1"),
        ("02/00", Port(name="p1"), "n2s0vp1"),
        ("02/00", Port(number=2, name="pf0vf3"), "n2s0d2vpf0vf3"),
    ],
)
def test_the_examples_of_the_protocol(path: str, port: Port, name: str) -> None:
    assert predictable_name(PciPath.parse(path), port) == name


def test_one_that_is_too_long() -> None:
    """13 digits in base 32, lower case (RFC 4648), of the SHA-256 of the long name."""
    path = PciPath.parse("0001:20/02.1/03.2/1f.7/00")
    number = int.from_bytes(hashlib.sha256(b"n1p20b2f1s3f2s1ff7s0").digest(), "big")
    digits = "abcdefghijklmnopqrstuvwxyz234567"
    top = number >> (256 - 65)
    expected = "".join(digits[top >> (5 * place) & 31] for place in reversed(range(13)))
    assert predictable_name(path, Port()) == f"nx{expected}"


@given(paths, ports, paths, ports)
def test_no_two_have_one_name(one: PciPath, port: Port, other: PciPath, second: Port) -> None:
    same = (one, port) == (other, second)
    assert (predictable_name(one, port) == predictable_name(other, second)) == same


@given(st.lists(st.tuples(short, ports), min_size=2, max_size=200, unique=True))
def test_nor_in_a_crowd_of_short_ones(crowd: list[tuple[PciPath, Port]]) -> None:
    """Short paths have short names, where two could be spelled alike."""
    assert len({predictable_name(path, port) for path, port in crowd}) == len(crowd)


@given(paths, odd_ports)
def test_they_are_names(path: PciPath, port: Port) -> None:
    check_name(predictable_name(path, port), "name")
    check_altname(path_altname(path, port), "alternative_names")


@pytest.mark.parametrize(
    ("path", "port", "name"),
    [
        ("02/03.1", Port(), "pci-02-03.1"),
        ("0000:20/00/02", Port(), "pci-0000-20-00-02"),
        ("02/00", Port(number=1, name="p1"), "pci-02-00-d1-vp1"),
    ],
)
def test_the_path_as_an_alternative_name(path: str, port: Port, name: str) -> None:
    assert path_altname(PciPath.parse(path), port) == name
