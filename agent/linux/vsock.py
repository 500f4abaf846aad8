"""AF_VSOCK: listening in the guest (vsock(7), linux/vm_sockets.h).

The family has no namespaces: every process of the guest, and through the
loopback transport the guest itself, can connect to a listener. So whoever
accepts must look at the peer's CID.
"""

from __future__ import annotations

import socket

ANY_CID = 0xFFFFFFFF
"""VMADDR_CID_ANY: bind on whatever CID this guest has, now or later."""
LOOPBACK_CID = 1
"""VMADDR_CID_LOCAL: what the acceptor sees of a peer in the same guest."""
HOST_CID = 2
"""VMADDR_CID_HOST: the well-known CID of the host."""
SEND_LIMIT = 32 * 1024
"""The most to hand to one send or splice.

Since Linux 6.17 (and 6.12's later updates) the driver puts a packet over
PAGE_SIZE << PAGE_ALLOC_COSTLY_ORDER into several descriptors, and devices that
take only one of them lose such packets without a word: vhost-device-vsock
0.3, libkrun and Cloud Hypervisor before 2026.
"""

_BACKLOG = 128


def listen(port: int) -> socket.socket:
    """A listening, non-blocking stream socket.

    Raises OSError: EAFNOSUPPORT on a kernel without vsock, EADDRINUSE when
    the port is taken. A kernel without a transport still listens; its first
    transport makes the port reachable.
    """
    where = f"vsock port {port}"
    try:
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise OSError(error.errno, f"socket: {error.strerror}", where) from None
    try:
        listener.bind((ANY_CID, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"bind, listen: {error.strerror}", where) from None
    return listener


def peer_cid(address: tuple[int, int]) -> int:
    """The CID in an address that `accept` returned."""
    return address[0]


def is_host(address: tuple[int, int]) -> bool:
    """Whether an accepted peer is the host; other VMs and the guest itself are not."""
    return peer_cid(address) == HOST_CID
