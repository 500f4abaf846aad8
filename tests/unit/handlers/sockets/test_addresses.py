"""Addresses as text, both ways."""

from __future__ import annotations

import pytest

from agent.core.errors import AgentError, Reason
from agent.handlers.sockets.addresses import TcpAddress

pytestmark = [pytest.mark.unit, pytest.mark.network]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ("localhost:0", "localhost", 0),
        (":80", "", 80),
        ("db_1.example.org.:5432", "db_1.example.org.", 5432),
    ],
)
def test_an_address_reads_as_it_is_written(text: str, host: str, port: int) -> None:
    address = TcpAddress.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", ":", "80", "a:", "::1:80", "[::1]", "[x]:80", "[1.2.3.4]:80", "-a:80", "a\n:80"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AgentError) as caught:
        TcpAddress.parse(text)
    assert caught.value.reason is Reason.BAD_ADDRESS
