"""What a failed vsock connect says."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from innkeeper.shim.transport.address import VsockAddress
from innkeeper.shim.transport.kernel_vsock import KernelVsock, qemu_arguments
from innkeeper.shim.transport.stream import TransportError

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.mark.parametrize(
    ("number", "complaint"),
    [
        (errno.ECONNRESET, "nobody listens there"),
        (errno.ENODEV, "no running guest has this CID"),
        (errno.ETIMEDOUT, "no answer within 5 s"),
        (errno.EAFNOSUPPORT, "this kernel has no vsock"),
        (errno.EPERM, "Operation not permitted"),
    ],
)
async def test_errors_say_why(monkeypatch: pytest.MonkeyPatch, number: int, complaint: str) -> None:
    async def refuse(_sock: object, _address: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "AF_VSOCK", socket.AF_UNIX)  # a machine without vsock runs this too
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", refuse)
    with pytest.raises(TransportError, match="vsock://3:1024") as failure:
        await KernelVsock(VsockAddress(cid=3, port=1024)).open(timeout=5)
    assert complaint in str(failure.value)


def test_qemu_gets_the_cid() -> None:
    assert qemu_arguments(42) == ("-device", "vhost-vsock-pci,id=vsock0,guest-cid=42")
