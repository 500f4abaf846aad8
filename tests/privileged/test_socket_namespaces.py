"""Sockets of another network namespace: a port there is no port here."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from agent.linux import tcpsockets
from tests.privileged import netlab

pytestmark = [pytest.mark.privileged, pytest.mark.network]


@pytest.fixture
def namespace() -> Iterator[int]:
    """A descriptor of a fresh network namespace, whose loopback is down."""
    with netlab.namespace() as descriptor:
        yield descriptor


async def test_the_same_port_of_two_namespaces(namespace: int) -> None:
    own = os.stat("/proc/thread-self/ns/net").st_ino
    with tcpsockets.make(socket.AF_INET, namespace) as there:
        port = tcpsockets.listen(there, ("127.0.0.1", 0), both_families=False)
        with tcpsockets.make(socket.AF_INET, None) as here:
            assert tcpsockets.listen(here, ("127.0.0.1", port), both_families=False) == port
        # With nobody listening here, who connects here is refused; there the loopback is down.
        with tcpsockets.make(socket.AF_INET, None) as client:
            client.setblocking(True)
            assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
        with tcpsockets.make(socket.AF_INET, namespace) as client:
            assert client.connect_ex(("127.0.0.1", port)) == errno.ENETUNREACH
    assert os.stat("/proc/thread-self/ns/net").st_ino == own


async def test_what_is_no_namespace_is_an_error() -> None:
    with socket.socket() as nothing, pytest.raises(OSError, match="setns"):
        tcpsockets.make(socket.AF_INET, nothing.fileno())
