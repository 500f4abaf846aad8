"""The address syntax of the three transports."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from innkeeper.shim.transport.address import (
    AddressError,
    HybridAddress,
    SerialAddress,
    VsockAddress,
    parse,
)

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("vsock://3:1024", VsockAddress(cid=3, port=1024)),
        ("vsock://4294967294:1", VsockAddress(cid=4294967294, port=1)),
        ("hvsock:///run/vm.sock:1024", HybridAddress(path=Path("/run/vm.sock"), port=1024)),
        ("hvsock:///run/a:b.sock:7", HybridAddress(path=Path("/run/a:b.sock"), port=7)),
        ("unix:///run/port.sock", SerialAddress(path=Path("/run/port.sock"))),
        ("unix:///run/with space:1", SerialAddress(path=Path("/run/with space:1"))),
    ],
)
def test_addresses_are_read_and_print_as_they_were(text: str, address: object) -> None:
    assert parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must start with"),
        ("3:1024", "must start with"),
        ("tcp://1.2.3.4:5", "must start with"),
        ("VSOCK://3:1024", "must start with"),
        ("vsock://3", "no :PORT"),
        ("vsock://:1024", "CID '' is not a plain decimal"),
        ("vsock://-1:1024", "CID '-1' is not a plain decimal"),
        ("vsock://0x3:1024", "not a plain decimal"),
        ("vsock://03:1024", "not a plain decimal"),
        ("vsock://٣:1024", "not a plain decimal"),
        ("vsock://2:1024", "CID 2 is not between 3 and 4294967294"),
        ("vsock://4294967295:1024", "not between"),
        ("vsock://3:0", "port 0 is not between 1"),
        ("vsock://3: 1024", "not a plain decimal"),
        ("hvsock:///run/vm.sock", "no :PORT"),
        ("hvsock://run/vm.sock:1024", "'run/vm.sock' is not absolute"),
        ("unix://", "not absolute"),
        ("unix:/run/port.sock", "must start with"),
        ("unix:///run//port.sock", "not in its plain form"),
        ("unix:///run/", "not in its plain form"),
        ("unix:///run/a\0b", "not in its plain form"),
        (f"unix:///{'x' * 107}", "longer than the 107 bytes"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(AddressError) as failure:
        parse(text)
    assert complaint in str(failure.value)
    assert repr(text) in str(failure.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    for candidate in (text, f"vsock://{text}", f"hvsock://{text}", f"unix:///{text}"):
        try:
            assert str(parse(candidate)) == candidate
        except AddressError:
            continue
