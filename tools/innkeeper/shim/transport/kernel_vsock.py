"""AF_VSOCK through the host's kernel (vhost-vsock)."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from innkeeper.shim.transport.stream import SocketStream, TransportError

if TYPE_CHECKING:
    from innkeeper.shim.transport.address import VsockAddress

_WHY = {
    errno.ECONNRESET: "nobody listens there (is the guest up, and its relay?)",
    errno.ENODEV: "no running guest has this CID",
    errno.ETIMEDOUT: "the guest does not answer",
    errno.EAFNOSUPPORT: "this kernel has no vsock: load vhost_vsock, or use another transport",
}


class KernelVsock:
    """Each stream is a vsock connection to the guest."""

    def __init__(self, address: VsockAddress) -> None:
        self._address = address

    async def open(self, *, timeout: float) -> SocketStream:
        try:
            async with asyncio.timeout(timeout):
                return await self._connect()
        except TimeoutError:
            raise TransportError(f"{self._address}: no answer within {timeout:g} s") from None
        except OSError as error:
            why = _WHY.get(error.errno or 0, str(error))
            raise TransportError(f"{self._address}: cannot connect: {why}") from error

    def close(self) -> None:
        """Nothing is kept between streams."""

    async def _connect(self) -> SocketStream:
        sock = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        target = (self._address.cid, self._address.port)
        try:
            await asyncio.get_running_loop().sock_connect(sock, target)
        except BaseException:
            sock.close()
            raise
        return SocketStream(sock)


def qemu_arguments(cid: int) -> tuple[str, ...]:
    """QEMU's arguments for a guest with this CID; QEMU opens /dev/vhost-vsock itself."""
    return ("-device", f"vhost-vsock-pci,id=vsock0,guest-cid={cid}")
